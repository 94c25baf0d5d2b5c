"""A connection that breaks before the answer: what was asked for is done once, and answered as the first time."""

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
from holdfast.store.postgres.foreseen import send_foreseen
from holdfast.store.postgres.leases import signals
from holdfast.store.postgres.send import Sending, send
from holdfast.store.postgres.tx import Tx
from holdfast.store.protocol import (
    CANCEL,
    EXIT,
    Answer,
    Claimant,
    Deed,
    Delivered,
    Delivery,
    Finish,
    Held,
    Letter,
    NewEvent,
    NewRun,
    NextRun,
    OnConflict,
    OnReuse,
    Outbound,
    PageQuery,
    Park,
    Release,
    Signal,
    Statement,
    TaskRef,
    TerminateRun,
    Verdict,
    Watch,
    WatchRun,
)
from postgres_server import Server
from store.foreseeing import ENDS, KEY, foresee, write
from store.postgres.inside import Cut, Proxy
from store.world import FLOW, LEASE, FakeClock, World, act, done, line, pid, result, touched, turn, unit, waiting

BOTH = pytest.mark.parametrize("how", list(Cut), ids=["before", "after"])


@pytest.fixture
async def world(url: str, proxy: Proxy, clock: FakeClock) -> AsyncIterator[World]:
    """A store behind a line that can be cut."""
    name = url.rpartition("/")[2] if "host=" not in url else url.split("/")[3].partition("?")[0]
    store = PostgresStore(
        f"postgresql://postgres@/{name}?host={proxy.folder}&connect_timeout=0.4", clock=clock, random=SystemRandomness()
    )
    await store.open()
    yield World(store, clock, numbered=True)
    proxy.back()
    await store.close()


@BOTH
async def test_a_run_is_made_once_and_by_this_call(world: World, proxy: Proxy, how: Cut) -> None:
    proxy.cut("precious", how)

    made = await world.create("precious", owner="w1", lease_ms=LEASE)

    assert proxy.cuts == 1
    assert (made.created, made.epoch) == (True, 1)
    assert await world.find("precious") == made.run
    assert await world.ids() == ["precious"]


async def test_a_run_that_another_made_is_not_this_calls(world: World, proxy: Proxy) -> None:
    await world.start("precious")
    proxy.cut("precious", Cut.AFTER)

    assert not (await world.create("precious")).created


@BOTH
@pytest.mark.parametrize("dedup", [None, "k"])
async def test_an_event_is_sent_once(world: World, proxy: Proxy, how: Cut, dedup: str | None) -> None:
    run = await world.wait("a", "go")
    proxy.cut("precious", how)

    sent = await world.send("go", payload=b"precious", dedup=dedup)

    assert proxy.cuts == 1
    assert (sent.accepted, sent.duplicate, sent.woken) == (True, False, True)
    assert len(await world.unread(run.run)) == 1
    assert await world.claimed_ids() == ["a"]


@pytest.mark.parametrize("dedup", [None, "k"])
@pytest.mark.parametrize("ends", [False, True])
async def test_an_event_whose_sender_comes_back_after_its_run_has_gone_on_is_sent_once(
    world: World, other: asyncpg.Connection, dedup: str | None, ends: bool
) -> None:
    first = await world.begin("a")
    task = await world.gone_on(first)
    sending = [Sending(NewEvent(FLOW, "a", "go", dedup=dedup), 42)]
    await send(Tx(other, "holdfast", 1, "me"), sending)
    await world.commit(task, deliveries=[Delivery(1, "s", 1)])
    task = await world.gone_on(task, 2)
    await other.execute("DELETE FROM holdfast.holdfast_run WHERE id = $1", first.run)  # it was old
    if ends:
        await world.finish(task)

    [again] = await send(Tx(other, "holdfast", 1, "me", again=True), sending)

    assert (again.accepted, again.duplicate) == (True, False)
    assert await world.unread(task.run) == []


