"""Runs that have to do with each other, changed by many at once: all is done once, and locks are taken in one order."""

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
    Deed,
    Finish,
    NewEvent,
    NewRun,
    NextRun,
    TaskRef,
    TerminateRun,
    Verdict,
    Watch,
    WatchRun,
)
from store.world import FLOW, FakeClock, World, act, pid, result, touched, turn

LONG = 10**6


def child_of(parent: TaskRef, id: str, of: str = "p", **options: object) -> NewRun:
    return NewRun(FLOW, id, owner="w1", lease_ms=LONG, parent=pid(of), parent_run=parent.run, **options)  # type: ignore[arg-type]


def _queries(store: PostgresStore) -> list[str]:
    """What the store asks for from now on."""
    sent: list[str] = []
    for connection, _ in store._database._pool._idle:  # type: ignore[union-attr]
        connection.add_query_logger(lambda record: sent.append(record.query))  # type: ignore[union-attr]
    return sent


async def test_five_hundred_children_are_made_by_one_statement(store: PostgresStore, world: World) -> None:
    parent = await world.begin("p")
    await world.act(parent, child_of(parent, "warm"))
    sent = _queries(store)

    answer = await world.act(parent, *(child_of(parent, f"c{n}") for n in range(500)), at=1)

    await asyncio.sleep(0)  # queries are logged a moment later
    assert len(answer.births) == 500
    assert len(sent) == 1
    assert len((await world.store.relations(parent.run)).children) == 100
    assert len(await world.keys(parent.run)) == 501


async def test_children_that_end_at_the_same_time_are_all_told_of(store: PostgresStore, world: World) -> None:
    parent = await world.begin("p")
    made = (await world.act(parent, *(child_of(parent, f"c{n}") for n in range(300)))).births
    tasks = [TaskRef(one.run.run, 0, "w1", one.epoch) for one in made]
    batches = [tasks[n : n + 7] for n in range(0, 300, 7)]

    await asyncio.gather(
        *(store.commit([turn(task, then=Finish(Status.COMPLETE, b"1")) for task in batch]) for batch in batches)
    )

    bag = await store.undelivered(parent.run)
    assert [mail.type for mail in bag.mail] == [EXIT] * 300
    assert [mail.n for mail in bag.mail] == list(range(1, 301))
    assert sorted(str(mail.sender) for mail in bag.mail) == sorted(pid(f"c{n}") for n in range(300))


@pytest.mark.parametrize("seed", range(3))
async def test_whatever_families_do_to_each_other_nobody_waits_for_ever_and_nothing_is_half_done(
    url: str, clock: FakeClock, seed: int
) -> None:
    chance = random.Random(seed)
    stores = [PostgresStore(f"{url}&deadlock_timeout=50ms", clock=clock, random=SystemRandomness()) for _ in range(2)]
    for store in stores:
        await store.open()
    world = World(stores[0], clock)
    tasks: dict[str, TaskRef] = {}
    for n in range(6):
        parent = tasks[f"p{n}"] = await world.begin(f"p{n}")
        births = await world.act(parent, *(child_of(parent, f"c{n}-{i}", f"p{n}") for i in range(4)))
        tasks |= {one.run.instance_id: TaskRef(one.run.run, 0, "w1", one.epoch) for one in births.births}
    names = list(tasks)

    async def one(name: str) -> None:
        store, task = chance.choice(stores), tasks[name]
        for step in range(4):
            deeds: list[Deed] = [
                WatchRun(FLOW, chance.choice(names), chance.choice([Watch.MONITOR, Watch.LINK])),
                NewEvent(FLOW, chance.choice(names), "go"),
                CancelRun(FLOW, chance.choice(names), b"{}", None),
            ]
            if chance.random() < 0.2:
                deeds.append(TerminateRun(FLOW, chance.choice(names), "why"))
            chance.shuffle(deeds)
            acts = [act(f"{step}-{n}", deed) for n, deed in enumerate(deeds)]
            end = Finish(Status.COMPLETE, next=NextRun(None) if chance.random() < 0.2 else None)
            [answer] = await store.commit([turn(task, acts=acts, then=end if step == 3 else None)])
            if answer.verdict is Verdict.LOST:
                return

    async with asyncio.timeout(60):
        await asyncio.gather(*(one(name) for name in names))

    runs = await stores[0].get([task.run for task in tasks.values()])
    assert {run.status for run in runs} <= {Status.COMPLETE, Status.TERMINATED}
    assert all(run.owner is None for run in runs)
    await _nothing_is_left(url)
    for store in stores:
        await store.close()


