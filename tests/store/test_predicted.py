"""Predictions: an event and its turn are written together, or the event alone if the prediction does not hold."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from holdfast.core.model import Status
from holdfast.store.protocol import (
    EXIT,
    MAX_CLOCK_SKEW_MS,
    Delivery,
    EventsQuery,
    Finish,
    LogsQuery,
    NewEvent,
    NextRun,
    Park,
    Release,
    TaskRef,
    Verdict,
    Watch,
    WatchRun,
)
from store.predictions import ENDS, KEY, predict, send_and_commit, send_event
from store.world import FLOW, LEASE, Database, FakeClock, World, log_line, recorded, result, waiting


async def test_an_event_and_the_predicted_end_are_written_together(world: World) -> None:
    run = await world.start_waiting("a", "go")
    world.clock.advance(5)

    sent = await send_event(world, await predict(world, run))

    now = world.now()
    assert sent.committed is not None
    assert (sent.committed.verdict, sent.claim, sent.woken) == (Verdict.APPLIED, None, True)
    assert sent.run == run
    ended = await world.find("a")
    assert (ended.status, ended.output, ended.completed_at, ended.updated_at) == (Status.COMPLETE, b"7", now, now)
    assert (ended.started_at, ended.owner) == (run.started_at, None)
    [event] = await world.store.read(EventsQuery(run.run))
    assert (event.n, event.type, event.payload, event.created_at) == (1, "go", b"precious", now)
    assert (event.delivered_at, event.consumed_by) == (now, KEY)
    [fact] = await world.facts(run.run)
    assert (fact.key, fact.event, fact.at) == (KEY, 1, now)
    assert await world.store.heartbeat("w9", LEASE) == []
    assert (await world.send("go")).accepted is False


async def test_a_predicted_turn_that_continues_owns_the_run(world: World) -> None:
    run = await world.start_waiting("a", "go")

    sent = await send_event(world, await predict(world, run, None))

    task = TaskRef(run.run, 0, "w9", 2)
    assert (sent.committed is not None, sent.claim) == (True, None)
    found = await world.find("a")
    assert (found.status, found.owner) == (Status.ACTIVE, "w9")
    assert await world.undelivered(run.run) == []
    assert [(held.run, held.epoch) for held in await world.store.heartbeat("w9", LEASE)] == [(run.run, 2)]
    assert (await world.claim("w2")).claims == ()
    assert (await world.commit(task, facts=[result("s")])).verdict is Verdict.APPLIED
    world.clock.advance(LEASE)
    assert [expired.run for expired in await world.store.reap(5)] == [run.run]


async def test_a_predicted_turn_that_suspends_releases_the_run(world: World) -> None:
    run = await world.start_waiting("a", "go")
    later = world.now() + 10**6

    sent = await send_event(world, await predict(world, run, waiting("next", run_at=later)))

    assert sent.committed is not None
    assert not sent.committed.due_now
    found = await world.find("a")
    assert (found.status, found.owner, found.topics, found.run_at) == (
        Status.WAITING,
        None,
        frozenset({"next"}),
        later,
    )
    assert await world.claimed_ids() == []
    assert not (await world.send("go")).woken
    assert (await world.send("next")).woken
    assert (await world.claim_one("w2")).task == TaskRef(run.run, 0, "w2", 3)


async def test_successive_predictions_are_all_applied(world: World) -> None:
    run = await world.start_waiting("a", "go")
    for n in (1, 2, 3):
        sent = await send_event(world, await predict(world, run, waiting("go"), n=n, epoch=n + 1, key=f"{KEY} {n}"))
        assert sent.committed is not None

    assert [event.consumed_by for event in await world.store.read(EventsQuery(run.run))] == [
        f"{KEY} {n}" for n in (1, 2, 3)
    ]
    assert (await world.find("a")).status is Status.WAITING


# ----------------------------------------------------------------------------------------------- predictions that fail


async def _other_event(world: World) -> None:
    await world.send("unwanted")


async def _advanced_by_another(world: World) -> None:
    await world.send("go")
    task = (await world.claim_one("w2")).task
    await world.commit(task, then=waiting("go"), deliveries=[Delivery(1, "other", 1)], seen=1)


async def _owned(world: World) -> None:
    await world.send("go")
    await world.claim_one("w2")


async def _due(world: World) -> None:
    await world.send("go")


async def _paused(world: World) -> None:
    await world.pause("a")


async def _restarted(world: World) -> None:
    await world.restart("a")


async def _cancelled(world: World) -> None:
    await world.cancel("a")


CHANGES: list[Callable[[World], Awaitable[None]]] = [
    _other_event,
    _advanced_by_another,
    _owned,
    _due,
    _paused,
    _restarted,
    _cancelled,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__.strip("_"))
@pytest.mark.parametrize("then", [ENDS, waiting("next"), None], ids=["ends", "suspends", "continues"])
async def test_a_prediction_that_does_not_hold_sends_an_ordinary_event(
    world: World, change: Callable[[World], Awaitable[None]], then: Finish | Release | None
) -> None:
    run = await world.start_waiting("a", "go")
    event = await predict(world, run, then)
    await change(world)
    before = await world.find("a")

    sent = await send_event(world, event)

    current = await world.find("a")
    assert (sent.accepted, sent.duplicate, sent.committed) == (True, False, None)
    assert sent.run == before
    assert KEY not in await world.keys(run.run)
    assert [event.type for event in await world.undelivered(current.run)][-1] == "go"
    assert not current.status.terminal
    if sent.claim is not None:
        assert not event.prediction or not event.prediction.holds_for(sent.claim)
        assert sent.claim.mailbox_page.events[-1].type == "go"


async def test_a_prediction_for_an_ended_run_is_not_accepted(world: World) -> None:
    run = await world.start_waiting("a", "go")
    event = await predict(world, run)
    await world.terminate("a")

    sent = await send_event(world, event)

    assert (sent.accepted, sent.committed, sent.claim) == (False, None, None)
    assert await world.store.read(EventsQuery(run.run)) == []


async def test_a_prediction_for_a_run_that_is_due_already_is_not_applied(world: World) -> None:
    run = await world.start_waiting("a", "go", run_at=world.now() + 50)
    event = await predict(world, run)
    world.clock.advance(50)

    sent = await send_event(world, event)

    assert sent.committed is None
    assert KEY not in await world.keys(run.run)


@pytest.mark.parametrize(("late", "within"), [(MAX_CLOCK_SKEW_MS, True), (MAX_CLOCK_SKEW_MS + 1, False)])
async def test_the_predicted_time_is_used_within_the_clock_skew(world: World, late: int, within: bool) -> None:
    run = await world.start_waiting("a", "go")
    event = await predict(world, run)
    assert event.prediction is not None
    world.clock.advance(late)

    sent = await send_event(world, event)

    [stored] = await world.store.read(EventsQuery(run.run))
    assert (sent.committed is not None) == within
    assert stored.created_at == (event.prediction.at if within else world.now())
    if not within:
        assert sent.claim is not None
        assert not event.prediction.holds_for(sent.claim)


async def test_a_predicted_event_with_a_known_dedup_key_is_a_duplicate(world: World) -> None:
    run = await world.start_waiting("a", "go")
    first = await predict(world, run, waiting("go"))
    first.dedup = "k"
    assert (await send_event(world, first)).committed is not None
    second = await predict(world, run, n=2, epoch=3, key="second")
    second.dedup = "k"

    sent = await send_event(world, second)

    assert (sent.accepted, sent.duplicate, sent.committed, sent.claim) == (True, True, None, None)
    found = await world.find("a")
    assert (found.status, found.owner) == (Status.WAITING, None)
    assert len(await world.store.read(EventsQuery(run.run))) == 1


async def test_the_prediction_for_a_suspect_is_not_applied(world: World) -> None:
    run = await world.start_waiting("a", "go")
    await world.send("go")
    for _ in range(2):
        await world.claim_one("w1")
        world.clock.advance(LEASE)
        await world.store.reap(9)

    sent = await send_event(world, await predict(world, run, n=2, epoch=4))

    assert (sent.woken, sent.claim, sent.committed) == (True, None, None)


async def test_a_prediction_without_a_claimant_is_not_applied(world: World) -> None:
    run = await world.start_waiting("a", "go")
    event = await predict(world, run)
    event.claimant = None

    sent = await send_event(world, event)

    assert (sent.woken, sent.claim, sent.committed) == (True, None, None)


async def test_several_predicted_events_in_one_batch_are_all_stored(world: World) -> None:
    a, b = await world.start_waiting("a", "go"), await world.start_waiting("b", "go")

    events = [await predict(world, a), await predict(world, b), NewEvent(FLOW, "b", "more")]
    sent = await world.store.send(events)

    assert sent[0].committed is not None or sent[0].claim is not None
    assert sent[1].committed is not None or sent[1].claim is not None
    assert sent[2].accepted == (not (await world.find("b")).status.terminal)
    assert [event.type for event in await world.store.read(EventsQuery(a.run))] == ["go"]


async def test_one_of_two_equal_predictions_is_applied(database: Database, clock: FakeClock) -> None:
    world, other = World(database(), clock), World(database(), clock)
    await world.store.open()
    await other.store.open()
    for attempt in range(20):
        run = await world.start_waiting(f"a{attempt}", "go")
        both = [await predict(world, run, waiting("go")) for _ in range(2)]

        sent = await asyncio.gather(send_event(world, both[0]), send_event(other, both[1]))

        assert sum(one.committed is not None for one in sent) == 1
        [late] = [one for one in sent if one.committed is None]
        assert late.claim is not None
        assert [event.n for event in late.claim.mailbox_page.events] == [2]
        assert [event.consumed_by for event in await world.store.read(EventsQuery(run.run))] == [KEY, None]
    await other.store.close()
    await world.store.close()


# ----------------------------------------------------------------------------------------------- other kinds of turns


async def test_a_predicted_fact_of_another_kind_is_written(world: World) -> None:
    run = await world.start_waiting("a", "go")
    event = await predict(world, run)
    assert event.prediction is not None
    event.prediction.commit.observed.facts = [result(KEY, value=b"8", name="n", ok=False)]

    await send_and_commit(world, event)

    [fact] = await world.facts(run.run)
    assert (fact.value, fact.name, fact.ok, fact.event) == (b"8", "n", False, None)


async def test_predicted_logs_and_several_facts_are_written(world: World) -> None:
    run = await world.start_waiting("a", "go")

    await send_and_commit(world, await predict(world, run, ENDS, logs=[log_line("hello")], then_facts=[result("more")]))

    assert await world.keys(run.run) == [KEY, "more"]
    assert [one.log.message for one in await world.store.read(LogsQuery(run.run))] == ["hello"]


async def test_a_predicted_turn_can_park_the_run(world: World) -> None:
    run = await world.start_waiting("a", "go")

    await send_and_commit(world, await predict(world, run, Park("for a look")))

    found = await world.find("a")
    assert (found.status, found.note) == (Status.PAUSED, "for a look")


async def test_a_predicted_end_can_have_a_successor(world: World) -> None:
    run = await world.start_waiting("a", "go")

    await send_and_commit(world, await predict(world, run, Finish(Status.COMPLETE, next=NextRun(b"8", continues=True))))

    following = await world.find("a")
    assert (following.number, following.params) == (1, b"8")
    assert (await world.find("a", 0)).status is Status.COMPLETE


async def test_a_predicted_end_notifies_watchers(world: World) -> None:
    watcher = await world.start_claimed("watcher", "w1")
    run = await world.start_waiting("a", "go")
    await world.operate(watcher, WatchRun(FLOW, "a", Watch.MONITOR))

    await send_and_commit(world, await predict(world, run))

    assert [event.type for event in await world.undelivered(watcher.run)] == [EXIT]


async def test_a_predicted_turn_can_have_operations(world: World) -> None:
    other = await world.start("b")
    run = await world.start_waiting("a", "go")
    event = await predict(world, run, None, operations=[recorded("told", NewEvent(FLOW, "b", "hello"))])

    await send_and_commit(world, event)

    assert [event.type for event in await world.undelivered(other.run)] == ["hello"]
