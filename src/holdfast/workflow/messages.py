"""Messages between runs: sends, asks and replies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from holdfast.core import durations
from holdfast.core.durations import Duration
from holdfast.core.model import StepType, from_ms
from holdfast.core.show import shown
from holdfast.errors import EventInvalidError, InstanceNotFoundError, NotAskedError, Rejected
from holdfast.kernel.requests import Requests
from holdfast.store.protocol import NewEvent, Reply, ReplyToEvent, RunRecord, StoredEvent, Watch, WatchRun
from holdfast.workflow.mailbox import Consume, plain_payload
from holdfast.workflow.operations import Operations, check_reached
from holdfast.workflow.waiters import Waiters

_FOREVER = "365 days"

_Reply = tuple[bool, Any]
"""True if the ask was accepted, and the payload of the reply."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message to this run. ``sender`` is the pid of the sending run; None if no run sent the message."""

    id: str
    topic: str
    payload: Any
    sender: str | None
    sent_at: datetime
    _messages: Messages = field(repr=False, compare=False)
    _stored: StoredEvent = field(repr=False, compare=False)

    async def reply(self, payload: Any = None) -> None:
        """Reply to the sender. Raises ``NotAskedError`` if the sender expects no reply, or has one already."""
        await self._messages.reply(self._stored, payload, ok=True)

    async def reject(self, reason: Any = None) -> None:
        """Refuse an ask. The ``ask`` call of the sender raises ``Rejected``."""
        await self._messages.reply(self._stored, reason, ok=False)


class Messages:
    """The messages of one run."""

    def __init__(
        self,
        run: RunRecord,
        requests: Requests,
        operations: Operations,
        waiters: Waiters,
        decode_payload: Callable[[StoredEvent], Any],
        consume: Consume,
    ) -> None:
        """``decode_payload`` raises ``EventInvalidError`` if a payload does not match its declared type."""
        self._run_number = run.replayed_number
        self._pid = f"{run.workflow}/{run.instance_id}"
        self._requests = requests
        self._operations = operations
        self._waiters = waiters
        self._decode_declared = decode_payload
        self._consume = consume
        self._open_asks: dict[str, dict[str, None]] = {}
        """Keys of the asks without a reply, by the pid of the run that was asked."""
        self._unrequested: dict[str, str] = {}
        """The run that was asked, by the key of a recorded ask that the code has not requested yet."""
        self._early_replies: dict[str, _Reply | None] = {}
        """Replies to such asks, by key; None: the run has ended without a reply."""
        self._replied_events: set[int] = set()

    # --- received by this run

    def message(self, stored: StoredEvent) -> Message:
        message_id, sent_at = f"{self._run_number}:{stored.n}", from_ms(stored.created_at)
        return Message(message_id, stored.type, self._decode_payload(stored), stored.sender, sent_at, self, stored)

    def _decode_payload(self, stored: StoredEvent) -> Any:
        try:
            return self._decode_declared(stored)
        except EventInvalidError as error:
            if stored.ask is not None:  # the code never gets the message, so it cannot reply
                operation = ReplyToEvent(stored.n, Reply(False, self._requests.payload(error.message)))
                self._operations.queue(StepType.REPLY, _described(stored), operation)
            raise

    async def reply(self, stored: StoredEvent, payload: Any, *, ok: bool) -> None:
        if stored.ask is None:
            raise NotAskedError(f"the sender of message {stored.type!r} does not wait for a reply")
        if stored.n in self._replied_events:
            raise NotAskedError(f"message {stored.type!r} has a reply already")
        operation = ReplyToEvent(stored.n, Reply(ok, self._requests.payload(payload)))
        name = _described(stored)
        key = self._operations.next_key(StepType.REPLY, name)
        self._replied_events.add(stored.n)
        await self._operations.perform(key, StepType.REPLY, name, operation)

    # --- sent by this run

    async def send(self, pid: str, topic: str, payload: Any) -> None:
        name = f"{topic} to {pid}"
        key = self._operations.next_key(StepType.SEND, name)
        event = self._event(key, pid, topic, payload)
        check_reached(await self._operations.perform(key, StepType.SEND, name, event), pid)

    async def ask(self, pid: str, topic: str, payload: Any, timeout: Duration | None) -> Any:
        name = f"{topic} of {pid}"
        key = self._operations.next_key(StepType.ASK, name)
        event = replace(self._event(key, pid, topic, payload), ask=f"{self._run_number}/{key}")
        seconds = durations.to_ms(_FOREVER if timeout is None else timeout, "timeout") / 1000
        self._watch_for_end(pid)
        check_reached(await self._operations.perform(key, StepType.ASK, name, event, opens=True), pid)
        self._unrequested.pop(key, None)
        self._open_asks.setdefault(pid, {})[key] = None
        try:
            async with asyncio.timeout(seconds):
                reply = await self._reply(key)
        except TimeoutError:
            raise TimeoutError(f"{pid} did not reply to {topic!r} in time") from None
        finally:
            self._open_asks.get(pid, {}).pop(key, None)
        if reply is None:
            raise InstanceNotFoundError(f"run {pid} has ended without a reply to {topic!r}")
        ok, value = reply
        if not ok:
            raise Rejected(f"{pid} rejected {topic!r}: {shown(value)}", value)
        return value

    def _event(self, key: str, pid: str, topic: str, payload: Any) -> NewEvent:
        """The event to be sent under a key. An event that does not match its type is refused before it is recorded."""
        recorded = self._operations.is_recorded(key)
        return self._requests.event_to(pid, topic, payload, sender=self._pid, recorded=recorded)

    async def _reply(self, key: str) -> _Reply | None:
        """Wait for the reply to an ask."""
        if key in self._early_replies:
            return self._early_replies.pop(key)
        reply: _Reply | None = await self._waiters.wait(key)
        return reply

    def _watch_for_end(self, pid: str) -> None:
        """Watch a run that is asked, once: after its end no reply can come."""
        if pid not in self._open_asks:
            self._open_asks[pid] = {}
            self._operations.queue(StepType.WATCH, pid, WatchRun(*self._requests.address(pid), Watch.ASK))

    # --- replies to this run

    def replied(self, stored: StoredEvent) -> None:
        """Deliver a reply to the ask that waits for it."""
        key = self.ask_key(stored)
        self._consume(stored, stored.type)
        if key is not None:
            content = plain_payload(stored)
            self._resolve(key, (content["ok"], content["value"]))

    def ask_key(self, stored: StoredEvent) -> str | None:
        """The key of the ask that a reply belongs to; None if an earlier run of this instance asked."""
        number, _, key = plain_payload(stored)["ask"].partition("/")
        return key if number == str(self._run_number) else None

    def end_asks(self, pid: str) -> None:
        """End the asks to a run that has ended: it will not reply."""
        unrequested = [key for key, asked in self._unrequested.items() if asked == pid]
        for key in [*self._open_asks.pop(pid, ()), *unrequested]:
            self._resolve(key, None)

    def ask_recorded(self, name: str, key: str) -> None:
        """Note a recorded ask that the code has not requested yet: its reply may be delivered first."""
        self._unrequested[key] = name.rpartition(" of ")[2]

    def _resolve(self, key: str, reply: _Reply | None) -> None:
        """Resume the code that waits for the reply to an ask, or keep the reply until the code asks."""
        if self._unrequested.pop(key, None) is None:
            self._waiters.resolve(key, reply)
        else:
            self._early_replies[key] = reply


def _described(stored: StoredEvent) -> str:
    return f"{stored.type} from {stored.sender or 'outside'}"
