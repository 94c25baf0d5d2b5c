"""Every statement uses an index, and its cost does not grow with the amount of stored data."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import apsw
import pytest

from holdfast.core.filters import TimeRange
from holdfast.core.model import Status
from holdfast.store.protocol import (
    Advance,
    Attributes,
    ClaimOutbox,
    Condition,
    CurrentRuns,
    DeclareLimits,
    Delivered,
    Delivery,
    Expiry,
    Finish,
    LimitKey,
    LimitKeysQuery,
    LimitValues,
    MailboxQuery,
    MissingDecrement,
    NewEvent,
    NewRun,
    NewUnit,
    Outbound,
    PermitExchange,
    PermitRequest,
    ReadLimits,
    Reply,
    ReplyQuery,
    ReplyToEvent,
    SettleOutbox,
    StatsQuery,
    Tally,
    TaskRef,
    Term,
)
from holdfast.store.protocol.stats import MAX_MINUTES
from holdfast.store.sqlite import SqliteStore, migrate
from holdfast.store.sqlite.leases import reap
from holdfast.store.sqlite.limits import records
from holdfast.store.sqlite.mailbox import undelivered
from holdfast.store.sqlite.permits import keys
from holdfast.store.sqlite.reads import runs
from holdfast.store.sqlite.replies import reply
from holdfast.store.sqlite.sql import groups, statements
from holdfast.store.sqlite.stats import stats
from store.sqlite.internals import on_writer
from store.world import FLOW, LEASE, World, result, turn, waiting

# Tables that a SCAN may read: those that the statement passes or builds, small tables of SQLite, and workers.
SMALL = {"item", "q", "w", "p", "l", "lane", "owners", "k", "known", "b", "bucket", "json_each"}
SMALL |= {"sqlite_schema", "sqlite_sequence", "holdfast_worker", "holdfast_bulk", "holdfast_leftover", "holdfast_fence"}
# Limits are few; limits with room, and permits that were just granted, are in partial indexes.
SMALL |= {"holdfast_queue", "holdfast_limit", "holdfast_limit_use", "(subquery-1)"}
# Names of workflows, statuses, and counts of them.
SMALL |= {"workflow", "holdfast_workflow", "e", "living", "ended", "recent", "started", "mark", "s", "(subquery-7)"}
# The ranked durations of the steps of a bounded number of runs.
RANKED = {("stats", "steps"): {"ranked", "(subquery-18)", "(subquery-19)"}}
FEW = 20
# The statement counts all open runs.
COUNTING = {("workers", "open_runs"), ("stats", "counts"), ("stats", "attention")}
# An operator moves all open runs of a queue, sleeping ones included; no index has these by queue.
COUNTING |= {("queues", "move_runs"), ("queues", "move_tasks")}
# An operator pauses or moves a queue: all permits that wait or that no worker uses are read.
COUNTING |= {("permits", "make_queue_due"), ("permits", "withdraw_queue")}
# The keys of one limit that are in use or waited for, not the waiting permits.
COUNTING |= {("permits", "keys")}
# The groups that wait at one limit, not their waiting permits. h: the first permits of these groups.
SMALL |= {"h", "head"}
# The index has only the blobs without references, of which a bounded number is read.
COUNTING |= {("blobs", "garbage")}
# The statement groups and sorts a bounded number of rows.
GROUPING = {("stats", "counts"), ("stats", "details"), ("stats", "steps"), ("stats", "add")}
GROUPING |= {("stats", "attention"), ("stats", "minutes"), ("stats", "add_up_hours"), ("permits", "keys")}
# The permits of one step, or of one run, are few.
GROUPING |= {("permits", "find"), ("permits", "positions"), ("permits", "freed")}
GROUPING |= {("schedules", "due")}
# A transfer reads all rows, and no other process uses the database meanwhile; the doctor counts all open runs.
ALL = [(group, name) for group in groups() if group not in ("transfer", "doctor") for name in statements(group)]


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
        assert "TEMP B-TREE" not in step or (group, name) in GROUPING, step
        assert "AUTOMATIC" not in step, step
        if step.startswith("SCAN ") and "CONSTANT ROW" not in step:
            known = SMALL | RANKED.get((group, name), set())
            assert step.split()[1] in known or (group, name) in COUNTING, step


async def cost(store: SqliteStore, call: Callable[[], Awaitable[object]]) -> int:
    """The number of instructions that SQLite ran for the call on the writer's connection."""
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