@BOTH
@pytest.mark.parametrize("then", [None, Finish(Status.COMPLETE), waiting("go"), Park("why")], ids=str)
async def test_a_commit_is_applied_once(world: World, proxy: Proxy, how: Cut, then: Finish | None) -> None:
    task, other = await world.begin("a"), await world.begin("b")
    proxy.cut("precious", how)

    answers = await world.store.commit(
        [turn(task, facts=[result("precious")], logs=[line("l")], then=then), turn(other, logs=[line("m")])]
    )

    assert proxy.cuts == 1
    assert [one.verdict for one in answers] == [Verdict.APPLIED] * 2
    assert await world.keys(task.run) == ["precious"]
    assert len(await world.store.logs(PageQuery(task.run))) == 1
    assert len(await world.store.logs(PageQuery(other.run))) == 1


@BOTH
@pytest.mark.parametrize("then", [None, Finish(Status.COMPLETE), waiting("other"), waiting("go")], ids=str)
@pytest.mark.parametrize("stays_down", [False, True])
async def test_a_commit_of_one_fact_is_applied_once(
    world: World, proxy: Proxy, how: Cut, then: Finish | Release | None, stays_down: bool
) -> None:
    task = await world.begin("a")
    await world.store.send([NewEvent(FLOW, "a", "go"), NewEvent(FLOW, "a", "go")])
    await world.store.signals("w1")  # so that nothing is in the way of the short way
    commit = turn(task, facts=[result("precious", event=1)], deliveries=[Delivery(1, "precious", 1)], then=then, seen=1)
    proxy.cut("precious", how, stays_down=stays_down)

    if stays_down:
        with pytest.raises(StoreUnavailableError):
            await world.store.commit([commit])
        proxy.back()
    [answer] = await world.store.commit([commit])

    assert proxy.cuts == 1
    assert (answer.verdict, answer.due_now) == (Verdict.APPLIED, then == waiting("go"))
    assert await world.keys(task.run) == ["precious"]
    assert [mail.n for mail in await world.unread(task.run)] == [2]


@BOTH
@pytest.mark.parametrize("stays_down", [False, True])
async def test_a_commit_for_which_the_short_way_is_too_short_is_applied_once(
    world: World, proxy: Proxy, how: Cut, stays_down: bool
) -> None:
    task = await world.begin("a")
    await world.send("go", "a")
    commit = turn(task, facts=[result("precious")])
    proxy.cut("precious", how, stays_down=stays_down, skip=1)

    if stays_down:
        with pytest.raises(StoreUnavailableError):
            await world.store.commit([commit])
        proxy.back()
    [answer] = await world.store.commit([commit])

    assert proxy.cuts == 1
    assert (answer.verdict, answer.signal) == (Verdict.APPLIED, Signal.MAIL)
    assert await world.keys(task.run) == ["precious"]


async def test_the_answer_is_that_of_the_first_time(world: World, proxy: Proxy) -> None:
    task = await world.begin("a")
    await world.send("go")
    proxy.cut("precious", Cut.AFTER)

    answer = await world.commit(task, logs=[line("precious")])

    assert answer.signal  # and it was cleared by the first try
    assert not (await world.commit(task)).signal


async def test_the_fence_still_holds_for_what_is_tried_again(world: World, proxy: Proxy) -> None:
    task = await world.begin("a")
    proxy.cut("precious", Cut.BEFORE, stays_down=True)
    late = turn(task, facts=[result("precious")])
    with pytest.raises(StoreUnavailableError):
        await world.store.commit([late])
    proxy.back()
    await world.store.release([task])

    [answer] = await world.store.commit([late])

    assert answer.verdict is Verdict.LOST
    assert await world.keys(task.run) == []


