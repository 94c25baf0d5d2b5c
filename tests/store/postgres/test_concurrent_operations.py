"""Concurrent operations between runs: each is applied once, and locks are taken in one order."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter

import asyncpg
import pytest

from holdfast.core.model import Status
from holdfast.ports import SystemRandomness
from holdfast.store.postgres import PostgresStore
from holdfast.store.protocol import (
    EXIT,
    CancelRun,
    Finish,
    MailboxQuery,
    NewEvent,
    NewRun,
    NextRun,
    Operation,
    RelationsQuery,
    RunsById,
    TaskRef,
    TerminateRun,
    Verdict,
    Watch,
    WatchRun,
)
from store.world import FLOW, FakeClock, World, affected, pid, recorded, result, turn

LONG = 10**6


def child_of(parent: TaskRef, id: str, of: str = "p", **options: object) -> NewRun:
    return NewRun(FLOW, id, owner="w1", lease_ms=LONG, parent=pid(of), parent_run=parent.run, **options)  # type: ignore[arg-type]


def _log_queries(store: PostgresStore) -> list[str]:
    """Record the queries that the store makes from now on."""
    queries: list[str] = []
    for connection, _ in store._database._pool._idle:  # type: ignore[union-attr]
        connection.add_query_logger(lambda record: queries.append(record.query))  # type: ignore[union-attr]
    return queries


async def test_five_hundred_children_are_created_by_one_statement(store: PostgresStore, world: World) -> None:
    parent = await world.start_claimed("p")
    await world.operate(parent, child_of(parent, "warm"))
    queries = _log_queries(store)

    committed = await world.operate(parent, *(child_of(parent, f"c{n}") for n in range(500)), at=1)

    await asyncio.sleep(0)  # queries are logged by a callback of the event loop
    assert len(committed.claimed_children) == 500
    assert len(queries) == 1
    assert len((await world.store.read(RelationsQuery(parent.run))).children) == 100
    assert len(await world.keys(parent.run)) == 501


async def test_the_exits_of_children_that_end_at_the_same_time_all_arrive(store: PostgresStore, world: World) -> None:
    parent = await world.start_claimed("p")
    children = (await world.operate(parent, *(child_of(parent, f"c{n}") for n in range(300)))).claimed_children
    tasks = [TaskRef(child.run.run, 0, "w1", child.epoch) for child in children]
    batches = [tasks[n : n + 7] for n in range(0, 300, 7)]

    await asyncio.gather(
        *(store.commit([turn(task, then=Finish(Status.COMPLETE, b"1")) for task in batch]) for batch in batches)
    )

    page = await store.read(MailboxQuery(parent.run))
    assert [event.type for event in page.events] == [EXIT] * 300
    assert [event.n for event in page.events] == list(range(1, 301))
    assert sorted(str(event.sender) for event in page.events) == sorted(pid(f"c{n}") for n in range(300))


@pytest.mark.parametrize("seed", range(3))
async def test_random_operations_between_runs_do_not_deadlock_and_leave_a_consistent_state(
    url: str, clock: FakeClock, seed: int
) -> None:
    rng = random.Random(seed)
    stores = [PostgresStore(f"{url}&deadlock_timeout=50ms", clock=clock, random=SystemRandomness()) for _ in range(2)]
    for store in stores:
        await store.open()
    world = World(stores[0], clock)
    tasks: dict[str, TaskRef] = {}
    for n in range(6):
        parent = tasks[f"p{n}"] = await world.start_claimed(f"p{n}")
        committed = await world.operate(parent, *(child_of(parent, f"c{n}-{i}", f"p{n}") for i in range(4)))
        tasks |= {
            child.run.instance_id: TaskRef(child.run.run, 0, "w1", child.epoch) for child in committed.claimed_children
        }
    names = list(tasks)

    async def commit_operations(name: str) -> None:
        store, task = rng.choice(stores), tasks[name]
        for step in range(4):
            all_operations: list[Operation] = [
                WatchRun(FLOW, rng.choice(names), rng.choice([Watch.MONITOR, Watch.LINK])),
                NewEvent(FLOW, rng.choice(names), "go"),
                CancelRun(FLOW, rng.choice(names), b"{}", None),
            ]
            if rng.random() < 0.2:
                all_operations.append(TerminateRun(FLOW, rng.choice(names), "why"))
            rng.shuffle(all_operations)
            operations = [recorded(f"{step}-{n}", operation) for n, operation in enumerate(all_operations)]
            end = Finish(Status.COMPLETE, next=NextRun(None) if rng.random() < 0.2 else None)
            [committed] = await store.commit([turn(task, operations=operations, then=end if step == 3 else None)])
            if committed.verdict is Verdict.LOST:
                return

    async with asyncio.timeout(60):
        await asyncio.gather(*(commit_operations(name) for name in names))

    runs = await stores[0].read(RunsById([task.run for task in tasks.values()]))
    assert {run.status for run in runs} <= {Status.COMPLETE, Status.TERMINATED}
    assert all(run.owner is None for run in runs)
    await _assert_consistent(url)
    for store in stores:
        await store.close()


async def _assert_consistent(url: str) -> None:
    """Assert: ended runs have no task and no watches, and unfinished runs have a task and an unfinished parent."""
    connection = await asyncpg.connect(url)
    unfinished = "SELECT id FROM holdfast.holdfast_run WHERE completed_at IS NULL"
    leftovers = Counter(
        {
            "tasks": await connection.fetchval(
                f"SELECT count(*) FROM holdfast.holdfast_task WHERE run NOT IN ({unfinished})"
            ),
            "runs": await connection.fetchval(
                f"SELECT count(*) FROM ({unfinished}) AS l WHERE id NOT IN (SELECT run FROM holdfast.holdfast_task)"
            ),
            "watches": await connection.fetchval(
                "SELECT count(*) FROM holdfast.holdfast_watch"
                f" WHERE target NOT IN ({unfinished}) OR watcher NOT IN ({unfinished})"
            ),
            "orphans": await connection.fetchval(
                "SELECT count(*) FROM holdfast.holdfast_run"
                f" WHERE id IN ({unfinished}) AND parent_run NOT IN ({unfinished})"
            ),
        }
    )
    await connection.close()
    assert not +leftovers, leftovers


async def test_a_successor_created_while_its_parent_ends_ends_too(
    store: PostgresStore, world: World, other: asyncpg.Connection
) -> None:
    parent = await world.start_claimed("p")
    [created] = (await world.operate(parent, child_of(parent, "c"))).claimed_children
    child = TaskRef(created.run.run, 0, "w1", created.epoch)
    await other.execute("BEGIN")
    await other.fetch("SELECT FROM holdfast.holdfast_task WHERE run = $1 FOR UPDATE", child.run)
    continuing = asyncio.create_task(world.continue_run(child))
    waits = "SELECT count(*) FROM pg_locks WHERE NOT granted"
    while await other.fetchval(waits) < 1:
        await asyncio.sleep(0.01)
    ending = asyncio.create_task(world.terminate("p"))
    while await other.fetchval(waits) < 2:
        await asyncio.sleep(0.01)

    await other.execute("COMMIT")
    new, ended = await continuing, await ending

    assert new.number == 1
    assert ended.affected.ended == [parent.run, new.run]
    assert (await world.find("c")).status is Status.TERMINATED


@pytest.mark.parametrize(
    "note",
    ["plain", 'with "quotes" and \\ and /', "\0\n\t\x7f", "ä€😀", "\ud800 alone \udfff", "", "x" * 5_000],
    ids=ascii,
)
async def test_any_note_arrives_as_ascii_json(world: World, note: str) -> None:
    parent = await world.start_claimed("p")
    await world.operate(parent, child_of(parent, "c"))

    await world.terminate("c", note)

    [event] = await world.undelivered(parent.run)
    assert event.payload is not None
    assert json.loads(event.payload.decode("ascii"))["note"] == note


async def test_only_an_end_that_affects_no_other_run_uses_the_short_function(
    store: PostgresStore, world: World
) -> None:
    task, parent = await world.start_claimed("a"), await world.start_claimed("p")
    await world.operate(parent, child_of(parent, "c", watch=Watch(0)))
    queries = _log_queries(store)

    await world.commit(task, facts=[result("s")], then=Finish(Status.COMPLETE))
    committed = await world.commit(parent, facts=[result("s")], then=Finish(Status.COMPLETE))
    await asyncio.sleep(0)

    assert [("commit_one" in query, "holdfast_commit(" in query) for query in queries] == [
        (True, False),
        (True, False),
        (False, True),
    ]
    assert len(affected(committed).ended) == 1


async def test_events_move_to_a_successor_in_one_statement(
    store: PostgresStore, world: World, other: asyncpg.Connection
) -> None:
    task = await world.start_claimed("a")
    for _ in range(10):
        await store.send([NewEvent(FLOW, "a", "go", payload=b"%d" % n) for n in range(300)])

    async with asyncio.timeout(60):
        new = await world.continue_run(task)

    count = "SELECT count(*), min(n), max(n) FROM holdfast.holdfast_event WHERE run = $1"
    assert tuple(await other.fetchrow(count, new.run)) == (3_000, 1, 3_000)
    page = await store.read(MailboxQuery(new.run))
    assert (len(page.events), page.complete, page.last) == (500, False, 3_000)