async def test_the_cost_of_a_claim_does_not_grow_with_the_number_of_stored_runs(
    world: World, store: SqliteStore
) -> None:
    await _fill(world, 20)
    small = await cost(store, lambda: world.claim("w2", limit=10, workflows=[FLOW, "other"]))
    await _fill(world, 3_000)

    large = await cost(store, lambda: world.claim("w3", limit=10, workflows=[FLOW, "other"]))

    assert large < small * 1.5, (small, large)


async def test_the_cost_of_reaping_does_not_grow_with_the_number_of_owned_tasks(
    world: World, store: SqliteStore
) -> None:
    await _fill(world, 20)
    small = await cost(store, lambda: store._write(_reap_nothing, None))
    await _fill(world, 3_000)

    large = await cost(store, lambda: store._write(_reap_nothing, None))

    assert large < small * 1.5, (small, large)


async def test_the_cost_of_listing_a_limit_does_not_grow_with_the_number_of_waiting_permits(
    world: World, store: SqliteStore
) -> None:
    await store.limits(DeclareLimits({"bank": LimitValues(concurrency=1)}))
    task = await world.start_claimed("limited")

    async def wait(count: int) -> None:
        asked = [PermitRequest(task, f"{count}-{n}", 1, [LimitKey("bank", "k")], n % 3) for n in range(count)]
        await store.exchange_permits(PermitExchange("w1", requests=asked))

    async def costs() -> list[int]:
        listed = await cost(store, lambda: store._write(records, ReadLimits()))
        return [listed, await cost(store, lambda: store._write(keys, LimitKeysQuery("bank", 10)))]

    await wait(20)
    small = await costs()
    await wait(3_000)

    assert await costs() == small


async def test_the_cost_of_statistics_does_not_grow_with_the_number_of_finished_runs(
    world: World, store: SqliteStore
) -> None:
    async def finish(count: int, prefix: str) -> None:
        created = await store.create([NewRun(FLOW, f"{prefix}{n}", owner="w1", lease_ms=LEASE) for n in range(count)])
        tasks = [TaskRef(one.run.run, 0, "w1", one.epoch) for one in created]
        await store.commit([turn(task, facts=[result("s")], then=Finish(Status.COMPLETE)) for task in tasks])
        world.clock.advance(2 * 3_600_000)
        while await store.maintain(Tally(1_000)):
            pass

    await finish(60, "a")
    query = StatsQuery(details=True, attention=True, minutes=MAX_MINUTES)
    small = await cost(store, lambda: store._write(stats, query))
    await finish(3_000, "b")

    large = await cost(store, lambda: store._write(stats, query))
    part = await cost(store, lambda: store.maintain(Tally(10)))

    assert large < small * 1.5, (small, large)
    assert part < small


async def test_the_cost_of_a_list_page_does_not_grow_with_the_number_of_runs(world: World, store: SqliteStore) -> None:
    query = CurrentRuns(FLOW, Status.COMPLETE, limit=5)
    await _fill(world, 20)
    small = await cost(store, lambda: store._write(runs, query))
    await _fill(world, 3_000)

    large = await cost(store, lambda: store._write(runs, query))

    assert large < small * 1.5, (small, large)


@pytest.mark.parametrize("status", [None, Status.ACTIVE])
@pytest.mark.parametrize("conditions", [["rare ="], ["rare =", "common ="], ["common =", "rare ="], ["rare >="]])
async def test_the_cost_of_finding_a_rare_term_does_not_grow_with_the_number_of_runs(
    world: World, store: SqliteStore, status: Status | None, conditions: list[str]
) -> None:
    search = [Condition(key, op, 1) for key, op in map(str.split, conditions)]
    query = CurrentRuns(FLOW, status, limit=5, search=search)
    await _describe(world, FEW)
    small = await cost(store, lambda: store._write(runs, query))
    await _describe(world, 3_000)

    large = await cost(store, lambda: store._write(runs, query))

    assert large < small * 1.5, (small, large)
    assert len(await store.read(query)) == 1


@pytest.mark.parametrize(
    "conditions",
    [
        {"error": "KeyError"},
        {"error": "KeyError", "status": Status.ERRORED, "ascending": True},
        {"queue": "rare"},
        {"version": "1"},
        {"created": TimeRange(None, 1)},
        {"ended": TimeRange(1, 9)},
    ],
    ids=str,
)
async def test_the_cost_of_a_filter_does_not_grow_with_the_runs_that_do_not_match(
    world: World, store: SqliteStore, conditions: dict[str, Any]
) -> None:
    query = CurrentRuns(FLOW, limit=5, **conditions)
    failed = await world.start_claimed("failed", queue="rare")
    await world.finish(failed, Status.ERRORED, error=b'{"name":"KeyError"}')
    await _fill(world, FEW)
    small = await cost(store, lambda: store._write(runs, query))
    await _fill(world, 1_000)

    large = await cost(store, lambda: store._write(runs, query))

    assert large < small * 1.5, (small, large)


