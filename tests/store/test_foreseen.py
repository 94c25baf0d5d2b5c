"""An event together with the turn that it causes: both or, if the run is not as expected, the event like any other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from holdfast.core.model import Status
from holdfast.store.protocol import (
    ABOUT_NOW_MS,
    EXIT,
    Delivery,
    Finish,
    NewEvent,
    NextRun,
    PageQuery,
    Park,
    Release,
    TaskRef,
    Verdict,
    Watch,
    WatchRun,
)
from store.foreseeing import ENDS, KEY, foresee, post, write
from store.world import FLOW, LEASE, Database, FakeClock, World, act, line, result, waiting


async def test_an_event_and_the_end_that_it_causes_are_one(world: World) -> None:
    run = await world.wait("a", "go")
    world.clock.advance(5)

    sent = await post(world, await foresee(world, run))

    now = await world.now()
    assert sent.committed is not None
    assert (sent.committed.verdict, sent.claim, sent.woken) == (Verdict.APPLIED, None, True)
    assert sent.run == run
    ended = await world.find("a")
    assert (ended.status, ended.output, ended.completed_at, ended.updated_at) == (Status.COMPLETE, b"7", now, now)
    assert (ended.started_at, ended.owner) == (run.started_at, None)
    [mail] = await world.store.events(PageQuery(run.run))
    assert (mail.n, mail.type, mail.payload, mail.created_at) == (1, "go", b"precious", now)
    assert (mail.delivered_at, mail.consumed_by) == (now, KEY)
    [fact] = await world.store.facts(run.run)
    assert (fact.key, fact.event, fact.at) == (KEY, 1, now)
    assert await world.store.heartbeat("w9", LEASE) == []
    assert (await world.send("go")).accepted is False


async def test_a_turn_that_goes_on_has_the_run(world: World) -> None:
    run = await world.wait("a", "go")

    sent = await post(world, await foresee(world, run, None))

    task = TaskRef(run.run, 0, "w9", 2)
    assert (sent.committed is not None, sent.claim) == (True, None)
    found = await world.find("a")
    assert (found.status, found.owner) == (Status.ACTIVE, "w9")
    assert await world.unread(run.run) == []
    assert [(held.run, held.epoch) for held in await world.store.heartbeat("w9", LEASE)] == [(run.run, 2)]
    assert (await world.claim("w2")).claims == ()
    assert (await world.commit(task, facts=[result("s")])).verdict is Verdict.APPLIED
    world.clock.advance(LEASE)
    assert [freed.run for freed in await world.store.reap(5)] == [run.run]


async def test_a_turn_that_rests_again_leaves_the_run_to_anybody(world: World) -> None:
    run = await world.wait("a", "go")
    later = await world.now() + 10**6

    sent = await post(world, await foresee(world, run, waiting("next", run_at=later)))

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
    assert (await world.take("w2")).task == TaskRef(run.run, 0, "w2", 3)


async def test_one_event_after_the_other(world: World) -> None:
    run = await world.wait("a", "go")
    for n in (1, 2, 3):
        sent = await post(world, await foresee(world, run, waiting("go"), n=n, epoch=n + 1, key=f"{KEY} {n}"))
        assert sent.committed is not None

    assert [mail.consumed_by for mail in await world.store.events(PageQuery(run.run))] == [
        f"{KEY} {n}" for n in (1, 2, 3)
    ]
    assert (await world.find("a")).status is Status.WAITING


# ----------------------------------------------------------------------------------------------- not as it was foreseen


async def _other_mail(world: World) -> None:
    await world.send("unwanted")


async def _moved(world: World) -> None:
    await world.send("go")
    task = (await world.take("w2")).task
    await world.commit(task, then=waiting("go"), deliveries=[Delivery(1, "other", 1)], seen=1)


async def _held(world: World) -> None:
    await world.send("go")
    await world.take("w2")


async def _due(world: World) -> None:
    await world.send("go")


async def _paused(world: World) -> None:
    await world.store.pause(FLOW, "a")


async def _restarted(world: World) -> None:
    await world.restart("a")


async def _cancelled(world: World) -> None:
    await world.cancel("a")


CHANGES: list[Callable[[World], Awaitable[None]]] = [_other_mail, _moved, _held, _due, _paused, _restarted, _cancelled]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__.strip("_"))
@pytest.mark.parametrize("then", [ENDS, waiting("next"), None], ids=["ends", "rests", "goes on"])
async def test_if_anything_else_has_come_it_is_an_event_like_any_other(
    world: World, change: Callable[[World], Awaitable[None]], then: Finish | Release | None
) -> None:
    run = await world.wait("a", "go")
    event = await foresee(world, run, then)
    await change(world)
    before = await world.find("a")

    sent = await post(world, event)

    current = await world.find("a")
    assert (sent.accepted, sent.duplicate, sent.committed) == (True, False, None)
    assert sent.run == before
    assert KEY not in await world.keys(run.run)
    assert [mail.type for mail in await world.unread(current.run)][-1] == "go"
    assert not current.status.terminal
    if sent.claim is not None:
        assert not event.foreseen or not event.foreseen.is_met_by(sent.claim)
        assert sent.claim.mailbag.mail[-1].type == "go"


async def test_it_is_not_sent_to_a_run_that_has_ended_meanwhile(world: World) -> None:
    run = await world.wait("a", "go")
    event = await foresee(world, run)
    await world.terminate("a")

    sent = await post(world, event)

    assert (sent.accepted, sent.committed, sent.claim) == (False, None, None)
    assert await world.store.events(PageQuery(run.run)) == []


async def test_a_deadline_that_has_passed_comes_before_it(world: World) -> None:
    run = await world.wait("a", "go", run_at=await world.now() + 50)
    event = await foresee(world, run)
    world.clock.advance(50)

    sent = await post(world, event)

    assert sent.committed is None
    assert KEY not in await world.keys(run.run)


@pytest.mark.parametrize(("late", "believed"), [(ABOUT_NOW_MS, True), (ABOUT_NOW_MS + 1, False)])
async def test_its_time_is_believed_if_it_is_about_now(world: World, late: int, believed: bool) -> None:
    run = await world.wait("a", "go")
    event = await foresee(world, run)
    assert event.foreseen is not None
    world.clock.advance(late)

    sent = await post(world, event)

    [mail] = await world.store.events(PageQuery(run.run))
    assert (sent.committed is not None) == believed
    assert mail.created_at == (event.foreseen.at if believed else await world.now())
    if not believed:
        assert sent.claim is not None
        assert not event.foreseen.is_met_by(sent.claim)


async def test_the_same_key_twice_is_one_event(world: World) -> None:
    run = await world.wait("a", "go")
    first = await foresee(world, run, waiting("go"))
    first.dedup = "k"
    assert (await post(world, first)).committed is not None
    second = await foresee(world, run, n=2, epoch=3, key="second")
    second.dedup = "k"

    sent = await post(world, second)

    assert (sent.accepted, sent.duplicate, sent.committed, sent.claim) == (True, True, None, None)
    found = await world.find("a")
    assert (found.status, found.owner) == (Status.WAITING, None)
    assert len(await world.store.events(PageQuery(run.run))) == 1


async def test_a_suspect_is_left_to_a_claim(world: World) -> None:
    run = await world.wait("a", "go")
    await world.send("go")
    for _ in range(2):
        await world.take("w1")
        world.clock.advance(LEASE)
        await world.store.reap(9)

    sent = await post(world, await foresee(world, run, n=2, epoch=4))

    assert (sent.woken, sent.claim, sent.committed) == (True, None, None)


async def test_without_a_claimant_there_is_no_turn(world: World) -> None:
    run = await world.wait("a", "go")
    event = await foresee(world, run)
    event.claimant = None

    sent = await post(world, event)

    assert (sent.woken, sent.claim, sent.committed) == (True, None, None)


async def test_several_at_once_are_events_or_turns_but_all_are_there(world: World) -> None:
    a, b = await world.wait("a", "go"), await world.wait("b", "go")

    events = [await foresee(world, a), await foresee(world, b), NewEvent(FLOW, "b", "more")]
    sent = await world.store.send(events)

    assert sent[0].committed is not None or sent[0].claim is not None
    assert sent[1].committed is not None or sent[1].claim is not None
    assert sent[2].accepted == (not (await world.find("b")).status.terminal)
    assert [mail.type for mail in await world.store.events(PageQuery(a.run))] == ["go"]


async def test_of_two_who_foresee_the_same_one_is_right(database: Database, clock: FakeClock) -> None:
    world, other = World(database(), clock), World(database(), clock)
    await world.store.open()
    await other.store.open()
    for attempt in range(20):
        run = await world.wait(f"a{attempt}", "go")
        both = [await foresee(world, run, waiting("go")) for _ in range(2)]

        sent = await asyncio.gather(post(world, both[0]), post(other, both[1]))

        assert sum(one.committed is not None for one in sent) == 1
        [late] = [one for one in sent if one.committed is None]
        assert late.claim is not None
        assert [mail.n for mail in late.claim.mailbag.mail] == [2]
        assert [mail.consumed_by for mail in await world.store.events(PageQuery(run.run))] == [KEY, None]
    await other.store.close()
    await world.store.close()


# ------------------------------------------------------------------------------- turns that do more than the common one


async def test_a_fact_of_another_kind(world: World) -> None:
    run = await world.wait("a", "go")
    event = await foresee(world, run)
    assert event.foreseen is not None
    event.foreseen.commit.observed.facts = [result(KEY, value=b"8", name="n", ok=False)]

    await write(world, event)

    [fact] = await world.store.facts(run.run)
    assert (fact.value, fact.name, fact.ok, fact.event) == (b"8", "n", False, None)


async def test_logs_and_several_facts(world: World) -> None:
    run = await world.wait("a", "go")

    await write(world, await foresee(world, run, ENDS, logs=[line("hello")], then_facts=[result("more")]))

    assert await world.keys(run.run) == [KEY, "more"]
    assert [one.line.message for one in await world.store.logs(PageQuery(run.run))] == ["hello"]


async def test_a_turn_that_parks_the_run(world: World) -> None:
    run = await world.wait("a", "go")

    await write(world, await foresee(world, run, Park("for a look")))

    found = await world.find("a")
    assert (found.status, found.note) == (Status.PAUSED, "for a look")


async def test_an_end_that_another_run_follows(world: World) -> None:
    run = await world.wait("a", "go")

    await write(world, await foresee(world, run, Finish(Status.COMPLETE, next=NextRun(b"8", continues=True))))

    following = await world.find("a")
    assert (following.number, following.params) == (1, b"8")
    assert (await world.find("a", 0)).status is Status.COMPLETE


async def test_an_end_that_others_wait_for(world: World) -> None:
    watcher = await world.begin("watcher", "w1")
    run = await world.wait("a", "go")
    await world.act(watcher, WatchRun(FLOW, "a", Watch.MONITOR))

    await write(world, await foresee(world, run))

    assert [mail.type for mail in await world.unread(watcher.run)] == [EXIT]


async def test_a_turn_that_acts_on_others(world: World) -> None:
    other = await world.start("b")
    run = await world.wait("a", "go")
    event = await foresee(world, run, None, acts=[act("told", NewEvent(FLOW, "b", "hello"))])

    await write(world, event)

    assert [mail.type for mail in await world.unread(other.run)] == ["hello"]
