"""The connection breaks right before or right after a commit: nothing is done twice, nothing acknowledged is lost.

The client cannot tell the two cases apart; the store has to find out.
"""

from __future__ import annotations

import asyncio

import pytest

from holdfast import StoreUnavailableError

from .proxy import Proxy, When
from .scene import BY_WORKFLOW, Scene, family
from .waiting import connected, insist
from .workload import plan

pytestmark = pytest.mark.parametrize("when", ["before", "after"])

SEQUENCE, EVENTS, BOOK, TRANSFER = (BY_WORKFLOW[name] for name in ("sequence", "events", "book", "transfer"))


async def test_a_start_is_made_once(scene: Scene, proxy: Proxy, when: When) -> None:
    scene.expect(SEQUENCE)
    async with scene.app().connect() as app:
        cut = proxy.cut(when, matching="holdfast_create")
        run = await app.start("sequence", SEQUENCE.n, id=SEQUENCE.id)
        assert cut.fired is not None
        async with scene.app(direct=True):
            assert await run.result(timeout=10) == SEQUENCE.expected

    await scene.finished()


async def test_a_start_without_an_id_is_made_once(scene: Scene, proxy: Proxy, when: When) -> None:
    async with scene.app().connect() as app:
        cut = proxy.cut(when, matching="holdfast_create")
        await app.start("sequence", 0)

    assert cut.fired is not None
    assert await scene.checker.one("SELECT count(*) FROM holdfast.holdfast_run") == 1


async def test_a_start_begins_at_once_in_the_worker_beside_it(scene: Scene, proxy: Proxy, when: When) -> None:
    scene.expect(SEQUENCE)
    async with scene.app() as app:
        cut = proxy.cut(when, matching="holdfast_create")
        run = await app.start("sequence", SEQUENCE.n, id=SEQUENCE.id)
        assert await run.result(timeout=10) == SEQUENCE.expected

    assert cut.fired is not None
    await scene.finished()
    assert set(scene.executions().values()) == {1}


async def test_a_start_that_was_given_up_can_be_made_again(scene: Scene, proxy: Proxy, when: When) -> None:
    """Made or not, nobody knows when the call fails. The worker beside it lives on, and so does its lease."""
    scene.expect(SEQUENCE)
    async with scene.app(patience=0.5) as app:
        cut = proxy.cut(when, matching="holdfast_create", keep_out=True)
        with pytest.raises(StoreUnavailableError):
            await app.start("sequence", SEQUENCE.n, id=SEQUENCE.id)
        assert cut.fired is not None
        proxy.let_in()

        run = await insist(lambda: app.start("sequence", SEQUENCE.n, id=SEQUENCE.id))
        assert await insist(lambda: run.result(timeout=15)) == SEQUENCE.expected

    await scene.finished()


async def test_an_event_is_sent_once(scene: Scene, proxy: Proxy, when: When) -> None:
    """Also one without an id, by which a sender could make sure itself."""
    scene.expect(EVENTS)
    async with scene.app(direct=True) as worker, scene.app().connect() as app:
        await worker.start("events", EVENTS.n, id=EVENTS.id)
        run = await app.get("events", EVENTS.id)
        for topic, payload in EVENTS.events:
            cut = proxy.cut(when, matching="holdfast_send")
            await run.send_event(topic, payload)
            assert cut.fired is not None
        assert await run.result(timeout=10) == EVENTS.expected

    await scene.finished()


async def test_a_claim_is_not_lost(scene: Scene, proxy: Proxy, when: When) -> None:
    """The heartbeats of the one who claimed keep others off: it must learn what it has."""
    scene.expect(SEQUENCE)
    answering = SEQUENCE.id.encode() if when == "after" else b""
    async with scene.app() as worker, scene.app(direct=True).connect() as app:
        cut = proxy.cut(when, matching="holdfast_claim", answering=answering)
        run = await app.start("sequence", SEQUENCE.n, id=SEQUENCE.id)
        assert await run.result(timeout=10) == SEQUENCE.expected
        assert cut.fired is not None
        assert (await worker.workers())[0].alive

    await scene.finished()
    assert set(scene.executions().values()) == {1}


