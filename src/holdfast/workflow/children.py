"""Children: runs that workflow code starts."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from holdfast.core.checks import check_enum, check_flag
from holdfast.core.model import StepType
from holdfast.core.show import shown
from holdfast.errors import InstanceExistsError, InstanceTerminalError, InvalidOptionError
from holdfast.kernel.definition import Definition
from holdfast.kernel.requests import CHILD_OPTIONS, Requests, check_known
from holdfast.store.protocol import NewRun, OnReuse, ParentClose, RequestResult, RunRecord, Watch
from holdfast.workflow.child_ends import ChildEnds
from holdfast.workflow.control import Control
from holdfast.workflow.libraries import shielded
from holdfast.workflow.operations import Operations
from holdfast.workflow.watches import Watches

R = TypeVar("R", covariant=True)


class Child(Generic[R]):
    """A child that was started. It is monitored: its end is an ``Exit`` in ``ctx.events``."""

    def __init__(self, ends: ChildEnds, pid: str, definition: Definition, *, existed: bool) -> None:
        """``existed``: the run existed before, and the start of the child found it."""
        self.pid = pid
        self.existed = existed
        self._ends = ends
        self._definition = definition

    def __repr__(self) -> str:
        return f"<Child {self.pid}>"

    @property
    def id(self) -> str:
        return self.pid.partition("/")[2]

    async def result(self) -> R:
        """Wait for the child's end and return its result. Raises ``ChildError`` if it did not complete."""
        end = await self._ends.wait(self.pid)
        try:
            if end.error is not None:
                raise end.error
            output: R = self._definition.decode_output(end.output)
            return output
        finally:
            del end  # an error's traceback refers to this frame: the frame must not refer to the error


class Children:
    """Starts the children of one run."""

    def __init__(
        self,
        run: RunRecord,
        values: Mapping[str, Any],
        requests: Requests,
        operations: Operations,
        ends: ChildEnds,
        watches: Watches,
        control: Control,
    ) -> None:
        """``values``: the run's propagated context."""
        self._run = run
        self._pid = f"{run.workflow}/{run.instance_id}"
        self._values = values
        self._requests = requests
        self._operations = operations
        self._ends = ends
        self._watches = watches
        self._control = control

    async def start(
        self,
        workflow: Any,
        params: Any,
        *,
        link: bool = False,
        quiet: bool = False,
        parent_close: str = "terminate",
        context: Mapping[str, Any] | None = None,
        eager: bool = True,
        **options: Any,
    ) -> Child[Any]:
        """Start a child. ``quiet``: its end is not reported as an ``Exit`` in ``ctx.events``."""
        check_flag("link", link)
        definition = self._requests.definition(workflow)
        key = self._operations.next_key(StepType.CHILD, definition.name)
        recorded = self._operations.recorded_id(key)
        if recorded is not None or options.get("id") is None:
            options["id"] = recorded or self._default_id(key)
        if context is not None and not isinstance(context, Mapping):
            raise InvalidOptionError(f"context must be a mapping with text as keys, not {shown(context)}")
        values = {**self._values, **(context or {})}
        check_known(options, CHILD_OPTIONS)
        if options.get("on_reuse") == OnReuse.RETRY_IF_FAILED:
            raise InvalidOptionError("on_reuse='retry_if_failed' is not for children; the retry of a run retries them")
        new = self._requests.new_run(definition.name, params, context=values or None, **options)
        self._as_child(new, parent_close, eager=eager)
        pid = f"{new.workflow}/{new.instance_id}"
        opens = not self._ends.expects(pid)  # otherwise the end of the child is delivered under its first key
        result = await self._operations.perform(key, StepType.CHILD, pid, new, opens=opens)
        _check_started(result, pid)
        end = self._ends.started(pid, key, opens=opens)
        self._watches.set_quiet(pid, quiet=quiet)
        if end is not None:
            self._watches.ended_early(pid, end)
        if result is RequestResult.EXISTING:
            await self._watches.request(pid, Watch.MONITOR)
        if link:
            await self._watches.request(pid, Watch.LINK)
        return Child(self._ends, pid, definition, existed=result is RequestResult.EXISTING)

    def _default_id(self, key: str) -> str:
        """The default id of a child: unique for each run and call in its code, the same on every replay."""
        run = self._run
        return hashlib.sha256(f"{run.seed}/{self._pid}/{run.number}/{key}".encode()).hexdigest()[:32]

    def _as_child(self, new: NewRun, parent_close: str, *, eager: bool) -> None:
        check_flag("eager", eager)
        new.parent_close = check_enum("parent_close", parent_close, ParentClose)
        new.parent, new.parent_run, new.sender = self._pid, self._run.run, self._pid
        new.eager = eager

    async def run(self, workflow: Any, params: Any, *, wait_for_cancellation: bool = False, **options: Any) -> Any:
        """Start a child and wait for its end. If the wait is cancelled, the child is cancelled too.

        The fork of a run does not cancel a child that its origin started.
        """
        check_flag("wait_for_cancellation", wait_for_cancellation)
        child = await self.start(workflow, params, quiet=True, **options)
        try:
            return await child.result()
        except asyncio.CancelledError:
            if child.pid not in self._ends:
                reason = "the parent that awaited this run was cancelled"
                self._control.queue_cancel(child.pid, reason, children_only=not child.existed)
                if wait_for_cancellation:
                    with shielded():
                        await self._ends.wait(child.pid)
            raise


def _check_started(result: RequestResult, pid: str) -> None:
    if result is RequestResult.EXISTS:
        raise InstanceExistsError(f"run {pid} exists already")
    if result is RequestResult.ENDED:
        raise InstanceTerminalError(f"run {pid} has ended, so the start messages cannot be delivered")
