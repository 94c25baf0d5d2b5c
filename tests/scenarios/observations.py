"""Observations of runs that must be the same with a worker lost after any commit, also of runs that do not complete.

``Harness.crash_everywhere`` compares results. ``observe_with_crashes`` compares whatever a test observes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from holdfast import Handle
from holdfast.testing import Harness

Observe = Callable[[Harness, Handle[Any]], Awaitable[Any]]
Drive = Callable[[Harness, Handle[Any]], Awaitable[None]]


async def observe_with_crashes(
    h: Harness, workflow: Any, params: Any = None, *, observe: Observe, drive: Drive | None = None, **options: Any
) -> Any:
    """Return what ``observe`` returns after the run has ended, checked to be the same with a crash at any commit."""

    async def run_once(crash_after: int | None) -> tuple[Any, int]:
        async with Harness(h._app, seed=h._seed, store=h._make_store) as harness:
            run = await harness.start(workflow, params, id="everywhere", **options)
            harness._store.drop_after = crash_after
            await harness._run_to_end(run, drive)
            await run_until_idle(harness)
            return await observe(harness, run), harness._store.commits

    expected, commits = await run_once(None)
    for n in h._crash_points(commits):
        observed, _ = await run_once(n)
        assert observed == expected, (
            f"after the worker was lost right after commit {n} of {commits}: {observed!r} instead of {expected!r}"
        )
    return expected


async def run_until_idle(h: Harness) -> None:
    """Run until no task is due, with a new worker for each lost one."""
    await h.run_until_idle()
    while h._store.dropped:
        await h._lose_worker()
        await h.run_until_idle()


async def end_of(h: Harness, run: Handle[Any]) -> tuple[str, Any, str | None, str | None]:
    """Status, output, error name and error message of a run."""
    status = await run.status()
    error = status.error
    return status.status, status.output, error.name if error else None, error.message if error else None


async def statuses(h: Harness, *pids: str) -> dict[str, str]:
    """Statuses of runs by their pids."""
    return {pid: (await (await at(h, pid)).status()).status for pid in pids}


async def at(h: Harness, pid: str) -> Handle[Any]:
    return await h.app.get(*pid.split("/", 1))


async def has_received(run: Handle[Any], topic: str) -> bool:
    """Check whether the run's mailbox has an event of this type; for drives, which are called several times."""
    return any(event.type == topic for event in (await run.history()).events)


async def cancel_once(run: Handle[Any], reason: str | None = None, deadline: str | None = None) -> None:
    if not await has_received(run, "@cancel"):
        await run.cancel(reason, deadline)