@BOTH
async def test_a_commit_that_came_back_after_a_long_time_is_applied_once(world: World, proxy: Proxy, how: Cut) -> None:
    task, other = await world.begin("a"), await world.begin("b")
    commits = [
        turn(other, logs=[line("first")], starts=[NewRun(FLOW, "child")]),
        turn(task, logs=[line("precious")]),
    ]
    proxy.cut("precious", how, stays_down=True)
    with pytest.raises(StoreUnavailableError):
        await world.store.commit(commits)
    proxy.back()

    answers = await world.store.commit(commits)

    assert [one.verdict for one in answers] == [Verdict.APPLIED] * 2
    assert [one.created for one in answers[0].started] == [True]
    assert len(await world.store.logs(PageQuery(task.run))) == 1
    assert len(await world.store.logs(PageQuery(other.run))) == 1


@BOTH
async def test_a_commit_with_statements_is_applied_once(world: World, proxy: Proxy, how: Cut) -> None:
    task = await world.begin("a")
    await world.wait("b", "go")
    await world.commit(task, statements=[Statement("CREATE TABLE mine (a INTEGER)", ())])
    proxy.cut(b"COMMIT", how)

    answer = await world.commit(
        task,
        statements=[Statement("INSERT INTO mine VALUES (1)", ())],
        starts=[NewRun(FLOW, "child")],
        sends=[NewEvent(FLOW, "b", "go")],
        logs=[line("l")],
    )

    assert proxy.cuts == 1
    assert answer.verdict is Verdict.APPLIED
    assert [one.created for one in answer.started] == [True]
    assert len(await world.store.logs(PageQuery(task.run))) == 1
    live = await world.store.begin()
    assert len(await live.fetch("SELECT a FROM mine", ())) == 1
    await live.rollback()


@pytest.mark.parametrize(("how", "verdict"), [(Cut.BEFORE, Verdict.REJECTED), (Cut.AFTER, Verdict.APPLIED)])
@pytest.mark.parametrize("stays_down", [False, True])
async def test_a_steps_transaction_is_there_whole_or_not_at_all(
    world: World, proxy: Proxy, how: Cut, verdict: Verdict, stays_down: bool
) -> None:
    task = await world.begin("a")
    await world.commit(task, statements=[Statement("CREATE TABLE mine (a INTEGER)", ())])
    live = await world.store.begin()
    await live.execute("INSERT INTO mine VALUES (1)", ())
    commit = turn(task, facts=[result("s")], transaction=live)
    proxy.cut(b"COMMIT", how, stays_down=stays_down)

    if stays_down:
        with pytest.raises(StoreUnavailableError):
            await world.store.commit([commit])
        proxy.back()
    [answer] = await world.store.commit([commit])

    assert answer.verdict is verdict
    live = await world.store.begin()
    rows = await live.fetch("SELECT a FROM mine", ())
    await live.rollback()
    done = verdict is Verdict.APPLIED
    assert (len(rows), await world.keys(task.run)) == ((1, ["s"]) if done else (0, []))


@BOTH
async def test_claimed_tasks_do_not_get_lost(world: World, proxy: Proxy, how: Cut) -> None:
    await world.store.create([NewRun(FLOW, f"r{n}") for n in range(3)])
    await world.claim("precious", limit=0)  # so that the statement is there already
    proxy.cut("precious", how)

    claims = (await world.claim("precious")).claims

    assert proxy.cuts == 1
    assert [claim.run.instance_id for claim in claims] == ["r0", "r1", "r2"]
    assert {claim.task.epoch for claim in claims} == {1}
    for claim in claims:
        assert (await world.commit(claim.task)).verdict is Verdict.APPLIED


async def test_claimed_tasks_do_not_get_lost_with_a_claim_that_failed(world: World, proxy: Proxy) -> None:
    await world.start("a")
    await world.claim("precious", limit=0)
    proxy.cut("precious", Cut.AFTER, stays_down=True)
    with pytest.raises(StoreUnavailableError):
        await world.claim("precious")
    proxy.back()
    assert (await world.find("a")).owner == "precious"

    first, second = await world.claim("precious"), await world.claim("precious")

    assert [claim.task.epoch for claim in first.claims] == [1]
    assert list(second.claims) == []


