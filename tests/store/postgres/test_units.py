"""Concurrent advances of the units of a run: each unit is done once, none is left over, and no call deadlocks."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from holdfast.core.model import Status
from holdfast.ports import SystemRandomness
from holdfast.store.postgres import PostgresStore
from holdfast.store.protocol import (
    CANCEL,
    Advance,
    ClaimOutbox,
    DebouncedStart,
    Delivered,
    FactsQuery,
    FactState,
    Finish,
    MissingDecrement,
    NewRun,
    NewUnit,
    NextRun,
    Outbound,
    Park,
    RequestResult,
    RunsById,
    SettleOutbox,
    TaskRef,
    UnitRelease,
    Verdict,
)
from store.world import FLOW, FakeClock, World, done, result, turn

LAYERS, WIDTH = 10, 20
UNITS = LAYERS * WIDTH
DEADLOCKS = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"

CLAIM_UNIT_2 = (
    "UPDATE holdfast.holdfast_task SET owner = 'w1', epoch = epoch + 1, claimed_by = 1 WHERE run = $1 AND unit = 2"
)


@pytest.fixture
async def worlds(url: str, clock: FakeClock) -> AsyncIterator[list[World]]:
    """Four stores on one database."""
    stores = [PostgresStore(url, clock=clock, random=SystemRandomness()) for _ in range(4)]
    for store in stores:
        await store.open()
    yield [World(store, clock, numbered=True) for store in stores]
    for store in stores:
        await store.close()


async def wait_until_blocked(url: str, task: asyncio.Future[Any]) -> None:
    """Wait until a session waits for a lock, or ``task`` is done."""
    watcher = await asyncpg.connect(url)
    while not task.done() and not await watcher.fetchval("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)"):
        await asyncio.sleep(0.01)
    await watcher.close()


def layered() -> list[NewUnit]:
    """Units in layers; each waits for all units of the layer before."""
    return [NewUnit(n + 1, f"u{n + 1}", WIDTH if n >= WIDTH else 0) for n in range(UNITS)]


def advance_of(task: TaskRef) -> Advance:
    after = ((task.unit - 1) // WIDTH + 1) * WIDTH
    decrements = [MissingDecrement(n + 1) for n in range(after, after + WIDTH)] if after < UNITS else []
    return Advance(task, results=[result(f"u{task.unit}", kind="node", seq=None)], decrements=decrements)


async def test_concurrent_workers_do_each_unit_of_a_run_once(worlds: list[World], other: asyncpg.Connection) -> None:
    run = (await worlds[0].start("a", kind="graph", units=layered())).run
    rng = random.Random(7)
    claimed: Counter[int] = Counter()
    run_tasks: list[TaskRef] = []

    async def work(world: World, owner: str) -> None:
        owned: list[TaskRef] = []
        while not run_tasks:
            owned += [claim.task for claim in (await world.claim(owner, limit=3)).claims]
            batch, owned = owned[:5], owned[5:]
            advanced = await world.advance(*map(advance_of, batch), owner=owner, claim_limit=rng.randrange(4))
            assert all(advanced.applied)
            claimed.update(task.unit for task in batch)
            run_tasks.extend(task for task in advanced.claimed if task.unit == 0)
            owned += [task for task in advanced.claimed if task.unit]

    async with asyncio.timeout(60):
        await asyncio.gather(*(work(world, f"w{n}") for n, world in enumerate(worlds * 2)))

    assert claimed == dict.fromkeys(range(1, UNITS + 1), 1)
    assert [task.unit for task in run_tasks] == [0]
    assert len(await worlds[0].results(run)) == UNITS
    assert sorted(await worlds[0].starts(run)) == sorted((f"u{n}", 1) for n in range(1, UNITS + 1))
    assert await other.fetchval(DEADLOCKS) == 0


@pytest.mark.promise("liveness")
@pytest.mark.parametrize("seed", range(3))
async def test_pauses_and_losses_leave_no_unit_undone(
    worlds: list[World], other: asyncpg.Connection, clock: FakeClock, seed: int
) -> None:
    """Workers lose tasks, others reap them, and control requests pause and resume the run, which still completes."""
    run = (await worlds[0].start("a", kind="graph", units=layered(), delay_ms=1)).run
    clock.advance(1)
    rng = random.Random(seed)
    written: Counter[int] = Counter()
    ended: list[TaskRef] = []

    async def release_or_end(world: World, task: TaskRef) -> None:
        if len(await world.results(run)) < UNITS:
            await world.advance(Advance(task, release=UnitRelease(), seen=10**6), owner=task.owner)
        elif (await world.finish(task)).verdict is Verdict.APPLIED:
            ended.append(task)

    async def work(world: World, owner: str) -> None:
        while not ended:
            tasks = [claim.task for claim in (await world.claim(owner, limit=9)).claims]
            while tasks:
                batch = [advance_of(task) for task in tasks if task.unit and rng.random() > 0.1]  # the others are lost
                advanced = await world.advance(*batch, owner=owner, claim_limit=rng.randrange(9))
                written.update(one.task.unit for one, applied in zip(batch, advanced.applied, strict=True) if applied)
                for task in tasks:
                    if task.unit == 0:
                        await release_or_end(world, task)
                tasks = list(advanced.claimed) if rng.random() > 0.1 else []

    async def disturb() -> None:
        while not ended:
            world = rng.choice(worlds)
            await world.pause("a")
            clock.advance(2_000)
            await world.store.reap(99)
            held = [TaskRef(one.run, one.unit, "w1", one.epoch) for one in await world.store.heartbeat("w1", 1)]
            await world.store.release(held[:3])
            await world.resume("a")
            await asyncio.sleep(0.01)

    async with asyncio.timeout(90):
        await asyncio.gather(disturb(), *(work(world, f"w{n}") for n, world in enumerate(worlds)))

    assert (await worlds[0].find("a")).status is Status.COMPLETE
    assert written == dict.fromkeys(range(1, UNITS + 1), 1)
    assert await other.fetchval("SELECT count(*) FROM holdfast.holdfast_task") == 0
    assert await other.fetchval(DEADLOCKS) == 0


async def test_a_unit_that_its_worker_claims_during_an_advance_is_claimed_once(
    world: World, url: str, other: asyncpg.Connection
) -> None:
    """The unit also has a due time of its own; the claim comes between the advance's read and its write."""
    first, second = await world.graph("a", NewUnit(1, "a"), NewUnit(2, "b"))
    await world.advance(Advance(second, release=UnitRelease(world.now() + 10, missing=1)))
    await other.execute("BEGIN")
    await other.execute(CLAIM_UNIT_2, first.run)

    advancing = asyncio.create_task(world.advance(done(first, 2), claim_limit=5))
    await wait_until_blocked(url, advancing)
    await other.execute("COMMIT")

    advanced = await advancing
    assert (list(advanced.applied), list(advanced.claimed)) == ([True], [])
    claimed = TaskRef(first.run, 2, "w1", 2)
    assert [task.unit for task in (await world.advance(done(claimed))).claimed] == [0]


