"""Every statement finds its rows by an index, and what it costs does not grow with what is stored."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import apsw
import pytest

from holdfast.core.model import Status
from holdfast.store.protocol import (
    Advance,
    AnswerEvent,
    Attributes,
    Condition,
    Delivered,
    Delivery,
    Expiry,
    Finish,
    ListQuery,
    NewEvent,
    NewRun,
    NewUnit,
    Opening,
    Outbound,
    Reply,
    TaskRef,
    Term,
)
from holdfast.store.sqlite import SqliteStore, migrate
from holdfast.store.sqlite.leases import reap
from holdfast.store.sqlite.mailbox import Look, Question, reply, undelivered
from holdfast.store.sqlite.reads import list_runs
from holdfast.store.sqlite.sql import groups, statements
from store.sqlite.inside import on_writer
from store.world import FLOW, LEASE, World, result, turn, waiting

# What a SCAN may run over: what the statement itself brings or builds, SQLite's own few rows, and workers.
SMALL = {"asked", "q", "w", "l", "lane", "h", "holder", "k", "known", "b", "bucket", "json_each"}
SMALL |= {"sqlite_schema", "sqlite_sequence", "holdfast_worker"}
FEW = 20
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


@pytest.mark.parametrize("status", [None, Status.ACTIVE])
@pytest.mark.parametrize("conditions", [["rare ="], ["rare =", "common ="], ["common =", "rare ="], ["rare >="]])
async def test_what_is_rare_is_found_at_the_same_cost_however_much_is_stored(
    world: World, store: SqliteStore, status: Status | None, conditions: list[str]
) -> None:
    search = [Condition(key, op, 1) for key, op in map(str.split, conditions)]
    query = ListQuery(FLOW, status, limit=5, search=search)
    await _describe(world, FEW)
    small = await cost(store, lambda: store._write(list_runs, query))
    await _describe(world, 3_000)

    large = await cost(store, lambda: store._write(list_runs, query))

    assert large < small * 1.5, (small, large)
    assert len(await store.list(query)) == 1


@pytest.mark.parametrize("status", [None, Status.ACTIVE])
async def test_a_list_by_id_prefix_costs_the_same_however_many_other_ids_there_are(
    world: World, store: SqliteStore, status: Status | None
) -> None:
    query = ListQuery(FLOW, status, limit=5, id_prefix="mine-")
    await world.create("mine-1")
    await _describe(world, FEW)
    small = await cost(store, lambda: store._write(list_runs, query))
    await _describe(world, 3_000)

    large = await cost(store, lambda: store._write(list_runs, query))

    assert large < small * 1.5, (small, large)
    assert len(await store.list(query)) == 1


async def test_a_page_of_what_is_common_costs_the_same_however_much_is_stored(world: World, store: SqliteStore) -> None:
    query = ListQuery(FLOW, Status.ACTIVE, limit=5, search=[Condition("common", "=", 1), Condition("n", ">=", 0)])
    await _describe(world, FEW)
    small = await cost(store, lambda: store._write(list_runs, query))
    await _describe(world, 3_000)

    large = await cost(store, lambda: store._write(list_runs, query))

    assert large < small * 1.5, (small, large)


async def test_a_look_into_a_mailbox_costs_the_same_however_much_of_other_types_is_unread(
    world: World, store: SqliteStore
) -> None:
    run = await world.start("a")
    look = Look(run.run, frozenset({"go", "stop"}))
    await store.send([NewEvent(FLOW, "a", topic) for topic in ["noise"] * 20 + ["go"]])
    await world.cancel("a")
    small = await cost(store, lambda: store._write(undelivered, look))
    await store.send([NewEvent(FLOW, "a", "noise") for _ in range(3_000)])

    large = await cost(store, lambda: store._write(undelivered, look))

    assert large < small * 1.5, (small, large)


async def test_mail_costs_the_same_however_many_runs_came_before(world: World, store: SqliteStore) -> None:
    async def measure(runs: int) -> list[int]:
        name = f"r{runs}"
        task = await world.begin(name)
        await world.send("ask", name, dedup="k", ask="k")
        await world.commit(task, deliveries=[Delivery(1, "s", 1)])
        await world.act(task, AnswerEvent(1, Reply(True, b"7")))
        task = await world.gone_on(task, runs)
        sending = await cost(store, lambda: world.send("go", name, dedup="new"))
        repeating = await cost(store, lambda: world.send("go", name, dedup="k"))
        answer = await cost(store, lambda: store._write(reply, Question(task.run, "k")))
        assert await store.reply(task.run, "k") is not None
        return [sending, repeating, answer]

    small, large = await measure(2), await measure(100)

    assert all(b < a * 1.2 for a, b in zip(small, large, strict=True)), (small, large)


async def test_an_end_costs_the_same_however_many_others_are_watched_and_have_children(
    world: World, store: SqliteStore
) -> None:
    tasks = [await world.begin(f"r{n}") for n in range(2)]
    await _families(world, 20)
    small = await cost(store, lambda: world.finish(tasks[0]))
    await _families(world, 3_000)

    large = await cost(store, lambda: world.finish(tasks[1]))

    assert large < small * 1.5, (small, large)


async def test_the_end_of_a_parent_does_not_look_at_children_that_have_ended(world: World, store: SqliteStore) -> None:
    few, many = await world.begin("few"), await world.begin("many")
    for parent, count in ((few, 2), (many, 3_000)):
        await _children(world, parent, count)
    small = await cost(store, lambda: world.finish(few))

    large = await cost(store, lambda: world.finish(many))

    assert large < small * 1.5, (small, large)


async def test_a_claim_costs_the_same_however_many_runs_will_expire(world: World, store: SqliteStore) -> None:
    async def expire(count: int) -> None:
        new = [NewRun("x", f"{count}-{n}", expires_ms=10**6 + n, expiry=Expiry.RUN) for n in range(count)]
        await store.create(new)

    await expire(20)
    small = await cost(store, lambda: world.claim("w2"))
    await expire(3_000)

    large = await cost(store, lambda: world.claim("w2"))

    assert large < small * 1.5, (small, large)


async def test_units_cost_the_same_however_many_their_run_has(world: World, store: SqliteStore) -> None:
    async def measure(width: int) -> list[int]:
        run, owner = await _wide(world, width), f"w-{width}"
        claiming = await cost(store, lambda: world.claim(owner, limit=5))
        by_run = await cost(store, lambda: world.claim(owner, limit=5, run=run))
        held = [TaskRef(run, one.unit, owner, one.epoch) for one in await store.heartbeat(owner, LEASE)]
        opens = [Opening(width + 1)]
        done = [Advance(task, results=[result(f"u{task.unit}")], opens=opens, drops=[width]) for task in held]
        advancing = await cost(store, lambda: world.advance(*done, owner=owner, room=5))
        assert len(await world.results(run)) == len(held) == 10
        await world.terminate(f"wide-{width}")
        return [claiming, by_run, advancing]

    small, large = await measure(20), await measure(3_000)

    assert all(b < a * 1.5 for a, b in zip(small, large, strict=True)), (small, large)


async def test_a_commit_costs_the_same_however_many_units_the_run_has(world: World, store: SqliteStore) -> None:
    async def measure(width: int) -> int:
        await _wide(world, width)
        await world.exit(f"wide-{width}")
        [claim] = (await world.claim(limit=1)).claims
        assert claim.task.unit == 0
        committing = await cost(store, lambda: world.commit(claim.task, facts=[result("s")]))
        await world.terminate(f"wide-{width}")
        return committing

    small, large = await measure(20), await measure(3_000)

    assert large < small * 1.5, (small, large)


async def test_the_outbox_costs_the_same_however_much_waits_in_it(world: World, store: SqliteStore) -> None:
    async def measure(count: int) -> list[int]:
        task = await world.begin(f"r{count}")
        await world.commit(task, outbox=[Outbound("x", None, "s")] * count)
        claiming = await cost(store, lambda: store.outbox_claim("w1", 10**6, 5))
        settling = await cost(store, lambda: store.outbox_settle("w1", [Delivered(task.run, 1)]))
        await store.outbox_claim("w1", 10**6, 5)
        return [claiming, settling]

    small, large = await measure(20), await measure(3_000)

    assert all(b < a * 1.5 for a, b in zip(small, large, strict=True)), (small, large)


async def _wide(world: World, width: int) -> int:
    """A graph whose nodes are all due, but for one that waits for them."""
    units = [*(NewUnit(n, f"u{n}") for n in range(1, width + 1)), NewUnit(width + 1, "last", width)]
    return (await world.start(f"wide-{width}", units=units)).run


async def _describe(world: World, count: int) -> None:
    """Runs that have something in common, and one that has what no other has."""
    common = [Term("common", 1), Term("n", 1)]
    new = [NewRun(FLOW, f"{count}-{n}", attributes=Attributes(None, b"{}", common)) for n in range(count)]
    new[0].attributes = Attributes(None, b"{}", [*common, Term("rare", 1 if count == FEW else 0)])
    await world.store.create(new)


async def _families(world: World, count: int) -> None:
    parent = await world.begin(f"parent-{count}")
    await world.store.create([_child(parent, f"{count}-{n}") for n in range(count)])


async def _children(world: World, parent: TaskRef, count: int) -> None:
    """All of them have ended."""
    born = await world.store.create([_child(parent, f"{count}-{n}", owner="w1") for n in range(count)])
    tasks = [TaskRef(one.run.run, 0, "w1", one.epoch) for one in born]
    await world.store.commit([turn(task, then=Finish(Status.COMPLETE)) for task in tasks])


def _child(parent: TaskRef, id: str, owner: str | None = None) -> NewRun:
    return NewRun(FLOW, id, parent="flow/parent", parent_run=parent.run, owner=owner, lease_ms=LEASE)


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