@BOTH
async def test_terminate_answers_the_run_as_it_was_before(world: World, proxy: Proxy, how: Cut) -> None:
    await world.start("a")
    proxy.cut(b"COMMIT", how)

    before = (await world.terminate("a", "why")).run

    assert proxy.cuts == 1
    assert before is not None
    assert before.status is Status.ACTIVE
    assert (await world.find("a")).status is Status.TERMINATED


@BOTH
async def test_a_restart_makes_one_run(world: World, proxy: Proxy, how: Cut) -> None:
    await world.start("a")
    proxy.cut(b"COMMIT", how)

    new = await world.restart("a")

    assert new.number == 1
    assert await world.find("a") == new


@BOTH
async def test_a_cancellation_is_asked_for_once(world: World, proxy: Proxy, how: Cut) -> None:
    run = await world.wait("a", "go")
    proxy.cut(b"COMMIT", how)

    before = (await world.cancel("a", deadline_ms=50)).run

    assert proxy.cuts == 1
    assert before == run
    assert [mail.type for mail in await world.unread(run.run)] == [CANCEL]


@BOTH
async def test_an_event_that_wakes_a_run_for_its_claimant_claims_it_once(world: World, proxy: Proxy, how: Cut) -> None:
    run = await world.wait("a", "go")
    proxy.cut("precious", how)

    sent = await world.send("go", payload=b"precious", claimant=Claimant("w2", LEASE, ["default"]))

    assert proxy.cuts == 1
    assert sent.claim is not None
    assert (sent.claim.task, sent.claim.lost) == (TaskRef(run.run, 0, "w2", 2), False)
    assert [mail.payload for mail in sent.claim.mailbag.mail] == [b"precious"]
    assert (await world.commit(sent.claim.task)).verdict is Verdict.APPLIED


@BOTH
@pytest.mark.parametrize("then", [ENDS, waiting("next"), None], ids=["ends", "rests", "goes on"])
async def test_an_event_and_the_turn_that_it_causes_are_written_once(
    world: World, proxy: Proxy, how: Cut, then: Finish | Release | None
) -> None:
    run = await world.wait("a", "go")
    proxy.cut("precious", how)

    await write(world, await foresee(world, run, then))

    assert proxy.cuts == 1
    [mail] = await world.store.events(PageQuery(run.run))
    assert (mail.payload, mail.consumed_by) == (b"precious", KEY)
    assert await world.keys(run.run) == [KEY]
    assert (await world.find("a")).status is (
        Status.ACTIVE if then is None else Status.COMPLETE if then is ENDS else Status.WAITING
    )


async def test_a_turn_that_was_written_with_its_event_is_known_again_after_others_went_on(
    world: World, other: asyncpg.Connection
) -> None:
    run = await world.wait("a", "go")
    sending = [Sending(await foresee(world, run, waiting("next")), 42)]
    now = await world.now()
    await send_foreseen(Tx(other, "holdfast", now, "me"), sending)
    await world.send("next")
    await world.finish((await world.take("w2")).task)

    [sent] = await send_foreseen(Tx(other, "holdfast", now, "me", again=True), sending)

    assert sent.committed is not None
    assert [mail.type for mail in await world.store.events(PageQuery(run.run))] == ["go", "next"]


@BOTH
@pytest.mark.parametrize("lives", [True, False])
async def test_a_run_that_takes_the_place_of_another_is_made_once(
    world: World, proxy: Proxy, how: Cut, lives: bool
) -> None:
    old = await world.start("a") if lives else await world.end("a")
    proxy.cut("precious", how)

    made = await world.create(
        "a",
        params=b"precious",
        on_conflict=OnConflict.TERMINATE_EXISTING,
        on_reuse=OnReuse.ALLOW,
        letters=[Letter("go", b"1")],
    )

    assert proxy.cuts == 1
    assert (made.answer, made.run.number) == (Answer.DONE, old.number + 1)
    assert await world.find("a") == made.run
    assert [mail.type for mail in await world.unread(made.run.run)] == ["go"]


