"""Watches of a run on other runs: monitors and links."""

from __future__ import annotations

from typing import Any

from holdfast.core.model import StepType
from holdfast.errors import ChildError, LinkDownError
from holdfast.kernel.requests import Requests
from holdfast.store.protocol import StoredEvent, UnwatchRun, Watch, WatchRun
from holdfast.workflow.child_ends import ChildEnds, End
from holdfast.workflow.execution import Execution
from holdfast.workflow.operations import Operations, check_reached
from holdfast.workflow.run_events import Exit, LinkDown, RunEvents


class Watches:
    """The watches of one run. The store monitors every child; ends of quiet children are not reported."""

    def __init__(
        self,
        requests: Requests,
        operations: Operations,
        events: RunEvents,
        ends: ChildEnds,
        execution: Execution,
        *,
        trap_links: bool,
    ) -> None:
        self.trap_links = trap_links
        self._requests = requests
        self._operations = operations
        self._events = events
        self._ends = ends
        self._execution = execution
        self._quiet: set[str] = set()
        """Pids of runs whose end is not reported as an ``Exit`` in ``ctx.events``."""

    def set_quiet(self, pid: str, *, quiet: bool) -> None:
        (self._quiet.add if quiet else self._quiet.discard)(pid)

    async def watch(self, pid: str, watch: Watch) -> None:
        if watch is Watch.MONITOR:
            quiet = pid in self._quiet
            self._quiet.discard(pid)
            if (end := self._ends.get(pid)) is not None:
                if quiet:
                    self._emit_exit(pid, end, None)
                return
        await self.request(pid, watch)

    async def request(self, pid: str, watch: Watch) -> None:
        """Watch a run in the store."""
        kind = StepType.LINK if watch is Watch.LINK else StepType.MONITOR
        operation = WatchRun(*self._requests.address(pid), watch)
        check_reached(await self._operations.perform_next(kind, pid, operation), pid, ended=False)

    async def unwatch(self, pid: str, watch: Watch) -> None:
        kind = StepType.UNLINK if watch is Watch.LINK else StepType.UNMONITOR
        workflow, instance_id = self._requests.address(pid)
        if watch is Watch.MONITOR:
            self._quiet.add(pid)
            if self._ends.is_child(pid):
                return  # keep the watch: the code may still wait for the child's result
        await self._operations.perform_next(kind, pid, UnwatchRun(workflow, instance_id, watch))

    # --- ends of watched runs

    def ended(self, pid: str, end: End, watch: Watch, stored: StoredEvent) -> bool:
        """Handle the end of a watched run; True if its event is consumed only when the code receives it."""
        consumed_later = False
        if watch & Watch.LINK and end.error is not None:
            consumed_later = self._handle_link_failure(pid, end.error, stored)
        if watch & Watch.MONITOR and pid not in self._quiet:
            consumed_later = self._emit_exit(pid, end, None if consumed_later else stored) or consumed_later
        return consumed_later

    def ended_early(self, pid: str, end: End) -> None:
        """Report the end of a child that was delivered before the code requested the start of the child."""
        if pid not in self._quiet:
            self._emit_exit(pid, end, None)

    def _handle_link_failure(self, pid: str, error: ChildError, stored: StoredEvent) -> bool:
        if self.trap_links:
            return self._events.emit(LinkDown(pid, error), stored)
        if error.type == LinkDownError.__name__:
            why = error.message  # names the run that failed first
        else:
            why = f"linked run {pid} ended {error.status}: {error.type}: {error.message}"
        self._execution.fail(LinkDownError(why))
        return False

    def _emit_exit(self, pid: str, end: End, stored: StoredEvent | None) -> bool:
        return self._events.emit(Exit(pid, self._result(pid, end), end.error), stored)

    def _result(self, pid: str, end: End) -> Any:
        if end.error is not None:
            return None
        try:
            return self._requests.definition(pid.partition("/")[0]).decode_output(end.output)
        except Exception:  # the workflow is not registered here, or has another output type
            return end.output

    def prepare_successor(self) -> None:
        """Queue watches for the successor of ``continue_as_new``, which receives the exits that this run did not."""
        for event in self._events.early_ends():
            watch = Watch.MONITOR if isinstance(event, Exit) else Watch.LINK
            self._operations.queue(StepType.WATCH, event.pid, WatchRun(*self._requests.address(event.pid), watch))
        for pid in self._ends.running():
            if pid in self._quiet:  # no Exit for the successor either
                unwatch = UnwatchRun(*self._requests.address(pid), Watch.MONITOR)
                self._operations.queue(StepType.WATCH, pid, unwatch)
