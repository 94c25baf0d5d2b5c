"""The connection breaks right before or right after a commit: nothing is applied twice, nothing acknowledged is lost.

The client cannot tell the two cases apart; the store has to find out.
"""

from __future__ import annotations

import asyncio

import pytest

from holdfast import StoreUnavailableError

from .environment import BY_WORKFLOW, Environment, run_and_children
from .proxy import Proxy, When
from .waiting import connected, retry_until_available
from .workload import plan

pytestmark = pytest.mark.parametrize("when", ["before", "after"])

SEQUENCE, EVENTS, BOOK, TRANSFER = (BY_WORKFLOW[name] for name in ("sequence", "events", "book", "transfer"))


async def test_a_run_is_created_once(env: Environment, proxy: Proxy, when: When) -> None:
    env.expect(SEQUENCE)
    async with env.app().connect() as app:
        cut = proxy.cut(when, matching="holdfast_create")
        run = await app.start("sequence", SEQUENCE.n, id=SEQUENCE.id)
        assert cut.fired is not None
        async with env.app(direct=True):
            assert await run.result(timeout=60) == SEQUENCE.expected

    await env.complete_and_check()


async def test_a_run_without_an_id_is_created_once(env: Environment, proxy: Proxy, when: When) -> None:
    async with env.app().connect() as app:
        cut = proxy.cut(when, matching="holdfast_create")
        await app.start("sequence", 0)

    assert cut.fired is not None
    assert await env.checker.one("SELECT count(*) FROM holdfast.holdfast_run") == 1


async def test_a_started_run_begins_at_once_in_the_worker_of_the_same_app(
    env: Environment, proxy: Proxy, when: When
) -> None:
    env.expect(SEQUENCE)
    async with env.app() as app:
        cut = proxy.cut(when, matching="holdfast_create")
        run = await app.start("sequence", SEQUENCE.n, id=SEQUENCE.id)
        assert await run.result(timeout=60) == SEQUENCE.expected

    assert cut.fired is not None
    await env.complete_and_check()
    assert set(env.executions().values()) == {1}


async def test_a_start_that_failed_can_be_repeated(env: Environment, proxy: Proxy, when: When) -> None:
    """After a failed call the outcome is unknown. The worker of the same app continues, and keeps its lease."""
    env.expect(SEQUENCE)
    async with env.app(connect_timeout=0.5) as app:
        cut = proxy.cut(when, matching="holdfast_create", refuse_connections=True)
        with pytest.raises(StoreUnavailableError):
            await app.start("sequence", SEQUENCE.n, id=SEQUENCE.id)
        assert cut.fired is not None
        proxy.accept_connections()

        run = await retry_until_available(lambda: app.start("sequence", SEQUENCE.n, id=SEQUENCE.id))
        assert await retry_until_available(lambda: run.result(timeout=60)) == SEQUENCE.expected

    await env.complete_and_check()


@pytest.mark.promise("messages-once-in-order")
async def test_an_event_is_sent_once(env: Environment, proxy: Proxy, when: When) -> None:
    """The events have no ids by which the sender could deduplicate them."""
    env.expect(EVENTS)
    async with env.app(direct=True) as worker, env.app().connect() as app:
        await worker.start("events", EVENTS.n, id=EVENTS.id)
        run = await app.get("events", EVENTS.id)
        for topic, payload in EVENTS.events:
            cut = proxy.cut(when, matching="holdfast_send")
            await run.send_event(topic, payload)
            assert cut.fired is not None
        assert await run.result(timeout=60) == EVENTS.expected

    await env.complete_and_check()


async def test_a_claim_is_not_lost(env: Environment, proxy: Proxy, when: When) -> None:
    """The claimant's heartbeats keep other workers from the task, so it must learn of its claim."""
    env.expect(SEQUENCE)
    reply_contains = SEQUENCE.id.encode() if when == "after" else b""
    async with env.app() as worker, env.app(direct=True).connect() as app:
        cut = proxy.cut(when, matching="holdfast_claim", reply_contains=reply_contains)
        run = await app.start("sequence", SEQUENCE.n, id=SEQUENCE.id)
        assert await run.result(timeout=60) == SEQUENCE.expected
        assert cut.fired is not None
        assert (await worker.workers())[0].alive

    await env.complete_and_check()
    assert set(env.executions().values()) == {1}


