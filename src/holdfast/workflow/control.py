"""Control requests of a run to other runs, and cancel requests to itself."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from holdfast.core.checks import check_optional_text
from holdfast.core.durations import Duration
from holdfast.core.model import StepType, from_ms
from holdfast.kernel.requests import Requests
from holdfast.store.protocol import CancelRun, StoredEvent, TerminateRun
from holdfast.workflow.execution import Execution
from holdfast.workflow.mailbox import Consume, plain_payload
from holdfast.workflow.operations import Operations, check_controlled
from holdfast.workflow.run_events import Cancel, RunEvents


class Control:
    """The control requests of one run."""

    def __init__(
        self,
        requests: Requests,
        operations: Operations,
        events: RunEvents,
        execution: Execution,
        consume: Consume,
        *,
        raises_cancel: bool,
    ) -> None:
        self._requests = requests
        self._operations = operations
        self._events = events
        self._execution = execution
        self._consume = consume
        self._raises_cancel = raises_cancel
        self._cancelled = False

    async def cancel(self, pid: str, reason: str | None, deadline: Duration | None) -> None:
        operation = self._cancel_run(pid, reason, deadline)
        check_controlled(await self._operations.perform_next(StepType.CANCEL, pid, operation), pid, "cancelled")

    def queue_cancel(self, pid: str, reason: str, *, children_only: bool) -> None:
        """Cancel a run without waiting for the result. ``children_only``: only if it is a child of this instance."""
        operation = replace(self._cancel_run(pid, reason, None), children_only=children_only)
        self._operations.queue(StepType.CANCEL, pid, operation)

    def _cancel_run(self, pid: str, reason: str | None, deadline: Duration | None) -> CancelRun:
        workflow, instance_id = self._requests.address(pid)
        return CancelRun(workflow, instance_id, *self._requests.cancellation(reason, deadline))

    async def terminate(self, pid: str, reason: str | None) -> None:
        reason = check_optional_text("reason", reason)
        operation = TerminateRun(*self._requests.address(pid), reason)
        check_controlled(await self._operations.perform_next(StepType.TERMINATE, pid, operation), pid, "terminated")

    def cancel_requested(self, stored: StoredEvent) -> None:
        """Handle a request to cancel this run."""
        content = plain_payload(stored)
        reason, deadline_ms = content["reason"], content["deadlineMs"]
        deadline = None
        if deadline_ms is not None:
            deadline = from_ms(stored.created_at) + timedelta(milliseconds=deadline_ms)
        # A cancellation that is raised is consumed now, so that it does not cancel the successor too.
        if not self._events.emit(Cancel(reason, deadline), None if self._raises_cancel else stored):
            self._consume(stored, stored.type)
        if self._raises_cancel and not self._cancelled:
            self._cancelled = True
            self._execution.cancel(reason)
