"""A call whose connection breaks before the reply is applied once, and returns the result of the first attempt."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import asyncpg
import pytest

from holdfast.core.model import Status
from holdfast.errors import StoreUnavailableError
from holdfast.ports import SystemRandomness
from holdfast.store.postgres import PostgresStore
from holdfast.store.postgres.leases import fetch_signals
from holdfast.store.postgres.predicted import send_predicted
from holdfast.store.postgres.send import SendRequest, send
from holdfast.store.postgres.tx import Tx
from holdfast.store.protocol import (
    CANCEL,
    EXIT,
    Claimant,
    ClaimOutbox,
    Delivered,
    Delivery,
    EventsQuery,
    Finish,
    HeldTask,
    LogsQuery,
    NewEvent,
    NewRun,
    NextRun,
    OnConflict,
    OnReuse,
    Operation,
    Outbound,
    OutboxQuery,
    Park,
    Release,
    RequestResult,
    SettleOutbox,
    Signal,
    StartEvent,
    Statement,
    TaskRef,
    TerminateRun,
    Verdict,
    Watch,
    WatchRun,
)
from postgres_server import Server
from store.postgres.fault_tools import Cut, Proxy, RefusalClock
from store.predictions import ENDS, KEY, predict, send_and_commit
from store.world import (
    FLOW,
    LEASE,
    FakeClock,
    World,
    affected,
    done,
    log_line,
    pid,
    recorded,
    result,
    turn,
    unit,
    waiting,
)

BEFORE_AND_AFTER = pytest.mark.parametrize("when", list(Cut), ids=["before", "after"])


@pytest.fixture
async def world(url: str, proxy: Proxy, clock: FakeClock) -> AsyncIterator[World]:
    """A store behind a proxy that can break connections."""
    name = url.rpartition("/")[2] if "host=" not in url else url.split("/")[3].partition("?")[0]
    to_proxy = f"postgresql://postgres@/{name}?host={proxy.folder}&{RefusalClock.URL_OPTION}"
    store = PostgresStore(to_proxy, clock=clock, random=SystemRandomness())
    store._local = RefusalClock(proxy)
    await store.open()
    yield World(store, clock, numbered=True)
    proxy.restore()
    await store.close()


@BEFORE_AND_AFTER
async def test_a_run_is_created_once_and_by_this_call(world: World, proxy: Proxy, when: Cut) -> None:
    proxy.cut("precious", when)

    created = await world.create("precious", owner="w1", lease_ms=LEASE)

    assert proxy.cuts == 1
    assert (created.created, created.epoch) == (True, 1)
    assert await world.find("precious") == created.run
    assert await world.ids() == ["precious"]


async def test_a_run_that_another_call_created_is_reported_as_existing(world: World, proxy: Proxy) -> None:
    await world.start("precious")
    proxy.cut("precious", Cut.AFTER)

    assert not (await world.create("precious")).created


@BEFORE_AND_AFTER
@pytest.mark.parametrize("dedup", [None, "k"])
async def test_an_event_is_sent_once(world: World, proxy: Proxy, when: Cut, dedup: str | None) -> None:
    run = await world.start_waiting("a", "go")
    proxy.cut("precious", when)

    sent = await world.send("go", payload=b"precious", dedup=dedup)

    assert proxy.cuts == 1
    assert (sent.accepted, sent.duplicate, sent.woken) == (True, False, True)
    assert len(await world.undelivered(run.run)) == 1
    assert await world.claimed_ids() == ["a"]


@pytest.mark.parametrize("dedup", [None, "k"])
@pytest.mark.parametrize("run_ends", [False, True])
async def test_a_send_that_is_repeated_after_the_run_has_continued_is_sent_once(
    world: World, other: asyncpg.Connection, dedup: str | None, run_ends: bool
) -> None:
    first = await world.start_claimed("a")
    task = await world.continue_claimed(first)
    requests = [SendRequest(NewEvent(FLOW, "a", "go", dedup=dedup), 42)]
    await send(Tx(other, "holdfast", 1, "me"), requests)
    await world.commit(task, deliveries=[Delivery(1, "s", 1)])
    task = await world.continue_claimed(task, 2)
    await other.execute("DELETE FROM holdfast.holdfast_run WHERE id = $1", first.run)  # as retention does
    if run_ends:
        await world.finish(task)

    [is_retry] = await send(Tx(other, "holdfast", 1, "me", is_retry=True), requests)

    assert (is_retry.accepted, is_retry.duplicate) == (True, False)
    assert await world.undelivered(task.run) == []


@pytest.mark.promise("durability")
@BEFORE_AND_AFTER
@pytest.mark.parametrize("then", [None, Finish(Status.COMPLETE), waiting("go"), Park("why")], ids=str)
async def test_a_commit_is_applied_once(world: World, proxy: Proxy, when: Cut, then: Finish | None) -> None:
    task, other = await world.start_claimed("a"), await world.start_claimed("b")
    proxy.cut("precious", when)

    results = await world.store.commit(
        [turn(task, facts=[result("precious")], logs=[log_line("l")], then=then), turn(other, logs=[log_line("m")])]
    )

    assert proxy.cuts == 1
    assert [one.verdict for one in results] == [Verdict.APPLIED] * 2
    assert await world.keys(task.run) == ["precious"]
    assert len(await world.store.read(LogsQuery(task.run))) == 1
    assert len(await world.store.read(LogsQuery(other.run))) == 1


@BEFORE_AND_AFTER
@pytest.mark.parametrize("then", [None, Finish(Status.COMPLETE), waiting("other"), waiting("go")], ids=str)
@pytest.mark.parametrize("stays_down", [False, True])
async def test_a_commit_of_one_fact_is_applied_once(
    world: World, proxy: Proxy, when: Cut, then: Finish | Release | None, stays_down: bool
) -> None:
    task = await world.start_claimed("a")
    await world.store.send([NewEvent(FLOW, "a", "go"), NewEvent(FLOW, "a", "go")])
    await world.store.fetch_signals("w1")  # clears the signal, which holdfast_commit_one does not handle
    commit = turn(task, facts=[result("precious", event=1)], deliveries=[Delivery(1, "precious", 1)], then=then, seen=1)
    proxy.cut("precious", when, stays_down=stays_down)

    if stays_down:
        with pytest.raises(StoreUnavailableError):
            await world.store.commit([commit])
        proxy.restore()
    [committed] = await world.store.commit([commit])

    assert proxy.cuts == 1
    assert (committed.verdict, committed.due_now) == (Verdict.APPLIED, then == waiting("go"))
    assert await world.keys(task.run) == ["precious"]
    assert [event.n for event in await world.undelivered(task.run)] == [2]


@BEFORE_AND_AFTER
@pytest.mark.parametrize("stays_down", [False, True])
async def test_a_commit_of_one_fact_that_needs_the_general_function_is_applied_once(
    world: World, proxy: Proxy, when: Cut, stays_down: bool
) -> None:
    task = await world.start_claimed("a")
    await world.send("go", "a")
    commit = turn(task, facts=[result("precious")])
    proxy.cut("precious", when, stays_down=stays_down, skip=1)

    if stays_down:
        with pytest.raises(StoreUnavailableError):
            await world.store.commit([commit])
        proxy.restore()
    [committed] = await world.store.commit([commit])

    assert proxy.cuts == 1
    assert (committed.verdict, committed.signal) == (Verdict.APPLIED, Signal.EVENTS)
    assert await world.keys(task.run) == ["precious"]


async def test_a_repeated_commit_returns_the_result_of_the_first_attempt(world: World, proxy: Proxy) -> None:
    task = await world.start_claimed("a")
    await world.send("go")
    proxy.cut("precious", Cut.AFTER)

    committed = await world.commit(task, logs=[log_line("precious")])

    assert committed.signal  # the first attempt cleared it
    assert not (await world.commit(task)).signal


@pytest.mark.promise("fencing")
async def test_a_repeated_commit_is_fenced(world: World, proxy: Proxy) -> None:
    task = await world.start_claimed("a")
    proxy.cut("precious", Cut.BEFORE, stays_down=True)
    commit = turn(task, facts=[result("precious")])
    with pytest.raises(StoreUnavailableError):
        await world.store.commit([commit])
    proxy.restore()
    await world.store.release([task])

    [committed] = await world.store.commit([commit])

    assert committed.verdict is Verdict.LOST
    assert await world.keys(task.run) == []


@BEFORE_AND_AFTER
async def test_a_commit_that_is_repeated_after_its_call_failed_is_applied_once(
    world: World, proxy: Proxy, when: Cut
) -> None:
    task, other = await world.start_claimed("a"), await world.start_claimed("b")
    commits = [
        turn(other, logs=[log_line("first")], starts=[NewRun(FLOW, "child")]),
        turn(task, logs=[log_line("precious")]),
    ]
    proxy.cut("precious", when, stays_down=True)
    with pytest.raises(StoreUnavailableError):
        await world.store.commit(commits)
    proxy.restore()

    results = await world.store.commit(commits)

    assert [one.verdict for one in results] == [Verdict.APPLIED] * 2
    assert [one.created for one in results[0].started] == [True]
    assert len(await world.store.read(LogsQuery(task.run))) == 1
    assert len(await world.store.read(LogsQuery(other.run))) == 1


@BEFORE_AND_AFTER
async def test_a_commit_with_statements_is_applied_once(world: World, proxy: Proxy, when: Cut) -> None:
    task = await world.start_claimed("a")
    await world.start_waiting("b", "go")
    await world.commit(task, statements=[Statement("CREATE TABLE mine (a INTEGER)", ())])
    proxy.cut(b"COMMIT", when)

    committed = await world.commit(
        task,
        statements=[Statement("INSERT INTO mine VALUES (1)", ())],
        starts=[NewRun(FLOW, "child")],
        sends=[NewEvent(FLOW, "b", "go")],
        logs=[log_line("l")],
    )

    assert proxy.cuts == 1
    assert committed.verdict is Verdict.APPLIED
    assert [one.created for one in committed.started] == [True]
    assert len(await world.store.read(LogsQuery(task.run))) == 1
    live = await world.store.begin()
    assert len(await live.fetch("SELECT a FROM mine", ())) == 1
    await live.rollback()


@pytest.mark.parametrize(("when", "verdict"), [(Cut.BEFORE, Verdict.REJECTED), (Cut.AFTER, Verdict.APPLIED)])
@pytest.mark.parametrize("stays_down", [False, True])
async def test_a_live_transaction_is_committed_whole_or_not_at_all(
    world: World, proxy: Proxy, when: Cut, verdict: Verdict, stays_down: bool
) -> None:
    task = await world.start_claimed("a")
    await world.commit(task, statements=[Statement("CREATE TABLE mine (a INTEGER)", ())])
    live = await world.store.begin()
    await live.execute("INSERT INTO mine VALUES (1)", ())
    commit = turn(task, facts=[result("s")], transaction=live)
    proxy.cut(b"COMMIT", when, stays_down=stays_down)

    if stays_down:
        with pytest.raises(StoreUnavailableError):
            await world.store.commit([commit])
        proxy.restore()
    [committed] = await world.store.commit([commit])

    assert committed.verdict is verdict
    live = await world.store.begin()
    rows = await live.fetch("SELECT a FROM mine", ())
    await live.rollback()
    done = verdict is Verdict.APPLIED
    assert (len(rows), await world.keys(task.run)) == ((1, ["s"]) if done else (0, []))


@pytest.mark.promise("liveness")
@BEFORE_AND_AFTER
async def test_claimed_tasks_are_not_lost(world: World, proxy: Proxy, when: Cut) -> None:
    await world.store.create([NewRun(FLOW, f"r{n}") for n in range(3)])
    await world.claim("precious", limit=0)  # prepares the statement
    proxy.cut("precious", when)

    claims = (await world.claim("precious")).claims

    assert proxy.cuts == 1
    assert [claim.run.instance_id for claim in claims] == ["r0", "r1", "r2"]
    assert {claim.task.epoch for claim in claims} == {1}
    for claim in claims:
        assert (await world.commit(claim.task)).verdict is Verdict.APPLIED


async def test_tasks_of_a_failed_claim_are_returned_by_the_next_claim(world: World, proxy: Proxy) -> None:
    await world.start("a")
    await world.claim("precious", limit=0)
    proxy.cut("precious", Cut.AFTER, stays_down=True)
    with pytest.raises(StoreUnavailableError):
        await world.claim("precious")
    proxy.restore()
    assert (await world.find("a")).owner == "precious"

    first, second = await world.claim("precious"), await world.claim("precious")

    assert [claim.task.epoch for claim in first.claims] == [1]
    assert list(second.claims) == []


@BEFORE_AND_AFTER
async def test_terminate_returns_the_run_as_it_was_before(world: World, proxy: Proxy, when: Cut) -> None:
    await world.start("a")
    proxy.cut(b"COMMIT", when)

    before = (await world.terminate("a", "why")).run

    assert proxy.cuts == 1
    assert before is not None
    assert before.status is Status.ACTIVE
    assert (await world.find("a")).status is Status.TERMINATED


@BEFORE_AND_AFTER
async def test_a_restart_creates_one_run(world: World, proxy: Proxy, when: Cut) -> None:
    await world.start("a")
    proxy.cut(b"COMMIT", when)

    new = await world.restart("a")

    assert new.number == 1
    assert await world.find("a") == new


@BEFORE_AND_AFTER
async def test_a_cancellation_is_requested_once(world: World, proxy: Proxy, when: Cut) -> None:
    run = await world.start_waiting("a", "go")
    proxy.cut(b"COMMIT", when)

    before = (await world.cancel("a", deadline_ms=50)).run

    assert proxy.cuts == 1
    assert before == run
    assert [event.type for event in await world.undelivered(run.run)] == [CANCEL]


@BEFORE_AND_AFTER
async def test_an_event_that_wakes_a_run_for_its_claimant_claims_it_once(world: World, proxy: Proxy, when: Cut) -> None:
    run = await world.start_waiting("a", "go")
    proxy.cut("precious", when)

    sent = await world.send("go", payload=b"precious", claimant=Claimant("w2", LEASE, ["default"]))

    assert proxy.cuts == 1
    assert sent.claim is not None
    assert (sent.claim.task, sent.claim.lost) == (TaskRef(run.run, 0, "w2", 2), False)
    assert [event.payload for event in sent.claim.mailbox_page.events] == [b"precious"]
    assert (await world.commit(sent.claim.task)).verdict is Verdict.APPLIED


@BEFORE_AND_AFTER
@pytest.mark.parametrize("then", [ENDS, waiting("next"), None], ids=["ends", "waits", "continues"])
async def test_an_event_and_the_turn_that_it_causes_are_written_once(
    world: World, proxy: Proxy, when: Cut, then: Finish | Release | None
) -> None:
    run = await world.start_waiting("a", "go")
    proxy.cut("precious", when)

    await send_and_commit(world, await predict(world, run, then))

    assert proxy.cuts == 1
    [event] = await world.store.read(EventsQuery(run.run))
    assert (event.payload, event.consumed_by) == (b"precious", KEY)
    assert await world.keys(run.run) == [KEY]
    assert (await world.find("a")).status is (
        Status.ACTIVE if then is None else Status.COMPLETE if then is ENDS else Status.WAITING
    )


async def test_a_repeated_send_recognises_its_predicted_turn_after_the_run_has_ended(
    world: World, other: asyncpg.Connection
) -> None:
    run = await world.start_waiting("a", "go")
    requests = [SendRequest(await predict(world, run, waiting("next")), 42)]
    now = world.now()
    await send_predicted(Tx(other, "holdfast", now, "me"), requests)
    await world.send("next")
    await world.finish((await world.claim_one("w2")).task)

    [sent] = await send_predicted(Tx(other, "holdfast", now, "me", is_retry=True), requests)

    assert sent.committed is not None
    assert [event.type for event in await world.store.read(EventsQuery(run.run))] == ["go", "next"]


@BEFORE_AND_AFTER
@pytest.mark.parametrize("unfinished", [True, False])
async def test_a_run_that_replaces_another_is_created_once(
    world: World, proxy: Proxy, when: Cut, unfinished: bool
) -> None:
    old = await world.start("a") if unfinished else await world.start_ended("a")
    proxy.cut("precious", when)

    created = await world.create(
        "a",
        params=b"precious",
        on_conflict=OnConflict.TERMINATE_EXISTING,
        on_reuse=OnReuse.ALLOW,
        start_events=[StartEvent("go", b"1")],
    )

    assert proxy.cuts == 1
    assert (created.result, created.run.number) == (RequestResult.DONE, old.number + 1)
    assert await world.find("a") == created.run
    assert [event.type for event in await world.undelivered(created.run.run)] == ["go"]


@BEFORE_AND_AFTER
async def test_start_events_for_an_existing_run_are_sent_once(world: World, proxy: Proxy, when: Cut) -> None:
    run = await world.start_waiting("a", "go")
    proxy.cut("precious", when)

    created = await world.create("a", start_events=[StartEvent("go", b"precious"), StartEvent("go", b"2")])

    assert proxy.cuts == 1
    assert created.result is RequestResult.EXISTING
    assert [event.payload for event in await world.undelivered(run.run)] == [b"precious", b"2"]


@BEFORE_AND_AFTER
@pytest.mark.parametrize("stays_down", [False, True])
async def test_operations_are_applied_once(world: World, proxy: Proxy, when: Cut, stays_down: bool) -> None:
    task, waiter, doomed = (
        await world.start_claimed("a"),
        await world.start_waiting("b", "go"),
        await world.start_claimed("c"),
    )
    all_operations: list[Operation] = [
        NewRun(FLOW, "precious", owner="w1", lease_ms=LEASE, parent=pid("a"), parent_run=task.run),
        NewEvent(FLOW, "b", "go"),
        TerminateRun(FLOW, "c", "why"),
        WatchRun(FLOW, "missing", Watch.MONITOR),
    ]
    commit = turn(task, operations=[recorded(f"operation{n}", operation) for n, operation in enumerate(all_operations)])
    proxy.cut("precious", when, stays_down=stays_down)

    if stays_down:
        with pytest.raises(StoreUnavailableError):
            await world.store.commit([commit])
        proxy.restore()
    [committed] = await world.store.commit([commit])

    assert proxy.cuts == 1
    assert committed.verdict is Verdict.APPLIED
    assert list(committed.operation_results) == [
        RequestResult.DONE,
        RequestResult.DONE,
        RequestResult.DONE,
        RequestResult.MISSING,
    ]
    assert [child.run for child in committed.claimed_children] == [await world.find("precious")]
    assert (affected(committed).ended, affected(committed).woken) == ([doomed.run], [waiter.run])
    assert len(await world.undelivered(waiter.run)) == 1
    assert await world.keys(task.run) == [f"operation{n}" for n in range(4)]


@BEFORE_AND_AFTER
async def test_a_successor_is_created_once(world: World, proxy: Proxy, when: Cut) -> None:
    task = await world.start_claimed("a")
    await world.send("go")
    proxy.cut("precious", when)

    next_run = NextRun(b"precious", continues=True)
    committed = await world.commit(task, then=Finish(Status.COMPLETE, next=next_run))

    assert proxy.cuts == 1
    assert (committed.verdict, affected(committed).work) == (Verdict.APPLIED, True)
    new = await world.find("a")
    assert (new.number, new.params) == (1, b"precious")
    assert [event.type for event in await world.undelivered(new.run)] == ["go"]


@BEFORE_AND_AFTER
async def test_the_exit_of_a_watched_run_is_sent_once(world: World, proxy: Proxy, when: Cut) -> None:
    parent = await world.start_claimed("p")
    child = await world.start_claimed("a", parent=pid("p"), parent_run=parent.run)
    proxy.cut("precious", when)

    committed = await world.commit(child, logs=[log_line("precious")], then=Finish(Status.COMPLETE))

    assert proxy.cuts == 1
    assert (committed.verdict, affected(committed).woken) == (Verdict.APPLIED, [parent.run])
    assert [event.type for event in await world.undelivered(parent.run)] == [EXIT]


@BEFORE_AND_AFTER
async def test_a_run_with_units_is_created_once(world: World, proxy: Proxy, when: Cut) -> None:
    proxy.cut("precious", when)

    tasks = await world.graph("precious", unit(1), unit(2), unit(3, 1), claim_limit=1)

    assert proxy.cuts == 1
    assert [task.unit for task in tasks] == [1]
    assert await world.starts(tasks[0].run) == [("a", 1)]
    assert await world.claimed_units("w2") == [2]


@BEFORE_AND_AFTER
@pytest.mark.parametrize("stays_down", [False, True])
async def test_units_are_advanced_once(world: World, proxy: Proxy, when: Cut, stays_down: bool) -> None:
    """The claimed units are returned, also if the server was unavailable for long."""
    first, second = await world.graph("a", unit(1), unit(2), unit(3, 1), unit(4, 1), unit(5, 1))
    advances = [done(first, 3, 4, key="precious"), done(second, 5)]
    arguments = (advances, Claimant("w1", LEASE, ["default"]), 2)
    proxy.cut("precious", when, stays_down=stays_down)
    if stays_down:
        with pytest.raises(StoreUnavailableError):
            await world.store.advance(*arguments)
        proxy.restore()

    committed = await world.store.advance(*arguments)

    assert proxy.cuts == 1
    assert (list(committed.applied), committed.due) == ([True, True], True)
    assert committed.claimed == [TaskRef(first.run, 3, "w1", 1), TaskRef(first.run, 4, "w1", 1)]
    assert await world.results(first.run) == ["b", "precious"]
    assert await world.claimed_units("w2") == [5]


@BEFORE_AND_AFTER
async def test_finished_transactions_of_a_batch_are_not_repeated(world: World, proxy: Proxy, when: Cut) -> None:
    """The second advance removes a unit that the first one added, so they are two transactions."""
    first, second = await world.graph("a", unit(1), unit(2))
    first_advance, second_advance = done(first, new_units=[unit(3)]), done(second, key="precious", removed_units=[3])
    arguments = ([first_advance, second_advance, done(first)], Claimant("w1", LEASE, ["default"]), 1)
    proxy.cut("precious", when, stays_down=True)
    with pytest.raises(StoreUnavailableError):
        await world.store.advance(*arguments)
    proxy.restore()

    committed = await world.store.advance(*arguments)

    assert list(committed.applied) == [True, True, False]
    assert [task.unit for task in committed.claimed] == [3, 0]
    assert [held.unit for held in await world.store.heartbeat("w1", LEASE)] == [0]


@BEFORE_AND_AFTER
@pytest.mark.parametrize("one_run", [True, False])
async def test_claimed_units_are_not_lost_and_have_one_start(
    world: World, proxy: Proxy, when: Cut, one_run: bool
) -> None:
    run = (await world.start("a", units=[unit(1), unit(2), unit(3, 1)])).run
    await world.claim("precious", limit=0, run=run if one_run else None)
    proxy.cut("precious", when)

    claims = (await world.claim("precious", run=run if one_run else None)).claims

    assert proxy.cuts == 1
    assert [(claim.task.unit, claim.task.epoch) for claim in claims] == [(1, 1), (2, 1)]
    assert await world.starts(run) == [("a", 1), ("b", 1)]


@pytest.mark.promise("outbox")
@BEFORE_AND_AFTER
async def test_outbound_events_are_added_once(world: World, proxy: Proxy, when: Cut) -> None:
    task = await world.start_claimed("a")
    proxy.cut("precious", when)

    await world.commit(task, facts=[result("s")], outbox=[Outbound("precious", b"1", "s"), Outbound("x", None, "s")])

    assert proxy.cuts == 1
    assert [(row.n, row.type) for row in await world.store.read(OutboxQuery(task.run))] == [(1, "precious"), (2, "x")]


@pytest.mark.promise("outbox")
@BEFORE_AND_AFTER
async def test_outbound_events_are_claimed_and_settled_once(world: World, proxy: Proxy, when: Cut) -> None:
    task = await world.start_claimed("a")
    await world.commit(task, outbox=[Outbound("one", None, "s"), Outbound("two", None, "s")])
    await world.store.outbox(ClaimOutbox("precious", LEASE, 0))
    proxy.cut("precious", when)

    rows = (await world.store.outbox(ClaimOutbox("precious", LEASE, 9))).rows
    proxy.cut(b"COMMIT", when)
    settled = await world.store.outbox(SettleOutbox("precious", [Delivered(row.run, row.n) for row in rows]))

    assert proxy.cuts == 2
    assert ([(row.n, row.attempts) for row in rows], settled) == ([(1, 0)], 1)
    assert [row.n for row in (await world.store.outbox(ClaimOutbox("w", LEASE, 9))).rows] == [2]


@BEFORE_AND_AFTER
async def test_a_heartbeat_is_repeated(world: World, proxy: Proxy, when: Cut) -> None:
    task = await world.start_claimed("a", "precious")
    await world.store.heartbeat("precious", LEASE)
    proxy.cut("precious", when)

    assert [held.run for held in await world.store.heartbeat("precious", LEASE)] == [task.run]
    assert proxy.cuts == 1


@pytest.mark.promise("no-lost-wakeup")
@BEFORE_AND_AFTER
async def test_an_events_signal_is_not_lost_with_the_reply_to_a_heartbeat(
    world: World, proxy: Proxy, when: Cut
) -> None:
    task = await world.start_claimed("a", "precious")
    await world.store.heartbeat("precious", LEASE)
    await world.send("go")
    proxy.cut("precious", when)

    assert await world.store.heartbeat("precious", LEASE) == [HeldTask(task.run, 0, task.epoch, Signal.EVENTS)]
    assert proxy.cuts == 1


@pytest.mark.promise("no-lost-wakeup")
async def test_an_events_signal_is_not_lost_with_the_reply_to_fetch_signals(
    world: World, other: asyncpg.Connection
) -> None:
    task = await world.start_claimed("a")
    await world.send("go")
    await fetch_signals(Tx(other, "holdfast", 1, "me"), task.owner)  # its reply was lost

    signals = await fetch_signals(Tx(other, "holdfast", 1, "me", is_retry=True), task.owner)

    assert signals == [HeldTask(task.run, 0, task.epoch, Signal.EVENTS)]


async def test_connections_that_the_server_ended_are_replaced(
    world: World, other: asyncpg.Connection, proxy: Proxy
) -> None:
    await asyncio.gather(*(world.create(f"r{n}") for n in range(20)))

    ended = await other.fetch(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE application_name = 'holdfast' AND datname = current_database()"
    )

    assert len(ended) >= 2
    assert (await world.create("after")).created
    assert len(await world.ids(limit=50)) == 21


async def test_a_statement_whose_connection_is_ended_while_it_waits_is_repeated(
    world: World, other: asyncpg.Connection
) -> None:
    task = await world.start_claimed("a")
    await other.execute("BEGIN")
    await other.execute("SELECT FROM holdfast.holdfast_task FOR UPDATE")
    committing = asyncio.create_task(world.commit(task, facts=[result("s")]))
    waits = "SELECT pid FROM pg_locks WHERE NOT granted"  # not pg_stat_activity, which a transaction reads only once
    while not (waiting := await other.fetch(waits)):
        await asyncio.sleep(0.01)

    await other.execute(f"SELECT pg_terminate_backend({waiting[0]['pid']})")
    await other.execute("COMMIT")

    assert (await committing).verdict is Verdict.APPLIED
    assert await world.keys(task.run) == ["s"]


async def test_calls_wait_for_a_server_that_restarts(clock: FakeClock) -> None:
    server = Server()
    store = PostgresStore(server.url(), clock=clock, random=SystemRandomness())
    try:
        await store.open()
        world = World(store, clock)
        task = await world.start_claimed("a")
        await asyncio.to_thread(server.stop, "immediate")

        created = asyncio.create_task(world.create("b"))
        written = asyncio.create_task(world.commit(task, facts=[result("s")]))
        await asyncio.sleep(0.1)
        assert not created.done()
        assert not written.done()
        server.start()

        assert (await created).created
        assert (await written).verdict is Verdict.APPLIED
        assert await world.keys(task.run) == ["s"]
    finally:
        with suppress(Exception):
            await store.close()
        server.remove()


async def test_a_server_that_stays_unavailable_is_an_error_after_the_timeout(world: World, proxy: Proxy) -> None:
    proxy.cut("precious", Cut.BEFORE, stays_down=True)

    with pytest.raises(StoreUnavailableError, match=r"cannot be reached|broke"):
        await world.create("precious")

    proxy.restore()
    assert (await world.create("precious")).created


async def test_a_call_that_deadlocked_is_repeated(url: str, other: asyncpg.Connection, clock: FakeClock) -> None:
    # PostgreSQL looks for a deadlock once, this long after a wait begins. The store's second wait is the last of the
    # cycle, so the store's transaction is the one that is rolled back.
    store = PostgresStore(f"{url}&deadlock_timeout=100ms", clock=clock, random=SystemRandomness())
    await store.open()
    world = World(store, clock)
    a, b, c = await world.start("a"), await world.start("b"), await world.start("c")
    first = await asyncpg.connect(url)
    lock = "SELECT FROM holdfast.holdfast_task WHERE run = $1 FOR UPDATE"
    for connection, run in ((first, b.run), (other, c.run)):
        await connection.execute("SET deadlock_timeout = '1h'")
        await connection.execute("BEGIN")
        await connection.fetch(lock, run)
    requests = asyncio.create_task(store.send([NewEvent(FLOW, one, "go") for one in "abc"]))
    await _until_waiting(first, 1)  # the store has a, and waits for b
    crossing = asyncio.create_task(other.fetch(lock, a.run))
    await _until_waiting(first, 2)
    await first.execute("COMMIT")  # the store has a and b, and waits for c

    await crossing  # the store's transaction was rolled back
    assert not requests.done()
    await other.execute("COMMIT")

    assert [sent.accepted for sent in await requests] == [True, True, True]
    assert len(await world.undelivered(a.run)) == 1
    await first.close()
    await store.close()


async def _until_waiting(connection: asyncpg.Connection, count: int) -> None:
    waiting = "SELECT count(DISTINCT pid) FROM pg_locks WHERE NOT granted"
    while await connection.fetchval(waiting) < count:
        await asyncio.sleep(0.01)
