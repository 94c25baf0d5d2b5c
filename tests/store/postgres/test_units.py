"""Units of one run, advanced by many at once: each is done once, none stays behind, and nobody waits for ever."""

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
    Delivered,
    FactState,
    Finish,
    GiveBack,
    NewRun,
    NewUnit,
    NextRun,
    Opening,
    Outbound,
    Park,
    TaskRef,
    Verdict,
)
from store.world import FLOW, FakeClock, World, done, result, turn

LAYERS, WIDTH = 10, 20
UNITS = LAYERS * WIDTH
DEADLOCKS = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"

CLAIMED = (
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


async def stuck(url: str, task: asyncio.Future[Any]) -> None:
    """Wait until it waits for somebody's lock, or is done because it does not."""
    watcher = await asyncpg.connect(url)
    while not task.done() and not await watcher.fetchval("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)"):
        await asyncio.sleep(0.01)
    await watcher.close()


def layered() -> list[NewUnit]:
    """Each unit waits for all of the layer before."""
    return [NewUnit(n + 1, f"u{n + 1}", WIDTH if n >= WIDTH else 0) for n in range(UNITS)]


def finished(task: TaskRef) -> Advance:
    after = ((task.unit - 1) // WIDTH + 1) * WIDTH
    opens = [Opening(n + 1) for n in range(after, after + WIDTH)] if after < UNITS else []
    return Advance(task, results=[result(f"u{task.unit}", kind="node", seq=None)], opens=opens)


async def test_units_of_one_run_are_all_done_and_each_once(worlds: list[World], other: asyncpg.Connection) -> None:
    run = (await worlds[0].start("a", kind="graph", units=layered())).run
    chance = random.Random(7)
    taken: Counter[int] = Counter()
    itself: list[TaskRef] = []

    async def work(world: World, owner: str) -> None:
        mine: list[TaskRef] = []
        while not itself:
            mine += [claim.task for claim in (await world.claim(owner, limit=3)).claims]
            batch, mine = mine[:5], mine[5:]
            answer = await world.advance(*map(finished, batch), owner=owner, room=chance.randrange(4))
            assert all(answer.applied)
            taken.update(task.unit for task in batch)
            itself.extend(task for task in answer.taken if task.unit == 0)
            mine += [task for task in answer.taken if task.unit]

    async with asyncio.timeout(60):
        await asyncio.gather(*(work(world, f"w{n}") for n, world in enumerate(worlds * 2)))

    assert taken == dict.fromkeys(range(1, UNITS + 1), 1)
    assert [task.unit for task in itself] == [0]
    assert len(await worlds[0].results(run)) == UNITS
    assert sorted(await worlds[0].starts(run)) == sorted((f"u{n}", 1) for n in range(1, UNITS + 1))
    assert await other.fetchval(DEADLOCKS) == 0


@pytest.mark.parametrize("seed", range(3))
async def test_pauses_losses_and_strangers_leave_no_unit_behind(
    worlds: list[World], other: asyncpg.Connection, clock: FakeClock, seed: int
) -> None:
    """Workers drop what they hold, others reap it, people pause and resume: the last one still finishes the run."""
    run = (await worlds[0].start("a", kind="graph", units=layered(), delay_ms=1)).run
    clock.advance(1)
    chance = random.Random(seed)
    written: Counter[int] = Counter()
    ended: list[TaskRef] = []

    async def give_back_or_end(world: World, task: TaskRef) -> None:
        if len(await world.results(run)) < UNITS:
            await world.advance(Advance(task, then=GiveBack(), seen=10**6), owner=task.owner)
        elif (await world.finish(task)).verdict is Verdict.APPLIED:
            ended.append(task)

    async def work(world: World, owner: str) -> None:
        while not ended:
            tasks = [claim.task for claim in (await world.claim(owner, limit=9)).claims]
            while tasks:
                batch = [finished(task) for task in tasks if task.unit and chance.random() > 0.1]  # or it is lost
                answer = await world.advance(*batch, owner=owner, room=chance.randrange(9))
                written.update(one.task.unit for one, applied in zip(batch, answer.applied, strict=True) if applied)
                for task in tasks:
                    if task.unit == 0:
                        await give_back_or_end(world, task)
                tasks = list(answer.taken) if chance.random() > 0.1 else []

    async def disturb() -> None:
        while not ended:
            world = chance.choice(worlds)
            await world.store.pause(FLOW, "a")
            clock.advance(2_000)
            await world.store.reap(99)
            held = [TaskRef(one.run, one.unit, "w1", one.epoch) for one in await world.store.heartbeat("w1", 1)]
            await world.store.release(held[:3])
            await world.store.resume(FLOW, "a")
            await asyncio.sleep(0.01)

    async with asyncio.timeout(90):
        await asyncio.gather(disturb(), *(work(world, f"w{n}") for n, world in enumerate(worlds)))

    assert (await worlds[0].find("a")).status is Status.COMPLETE
    assert written == dict.fromkeys(range(1, UNITS + 1), 1)
    assert await other.fetchval("SELECT count(*) FROM holdfast.holdfast_task") == 0
    assert await other.fetchval(DEADLOCKS) == 0


async def test_a_unit_that_the_same_worker_claims_while_it_is_opened_is_taken_once(
    world: World, url: str, other: asyncpg.Connection
) -> None:
    """It waits for another one, but not for ever; the claim comes right between the look at it and the write."""
    first, second = await world.graph("a", NewUnit(1, "a"), NewUnit(2, "b"))
    await world.advance(Advance(second, then=GiveBack(await world.now() + 10, missing=1)))
    await other.execute("BEGIN")
    await other.execute(CLAIMED, first.run)

    opening = asyncio.create_task(world.advance(done(first, 2), room=5))
    await stuck(url, opening)
    await other.execute("COMMIT")

    answer = await opening
    assert (list(answer.applied), list(answer.taken)) == ([True], [])
    claimed = TaskRef(first.run, 2, "w1", 2)
    assert [task.unit for task in (await world.advance(done(claimed))).taken] == [0]


@pytest.mark.parametrize("freed_by", ["reap", "release"])
async def test_a_unit_that_is_freed_while_its_run_is_paused_is_not_due(
    world: World, url: str, other: asyncpg.Connection, freed_by: str
) -> None:
    """The pause does not touch it, for it is held; and is not committed when it is freed."""
    [task] = await world.graph("a", NewUnit(1, "a"))
    world.clock.advance(1_000)
    await other.execute("BEGIN")
    await other.execute("SELECT holdfast.holdfast_pause($1, 'x', $2, 'a')", await world.now(), FLOW)

    freeing = asyncio.ensure_future(world.store.reap(9) if freed_by == "reap" else world.store.release([task]))
    await stuck(url, freeing)
    await other.execute("COMMIT")

    assert await freeing
    assert list((await world.claim("w2")).claims) == []


@pytest.mark.parametrize("act", ["pause", "terminate", "end"])
async def test_a_unit_that_is_claimed_while_its_run_is_stopped_is_waited_for(
    world: World, url: str, other: asyncpg.Connection, act: str
) -> None:
    """A claim changes the task first and the run after that; so does whoever stops the run."""
    await world.graph("a", NewUnit(1, "a"), NewUnit(2, "b"), owner=None, delay_ms=1)
    run = (await world.find("a")).run
    await world.exit("a")
    itself = (await world.take()).task
    if act != "end":
        await world.store.release([itself])
    await other.execute("BEGIN")
    await other.execute(CLAIMED, run)

    stopping = asyncio.ensure_future(_stop(world, act, itself))
    await stuck(url, stopping)
    async with asyncio.timeout(0.9):  # less than the server takes to find a deadlock
        await other.execute("UPDATE holdfast.holdfast_run SET status = 'active' WHERE id = $1", run)
    await other.execute("COMMIT")

    await stopping
    assert await other.fetchval(DEADLOCKS) == 0


async def _stop(world: World, act: str, itself: TaskRef) -> object:
    if act == "pause":
        return await world.store.pause(FLOW, "a")
    if act == "terminate":
        return await world.store.terminate(FLOW, "a")
    return await world.commit(itself, then=Finish(Status.CANCELLED))


async def test_a_batch_is_one_statement_and_one_notification(worlds: list[World], other: asyncpg.Connection) -> None:
    heard: list[object] = []
    await other.add_listener("holdfast_holdfast", lambda *said: heard.append(said[2]))
    tasks = [task for n in range(40) for task in await worlds[0].graph(f"r{n}", NewUnit(1, "a"), NewUnit(2, "b", 1))]
    await other.execute("SELECT 1")
    heard.clear()
    before = await other.fetchval("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint")

    answer = await worlds[0].advance(*(done(task, 2) for task in tasks), room=20)

    after = await other.fetchval("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
    assert (len(answer.taken), answer.due) == (20, True)
    assert after - before == 1
    assert len(heard) == 1


async def test_what_is_put_into_an_outbox_while_its_last_event_is_settled_is_delivered(worlds: list[World]) -> None:
    tasks = [await worlds[0].begin(f"r{n}") for n in range(20)]
    delivered: Counter[tuple[int, int]] = Counter()

    async def say() -> None:
        for n in range(10):
            await worlds[0].store.commit([turn(task, outbox=[Outbound(f"{n}", None, "s")]) for task in tasks])

    async def deliver(world: World, owner: str) -> None:
        while delivered.total() < 200:
            rows = (await world.store.outbox_claim(owner, 10**6, 7)).rows
            assert await world.store.outbox_settle(owner, [Delivered(row.run, row.n) for row in rows]) == len(rows)
            delivered.update((row.run, row.n) for row in rows)

    async with asyncio.timeout(60):
        await asyncio.gather(say(), *(deliver(world, f"w{n}") for n, world in enumerate(worlds[1:])))

    assert delivered == dict.fromkeys([(task.run, n) for task in tasks for n in range(1, 11)], 1)
    claim = await worlds[0].store.outbox_claim("w", 1, 1)
    assert (claim.rows, claim.next_due) == ([], None)


async def test_an_outbox_that_is_about_to_be_empty_takes_more(
    world: World, url: str, other: asyncpg.Connection
) -> None:
    task = await world.begin("a")
    await world.commit(task, outbox=[Outbound("one", None, "s")])
    await world.store.outbox_claim("w1", 1_000, 1)
    await other.execute("BEGIN")
    await other.execute(
        "SELECT holdfast.holdfast_outbox_settle(1, 'w1', ARRAY[$1::bigint], '{1}', '{NULL}', '{NULL}')", task.run
    )

    saying = asyncio.ensure_future(world.commit(task, outbox=[Outbound("two", None, "s")]))
    await stuck(url, saying)
    await other.execute("COMMIT")
    await saying

    assert [row.type for row in (await world.store.outbox_claim("w1", 1_000, 1)).rows] == ["two"]


async def test_an_outbox_that_is_about_to_get_more_is_not_empty(
    world: World, url: str, other: asyncpg.Connection
) -> None:
    task = await world.begin("a")
    await world.commit(task, outbox=[Outbound("one", None, "s")])
    await world.store.outbox_claim("w1", 1_000, 1)
    await other.execute("BEGIN")
    await other.execute("SELECT holdfast.holdfast_put_out(1, ARRAY[$1::bigint], '{two}', '{NULL}', '{s}')", task.run)

    settling = asyncio.ensure_future(world.store.outbox_settle("w1", [Delivered(task.run, 1)]))
    await stuck(url, settling)
    await other.execute("COMMIT")

    assert await settling == 1
    assert [row.type for row in (await world.store.outbox_claim("w1", 1_000, 1)).rows] == ["two"]


async def test_an_end_the_short_way_ends_the_units_too(world: World) -> None:
    """A commit of one fact has a function of its own."""
    [task] = await world.graph("a", NewUnit(1, "a"), NewUnit(2, "b", 1))
    await world.exit("a")
    itself = (await world.take()).task

    await world.commit(itself, facts=[result("end")], then=Finish(Status.CANCELLED))

    assert list((await world.advance(done(task, 2), room=5)).applied) == [False]
    assert await world.store.heartbeat("w1", 1) == []


@pytest.mark.parametrize("asked", [True, False])
async def test_a_run_that_its_own_turn_pauses_has_no_unit_due(world: World, asked: bool) -> None:
    await world.graph("a", NewUnit(1, "a"), NewUnit(2, "b"), room=1)
    await world.exit("a")
    tasks = {claim.task.unit: claim.task for claim in (await world.claim(limit=2)).claims}
    await world.store.release([tasks[2]])
    if asked:
        await world.store.pause(FLOW, "a")

    await world.commit(tasks[0], then=None if asked else Park("why"))

    found = await world.claim()
    assert (list(found.claims), found.next_due) == ([], None)
    await world.store.resume(FLOW, "a")
    assert await world.claimed_units() == [0, 2]


async def test_a_cancellation_that_goes_along_to_the_next_run_makes_it_due(world: World) -> None:
    [task] = await world.graph("a", NewUnit(1, "a"))
    [itself] = (await world.advance(done(task))).taken
    await world.send(CANCEL, "a")

    await world.finish(itself, next=NextRun(None, units=[NewUnit(1, "a")]))

    assert sorted(await world.claimed_units()) == [0, 1]


async def test_a_graph_of_many_units_is_made_by_one_statement(worlds: list[World], other: asyncpg.Connection) -> None:
    units = [NewUnit(n, f"u{n}", n % 2) for n in range(1, 5_001)]

    [made] = await worlds[0].store.create([NewRun(FLOW, "a", units=units, owner="w1", lease_ms=1000, room=10)])

    assert list(made.units) == list(range(2, 22, 2))
    assert await other.fetchval("SELECT count(*) FROM holdfast.holdfast_task WHERE run = $1", made.run.run) == 5_001
    assert len(await worlds[0].store.facts(made.run.run, FactState.START)) == 10
    assert (await worlds[0].commit(TaskRef(made.run.run, 0, "w1", 1), then=Finish(Status.COMPLETE))).verdict is (
        Verdict.LOST
    )
