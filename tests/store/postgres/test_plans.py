"""What a call reads is found by an index, and does not grow with what is stored."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import pytest

from holdfast.core.model import Status
from holdfast.ports import SystemRandomness
from holdfast.store.postgres import acts, advance, batch, claim, control, create, foreseen, leases, outbox, reads, send
from holdfast.store.postgres.tx import Tx
from holdfast.store.protocol import (
    Advance,
    AnswerEvent,
    Attributes,
    CancelRun,
    Claimant,
    ClaimRequest,
    Condition,
    Deed,
    Delivered,
    Delivery,
    Expiry,
    FactState,
    Finish,
    Foreseen,
    GiveBack,
    Lease,
    ListQuery,
    NewEvent,
    NewRun,
    NewUnit,
    NextRun,
    OnConflict,
    Outbound,
    PageQuery,
    Reply,
    TaskRef,
    Term,
    TerminateRun,
    Undelivered,
    Watch,
    WatchRun,
)
from store.world import FLOW, LEASE, World, act, done, failure, line, pid, result, turn, unit, waiting

READ = """
    SELECT relname, seq_scan, coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0)
      FROM pg_stat_xact_user_tables WHERE schemaname = 'holdfast'
"""
BY_HAND = """
    SELECT format('ALTER TABLE %s SET (autovacuum_enabled = off)', oid::regclass) FROM pg_class
     WHERE relnamespace = 'holdfast'::regnamespace AND relkind = 'r'
