"""Opening and closing a store; written data is read by the next store on the database."""

from __future__ import annotations

from pathlib import Path

import pytest

import postgres_server
from holdfast.core.model import to_ms
from holdfast.errors import AppClosedError, SchemaVersionError, StoreError
from holdfast.ports import SystemRandomness
from holdfast.store.postgres import PostgresStore
from holdfast.store.protocol import CurrentRuns, Migrated, RunByName
from holdfast.store.sqlite import SqliteStore
from store.world import FLOW, Database, FakeClock, World, result


@pytest.fixture(params=["sqlite", "postgres"])
def new_database(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> Database:
    """A database on which no store was ever opened."""
    if request.param == "sqlite":
        return lambda: SqliteStore(str(tmp_path / "store.db"), clock=clock)
    url = postgres_server.new_database()
    return lambda: PostgresStore(url, clock=clock, random=SystemRandomness())


async def test_calls_on_an_unopened_store_raise(database: Database) -> None:
    store = database()

    with pytest.raises(AppClosedError):
        await store.read(RunByName(FLOW, "a"))


async def test_calls_on_a_closed_store_raise(database: Database) -> None:
    store = database()
    await store.open()
    await store.close()

    with pytest.raises(AppClosedError):
        await store.create([])


async def test_closing_twice_or_unopened_does_nothing(database: Database) -> None:
    store = database()
    await store.close()
    await store.open()

    await store.close()
    await store.close()


async def test_a_store_can_be_opened_again(database: Database, clock: FakeClock) -> None:
    store = database()
    await store.open()
    await World(store, clock).start("a")
    await store.close()

    await store.open()

    assert await World(store, clock).ids() == ["a"]
    await store.close()


@pytest.mark.promise("durability")
async def test_written_data_is_read_by_the_next_store(database: Database, clock: FakeClock) -> None:
    first = database()
    await first.open()
    world = World(first, clock)
    task = await world.start_claimed("a")
    await world.commit(task, facts=[result("s")])
    await first.close()

    second = database()
    await second.open()

    assert await World(second, clock).keys(task.run) == ["s"]
    await second.close()


async def test_two_stores_share_one_database(database: Database, clock: FakeClock) -> None:
    one, two = database(), database()
    await one.open()
    await two.open()

    await World(one, clock).start("a")
    claim = await World(two, clock).claim_one("w2")

    assert claim.run.instance_id == "a"
    assert (await World(one, clock).find("a")).owner == "w2"
    await one.close()
    await two.close()


async def test_wait_for_change_reports_writes_of_another_store(database: Database, clock: FakeClock) -> None:
    one, two = database(), database()
    await one.open()
    await two.open()
    before = await one.wait_for_change(None)
    assert await one.wait_for_change(before) == before

    await World(two, clock).start("a")

    assert await one.wait_for_change(before) != before
    await one.close()
    await two.close()


async def test_a_database_without_schema_is_refused_when_it_must_not_be_migrated(new_database: Database) -> None:
    store = new_database()

    with pytest.raises((SchemaVersionError, StoreError)):
        await store.open(migrate=False)


async def test_a_current_schema_opens_without_migrating(database: Database) -> None:
    first, second = database(), database()
    await first.open()

    answer = await second.open(migrate=False)

    assert answer.before == answer.after
    assert await second.read(CurrentRuns()) == []
    await second.close()
    await first.close()


async def test_open_returns_the_schema_versions(new_database: Database) -> None:
    first, second = new_database(), new_database()

    made, found, again = await first.open(), await second.open(), await second.open()

    assert 0 == made.before < made.after
    assert found == again == Migrated(made.after, made.after)
    await second.close()
    await first.close()


async def test_now_is_the_stores_clock(world: World) -> None:
    before = world.now()
    world.clock.advance(1_234)

    assert world.now() == before + 1_234


async def test_the_clock_agrees_with_now(world: World) -> None:
    world.clock.advance(1_234)

    assert to_ms(world.store.clock.now()) == world.now()
