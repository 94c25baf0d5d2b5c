"""What a call reads is found by an index, and does not grow with what is stored."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import pytest

from holdfast.core.model import Status
from holdfast.store.postgres import claim, commit, leases, reads, send
from holdfast.store.postgres.tx import Tx
from holdfast.store.protocol import ClaimRequest, Finish, ListQuery, NewEvent, NewRun, PageQuery, TaskRef
from store.world import FLOW, LEASE, World, line, result, turn, waiting

READ = """
    SELECT relname, seq_scan, coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0)
      FROM pg_stat_xact_user_tables WHERE schemaname = 'holdfast'
"""
SMALL = {"holdfast_worker", "holdfast_receipt"}
"""A row for each worker or line of commits, however much is stored."""


class Reading:
    """Calls on one connection, and what PostgreSQL says they read."""

    def __init__(self, connection: asyncpg.Connection, world: World) -> None:
        self._connection = connection
        self._world = world

    async def of(self, work: Callable[[Tx, Any], Awaitable[object]], argument: Any, *, scans: bool = False) -> int:
        """How many rows; a scan of a whole table is a failure, unless they are so small that it is the quickest."""
        await self._connection.execute("SELECT pg_stat_force_next_flush()")  # or earlier calls would be counted too
        await self._connection.execute("BEGIN")
        tx = Tx(self._connection, "holdfast", await self._world.now(), "me")
        await work(tx, argument)
        found = await self._connection.fetch(READ)
        await self._connection.execute("ROLLBACK")
        rows = 0
        for table, scanned, read in (row.values() for row in found):
            if table not in SMALL:
                assert scans or scanned == 0, f"{table} was scanned"
                rows += read
        return rows


CALLS: dict[str, tuple[Callable[[Tx, Any], Awaitable[object]], Callable[[TaskRef], Any]]] = {
    "claim": (
        claim.claim,
        lambda _: claim.Claiming(ClaimRequest("w9", LEASE, 10, ["default"], frozenset([FLOW, "other"])), 1, []),
    ),
    "commit": (
        commit.together,
        lambda task: commit.Batch(
            [turn(task, facts=[result("new")], logs=[line("l")], then=waiting("go"))], commit.Receipt(0, 1)
        ),
    ),
    "finish": (
        commit.together,
        lambda task: commit.Batch([turn(task, then=Finish(Status.COMPLETE))], commit.Receipt(0, 1)),
    ),
    "release": (leases.release, lambda task: [task]),
    "send": (send.send, lambda _: [send.Sending(NewEvent(FLOW, "mine", "go"), 1)]),
    "reap": (leases.reap, lambda _: 3),
    "signals": (leases.signals, lambda _: "holder"),
    "heartbeat": (leases.heartbeat, lambda _: leases.Beat("holder", LEASE)),
    "find": (reads.find, lambda _: reads.Which(FLOW, "mine", None)),
    "load": (reads.load, lambda task: task.run),
    "events": (reads.events, lambda task: PageQuery(task.run, limit=5, descending=True)),
    "logs": (reads.logs, lambda task: PageQuery(task.run, limit=5)),
    "list": (reads.list_runs, lambda _: ListQuery(limit=5)),
    "list of one workflow": (reads.list_runs, lambda _: ListQuery(FLOW, limit=5)),
    "list by status": (reads.list_runs, lambda _: ListQuery(status=Status.WAITING, limit=5)),
    "list of one by status": (reads.list_runs, lambda _: ListQuery(FLOW, Status.COMPLETE, limit=5)),
}


@pytest.mark.parametrize("analyzed", [True, False])
async def test_what_is_read_does_not_grow_with_what_is_stored(
    world: World, other: asyncpg.Connection, analyzed: bool
) -> None:
    await world.create("held", owner="holder", lease_ms=10**9)
    task = await world.begin("mine")  # by one who will hold many
    await world.commit(task, facts=[result("s")], logs=[line("l")])
    reading = Reading(other, world)
    await _fill(world, 30)
    small = {name: await reading.of(work, argument(task), scans=True) for name, (work, argument) in CALLS.items()}
    await _fill(world, 2_000)
    if analyzed:
        await other.execute("ANALYZE")

    large = {name: await reading.of(work, argument(task)) for name, (work, argument) in CALLS.items()}

    for name, rows in large.items():
        assert rows <= small[name] + 5, (name, small[name], rows)


async def _fill(world: World, n: int) -> None:
    """n more runs each that are due, sleep, wait, are held, and have ended."""
    created = await world.store.create(
        [NewRun(FLOW, f"{n}-{kind}-{i}", owner=_owner(kind), lease_ms=LEASE) for kind in range(5) for i in range(n)]
    )
    tasks = [TaskRef(one.run.run, 0, "w1", one.epoch) for one in created]
    later = await world.now() + 10**6
    ends: list[Any] = [None, waiting(run_at=later), waiting("go"), None, Finish(Status.COMPLETE)]
    await world.store.commit(
        [
            turn(task, facts=[result("s")], logs=[line("l")], then=ends[i // n])
            for i, task in enumerate(tasks)
            if _owner(i // n)
        ]
    )
    await world.store.send([NewEvent(FLOW, f"{n}-2-{i}", "other") for i in range(n)])


def _owner(kind: int) -> str | None:
    return "w1" if kind else None