@pytest.mark.promise("committed-results-never-change")
@pytest.mark.parametrize("nth", [1, 2, 3])
async def test_results_are_written_once(env: Environment, proxy: Proxy, when: When, nth: int) -> None:
    env.expect(SEQUENCE, EVENTS)
    async with env.app() as app:
        first = proxy.cut(when, nth=nth, matching="holdfast_commit")
        second = proxy.cut(when, nth=nth + 1, matching="holdfast_commit")
        sequence = await app.start("sequence", SEQUENCE.n, id=SEQUENCE.id)
        events = await app.start("events", EVENTS.n, id=EVENTS.id)
        for topic, payload in EVENTS.events:
            await events.send_event(topic, payload)
        assert await sequence.result(timeout=60) == SEQUENCE.expected
        assert await events.result(timeout=60) == EVENTS.expected

    assert first.fired is not None
    assert second.fired is not None
    await env.complete_and_check()
    assert set(env.executions().values()) == {1}


@pytest.mark.promise("at-least-once-steps")
async def test_the_statements_of_a_step_are_executed_once(env: Environment, proxy: Proxy, when: When) -> None:
    env.expect(*run_and_children("book"))
    async with env.app() as app:
        cut = proxy.cut(when, matching="INSERT INTO ledger.*holdfast_create.*holdfast_send.*COMMIT")
        run = await app.start("book", BOOK.n, id=BOOK.id)
        assert await run.result(timeout=60) == BOOK.expected
        assert cut.fired is not None
        await env.complete()

    await env.complete_and_check()
    assert env.executions()[BOOK.id, "pay"] == 1


@pytest.mark.promise("at-least-once-steps")
async def test_a_live_transaction_is_committed_once(env: Environment, proxy: Proxy, when: When) -> None:
    env.expect(TRANSFER)
    async with env.app() as app:
        first = proxy.cut(when, matching="UPDATE account.*COMMIT")
        second = proxy.cut(when, matching="'later'.*COMMIT")
        run = await app.start("transfer", TRANSFER.n, id=TRANSFER.id)
        assert await run.result(timeout=60) == TRANSFER.expected

    assert first.fired is not None
    assert second.fired is not None
    await env.complete_and_check()
    executions = 1 if when == "after" else 2  # a step that was not committed runs again
    assert env.executions() == {(TRANSFER.id, "move"): executions, (TRANSFER.id, "later"): executions}


async def test_a_commit_whose_outcome_is_unknown_for_long_is_applied_once(
    env: Environment, proxy: Proxy, when: When
) -> None:
    """The server is unavailable for longer than a call waits: the worker repeats the call."""
    env.expect(SEQUENCE, TRANSFER, *run_and_children("book"))
    env.checker.losses = 2  # a step whose live transaction broke runs again
    async with env.app(connect_timeout=0.3) as app:
        runs = [(await app.start(p.workflow, p.n, id=p.id), p) for p in (SEQUENCE, TRANSFER, BOOK)]
        for matching in ("holdfast_commit", "INSERT INTO ledger.*COMMIT"):
            cut = proxy.cut(when, matching=matching, refuse_connections=True)
            await asyncio.wait_for(cut.done.wait(), 60)
            await asyncio.sleep(0.6)  # longer than a call waits
            proxy.accept_connections()
        for run, planned in runs:
            assert await retry_until_available(lambda run=run: run.result(timeout=60)) == planned.expected
        await env.complete()

    await env.complete_and_check()


@pytest.mark.promise("liveness")
async def test_a_worker_whose_every_fourth_commit_is_cut_still_finishes(
    env: Environment, proxy: Proxy, when: When
) -> None:
    """The cuts are random, over all calls of the store; ``when`` selects the seed."""
    planned = plan(2)
    env.expect(*planned)
    env.checker.losses = 2  # a lease may expire when its heartbeats are cut
    with proxy.cut_randomly(seed=len(when), share=0.25) as cuts:
        app = env.app()
        async with connected(app):
            pass
        async with app:
            handles = {}
            for p in planned:
                if p.started_by is None:
                    handles[p.id] = await retry_until_available(lambda p=p: app.start(p.workflow, p.n, id=p.id))
            for p in planned:
                for number, (topic, payload) in enumerate(p.events if p.started_by is None else ()):
                    run = handles[p.id]
                    await retry_until_available(lambda: run.send_event(topic, payload, id=f"{number}"))  # noqa: B023
            await env.complete(40)

    assert len(cuts) > 20
    await env.complete_and_check()
