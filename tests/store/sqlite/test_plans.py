"""Every statement finds its rows by an index, and what it costs does not grow with what is stored."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import apsw
import pytest

from holdfast.core.model import Status
from holdfast.store.protocol import Finish, ListQuery, NewRun, TaskRef
from holdfast.store.sqlite import SqliteStore, migrate
from holdfast.store.sqlite.leases import reap
from holdfast.store.sqlite.reads import list_runs
from holdfast.store.sqlite.sql import groups, statements
from store.sqlite.inside import on_writer
from store.world import FLOW, LEASE, World, result, turn, waiting

# What a SCAN may run over: what the statement itself brings or builds, SQLite's own few rows, and workers.
SMALL = {"asked", "q", "w", "l", "lane", "h", "holder", "k", "known", "b", "bucket", "json_each"}
SMALL |= {"sqlite_schema", "sqlite_sequence", "holdfast_worker"}
ALL = [(group, name) for group in groups() for name in statements(group)]


@pytest.fixture(scope="module")
def database() -> apsw.Connection:
    connection = apsw.Connection(":memory:")
    migrate.migrate(connection, "x")
    return connection


def plan(connection: apsw.Connection, sql: str) -> Iterator[str]:
    numbered = [int(n) for n in re.findall(r"\?(\d+)", sql)]
    count = max(numbered, default=sql.count("?"))
    for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", (None,) * count):
        yield str(row[3])


@pytest.mark.parametrize(("group", "name"), ALL, ids=[f"{group}-{name}" for group, name in ALL])
def test_a_statement_neither_scans_nor_sorts(database: apsw.Connection, group: str, name: str) -> None:
    for step in plan(database, statements(group)[name]):
        assert "TEMP B-TREE" not in step, step
        assert "AUTOMATIC" not in step, step
        if step.startswith("SCAN ") and "CONSTANT ROW" not in step:
            assert step.split()[1] in SMALL, step


async def cost(store: SqliteStore, call: Callable[[], Awaitable[object]]) -> int:
    """How many instructions SQLite ran for it, on the connection that writes."""
    ran = 0

    def count() -> bool:
        nonlocal ran
        ran += 1
        return False

    await on_writer(store, lambda found: found.set_progress_handler(count, 1))
    await call()
    await on_writer(store, lambda found: found.set_progress_handler(None, 1))
    assert ran
    return ran


async def test_a_claim_costs_the_same_whatever_waits_sleeps_or_has_ended(world: World, store: SqliteStore) -> None:
    await _fill(world, 20)
    small = await cost(store, lambda: world.claim("w2", limit=10, workflows=[FLOW, "other"]))
    await _fill(world, 3_000)

    large = await cost(store, lambda: world.claim("w3", limit=10, workflows=[FLOW, "other"]))

    assert large < small * 1.5, (small, large)


async def test_a_look_for_lost_leases_costs_the_same_however_many_are_held(world: World, store: SqliteStore) -> None:
    await _fill(world, 20)
    small = await cost(store, lambda: store._write(_reap_nothing, None))
    await _fill(world, 3_000)

    large = await cost(store, lambda: store._write(_reap_nothing, None))

    assert large < small * 1.5, (small, large)


async def test_a_page_of_a_list_costs_the_same_however_much_is_stored(world: World, store: SqliteStore) -> None:
    query = ListQuery(FLOW, Status.COMPLETE, limit=5)
    await _fill(world, 20)
    small = await cost(store, lambda: store._write(list_runs, query))
    await _fill(world, 3_000)

    large = await cost(store, lambda: store._write(list_runs, query))

    assert large < small * 1.5, (small, large)


def _reap_nothing(tx: Any, _: None) -> object:
    return reap(tx, 3)


async def _fill(world: World, n: int) -> None:
    """n more runs each that are due, sleep, wait, are held, and have ended."""
    created = await world.store.create(
        [NewRun(FLOW, f"{n}-{kind}-{i}", owner=_owner(kind), lease_ms=LEASE) for kind in range(5) for i in range(n)]
    )
    tasks = [TaskRef(one.run.run, 0, "w1", one.epoch) for one in created]
    later = await world.now() + 10**6
    ends: list[Any] = [None, waiting(run_at=later), waiting("go"), None, Finish(Status.COMPLETE)]
    await world.store.commit(
        [turn(task, facts=[result("s")], then=ends[i // n]) for i, task in enumerate(tasks) if _owner(i // n)]
    )


def _owner(kind: int) -> str | None:
    return "w1" if kind else None
