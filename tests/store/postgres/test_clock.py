"""Time is the database's, however wrong a worker's own clock may be."""

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
from holdfast.store.protocol import ClaimRequest, NewRun
from store.world import FLOW, FakeClock


@pytest.fixture
async def late(url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[PostgresStore]:
    """A store on a machine that believes it is 1970."""
    monkeypatch.setattr(SystemClock, "now", lambda _: datetime(1970, 1, 1, tzinfo=UTC))
    monkeypatch.setattr(SystemClock, "now_ms", lambda _: 0)
    store = PostgresStore(url, random=SystemRandomness())
    await store.open()
    yield store
    await store.close()


async def _database_ms(connection: asyncpg.Connection) -> int:
    return int(await connection.fetchval("SELECT extract(epoch FROM clock_timestamp()) * 1000"))


async def test_what_is_stored_has_the_databases_time(late: PostgresStore, other: asyncpg.Connection) -> None:
    before = await _database_ms(other)
    [made] = await late.create([NewRun(FLOW, "a")])
    after = await _database_ms(other)

    assert before - 1 <= made.run.created_at <= after
    claimed = await late.claim(ClaimRequest("w1", 1000, 1, ["default"], frozenset([FLOW])))
    assert before - 1 <= claimed.now <= await _database_ms(other)


async def test_a_lease_runs_out_by_the_databases_clock(late: PostgresStore) -> None:
    await late.create([NewRun(FLOW, "long", owner="w1", lease_ms=10**6), NewRun(FLOW, "short", owner="w2", lease_ms=0)])

    freed = await late.reap(9)

    assert [one.run for one in freed] == [(await late.find(FLOW, "short")).run]  # type: ignore[union-attr]


async def test_the_clock_shows_the_databases_time(late: PostgresStore, other: asyncpg.Connection) -> None:
    for _ in range(3):
        before = await _database_ms(other)
        shown = to_ms(late.clock.now())
        after = await _database_ms(other)
        assert before - 250 <= shown <= after + 250

        await late.heartbeat("w1", 1000)


async def test_a_heartbeat_sets_the_clock(late: PostgresStore, other: asyncpg.Connection) -> None:
    late._clock.set(0, 0.0, 0.0)  # far off, as after a pause of the machine

    await late.heartbeat("w1", 1000)

    assert abs(to_ms(late.clock.now()) - await _database_ms(other)) < 1000


async def test_it_goes_on_between_answers(late: PostgresStore) -> None:
    first = late.clock.now()
    while late.clock.now() == first:
        await asyncio.sleep(0.001)

    assert late.clock.now() > first


def test_half_of_the_round_trip_is_taken_off() -> None:
    local = FakeClock()
    clock = DatabaseClock(local)
    start = local.monotonic()

    local.advance(100)
    clock.set(5_000, start, local.monotonic())

    assert to_ms(clock.now()) == 5_050


async def test_a_given_clock_is_the_stores_clock(store: PostgresStore, clock: FakeClock) -> None:
    assert store.clock is clock


@pytest.mark.parametrize("said_after", [0, 3, 6])
def test_an_answer_that_took_long_does_not_move_a_clock_that_was_set_exactly(said_after: int) -> None:
    """A heartbeat that waits six seconds for a server to come back: nobody knows when the server said its time."""
    local = FakeClock()
    clock = DatabaseClock(local)
    began = local.monotonic()
    clock.set(1_000_000, began, began + 0.002)

    clock.set(1_010_000 + said_after * 1000, began + 10, began + 16)

    assert clock.now_ms() - int(local.monotonic() * 1000) == pytest.approx(1_000_000 - began * 1000, abs=2)


def test_an_answer_that_contradicts_the_clock_sets_it() -> None:
    """After a failover another server's time is the database's."""
    local = FakeClock()
    clock = DatabaseClock(local)
    began = local.monotonic()
    clock.set(1_000_000, began, began + 0.002)

    clock.set(1_060_000, began + 10, began + 10.05)

    assert clock.now_ms() - int(local.monotonic() * 1000) == pytest.approx(1_050_000 - began * 1000, abs=60)
