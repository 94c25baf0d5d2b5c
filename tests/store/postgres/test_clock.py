"""Times are the database's, however wrong a worker's own clock is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import asyncpg
import pytest

from holdfast.core.model import to_ms
from holdfast.ports import SystemClock, SystemRandomness
from holdfast.store.postgres import PostgresStore
from holdfast.store.postgres.clock import DatabaseClock
from holdfast.store.protocol import ClaimRequest, NewRun, RunByName
from store.world import FLOW, FakeClock


@pytest.fixture
async def store_in_1970(url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[PostgresStore]:
    """A store on a machine whose clock is in 1970."""
    monkeypatch.setattr(SystemClock, "now", lambda _: datetime(1970, 1, 1, tzinfo=UTC))
    monkeypatch.setattr(SystemClock, "now_ms", lambda _: 0)
    store = PostgresStore(url, random=SystemRandomness())
    await store.open()
    yield store
    await store.close()


async def _database_ms(connection: asyncpg.Connection) -> int:
    return int(await connection.fetchval("SELECT extract(epoch FROM clock_timestamp()) * 1000"))


async def test_stored_times_are_the_databases(store_in_1970: PostgresStore, other: asyncpg.Connection) -> None:
    before = await _database_ms(other)
    [created] = await store_in_1970.create([NewRun(FLOW, "a")])
    after = await _database_ms(other)

    assert before - 1 <= created.run.created_at <= after
    claim_result = await store_in_1970.claim(ClaimRequest("w1", 1000, 1, ["default"], frozenset([FLOW])))
    assert before - 1 <= claim_result.now <= await _database_ms(other)


async def test_a_lease_expires_by_the_databases_clock(store_in_1970: PostgresStore) -> None:
    await store_in_1970.create(
        [NewRun(FLOW, "long", owner="w1", lease_ms=10**6), NewRun(FLOW, "short", owner="w2", lease_ms=0)]
    )

    expired = await store_in_1970.reap(9)

    [short] = await store_in_1970.read(RunByName(FLOW, "short"))
    assert [task.run for task in expired] == [short.run]


async def _assert_right(store: PostgresStore, other: asyncpg.Connection) -> None:
    before = await _database_ms(other)
    clock_ms, tolerance = to_ms(store.clock.now()), 250 + store._clock._uncertainty  # of a reply that took long
    assert before - tolerance <= clock_ms <= await _database_ms(other) + tolerance


async def test_the_clock_shows_the_databases_time(store_in_1970: PostgresStore, other: asyncpg.Connection) -> None:
    for _ in range(3):
        await _assert_right(store_in_1970, other)
        await store_in_1970.heartbeat("w1", 1000)


async def test_a_heartbeat_sets_the_clock(store_in_1970: PostgresStore, other: asyncpg.Connection) -> None:
    store_in_1970._clock.set(0, 0.0, 0.0)  # far off, as after a pause of the machine

    await store_in_1970.heartbeat("w1", 1000)

    await _assert_right(store_in_1970, other)


async def test_the_clock_advances_between_replies(store_in_1970: PostgresStore) -> None:
    first = store_in_1970.clock.now()
    while store_in_1970.clock.now() == first:
        await asyncio.sleep(0.001)

    assert store_in_1970.clock.now() > first


def test_half_of_the_round_trip_is_subtracted() -> None:
    local = FakeClock()
    clock = DatabaseClock(local)
    start = local.monotonic()

    local.advance(100)
    clock.set(5_000, start, local.monotonic())

    assert to_ms(clock.now()) == 5_050


async def test_a_clock_passed_to_the_store_is_its_clock(store: PostgresStore, clock: FakeClock) -> None:
    assert store.clock is clock


@pytest.mark.parametrize("read_after_s", [0, 3, 6])
def test_a_slow_reply_does_not_change_a_clock_that_was_set_exactly(read_after_s: int) -> None:
    """A heartbeat that waited six seconds for the server: the database may have read its clock at any time of it."""
    local = FakeClock()
    clock = DatabaseClock(local)
    began = local.monotonic()
    clock.set(1_000_000, began, began + 0.002)

    clock.set(1_010_000 + read_after_s * 1000, began + 10, began + 16)

    assert clock.now_ms() - int(local.monotonic() * 1000) == pytest.approx(1_000_000 - began * 1000, abs=2)


def test_a_reply_that_contradicts_the_clock_sets_it() -> None:
    """After a failover the database's time is that of another server."""
    local = FakeClock()
    clock = DatabaseClock(local)
    began = local.monotonic()
    clock.set(1_000_000, began, began + 0.002)

    clock.set(1_060_000, began + 10, began + 10.05)

    assert clock.now_ms() - int(local.monotonic() * 1000) == pytest.approx(1_050_000 - began * 1000, abs=60)