@pytest.mark.parametrize("freed_by", ["reap", "release"])
async def test_a_unit_that_is_freed_while_its_run_is_paused_is_not_due(
    world: World, url: str, other: asyncpg.Connection, freed_by: str
) -> None:
    """The pause does not change the unit, which has an owner, and is not committed when the unit is freed."""
    [task] = await world.graph("a", NewUnit(1, "a"))
    world.clock.advance(1_000)
    await other.execute("BEGIN")
    await other.execute("SELECT holdfast.holdfast_pause($1, 'x', $2, 'a')", world.now(), FLOW)

    freeing = asyncio.ensure_future(world.store.reap(9) if freed_by == "reap" else world.store.release([task]))
    await wait_until_blocked(url, freeing)
    await other.execute("COMMIT")

    assert await freeing
    assert list((await world.claim("w2")).claims) == []


@pytest.mark.parametrize("stop", ["pause", "terminate", "end"])
async def test_stopping_a_run_waits_for_a_claim_of_its_unit(
    world: World, url: str, other: asyncpg.Connection, stop: str
) -> None:
    """A claim updates the task first and then the run; stopping a run uses the same order."""
    await world.graph("a", NewUnit(1, "a"), NewUnit(2, "b"), owner=None, delay_ms=1)
    run = (await world.find("a")).run
    await world.send_exit("a")
    run_task = (await world.claim_one()).task
    if stop != "end":
        await world.store.release([run_task])
    await other.execute("BEGIN")
    await other.execute(CLAIM_UNIT_2, run)

    stopping = asyncio.ensure_future(_stop(world, stop, run_task))
    await wait_until_blocked(url, stopping)
    await other.execute("SET LOCAL deadlock_timeout = '10ms'")  # of two waits that cross, this is the second
    async with asyncio.timeout(60):
        await other.execute("UPDATE holdfast.holdfast_run SET status = 'active' WHERE id = $1", run)
    await other.execute("COMMIT")

    await stopping
    assert await other.fetchval(DEADLOCKS) == 0


