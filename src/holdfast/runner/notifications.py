"""Notifications of this process about what a worker has written."""

from __future__ import annotations

from holdfast.kernel.notify import Hub
from holdfast.store.protocol import Committed, Finish, Signal, single_of


def run_ended(hub: Hub, run: int, finish: Finish, options: bytes | None = None) -> None:
    """Notify callers that wait for the end of the run. If there is a successor, the callers then wait for its end.

    ``options``: of the run. After the end of a singleton, the next one may be due.
    """
    if single_of(options) is not None:
        hub.work()
    if finish.next is None:
        hub.ended(run, finish)
    else:
        hub.ended(run, None)
        hub.work(finish.next.run_at)


def committed(hub: Hub, done: Committed) -> None:
    """Notify this process of the other runs that a commit started, woke, ended or replied to."""
    if done.started:
        hub.work()
    for sent in done.sent:
        if sent.run is not None and sent.woken:
            hub.work()
            hub.signal(sent.run.run, Signal.EVENTS)
    if done.affected is not None:
        hub.affected(done.affected)
    if done.operation_results:
        hub.replied()
