"""Behaviour that must be the same with the worker lost after each commit, also of runs that do not end well.

``Harness.crash_everywhere`` does this for a result. Here it is done for whatever a test wants to look at.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from holdfast import Handle
from holdfast.testing import Harness

Look = Callable[[Harness, Handle[Any]], Awaitable[Any]]
Drive = Callable[[Harness, Handle[Any]], Awaitable[None]]


async def everywhere(
    h: Harness, workflow: Any, params: Any = None, *, look: Look, drive: Drive | None = None, **options: Any
) -> Any:
    """What ``look`` finds once a run has ended and all is quiet: the same wherever the worker is lost."""

    async def lived(crash_after: int | None) -> tuple[Any, int]:
        async with Harness(h._app, seed=h._seed, store=h._make_store) as one:
            run = await one.start(workflow, params, id="everywhere", **options)
            one._store.drop_after = crash_after
            await one._run_to_end(run, drive)
            await quiet(one)
            return await look(one, run), one._store.commits

    expected, commits = await lived(None)
    for n in h._crash_points(commits):
        found, _ = await lived(n)
        place = f"after the worker was lost right after commit {n} of {commits}"
        assert found == expected, f"{place}: {found!r} instead of {expected!r}"
    return expected


async def quiet(h: Harness) -> None:
    """Until nothing is due, whatever becomes of the worker."""
    await h.run_until_idle()
    while h._store.dropped:
        await h._lose_worker()
        await h.run_until_idle()


async def end_of(h: Harness, run: Handle[Any]) -> tuple[str, Any, str | None, str | None]:
    """How a run ended: status, output, name of the error, its message."""
    found = await run.status()
    error = found.error
    return found.status, found.output, error.name if error else None, error.message if error else None


async def statuses(h: Harness, *pids: str) -> dict[str, str]:
    """Of runs by their pids."""
    return {pid: (await (await at(h, pid)).status()).status for pid in pids}


async def at(h: Harness, pid: str) -> Handle[Any]:
    return await h.app.get(*pid.split("/", 1))


async def has_got(run: Handle[Any], topic: str) -> bool:
    """Whether an event of this type was ever sent to the run: for drives, which are called again and again."""
    return any(event.type == topic for event in (await run.history()).events)


async def cancelled_once(run: Handle[Any], reason: str | None = None, deadline: str | None = None) -> None:
    if not await has_got(run, "@cancel"):
        await run.cancel(reason, deadline)