async def _stop(world: World, stop: str, run_task: TaskRef) -> object:
    if stop == "pause":
        return await world.pause("a")
    if stop == "terminate":
        return await world.terminate("a")
    return await world.commit(run_task, then=Finish(Status.CANCELLED))


async def test_a_batch_is_one_statement_and_one_notification(worlds: list[World], other: asyncpg.Connection) -> None:
    notifications: list[object] = []
    await other.add_listener("holdfast_holdfast", lambda *arguments: notifications.append(arguments[2]))
    tasks = [task for n in range(40) for task in await worlds[0].graph(f"r{n}", NewUnit(1, "a"), NewUnit(2, "b", 1))]
    await other.execute("SELECT 1")
    notifications.clear()
    before = await other.fetchval("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint")

    advanced = await worlds[0].advance(*(done(task, 2) for task in tasks), claim_limit=20)

    assert (len(advanced.claimed), advanced.due) == (20, True)
    # Other transactions of the server, such as those of autovacuum, leave no mark on these rows.
    writers = await other.fetch(
        "SELECT xmin::text::bigint AS writer FROM holdfast.holdfast_task UNION SELECT xmin::text::bigint FROM"
        " holdfast.holdfast_fact"
    )
    assert len([row for row in writers if row["writer"] >= before]) == 1
    assert len(notifications) == 1


async def test_events_added_while_the_last_one_is_settled_are_delivered(worlds: list[World]) -> None:
    tasks = [await worlds[0].start_claimed(f"r{n}") for n in range(20)]
    delivered: Counter[tuple[int, int]] = Counter()

    async def commit_events() -> None:
        for n in range(10):
            await worlds[0].store.commit([turn(task, outbox=[Outbound(f"{n}", None, "s")]) for task in tasks])

    async def deliver(world: World, owner: str) -> None:
        while delivered.total() < 200:
            rows = (await world.store.outbox(ClaimOutbox(owner, 10**6, 7))).rows
            assert await world.store.outbox(SettleOutbox(owner, [Delivered(row.run, row.n) for row in rows])) == len(
                rows
            )
            delivered.update((row.run, row.n) for row in rows)

    async with asyncio.timeout(60):
        await asyncio.gather(commit_events(), *(deliver(world, f"w{n}") for n, world in enumerate(worlds[1:])))

    assert delivered == dict.fromkeys([(task.run, n) for task in tasks for n in range(1, 11)], 1)
    claim = await worlds[0].store.outbox(ClaimOutbox("w", 1, 1))
    assert (claim.rows, claim.next_due) == ([], None)


async def test_an_event_is_added_to_an_outbox_that_is_being_emptied(
    world: World, url: str, other: asyncpg.Connection
) -> None:
    task = await world.start_claimed("a")
    await world.commit(task, outbox=[Outbound("one", None, "s")])
    await world.store.outbox(ClaimOutbox("w1", 1_000, 1))
    await other.execute("BEGIN")
    await other.execute(
        "SELECT holdfast.holdfast_outbox_settle(1, 'w1', ARRAY[$1::bigint], '{1}', '{NULL}', '{NULL}')", task.run
    )

    committing = asyncio.ensure_future(world.commit(task, outbox=[Outbound("two", None, "s")]))
    await wait_until_blocked(url, committing)
    await other.execute("COMMIT")
    await committing

    assert [row.type for row in (await world.store.outbox(ClaimOutbox("w1", 1_000, 1))).rows] == ["two"]


async def test_settling_the_last_event_keeps_an_event_that_is_being_added(
    world: World, url: str, other: asyncpg.Connection
) -> None:
    task = await world.start_claimed("a")
    await world.commit(task, outbox=[Outbound("one", None, "s")])
    await world.store.outbox(ClaimOutbox("w1", 1_000, 1))
    await other.execute("BEGIN")
    added = "holdfast.holdfast_outbox_add(1, ARRAY[$1::bigint], '{two}', '{NULL}', '{s}', '{NULL}')"
    await other.execute(f"SELECT {added}", task.run)

    settling = asyncio.ensure_future(world.store.outbox(SettleOutbox("w1", [Delivered(task.run, 1)])))
    await wait_until_blocked(url, settling)
    await other.execute("COMMIT")

    assert await settling == 1
    assert [row.type for row in (await world.store.outbox(ClaimOutbox("w1", 1_000, 1))).rows] == ["two"]