@pytest.mark.parametrize("status", [None, Status.ACTIVE])
async def test_the_cost_of_a_list_by_id_prefix_does_not_grow_with_other_ids(
    world: World, store: SqliteStore, status: Status | None
) -> None:
    query = CurrentRuns(FLOW, status, limit=5, id_prefix="mine-")
    await world.create("mine-1")
    await _describe(world, FEW)
    small = await cost(store, lambda: store._write(runs, query))
    await _describe(world, 3_000)

    large = await cost(store, lambda: store._write(runs, query))

    assert large < small * 1.5, (small, large)
    assert len(await store.read(query)) == 1


async def test_the_cost_of_a_page_of_a_common_term_does_not_grow_with_the_number_of_runs(
    world: World, store: SqliteStore
) -> None:
    query = CurrentRuns(FLOW, Status.ACTIVE, limit=5, search=[Condition("common", "=", 1), Condition("n", ">=", 0)])
    await _describe(world, FEW)
    small = await cost(store, lambda: store._write(runs, query))
    await _describe(world, 3_000)

    large = await cost(store, lambda: store._write(runs, query))

    assert large < small * 1.5, (small, large)


async def test_the_cost_of_reading_a_mailbox_does_not_grow_with_events_of_other_types(
    world: World, store: SqliteStore
) -> None:
    run = await world.start("a")
    query = MailboxQuery(run.run, frozenset({"go", "stop"}))
    await store.send([NewEvent(FLOW, "a", topic) for topic in ["noise"] * 20 + ["go"]])
    await world.cancel("a")
    small = await cost(store, lambda: store._write(undelivered, query))
    await store.send([NewEvent(FLOW, "a", "noise") for _ in range(3_000)])

    large = await cost(store, lambda: store._write(undelivered, query))

    assert large < small * 1.5, (small, large)


async def test_the_cost_of_sending_does_not_grow_with_the_length_of_the_line(world: World, store: SqliteStore) -> None:
    async def measure(runs: int) -> list[int]:
        name = f"r{runs}"
        task = await world.start_claimed(name)
        await world.send("ask", name, dedup="k", ask="k")
        await world.commit(task, deliveries=[Delivery(1, "s", 1)])
        await world.operate(task, ReplyToEvent(1, Reply(True, b"7")))
        task = await world.continue_claimed(task, runs)
        sending = await cost(store, lambda: world.send("go", name, dedup="new"))
        repeating = await cost(store, lambda: world.send("go", name, dedup="k"))
        answer = await cost(store, lambda: store._write(reply, ReplyQuery(task.run, "k")))
        assert await store.read(ReplyQuery(task.run, "k")) is not None
        return [sending, repeating, answer]

    small, large = await measure(2), await measure(100)

    assert all(b < a * 1.2 for a, b in zip(small, large, strict=True)), (small, large)


async def test_the_cost_of_an_end_does_not_grow_with_the_relations_of_other_runs(
    world: World, store: SqliteStore
) -> None:
    tasks = [await world.start_claimed(f"r{n}") for n in range(2)]
    await _families(world, 20)
    small = await cost(store, lambda: world.finish(tasks[0]))
    await _families(world, 3_000)

    large = await cost(store, lambda: world.finish(tasks[1]))

    assert large < small * 1.5, (small, large)


async def test_the_cost_of_a_parents_end_does_not_grow_with_its_ended_children(
    world: World, store: SqliteStore
) -> None:
    few, many = await world.start_claimed("few"), await world.start_claimed("many")
    for parent, count in ((few, 2), (many, 3_000)):
        await _children(world, parent, count)
    small = await cost(store, lambda: world.finish(few))

    large = await cost(store, lambda: world.finish(many))

    assert large < small * 1.5, (small, large)


async def test_the_cost_of_a_claim_does_not_grow_with_the_number_of_runs_that_expire_later(
    world: World, store: SqliteStore
) -> None:
    async def expire(count: int) -> None:
        new = [NewRun("x", f"{count}-{n}", expires_ms=10**6 + n, expiry=Expiry.RUN) for n in range(count)]
        await store.create(new)

    await expire(20)
    small = await cost(store, lambda: world.claim("w2"))
    await expire(3_000)

    large = await cost(store, lambda: world.claim("w2"))

    assert large < small * 1.5, (small, large)


