"""Operations of a run on other runs, and the events that come back: messages, children, watching, control.

The store executes an operation in the commit that records it. Ends, replies and cancel requests come back as events
with types of the engine's own. Both are recorded as facts, so a replay repeats them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from holdfast.core.model import StepType
from holdfast.kernel.requests import Requests
from holdfast.store.protocol import Fact, RunRecord, StoredEvent, Watch
from holdfast.workflow.child_ends import ChildEnds, End
from holdfast.workflow.children import Children
from holdfast.workflow.control import Control
from holdfast.workflow.execution import Execution
from holdfast.workflow.mailbox import Consume, plain_payload
from holdfast.workflow.messages import Messages
from holdfast.workflow.operations import Operations
from holdfast.workflow.run_events import RunEvents
from holdfast.workflow.waiters import Waiters
from holdfast.workflow.waits import Waits
from holdfast.workflow.watches import Watches


class ProcessOptions(Protocol):
    """The options of a workflow that concern other runs."""

    raises_cancel: bool
    trap_links: bool

    @property
    def decode_payload(self) -> Callable[[StoredEvent], Any]: ...


class Processes:
    """The relations of one run with other runs."""

    def __init__(
        self,
        options: ProcessOptions,
        run: RunRecord,
        values: Mapping[str, Any],
        requests: Requests,
        operations: Operations,
        waits: Waits,
        execution: Execution,
        consume: Consume,
    ) -> None:
        """``values``: the run's propagated context."""
        self._consume = consume
        self._waiters = Waiters(waits.event_future)
        self.events = RunEvents(consume, waits.poll)
        self.ends = ChildEnds(self._waiters)
        self.messages = Messages(run, requests, operations, self._waiters, options.decode_payload, consume)
        self.watches = Watches(requests, operations, self.events, self.ends, execution, trap_links=options.trap_links)
        self.control = Control(
            requests, operations, self.events, execution, consume, raises_cancel=options.raises_cancel
        )
        self.children = Children(run, values, requests, operations, self.ends, self.watches, self.control)

    @property
    def has_waiters(self) -> bool:
        """True if the code waits for a run's end or reply, or to receive from ``ctx.events``."""
        return bool(self._waiters) or self.events.awaited

    def awaited(self) -> list[tuple[str, list[asyncio.Future[Any]]]]:
        """Pids of children and keys of asks that code waits for, and ``ctx.events``, each with the waiting futures."""
        return self._waiters.awaited() + self.events.receiving()

    def start_recorded(self, fact: Fact) -> None:
        """Note a recorded child or ask that the code has not requested yet: the end or reply may be delivered first.

        The code of a fork with other results takes another path than that of its origin, and a new release may have
        steps before the request.
        """
        if fact.kind == StepType.CHILD:
            self.ends.start_recorded(fact.name or "", fact.key)
        elif fact.kind == StepType.ASK:
            self.messages.ask_recorded(fact.name or "", fact.key)

    def exited(self, stored: StoredEvent) -> None:
        """Handle the end of a watched run."""
        pid, content = stored.sender or "", plain_payload(stored)
        end, watch = End.of(pid, content), Watch(content["watch"])
        if not self.ends.record(pid, end):
            watch &= ~Watch.MONITOR  # reported when the code starts the child
        if watch & Watch.ASK:
            self.messages.end_asks(pid)
        if not self.watches.ended(pid, end, watch, stored):
            self._consume(stored, stored.type)

    def prepare_successor(self) -> None:
        """Queue the operations by which the successor of ``continue_as_new`` gets unreceived exit events."""
        self.watches.prepare_successor()

    def clear(self) -> None:
        """Break reference cycles when the machine is dropped."""
        self.events.clear()
        self.ends.clear()