@BOTH
async def test_letters_to_a_run_that_is_there_are_sent_once(world: World, proxy: Proxy, how: Cut) -> None:
    run = await world.wait("a", "go")
    proxy.cut("precious", how)

    made = await world.create("a", letters=[Letter("go", b"precious"), Letter("go", b"2")])

    assert proxy.cuts == 1
    assert made.answer is Answer.EXISTING
    assert [mail.payload for mail in await world.unread(run.run)] == [b"precious", b"2"]


@BOTH
@pytest.mark.parametrize("stays_down", [False, True])
async def test_acts_are_done_once(world: World, proxy: Proxy, how: Cut, stays_down: bool) -> None:
    task, waiter, doomed = await world.begin("a"), await world.wait("b", "go"), await world.begin("c")
    deeds: list[Deed] = [
        NewRun(FLOW, "precious", owner="w1", lease_ms=LEASE, parent=pid("a"), parent_run=task.run),
        NewEvent(FLOW, "b", "go"),
        TerminateRun(FLOW, "c", "why"),
        WatchRun(FLOW, "nobody", Watch.MONITOR),
    ]
    commit = turn(task, acts=[act(f"act{n}", deed) for n, deed in enumerate(deeds)])
    proxy.cut("precious", how, stays_down=stays_down)

    if stays_down:
        with pytest.raises(StoreUnavailableError):
            await world.store.commit([commit])
        proxy.back()
    [answer] = await world.store.commit([commit])

    assert proxy.cuts == 1
    assert answer.verdict is Verdict.APPLIED
    assert list(answer.acted) == [Answer.DONE, Answer.DONE, Answer.DONE, Answer.MISSING]
    assert [birth.run for birth in answer.births] == [await world.find("precious")]
    assert (touched(answer).ended, touched(answer).woken) == ([doomed.run], [waiter.run])
    assert len(await world.unread(waiter.run)) == 1
    assert await world.keys(task.run) == ["act0", "act1", "act2", "act3"]


@BOTH
async def test_a_successor_is_made_once(world: World, proxy: Proxy, how: Cut) -> None:
    task = await world.begin("a")
    await world.send("go")
    proxy.cut("precious", how)

    next_run = NextRun(b"precious", continues=True)
    answer = await world.commit(task, then=Finish(Status.COMPLETE, next=next_run))

    assert proxy.cuts == 1
    assert (answer.verdict, touched(answer).work) == (Verdict.APPLIED, True)
    new = await world.find("a")
    assert (new.number, new.params) == (1, b"precious")
    assert [mail.type for mail in await world.unread(new.run)] == ["go"]


@BOTH
async def test_the_end_of_a_watched_run_is_told_once(world: World, proxy: Proxy, how: Cut) -> None:
    parent = await world.begin("p")
    child = await world.begin("a", parent=pid("p"), parent_run=parent.run)
    proxy.cut("precious", how)

    answer = await world.commit(child, logs=[line("precious")], then=Finish(Status.COMPLETE))

    assert proxy.cuts == 1
    assert (answer.verdict, touched(answer).woken) == (Verdict.APPLIED, [parent.run])
    assert [mail.type for mail in await world.unread(parent.run)] == [EXIT]


@BOTH
async def test_a_run_with_units_is_made_once(world: World, proxy: Proxy, how: Cut) -> None:
    proxy.cut("precious", how)

    tasks = await world.graph("precious", unit(1), unit(2), unit(3, 1), room=1)

    assert proxy.cuts == 1
    assert [task.unit for task in tasks] == [1]
    assert await world.starts(tasks[0].run) == [("a", 1)]
    assert await world.claimed_units("w2") == [2]


