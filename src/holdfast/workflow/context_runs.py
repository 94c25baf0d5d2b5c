"""The part of the context that starts, watches and controls other runs."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from holdfast.core.checks import check_flag
from holdfast.core.durations import Duration
from holdfast.core.facts import Watch
from holdfast.kernel.startable import Startable
from holdfast.workflow.channels import Channel
from holdfast.workflow.context_base import ContextBase

if TYPE_CHECKING:
    from holdfast.kernel.requests import ChildOptions
    from holdfast.workflow.children import Child
    from holdfast.workflow.run_events import RunEvent

R = TypeVar("R")
T = TypeVar("T")


class OtherRunsContext(ContextBase):
    """Children, watched runs, and control requests to other runs."""

    # --- children

    @overload
    def run(
        self, child: Startable[None, R], params: None = ..., **options: Unpack[ChildOptions]
    ) -> Coroutine[None, None, R]: ...

    @overload
    def run(self, child: Startable[T, R], params: T, **options: Unpack[ChildOptions]) -> Coroutine[None, None, R]: ...

    @overload
    def run(self, child: str, params: Any = ..., **options: Unpack[ChildOptions]) -> Coroutine[None, None, Any]: ...

    def run(
        self, child: Startable[Any, Any] | str, params: Any = None, **options: Unpack[ChildOptions]
    ) -> Coroutine[None, None, Any]:
        """Run another workflow as a child and wait for its result. Raises ``ChildError`` if it does not complete.

        If this call is cancelled, the child is cancelled too; with ``wait_for_cancellation`` the call then waits until
        the child has ended.
        """
        return self._machine.processes.children.run(child, params, **options)

    @overload
    def spawn(
        self, child: Startable[None, R], params: None = ..., *, link: bool = ..., **options: Unpack[ChildOptions]
    ) -> Coroutine[None, None, Child[R]]: ...

    @overload
    def spawn(
        self, child: Startable[T, R], params: T, *, link: bool = ..., **options: Unpack[ChildOptions]
    ) -> Coroutine[None, None, Child[R]]: ...

    @overload
    def spawn(
        self, child: str, params: Any = ..., *, link: bool = ..., **options: Unpack[ChildOptions]
    ) -> Coroutine[None, None, Child[Any]]: ...

    def spawn(
        self,
        child: Startable[Any, Any] | str,
        params: Any = None,
        *,
        link: bool = False,
        **options: Unpack[ChildOptions],
    ) -> Coroutine[None, None, Child[Any]]:
        """Start another workflow as a child. The child is stored when this returns; its end is an ``Exit`` event."""
        return self._machine.processes.children.start(child, params, link=link, **options)

    # --- watching

    @property
    def events(self) -> Channel[RunEvent]:
        """The channel of ``Exit`` and ``LinkDown`` events of watched runs and ``Cancel`` requests to this run."""
        return self._machine.processes.events.channel

    @property
    def trap_links(self) -> bool:
        """True if the failure of a linked run is a ``LinkDown`` in ``ctx.events``; otherwise this run fails with it."""
        return self._machine.processes.watches.trap_links

    @trap_links.setter
    def trap_links(self, trap: bool) -> None:
        self._machine.processes.watches.trap_links = check_flag("trap_links", trap)

    def monitor(self, pid: str) -> Coroutine[None, None, None]:
        """Receive an ``Exit`` in ``ctx.events`` when a run ends; at once if it has ended already."""
        return self._machine.processes.watches.watch(pid, Watch.MONITOR)

    def unmonitor(self, pid: str) -> Coroutine[None, None, None]:
        return self._machine.processes.watches.unwatch(pid, Watch.MONITOR)

    def link(self, pid: str) -> Coroutine[None, None, None]:
        """Link this run and another: if one fails, the other fails too, unless it traps links."""
        return self._machine.processes.watches.watch(pid, Watch.LINK)

    def unlink(self, pid: str) -> Coroutine[None, None, None]:
        return self._machine.processes.watches.unwatch(pid, Watch.LINK)

    # --- control

    def cancel(
        self, pid: str, reason: str | None = None, deadline: Duration | None = None
    ) -> Coroutine[None, None, None]:
        """Request a run's cancellation. The run may clean up; at the deadline it is terminated."""
        return self._machine.processes.control.cancel(pid, reason, deadline)

    def terminate(self, pid: str, reason: str | None = None) -> Coroutine[None, None, None]:
        """End a run at once; its code does not clean up."""
        return self._machine.processes.control.terminate(pid, reason)