"""
"""Or the server itself would look at the tables half way, when nearly all of the mail is of one run."""
SMALL = {"holdfast_worker", "holdfast_receipt"}
"""A row for each worker or line of commits, however much is stored."""


class Reading:
    """Calls on one connection, and what PostgreSQL says they read."""

    def __init__(self, connection: asyncpg.Connection, world: World) -> None:
        self._connection = connection
        self._world = world
        self._flush = "SELECT pg_stat_force_next_flush()"
        if connection.get_server_version().major < 15:
            self._flush = "SELECT pg_sleep(0.6)"  # so old that it is done by itself after the next statement

    async def of(self, work: Callable[[Tx, Any], Awaitable[object]], argument: Any, *, scans: bool = False) -> int:
        """How many rows; a scan of a whole table is a failure, unless they are so small that it is the quickest."""
        await self._connection.execute(self._flush)  # or earlier calls would be counted too
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


def _busy(task: TaskRef) -> acts.Reaching:
    """A commit that does all that can be done to others, and then makes room for a successor."""
    deeds: list[Deed] = [
        NewRun(FLOW, "child", parent=pid("mine"), parent_run=task.run),
        NewRun(FLOW, "held", on_conflict=OnConflict.TERMINATE_EXISTING),
        NewEvent(FLOW, "waiter", "go"),
        WatchRun(FLOW, "waiter", Watch.LINK),
        CancelRun(FLOW, "waiter", b"{}", 10),
        TerminateRun(FLOW, "waiter", None),
        AnswerEvent(1, Reply(True, None)),
    ]
    said = Attributes(search=b"{}", terms=[Term("new", 1)])
    done = [act(f"act{n}", deed) for n, deed in enumerate(deeds)]
    commit = turn(task, acts=done, attributes=said, then=Finish(Status.COMPLETE, next=NextRun(None)))
    return acts.Reaching.of(commit, batch.Receipt(0, 1), SystemRandomness())


async def _with_its_turn(tx: Tx, _: None) -> None:
    run = await reads.find(tx, reads.Which(FLOW, "waiter", None))
    assert run is not None
    assert tx.now is not None
    commit = turn(
        TaskRef(run.run, 0, "w9", 2),
        facts=[result("new", event=1, event_type="go", value=None, at=tx.now)],
        deliveries=[Delivery(1, "new", tx.now)],
        then=Finish(Status.COMPLETE),
    )
    event = NewEvent(FLOW, "waiter", "go", claimant=Claimant("w9", LEASE, ["default"]))
    assert await foreseen.write(tx, send.Sending(event, 1), Foreseen(run, 1, tx.now, commit))


CALLS: dict[str, tuple[Callable[[Tx, Any], Awaitable[object]], Callable[[TaskRef], Any]]] = {
    "claim": (
        claim.claim,
        lambda _: claim.Claiming(ClaimRequest("w9", LEASE, 10, ["default"], frozenset([FLOW, "other"])), 1, []),
    ),
    "commit": (
        batch.together,
        lambda task: batch.Batch(
            [turn(task, facts=[result("new")], logs=[line("l")], then=waiting("go"), seen=10**6)], batch.Receipt(0, 1)
        ),
    ),
    "finish": (
        batch.together,
        lambda task: batch.Batch([turn(task, then=Finish(Status.COMPLETE))], batch.Receipt(0, 1)),
    ),
    "short commit": (
        batch.together,
        lambda task: batch.Batch(
            [turn(task, facts=[result("new")], then=waiting("go"), seen=10**6)], batch.Receipt(0, 1)
        ),
    ),
    "acts": (acts.reach, _busy),
    "terminate": (control.terminate, lambda _: control.Ending(control.Target(FLOW, "mine"), None)),
    "restart": (control.restart, lambda _: control.Restarting(control.Target(FLOW, "mine"), None, None, None, 1)),
    "cancel": (control.cancel, lambda _: control.Cancelling(control.Target(FLOW, "mine"), b"{}", 10)),
    "create": (create.create, lambda _: [create.Making(NewRun(FLOW, "new"), 1)]),
    "create what is there": (create.create, lambda _: [create.Making(NewRun(FLOW, "mine"), 1)]),
    "release": (leases.release, lambda task: [task]),
    "set leases": (leases.set_leases, lambda task: [Lease(task, LEASE)]),
    "send": (send.send, lambda _: [send.Sending(NewEvent(FLOW, "mine", "go"), 1)]),
    "send and claim": (
        send.send,
        lambda _: [send.Sending(NewEvent(FLOW, "waiter", "go", claimant=Claimant("w9", LEASE, ["default"])), 1)],
    ),
    "send with its turn": (_with_its_turn, lambda _: None),
    "reap": (leases.reap, lambda _: 3),
    "signals": (leases.signals, lambda _: "holder"),
    "heartbeat": (leases.heartbeat, lambda _: leases.Beat("holder", LEASE)),
    "find": (reads.find, lambda _: reads.Which(FLOW, "mine", None)),
    "load": (reads.load, lambda task: task.run),
    "events": (reads.events, lambda task: PageQuery(task.run, limit=5, descending=True)),
    "logs": (reads.logs, lambda task: PageQuery(task.run, limit=5)),
    "mail of a type": (reads.undelivered, lambda task: reads.Look(task.run + 1, frozenset({"rare"}))),
    "reply": (reads.reply, lambda task: reads.Question(task.run, "key")),
    "relations": (reads.relations, lambda task: task.run),
    "list by text": (reads.list_runs, lambda _: ListQuery(FLOW, limit=5, search=[Condition("city", "=", "Bonn")])),
    "list by number": (reads.list_runs, lambda _: ListQuery(limit=5, search=[Condition("n", "=", 3_000_007)])),
    "list by range": (
        reads.list_runs,
        lambda _: ListQuery(limit=5, search=[Condition("n", ">", 3_000_006), Condition("n", "<", 3_000_008)]),
    ),
    "list by one of two": (
        reads.list_runs,
        lambda _: ListQuery(limit=5, search=[Condition("city", "<", "Z"), Condition("n", "=", 3_000_007)]),
    ),
    "list by prefix": (reads.list_runs, lambda _: ListQuery(FLOW, limit=5, id_prefix="min")),
    "list of all by prefix": (reads.list_runs, lambda _: ListQuery(limit=5, id_prefix="min")),
    "list by prefix and status": (reads.list_runs, lambda _: ListQuery(FLOW, Status.ACTIVE, limit=5, id_prefix="min")),
    "list by prefix and text": (
        reads.list_runs,
        lambda _: ListQuery(FLOW, limit=5, search=[Condition("n", "=", 3_000_007)], id_prefix="30-"),
    ),
    "list": (reads.list_runs, lambda _: ListQuery(limit=5)),
    "list of one workflow": (reads.list_runs, lambda _: ListQuery(FLOW, limit=5)),
    "list by status": (reads.list_runs, lambda _: ListQuery(status=Status.WAITING, limit=5)),
    "list of one by status": (reads.list_runs, lambda _: ListQuery(FLOW, Status.COMPLETE, limit=5)),
}


def _advancing(*advances: Advance) -> advance.Advancing:
    return advance.Advancing(advances, Claimant("w9", LEASE, ["default"]), 2, batch.Receipt(0, 1), 1)


# Of a run with many units, by who holds its first one and has said much.
UNIT_CALLS: dict[str, tuple[Callable[[Tx, Any], Awaitable[object]], Callable[[TaskRef], Any]]] = {
    "advance": (advance.advance, lambda task: _advancing(done(task, 2, 3, 4, logs=[line("l")], started_at=1))),
    "advance and give back": (
        advance.advance,
        lambda task: _advancing(
            Advance(task, [failure("a", 9)], opens=[], drops=[3], adds=[unit(9)], then=GiveBack(1))
        ),
    ),
    "claim units": (
        claim.claim,
        lambda task: claim.Claiming(ClaimRequest("w9", LEASE, 3, [], frozenset(), run=task.run), 1, []),
    ),
    "claim any": (
        claim.claim,
        lambda _: claim.Claiming(ClaimRequest("w9", LEASE, 3, ["default"], frozenset([FLOW])), 1, []),
    ),
    "create with units": (
        create.create,
        lambda _: [create.Making(NewRun(FLOW, "new", units=[unit(1), unit(2, 1)], owner="w9", room=1), 1)],
    ),
    "release a unit": (leases.release, lambda task: [task]),
    "send to a run with units": (send.send, lambda _: [send.Sending(NewEvent(FLOW, "graph", "go"), 1)]),
    "cancel a run with units": (
        control.cancel,
        lambda _: control.Cancelling(control.Target(FLOW, "cancelled"), b"{}", 10),
    ),
    "heartbeat of one unit": (leases.heartbeat, lambda _: leases.Beat("adder", LEASE)),
    "facts of keys": (reads.facts, lambda task: reads.Past(task.run, FactState.ITEM, ["a"])),
    "say": (
        batch.together,
        lambda task: batch.Batch(
            [turn(task, facts=[result("s")], outbox=[Outbound("t", None, "s")])], batch.Receipt(0, 1)
        ),
    ),
    "take out": (outbox.claim, lambda _: outbox.Carrier("w9", LEASE, 3, 1)),
    "settle": (outbox.settle, lambda task: outbox.Settling("carrier", [Delivered(task.run, 1)])),
    "settle what failed": (outbox.settle, lambda task: outbox.Settling("carrier", [Undelivered(task.run, 1, "e", 5)])),
    "take up again": (outbox.retry, lambda task: task.run),
}


@pytest.mark.parametrize("analyzed", ["never", "empty", "full"])
async def test_what_is_read_of_units_does_not_grow_with_what_is_stored(
    world: World, other: asyncpg.Connection, analyzed: str
) -> None:
    """``analyzed``: also with plans that were made for tables with nothing in them."""
    for statement in await other.fetch(BY_HAND):
        await other.execute(statement[0])
    if analyzed == "empty":
        await other.execute("ANALYZE")
    await world.graph("graph", unit(1), *(NewUnit(n, str(n), 1) for n in range(2, 7)), owner=None)
    task = (await world.take("adder", lease_ms=10**9)).task
    await world.graph("cancelled", unit(1), unit(2, 1))  # which deletes its units, and no others
    await world.commit(task, outbox=[Outbound("t", None, "s")])
    await world.store.outbox_claim("carrier", 10**9, 1)
    reading = Reading(other, world)
    for work, argument in UNIT_CALLS.values():
        await reading.of(work, argument(task), scans=True)
    task = await _fill_units(world, task, 30)
    small = {name: await reading.of(work, argument(task), scans=True) for name, (work, argument) in UNIT_CALLS.items()}
    task = await _fill_units(world, task, 2_000)
    if analyzed == "full":
        await other.execute("ANALYZE")

    large = {name: await reading.of(work, argument(task)) for name, (work, argument) in UNIT_CALLS.items()}

    for name, rows in large.items():
        assert rows <= min(small[name] + 5, 100), (name, small[name], rows)


async def _fill_units(world: World, task: TaskRef, n: int) -> TaskRef:
    """n more units of the run that wait, as many that are due, and n things to say; n more runs with units."""
    adds = [NewUnit(n * 10 + i, f"{n}-{i}", i % 2) for i in range(2 * n)]
    items = [result(f"{n}-{i}")._replace(state=FactState.ITEM) for i in range(n)]
    given_back = Advance(task, items, adds=adds, then=GiveBack(await world.now()))
    [task] = (await world.advance(given_back, owner="adder", room=1)).taken
    await world.commit(task, outbox=[Outbound("t", None, "s")] * n)
    many = [NewRun(FLOW, f"{n}-{i}", units=[unit(1), unit(2, 1)], owner="w1", lease_ms=LEASE, room=1) for i in range(n)]
    await world.store.create(many)
    talkers = [NewRun(FLOW, f"talks-{n}-{i}", owner="w1", lease_ms=LEASE) for i in range(n)]
    tasks = [TaskRef(made.run.run, 0, "w1", 1) for made in await world.store.create(talkers)]
    await world.store.commit([turn(one, outbox=[Outbound("t", None, "s")]) for one in tasks])
    return task


async def test_mail_reads_the_same_however_many_runs_came_before(world: World, other: asyncpg.Connection) -> None:
    reading = Reading(other, world)

    async def measure(runs: int) -> list[int]:
        name = f"r{runs}"
        task = await world.begin(name)
        await world.send("ask", name, dedup="k", ask="k")
        await world.commit(task, deliveries=[Delivery(1, "s", 1)])
        await world.act(task, AnswerEvent(1, Reply(True, b"7")))
        task = await world.gone_on(task, runs)
        return [
            await reading.of(send.send, [send.Sending(NewEvent(FLOW, name, "go", dedup="new"), 1)], scans=runs < 100),
            await reading.of(send.send, [send.Sending(NewEvent(FLOW, name, "go", dedup="k"), 2)], scans=runs < 100),
            await reading.of(reads.reply, reads.Question(task.run, "k"), scans=runs < 100),
        ]

    small, large = await measure(2), await measure(100)

    assert large == small


@pytest.mark.parametrize("analyzed", [True, False])
async def test_what_is_read_does_not_grow_with_what_is_stored(
    world: World, other: asyncpg.Connection, analyzed: bool
) -> None:
    for statement in await other.fetch(BY_HAND):
        await other.execute(statement[0])
    await world.create("held", owner="holder", lease_ms=10**9)
    task = await world.begin("mine")  # by one who will hold many
    await world.commit(task, facts=[result("s")], logs=[line("l")])
    await world.send("rare", "mine", dedup="key")
    await world.begin("popular", "holder")  # the run after that
    await world.wait("waiter", "go")
    reading = Reading(other, world)
    await _fill(world, 30)
    small = {name: await reading.of(work, argument(task), scans=True) for name, (work, argument) in CALLS.items()}
    await _fill(world, 2_000)
    if analyzed:
        await other.execute("ANALYZE")

    large = {name: await reading.of(work, argument(task)) for name, (work, argument) in CALLS.items()}

    for name, rows in large.items():
        assert rows <= small[name] + 5, (name, small[name], rows)


@pytest.mark.parametrize("analyzed", [True, False])
async def test_a_reap_reads_only_tasks_with_their_own_lease_of_a_living_worker(
    world: World, other: asyncpg.Connection, analyzed: bool
) -> None:
    for statement in await other.fetch(BY_HAND):
        await other.execute(statement[0])
    task = await world.begin("leased")
    await world.store.set_leases([Lease(task, 10)])
    await world.store.create([NewRun(FLOW, f"r{n}", owner="w1", lease_ms=1) for n in range(2_000)])
    await world.store.heartbeat("w1", LEASE)
    world.clock.advance(LEASE // 2)
    if analyzed:
        await other.execute("ANALYZE")

    assert await Reading(other, world).of(leases.reap, 9) < 20
    assert [freed.run for freed in await world.store.reap(9)] == [task.run]


async def _fill(world: World, n: int) -> None:
    """n more runs each that are due, sleep, wait, are held, and have ended."""
    created = await world.store.create(
        [
            NewRun(
                FLOW,
                f"{n}-{kind}-{i}",
                owner=_owner(kind),
                lease_ms=LEASE,
                expires_ms=10**9,
                expiry=Expiry.RUN,
                attributes=Attributes(search=b"{}", terms=[Term("city", "Bonn"), Term("n", n * 100_000 + i)]),
            )
            for kind in range(5)
            for i in range(n)
        ]
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
    family = await world.start(f"{n}-family")
    await world.store.create([NewRun(FLOW, f"{n}-child-{i}", parent=pid("x"), parent_run=family.run) for i in range(n)])
    await world.store.send([NewEvent(FLOW, f"{n}-2-{i}", "other") for i in range(n)])
    await world.store.send([NewEvent(FLOW, "popular", "other") for _ in range(n)])


def _owner(kind: int) -> str | None:
    return "w1" if kind else None


async def test_lists_know_every_status(world: World, other: asyncpg.Connection) -> None:
    """One that they do not know would be in no list."""
    assert sorted(await other.fetchval("SELECT holdfast.holdfast_statuses()")) == sorted(Status)