async def test_an_end_in_a_commit_of_one_fact_ends_the_units_too(world: World) -> None:
    """A commit of one fact uses holdfast_commit_one."""
    [task] = await world.graph("a", NewUnit(1, "a"), NewUnit(2, "b", 1))
    await world.send_exit("a")
    run_task = (await world.claim_one()).task

    await world.commit(run_task, facts=[result("end")], then=Finish(Status.CANCELLED))

    assert list((await world.advance(done(task, 2), claim_limit=5)).applied) == [False]
    assert await world.store.heartbeat("w1", 1) == []


@pytest.mark.parametrize("requested", [True, False])
async def test_a_run_that_its_own_turn_pauses_has_no_unit_due(world: World, requested: bool) -> None:
    await world.graph("a", NewUnit(1, "a"), NewUnit(2, "b"), claim_limit=1)
    await world.send_exit("a")
    tasks = {claim.task.unit: claim.task for claim in (await world.claim(limit=2)).claims}
    await world.store.release([tasks[2]])
    if requested:
        await world.pause("a")

    await world.commit(tasks[0], then=None if requested else Park("why"))

    claims = await world.claim()
    assert (list(claims.claims), claims.next_due) == ([], None)
    await world.resume("a")
    assert await world.claimed_units() == [0, 2]


async def test_a_cancellation_that_moves_to_the_successor_makes_it_due(world: World) -> None:
    [task] = await world.graph("a", NewUnit(1, "a"))
    [run_task] = (await world.advance(done(task))).claimed
    await world.send(CANCEL, "a")

    await world.finish(run_task, next=NextRun(None, units=[NewUnit(1, "a")]))

    assert sorted(await world.claimed_units()) == [0, 1]


async def test_a_graph_of_many_units_is_created_by_one_statement(
    worlds: list[World], other: asyncpg.Connection
) -> None:
    units = [NewUnit(n, f"u{n}", n % 2) for n in range(1, 5_001)]

    [created] = await worlds[0].store.create(
        [NewRun(FLOW, "a", units=units, owner="w1", lease_ms=1000, claim_limit=10)]
    )

    assert list(created.units) == list(range(2, 22, 2))
    assert await other.fetchval("SELECT count(*) FROM holdfast.holdfast_task WHERE run = $1", created.run.run) == 5_001
    assert len(await worlds[0].store.read(FactsQuery(created.run.run, FactState.START))) == 10
    assert (await worlds[0].commit(TaskRef(created.run.run, 0, "w1", 1), then=Finish(Status.COMPLETE))).verdict is (
        Verdict.LOST
    )


async def test_a_debounced_start_during_the_claim_of_a_node_begins_another_run(
    worlds: list[World], other: asyncpg.Connection, url: str
) -> None:
    def new(id: str, params: bytes) -> NewRun:
        return NewRun(FLOW, id, params, "graph", units=[NewUnit(1, "u1", 0)], delay_ms=1, policy=DebouncedStart("k"))

    store = worlds[0].store
    [first] = await store.create([new("a", b"1")])
    async with other.transaction():
        await other.execute(
            "UPDATE holdfast.holdfast_task SET owner = 'w1', epoch = 1 WHERE run = $1 AND unit = 1", first.run.run
        )
        await other.execute(
            "INSERT INTO holdfast.holdfast_fact (run, state, key, n, kind, at, started_at, ok, attempts) "
            "SELECT run, $2, key, 1, 'node', 0, 0, true, 0 FROM holdfast.holdfast_task WHERE run = $1 AND unit = 1",
            first.run.run,
            FactState.START,
        )
        starting = asyncio.ensure_future(store.create([new("b", b"2")]))
        await wait_until_blocked(url, starting)
    [second] = await starting

    assert (second.result, second.run.instance_id, second.run.params) == (RequestResult.DONE, "b", b"2")
    [claimed] = await store.read(RunsById([first.run.run]))
    assert claimed.params == b"1"