@BOTH
@pytest.mark.parametrize("stays_down", [False, True])
async def test_units_are_advanced_once(world: World, proxy: Proxy, how: Cut, stays_down: bool) -> None:
    """What was taken is answered, also if nobody could be asked for long."""
    first, second = await world.graph("a", unit(1), unit(2), unit(3, 1), unit(4, 1), unit(5, 1))
    advances = [done(first, 3, 4, key="precious"), done(second, 5)]
    asked = (advances, Claimant("w1", LEASE, ["default"]), 2)
    proxy.cut("precious", how, stays_down=stays_down)
    if stays_down:
        with pytest.raises(StoreUnavailableError):
            await world.store.advance(*asked)
        proxy.back()

    answer = await world.store.advance(*asked)

    assert proxy.cuts == 1
    assert (list(answer.applied), answer.due) == ([True, True], True)
    assert answer.taken == [TaskRef(first.run, 3, "w1", 1), TaskRef(first.run, 4, "w1", 1)]
    assert await world.results(first.run) == ["b", "precious"]
    assert await world.claimed_units("w2") == [5]


@BOTH
async def test_parts_of_a_batch_that_were_answered_are_not_done_again(world: World, proxy: Proxy, how: Cut) -> None:
    """The second one takes away what the first one added, so they are two transactions."""
    first, second = await world.graph("a", unit(1), unit(2))
    adding, dropping = done(first, adds=[unit(3)]), done(second, key="precious", drops=[3])
    asked = ([adding, dropping, done(first)], Claimant("w1", LEASE, ["default"]), 1)
    proxy.cut("precious", how, stays_down=True)
    with pytest.raises(StoreUnavailableError):
        await world.store.advance(*asked)
    proxy.back()

    answer = await world.store.advance(*asked)

    assert list(answer.applied) == [True, True, False]
    assert [task.unit for task in answer.taken] == [3, 0]
    assert [held.unit for held in await world.store.heartbeat("w1", LEASE)] == [0]


@BOTH
@pytest.mark.parametrize("alone", [True, False])
async def test_claimed_units_do_not_get_lost_and_have_one_start(
    world: World, proxy: Proxy, how: Cut, alone: bool
) -> None:
    run = (await world.start("a", units=[unit(1), unit(2), unit(3, 1)])).run
    await world.claim("precious", limit=0, run=run if alone else None)
    proxy.cut("precious", how)

    claims = (await world.claim("precious", run=run if alone else None)).claims

    assert proxy.cuts == 1
    assert [(claim.task.unit, claim.task.epoch) for claim in claims] == [(1, 1), (2, 1)]
    assert await world.starts(run) == [("a", 1), ("b", 1)]


@BOTH
async def test_what_goes_out_is_put_out_once(world: World, proxy: Proxy, how: Cut) -> None:
    task = await world.begin("a")
    proxy.cut("precious", how)

    await world.commit(task, facts=[result("s")], outbox=[Outbound("precious", b"1", "s"), Outbound("x", None, "s")])

    assert proxy.cuts == 1
    assert [(row.n, row.type) for row in await world.store.outbox(task.run)] == [(1, "precious"), (2, "x")]


@BOTH
async def test_what_goes_out_is_taken_and_settled_once(world: World, proxy: Proxy, how: Cut) -> None:
    task = await world.begin("a")
    await world.commit(task, outbox=[Outbound("one", None, "s"), Outbound("two", None, "s")])
    await world.store.outbox_claim("precious", LEASE, 0)
    proxy.cut("precious", how)

    rows = (await world.store.outbox_claim("precious", LEASE, 9)).rows
    proxy.cut(b"COMMIT", how)
    settled = await world.store.outbox_settle("precious", [Delivered(row.run, row.n) for row in rows])

    assert proxy.cuts == 2
    assert ([(row.n, row.attempts) for row in rows], settled) == ([(1, 0)], 1)
    assert [row.n for row in (await world.store.outbox_claim("w", LEASE, 9)).rows] == [2]


@BOTH
async def test_a_heartbeat_is_made_again(world: World, proxy: Proxy, how: Cut) -> None:
    task = await world.begin("a", "precious")
    await world.store.heartbeat("precious", LEASE)
    proxy.cut("precious", how)

    assert [held.run for held in await world.store.heartbeat("precious", LEASE)] == [task.run]
    assert proxy.cuts == 1