async def _nothing_is_left(url: str) -> None:
    """No task of a run that has ended, no run without one that has not, no watch of or by the ended."""
    connection = await asyncpg.connect(url)
    living = "SELECT id FROM holdfast.holdfast_run WHERE completed_at IS NULL"
    odd = Counter(
        {
            "tasks": await connection.fetchval(
                f"SELECT count(*) FROM holdfast.holdfast_task WHERE run NOT IN ({living})"
            ),
            "runs": await connection.fetchval(
                f"SELECT count(*) FROM ({living}) AS l WHERE id NOT IN (SELECT run FROM holdfast.holdfast_task)"
            ),
            "watches": await connection.fetchval(
                "SELECT count(*) FROM holdfast.holdfast_watch"
                f" WHERE target NOT IN ({living}) OR watcher NOT IN ({living})"
            ),
            "orphans": await connection.fetchval(
                f"SELECT count(*) FROM holdfast.holdfast_run WHERE id IN ({living}) AND parent_run NOT IN ({living})"
            ),
        }
    )
    await connection.close()
    assert not +odd, odd


async def test_a_successor_that_is_made_while_its_parent_ends_ends_too(
    store: PostgresStore, world: World, other: asyncpg.Connection
) -> None:
    parent = await world.begin("p")
    [born] = (await world.act(parent, child_of(parent, "c"))).births
    child = TaskRef(born.run.run, 0, "w1", born.epoch)
    await other.execute("BEGIN")
    await other.fetch("SELECT FROM holdfast.holdfast_task WHERE run = $1 FOR UPDATE", child.run)
    going_on = asyncio.create_task(world.go_on(child))
    waits = "SELECT count(*) FROM pg_locks WHERE NOT granted"
    while await other.fetchval(waits) < 1:
        await asyncio.sleep(0.01)
    ending = asyncio.create_task(world.terminate("p"))
    while await other.fetchval(waits) < 2:
        await asyncio.sleep(0.01)

    await other.execute("COMMIT")
    new, ended = await going_on, await ending

    assert new.number == 1
    assert ended.touched.ended == [parent.run, new.run]
    assert (await world.find("c")).status is Status.TERMINATED


@pytest.mark.parametrize(
    "note",
    ["plain", 'with "quotes" and \\ and /', "\0\n\t\x7f", "ä€😀", "\ud800 alone \udfff", "", "x" * 5_000],
    ids=ascii,
)
async def test_any_note_is_told_as_ascii_json(world: World, note: str) -> None:
    parent = await world.begin("p")
    await world.act(parent, child_of(parent, "c"))

    await world.terminate("c", note)

    [mail] = await world.unread(parent.run)
    assert mail.payload is not None
    assert json.loads(mail.payload.decode("ascii"))["note"] == note


async def test_the_end_of_a_run_that_nobody_has_to_do_with_goes_the_short_way(
    store: PostgresStore, world: World
) -> None:
    task, parent = await world.begin("a"), await world.begin("p")
    await world.act(parent, child_of(parent, "c", watch=Watch(0)))
    sent = _queries(store)

    await world.commit(task, facts=[result("s")], then=Finish(Status.COMPLETE))
    answer = await world.commit(parent, facts=[result("s")], then=Finish(Status.COMPLETE))
    await asyncio.sleep(0)

    assert [("commit_one" in query, "holdfast_commit(" in query) for query in sent] == [
        (True, False),
        (True, False),
        (False, True),
    ]
    assert len(touched(answer).ended) == 1


async def test_mail_that_is_moved_to_a_successor_is_moved_in_one_go(
    store: PostgresStore, world: World, other: asyncpg.Connection
) -> None:
    task = await world.begin("a")
    for _ in range(10):
        await store.send([NewEvent(FLOW, "a", "go", payload=b"%d" % n) for n in range(300)])

    async with asyncio.timeout(10):
        new = await world.go_on(task)

    count = "SELECT count(*), min(n), max(n) FROM holdfast.holdfast_event WHERE run = $1"
    assert tuple(await other.fetchrow(count, new.run)) == (3_000, 1, 3_000)
    bag = await store.undelivered(new.run)
    assert (len(bag.mail), bag.complete, bag.last) == (500, False, 3_000)