async def test_the_cost_of_a_unit_does_not_grow_with_the_units_of_its_run(world: World, store: SqliteStore) -> None:
    async def measure(width: int) -> list[int]:
        run, owner = await _wide(world, width), f"w-{width}"
        claiming = await cost(store, lambda: world.claim(owner, limit=5))
        by_run = await cost(store, lambda: world.claim(owner, limit=5, run=run))
        held = [TaskRef(run, one.unit, owner, one.epoch) for one in await store.heartbeat(owner, LEASE)]
        opens = [MissingDecrement(width + 1)]
        done = [
            Advance(task, results=[result(f"u{task.unit}")], decrements=opens, removed_units=[width]) for task in held
        ]
        advancing = await cost(store, lambda: world.advance(*done, owner=owner, claim_limit=5))
        assert len(await world.results(run)) == len(held) == 10
        await world.terminate(f"wide-{width}")
        return [claiming, by_run, advancing]

    small, large = await measure(20), await measure(3_000)

    assert all(b < a * 1.5 for a, b in zip(small, large, strict=True)), (small, large)


async def test_the_cost_of_a_commit_does_not_grow_with_the_units_of_the_run(world: World, store: SqliteStore) -> None:
    async def measure(width: int) -> int:
        await _wide(world, width)
        await world.send_exit(f"wide-{width}")
        [claim] = (await world.claim(limit=1)).claims
        assert claim.task.unit == 0
        committing = await cost(store, lambda: world.commit(claim.task, facts=[result("s")]))
        await world.terminate(f"wide-{width}")
        return committing

    small, large = await measure(20), await measure(3_000)

    assert large < small * 1.5, (small, large)


async def test_the_cost_of_the_outbox_does_not_grow_with_its_length(world: World, store: SqliteStore) -> None:
    async def measure(count: int) -> list[int]:
        task = await world.start_claimed(f"r{count}")
        await world.commit(task, outbox=[Outbound("x", None, "s")] * count)
        claiming = await cost(store, lambda: store.outbox(ClaimOutbox("w1", 10**6, 5)))
        settling = await cost(store, lambda: store.outbox(SettleOutbox("w1", [Delivered(task.run, 1)])))
        await store.outbox(ClaimOutbox("w1", 10**6, 5))
        return [claiming, settling]

    small, large = await measure(20), await measure(3_000)

    assert all(b < a * 1.5 for a, b in zip(small, large, strict=True)), (small, large)


async def _wide(world: World, width: int) -> int:
    """A graph whose nodes are all due, except one that waits for all others."""
    units = [*(NewUnit(n, f"u{n}") for n in range(1, width + 1)), NewUnit(width + 1, "last", width)]
    return (await world.start(f"wide-{width}", units=units)).run


async def _describe(world: World, count: int) -> None:
    """Create runs that share search terms, and one run with a term of its own."""
    common = [Term("common", 1), Term("n", 1)]
    new = [NewRun(FLOW, f"{count}-{n}", attributes=Attributes(None, b"{}", common)) for n in range(count)]
    new[0].attributes = Attributes(None, b"{}", [*common, Term("rare", 1 if count == FEW else 0)])
    await world.store.create(new)


async def _families(world: World, count: int) -> None:
    parent = await world.start_claimed(f"parent-{count}")
    await world.store.create([_child(parent, f"{count}-{n}") for n in range(count)])


async def _children(world: World, parent: TaskRef, count: int) -> None:
    """Create children that have ended."""
    children = await world.store.create([_child(parent, f"{count}-{n}", owner="w1") for n in range(count)])
    tasks = [TaskRef(one.run.run, 0, "w1", one.epoch) for one in children]
    await world.store.commit([turn(task, then=Finish(Status.COMPLETE)) for task in tasks])


def _child(parent: TaskRef, id: str, owner: str | None = None) -> NewRun:
    return NewRun(FLOW, id, parent="flow/parent", parent_run=parent.run, owner=owner, lease_ms=LEASE)


def _reap_nothing(tx: Any, _: None) -> object:
    return reap(tx, 3)


async def _fill(world: World, n: int) -> None:
    """Create n runs of each kind: due, sleeping, waiting, owned, and ended."""
    created = await world.store.create(
        [NewRun(FLOW, f"{n}-{kind}-{i}", owner=_owner(kind), lease_ms=LEASE) for kind in range(5) for i in range(n)]
    )
    tasks = [TaskRef(one.run.run, 0, "w1", one.epoch) for one in created]
    later = world.now() + 10**6
    ends: list[Any] = [None, waiting(run_at=later), waiting("go"), None, Finish(Status.COMPLETE)]
    await world.store.commit(
        [turn(task, facts=[result("s")], then=ends[i // n]) for i, task in enumerate(tasks) if _owner(i // n)]
    )


def _owner(kind: int) -> str | None:
    return "w1" if kind else None