@BOTH
async def test_that_there_is_mail_is_not_lost_with_a_heartbeats_answer(world: World, proxy: Proxy, how: Cut) -> None:
    task = await world.begin("a", "precious")
    await world.store.heartbeat("precious", LEASE)
    await world.send("go")
    proxy.cut("precious", how)

    assert await world.store.heartbeat("precious", LEASE) == [Held(task.run, 0, task.epoch, Signal.MAIL)]
    assert proxy.cuts == 1


async def test_that_there_is_mail_is_not_lost_with_the_answer_of_a_look(
    world: World, other: asyncpg.Connection
) -> None:
    task = await world.begin("a")
    await world.send("go")
    await signals(Tx(other, "holdfast", 1, "me"), task.owner)  # whose answer got lost

    heard = await signals(Tx(other, "holdfast", 1, "me", again=True), task.owner)

    assert heard == [Held(task.run, 0, task.epoch, Signal.MAIL)]


async def test_connections_that_were_ended_meanwhile_are_replaced(
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


async def test_a_statement_that_is_under_way_when_its_connection_is_ended(
    world: World, other: asyncpg.Connection
) -> None:
    task = await world.begin("a")
    await other.execute("BEGIN")
    await other.execute("SELECT FROM holdfast.holdfast_task FOR UPDATE")
    committing = asyncio.create_task(world.commit(task, facts=[result("s")]))
    waits = "SELECT pid FROM pg_locks WHERE NOT granted"  # the activity is looked at once in a transaction
    while not (waiting := await other.fetch(waits)):
        await asyncio.sleep(0.01)

    await other.execute(f"SELECT pg_terminate_backend({waiting[0]['pid']})")
    await other.execute("COMMIT")

    assert (await committing).verdict is Verdict.APPLIED
    assert await world.keys(task.run) == ["s"]


async def test_calls_wait_for_a_server_that_starts_again(clock: FakeClock) -> None:
    server = Server()
    store = PostgresStore(server.url(), clock=clock, random=SystemRandomness())
    try:
        await store.open()
        world = World(store, clock)
        task = await world.begin("a")
        await asyncio.to_thread(server.stop, "immediate")

        made = asyncio.create_task(world.create("b"))
        written = asyncio.create_task(world.commit(task, facts=[result("s")]))
        await asyncio.sleep(0.1)
        assert not made.done()
        assert not written.done()
        server.start()

        assert (await made).created
        assert (await written).verdict is Verdict.APPLIED
        assert await world.keys(task.run) == ["s"]
    finally:
        with suppress(Exception):
            await store.close()
        server.remove()


async def test_a_server_that_stays_away_is_an_error_after_a_while(world: World, proxy: Proxy) -> None:
    proxy.cut("precious", Cut.BEFORE, stays_down=True)

    with pytest.raises(StoreUnavailableError, match=r"cannot be reached|broke"):
        await world.create("precious")

    proxy.back()
    assert (await world.create("precious")).created


async def test_deadlocks_are_tried_again(url: str, other: asyncpg.Connection, clock: FakeClock) -> None:
    impatient = PostgresStore(f"{url}&deadlock_timeout=20ms", clock=clock, random=SystemRandomness())
    await impatient.open()
    world = World(impatient, clock)
    a, b = await world.start("a"), await world.start("b")
    await other.execute("SET deadlock_timeout = '1min'")
    await other.execute("BEGIN")
    lock = "SELECT FROM holdfast.holdfast_task WHERE run = $1 FOR UPDATE"
    await other.fetch(lock, b.run)
    sending = asyncio.create_task(impatient.send([NewEvent(FLOW, "a", "go"), NewEvent(FLOW, "b", "go")]))
    waits = "SELECT count(*) FROM pg_locks WHERE NOT granted"
    while not await other.fetchval(waits):
        await asyncio.sleep(0.01)

    await other.fetch(lock, a.run)  # each waits for the other now, until the store's transaction is rolled back
    assert not sending.done()
    await other.execute("COMMIT")

    assert [sent.accepted for sent in await sending] == [True, True]
    assert len(await world.unread(a.run)) == 1
    await impatient.close()
