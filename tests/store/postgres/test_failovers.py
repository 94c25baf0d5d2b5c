"""A server that lacks the last commits takes over: claims of before count for nothing, and no run id is used twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from holdfast.core.model import Status
from holdfast.ports import SystemRandomness
from holdfast.store.postgres import PostgresStore
from holdfast.store.protocol import EventsQuery, NewRun, PruneRuns, RunByName, RunsById, TaskRef, Verdict
from postgres_failover import Failover, through
from store.postgres.fault_tools import Cut, Proxy
from store.predictions import predict, send_event
from store.world import LEASE, FakeClock, World, result, waiting

pytestmark = pytest.mark.usefixtures("store")


@pytest.fixture
async def store(url: str, clock: FakeClock, proxy: Proxy) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(through(proxy, url), clock=clock, random=SystemRandomness())
    await store.open()
    yield store
    await store.close()


@pytest.fixture
def failover(other: asyncpg.Connection, proxy: Proxy) -> Failover:
    """A failover that breaks all connections."""
    return Failover(other, proxy)


@pytest.fixture
def silent_failover(other: asyncpg.Connection) -> Failover:
    """A failover that breaks no connections."""
    return Failover(other)


async def test_a_claim_of_before_a_failover_is_refused_although_its_row_was_not_lost(
    world: World, failover: Failover
) -> None:
    task = await world.start_claimed()
    await failover.fail_over()

    committed = await world.commit(task, facts=[result("a")])

    assert committed.verdict is Verdict.LOST


async def test_a_turn_does_not_continue_after_a_gap_in_its_history(world: World, failover: Failover) -> None:
    task = await world.start_claimed()
    await failover.save()
    first = await world.commit(task, facts=[result("a")])
    await failover.fail_over()

    second = await world.commit(task, facts=[result("b", seq=2)])

    assert (first.verdict, second.verdict) == (Verdict.APPLIED, Verdict.LOST)


async def test_a_run_whose_claim_ended_with_a_failover_is_due_at_once_and_its_attempts_count_as_lost(
    world: World, failover: Failover
) -> None:
    task = await world.start_claimed()
    await failover.fail_over()

    claim = await world.claim_one("w2")

    assert (claim.task.run, claim.lost) == (task.run, True)


async def test_no_run_gets_the_id_of_a_lost_one(world: World, failover: Failover) -> None:
    await failover.save()
    lost = {(await world.start(f"lost-{n}")).run for n in range(40)}
    await failover.fail_over()

    new = {(await world.start(f"new-{n}")).run for n in range(40)}

    assert not lost & new
    assert await world.store.read(RunsById(sorted(lost))) == []


async def test_listeners_are_notified_once_and_before_the_next_write(world: World, failover: Failover) -> None:
    notified: list[int] = []
    world.store.failovers.subscribe(lambda: notified.append(1))
    await failover.fail_over()

    await asyncio.gather(*(world.start(f"run-{n}") for n in range(5)))

    assert notified == [1]


async def test_a_broken_connection_alone_is_no_failover(world: World, other: asyncpg.Connection) -> None:
    notified: list[int] = []
    world.store.failovers.subscribe(lambda: notified.append(1))
    task = await world.start_claimed()
    await other.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'holdfast'"
    )

    committed = await world.commit(task, facts=[result("a")])

    assert (committed.verdict, notified) == (Verdict.APPLIED, [])


async def test_a_start_that_was_in_flight_during_a_failover_creates_a_run_without_an_owner(
    world: World, silent_failover: Failover, clock: FakeClock, url: str, proxy: Proxy
) -> None:
    store = PostgresStore(through(proxy, url), clock=clock, random=SystemRandomness())
    await store.open()
    proxy.cut("precious", Cut.BEFORE, stays_down=True)
    creating = asyncio.create_task(store.create([NewRun("flow", "a", params=b"precious", owner="w1", lease_ms=LEASE)]))
    while not proxy.cuts:
        await asyncio.sleep(0.001)
    await silent_failover.fail_over()
    proxy.restore()

    [created] = await creating

    assert (created.run.owner, created.epoch) == (None, 0)
    assert (await world.claim_one("w2")).run.instance_id == "a"
    await store.close()


async def test_a_store_behind_a_transaction_pooler_notices_a_failover_that_breaks_no_connection(
    world: World, silent_failover: Failover, url: str, clock: FakeClock
) -> None:
    store = PostgresStore(f"{url}&statement_cache_size=0", clock=clock, random=SystemRandomness())
    await store.open()
    notified: list[int] = []
    store.failovers.subscribe(lambda: notified.append(1))
    [created] = await store.create([NewRun("flow", "a", owner="w1", lease_ms=LEASE)])
    await silent_failover.fail_over()

    committed = await World(store, clock).commit(TaskRef(created.run.run, 0, "w1", 1), facts=[result("a")])

    assert (committed.verdict, notified) == (Verdict.LOST, [1])
    await store.close()


async def test_a_heartbeat_notices_a_failover_that_breaks_no_connection(
    world: World, silent_failover: Failover
) -> None:
    notified: list[int] = []
    world.store.failovers.subscribe(lambda: notified.append(1))
    await world.start_claimed()
    await world.store.heartbeat("w1", LEASE)
    await silent_failover.fail_over()

    assert await world.store.heartbeat("w1", LEASE) == []
    assert notified == [1]


async def test_an_event_that_was_in_flight_during_a_failover_is_sent_without_its_predicted_turn(
    world: World, silent_failover: Failover, clock: FakeClock, url: str, proxy: Proxy
) -> None:
    run = await world.start_waiting("a", "go")
    event = await predict(world, run, waiting("go"))
    store = PostgresStore(through(proxy, url), clock=clock, random=SystemRandomness())
    await store.open()
    proxy.cut("precious", Cut.BEFORE, stays_down=True)
    sending = asyncio.create_task(send_event(World(store, clock), event))
    while not proxy.cuts:
        await asyncio.sleep(0.001)
    await silent_failover.fail_over()
    proxy.restore()

    sent = await sending

    assert (sent.accepted, sent.committed, sent.claim) == (True, None, None)
    assert [event.consumed_by for event in await store.read(EventsQuery(run.run))] == [None]
    await store.close()


async def test_a_store_that_opens_after_a_failover_ends_the_claims_of_others(
    world: World, silent_failover: Failover, url: str, clock: FakeClock
) -> None:
    await world.start_claimed()
    await silent_failover.fail_over()

    store = PostgresStore(url, clock=clock, random=SystemRandomness())
    await store.open()

    [run] = await store.read(RunByName("flow", "a"))
    assert run.owner is None
    await store.close()


async def test_a_role_without_privileges_on_sequences_can_begin_a_timeline(
    world: World, silent_failover: Failover, url: str, other: asyncpg.Connection, clock: FakeClock
) -> None:
    await other.execute(
        "DROP ROLE IF EXISTS shop_after_failover; CREATE ROLE shop_after_failover LOGIN;"
        "GRANT USAGE ON SCHEMA holdfast TO shop_after_failover;"
        "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA holdfast TO shop_after_failover;"
        "GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA holdfast TO shop_after_failover"
    )
    await world.start_claimed()
    await silent_failover.fail_over()

    store = PostgresStore(url.replace("//postgres@", "//shop_after_failover@"), clock=clock, random=SystemRandomness())
    await store.open(migrate=False)

    [run] = await store.read(RunByName("flow", "a"))
    assert run.owner is None
    await store.close()
    await other.execute("DROP OWNED BY shop_after_failover; DROP ROLE shop_after_failover")


async def test_the_estimated_number_of_runs_does_not_count_the_ids_that_a_failover_skips(
    world: World, failover: Failover
) -> None:
    await world.start("before")
    await failover.fail_over()
    await world.start("after")

    pruned = await world.store.maintain(PruneRuns("", Status.COMPLETE, 0, limit=0))

    assert 2 <= pruned.stored < 1000
