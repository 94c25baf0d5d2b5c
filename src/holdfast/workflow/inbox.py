"""Chooses the next event of a run, passes it to a wait, a channel or ``Processes``, and records its arrival as a fact.

The mailbox and the processes of a run are created on first use: most runs need neither.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from holdfast.core import codec
from holdfast.core.model import Status, StepType
from holdfast.store.protocol import CANCEL, EXIT, REPLY, Delivery, Fact, FactState, StoredEvent
from holdfast.workflow.keys import ANONYMOUS, Keys
from holdfast.workflow.mailbox import Consume, Mailbox
from holdfast.workflow.pending import DecisionBuffer
from holdfast.workflow.position import Position
from holdfast.workflow.processes import Processes
from holdfast.workflow.wait_queue import WaitQueue
from holdfast.workflow.waits import Waits

MORE_FOLLOW = 1
"""Value of ``attempts`` in the fact of an arrival: the next event is delivered before the code runs."""
_SYSTEM = "@"
"""Prefix of the engine's own event types."""


class Inbox:
    """The events of one run on their way to waits, channels and ``Processes``."""

    __slots__ = (
        "_buffer",
        "_keys",
        "_mailbox",
        "_make_processes",
        "_position",
        "_processes",
        "_wait_queue",
        "_waits",
        "has_mailbox",
    )

    def __init__(
        self,
        wait_queue: WaitQueue,
        keys: Keys,
        position: Position,
        buffer: DecisionBuffer,
        waits: Waits,
        make_processes: Callable[[Consume], Processes],
    ) -> None:
        self._wait_queue = wait_queue
        self._keys = keys
        self._position = position
        self._buffer = buffer
        self._waits = waits
        self._make_processes = make_processes
        self._mailbox: Mailbox | None = None
        self.has_mailbox = False
        """True if the code uses channels."""
        self._processes: Processes | None = None

    @property
    def mailbox(self) -> Mailbox:
        if self._mailbox is None:
            self._mailbox = Mailbox(self.consume, self._waits.poll)
            self.has_mailbox = True
        return self._mailbox

    @property
    def processes(self) -> Processes:
        if self._processes is None:
            self._processes = self._make_processes(self.consume)
        return self._processes

    @property
    def topics(self) -> frozenset[str]:
        """Event types that wake this run."""
        topics = self._wait_queue.topics
        return topics if self._mailbox is None else topics | self._mailbox.awaited_topics

    @property
    def awaits_runs(self) -> bool:
        """True if the code waits for another run's end or reply, or to receive from a channel of messages."""
        if self._processes is not None and self._processes.has_waiters:
            return True
        return self._mailbox is not None and bool(self._mailbox.awaited_topics)

    def awaited_channels(self) -> list[tuple[str, list[asyncio.Future[Any]]]]:
        """Topics of the channels that code waits to receive from, each with the futures of the receivers."""
        return [] if self._mailbox is None else self._mailbox.awaited_channels()

    def awaited_runs(self) -> list[tuple[str, list[asyncio.Future[Any]]]]:
        """Pids of children and keys of asks that code waits for, each with the futures of the waiting tasks."""
        return [] if self._processes is None else self._processes.awaited()

    def start_key(self, pid: str) -> str | None:
        """The key of the operation that started a child."""
        return None if self._processes is None else self._processes.ends.start_key(pid)

    # --- the next event

    def next_event(self) -> StoredEvent | None:
        """The oldest event that a wait or a channel can take now."""
        oldest = self._wait_queue.next_event(self._may_arrive)
        if self._mailbox is not None:
            # Events that were delivered to a channel, but not received, and for which there is a wait now.
            arrived = (self._mailbox.oldest(topic) for topic in self._wait_queue.topics)
            oldest = min((event for event in (oldest, *arrived) if event is not None), key=_number, default=None)
        return oldest

    def more_follow(self, event: StoredEvent, due: int | None) -> bool:
        """True if another event is to be delivered before code runs, and before anything is due."""
        following = None if event.type.startswith(_SYSTEM) else self.next_event()
        if following is None or following.type.startswith(_SYSTEM) or following.type in self._wait_queue.topics:
            return False
        return due is None or following.created_at <= due

    def _may_arrive(self, topic: str) -> bool:
        return topic.startswith(_SYSTEM) or (self._mailbox is not None and self._mailbox.has_room(topic))

    # --- delivery

    def arrival_fact(self, event: StoredEvent) -> Fact:
        """The fact of an event's arrival. The end of a child and the reply to an ask have the key of their request."""
        key, kind, ok = f"{ANONYMOUS}{StepType.MESSAGE} {event.n}", StepType.MESSAGE, True
        if event.type == EXIT and (child_key := self.processes.ends.key_of(event)) is not None:
            key, kind, ok = child_key, StepType.CHILD, _payload(event)["status"] == Status.COMPLETE
        elif event.type == REPLY and (ask := self.processes.messages.ask_key(event)) is not None:
            key, kind, ok = ask, StepType.ASK, _payload(event)["ok"]
        operation = self._keys.started_operation(key)
        return Fact(
            FactState.RESULT, key, 0, kind, self._position.wall_ms, event.created_at, seq=self._position.seq + 1,
            ok=ok, name=None if operation is None else operation.name, event=event.n, event_type=event.type,
        )  # fmt: skip

    def deliver(self, event: StoredEvent) -> None:
        if event.type == EXIT:
            self.processes.exited(event)
        elif event.type == REPLY:
            self.processes.messages.replied(event)
        elif event.type == CANCEL:
            self.processes.control.cancel_requested(event)
        else:
            self.mailbox.deliver(event)

    def redeliver(self, event: StoredEvent) -> None:
        """Deliver an event whose arrival is recorded."""
        self._wait_queue.mark_delivered(event.n)
        self.deliver(event)

    def consume(self, event: StoredEvent, by: str) -> None:
        """Count an event that the code receives, and add its delivery to the next decision."""
        self._position.count(event.payload)
        if event.delivered_at is None:  # otherwise its delivery was recorded before this replay
            self._buffer.add_delivery(Delivery(event.n, by, self._position.wall_ms))

    def remove(self, event: StoredEvent) -> None:
        """Remove an event that a wait has consumed from its channel."""
        if self._mailbox is not None:
            self._mailbox.remove(event)

    def clear(self) -> None:
        """Break reference cycles when the machine is dropped: mailbox and processes refer to the inbox."""
        if self._mailbox is not None:
            self._mailbox.clear()
        if self._processes is not None:
            self._processes.clear()
        self._mailbox = self._processes = None
        self._make_processes = _refuse_processes

    def prepare_successor(self) -> None:
        """Queue the operations by which the successor of ``continue_as_new`` gets unreceived exit events."""
        if self._processes is not None:
            self._processes.prepare_successor()


def _refuse_processes(_consume: Consume) -> Processes:
    raise RuntimeError("the machine is closed")


def _payload(event: StoredEvent) -> Any:
    return codec.plain(event.payload)


def _number(event: StoredEvent) -> int:
    return event.n