@pytest.mark.parametrize("nth", [1, 2, 3])
async def test_results_are_written_once(scene: Scene, proxy: Proxy, when: When, nth: int) -> None:
    scene.expect(SEQUENCE, EVENTS)
    async with scene.app() as app:
        first = proxy.cut(when, nth=nth, matching="holdfast_commit")
        second = proxy.cut(when, nth=nth + 1, matching="holdfast_commit")
        sequence = await app.start("sequence", SEQUENCE.n, id=SEQUENCE.id)
        events = await app.start("events", EVENTS.n, id=EVENTS.id)
        for topic, payload in EVENTS.events:
            await events.send_event(topic, payload)
        assert await sequence.result(timeout=10) == SEQUENCE.expected
        assert await events.result(timeout=10) == EVENTS.expected

    assert first.fired is not None
    assert second.fired is not None
    await scene.finished()
    assert set(scene.executions().values()) == {1}


async def test_the_statements_of_a_step_are_done_once(scene: Scene, proxy: Proxy, when: When) -> None:
    scene.expect(*family("book"))
    async with scene.app() as app:
        cut = proxy.cut(when, matching="INSERT INTO ledger.*holdfast_create.*holdfast_send.*COMMIT")
        run = await app.start("book", BOOK.n, id=BOOK.id)
        assert await run.result(timeout=10) == BOOK.expected
        assert cut.fired is not None
        await scene.complete()

    await scene.finished()
    assert scene.executions()[BOOK.id, "pay"] == 1


async def test_an_open_transaction_is_committed_once(scene: Scene, proxy: Proxy, when: When) -> None:
    scene.expect(TRANSFER)
    async with scene.app() as app:
        first = proxy.cut(when, matching="UPDATE account.*COMMIT")
        second = proxy.cut(when, matching="'later'.*COMMIT")
        run = await app.start("transfer", TRANSFER.n, id=TRANSFER.id)
        assert await run.result(timeout=15) == TRANSFER.expected

    assert first.fired is not None
    assert second.fired is not None
    await scene.finished()
    again = 1 if when == "after" else 2  # what was not committed has to be done again
    assert scene.executions() == {(TRANSFER.id, "move"): again, (TRANSFER.id, "later"): again}


async def test_a_commit_whose_outcome_is_unknown_for_long_is_done_once(scene: Scene, proxy: Proxy, when: When) -> None:
    """The server cannot be asked within the bound of a call: the worker goes on asking."""
    scene.expect(SEQUENCE, TRANSFER, *family("book"))
    scene.checker.losses = 2  # an open transaction that broke is done again
    async with scene.app(patience=0.3) as app:
        runs = [(await app.start(p.workflow, p.n, id=p.id), p) for p in (SEQUENCE, TRANSFER, BOOK)]
        for matching in ("holdfast_commit", "INSERT INTO ledger.*COMMIT"):
            cut = proxy.cut(when, matching=matching, keep_out=True)
            await asyncio.wait_for(cut.done.wait(), 10)
            await asyncio.sleep(0.6)  # longer than the patience of a call
            proxy.let_in()
        for run, planned in runs:
            assert await insist(lambda run=run: run.result(timeout=20)) == planned.expected
        await scene.complete()

    await scene.finished()


async def test_a_worker_whose_every_fourth_commit_is_cut_still_finishes(scene: Scene, proxy: Proxy, when: When) -> None:
    """By chance, at all calls of the store alike; ``when`` is another seed here."""
    planned = plan(2)
    scene.expect(*planned)
    scene.checker.losses = 2  # a lease may run out when its heartbeats are hit
    with proxy.chance(seed=len(when), share=0.25) as cuts:
        app = scene.app()
        async with connected(app):
            pass
        async with app:
            handles = {}
            for p in planned:
                if p.started_by is None:
                    handles[p.id] = await insist(lambda p=p: app.start(p.workflow, p.n, id=p.id))
            for p in planned:
                for number, (topic, payload) in enumerate(p.events if p.started_by is None else ()):
                    run = handles[p.id]
                    await insist(lambda: run.send_event(topic, payload, id=f"{number}"))  # noqa: B023
            await scene.complete(40)

    assert len(cuts) > 20
    await scene.finished()
