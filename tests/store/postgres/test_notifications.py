"""Stores notice each other's writes: at once by LISTEN, soon without it, and none is missed in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import asyncpg
import pytest

from holdfast.core.model import Status
from holdfast.ports import SystemRandomness
from holdfast.store.postgres import PostgresStore, listener
from holdfast.store.postgres.database import Database
from holdfast.store.protocol import Finish, NewRun, Outbound, RestartRun, TaskRef
from store.world import FLOW, LEASE, FakeClock, World, done, result, unit, waiting


@pytest.fixture
async def listening_store(url: str, store: PostgresStore, clock: FakeClock) -> AsyncIterator[PostgresStore]:
    """Another store on the same database."""
    listening_store = PostgresStore(url, clock=clock, random=SystemRandomness())
    await listening_store.open()
    yield listening_store
    await listening_store.close()


async def _due(world: World) -> None:
    await world.start("new")


async def _sent_to_a_waiter(world: World) -> None:
    await world.send("go", "waiter")


async def _sent_to_an_owner(world: World) -> None:
    await world.send("go", "owned")


async def _ended(world: World) -> None:
    await world.commit(await _owned_task(world), then=Finish(Status.COMPLETE))


async def _released(world: World) -> None:
    await world.commit(await _owned_task(world), then=waiting(run_at=world.now()))


async def _terminated(world: World) -> None:
    await world.terminate("waiter")


async def _paused(world: World) -> None:
    await world.pause("owned")


async def _restarted(world: World) -> None:
    await world.store.control(RestartRun(FLOW, "waiter"))


async def _released_claims(world: World) -> None:
    await world.store.release([await _owned_task(world)])


async def _reaped(world: World) -> None:
    world.clock.advance(LEASE)
    await world.store.reap(9)


async def _advanced(world: World) -> None:
    await world.advance(done(TaskRef((await world.find("graph")).run, 1, "w1", 1), 2))


async def _outbox_added(world: World) -> None:
    await world.commit(await _owned_task(world), facts=[result("s")], outbox=[Outbound("t", None, "s")])


async def _owned_task(world: World) -> TaskRef:
    return TaskRef((await world.find("owned")).run, 0, "w1", 1)


@pytest.mark.parametrize(
    "write",
    [
        _due,
        _sent_to_a_waiter,
        _sent_to_an_owner,
        _ended,
        _released,
        _terminated,
        _paused,
        _restarted,
        _released_claims,
        _reaped,
        _advanced,
        _outbox_added,
    ],
)
async def test_a_write_that_others_may_wait_for_is_noticed_at_once(
    world: World,
    listening_store: PostgresStore,
    write: Callable[[World], Awaitable[None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await world.start_claimed("owned")
    await world.start_waiting("waiter", "go")
    await world.graph("graph", unit(1), unit(2, 1), unit(3, 1))
    counter = await _settled_counter(listening_store)
    monkeypatch.setattr(listener, "_WAIT_S", 3600.0)  # the time after which it returns without a change
    change = asyncio.create_task(listening_store.wait_for_change(counter))
    await asyncio.sleep(0)

    await write(world)

    async with asyncio.timeout(60):
        assert await change != counter


async def _settled_counter(store: PostgresStore) -> int:
    """The counter once all earlier notifications have arrived."""
    counter = await store.wait_for_change(None)
    while (newer := await store.wait_for_change(counter)) != counter:
        counter = newer
    return counter


async def test_a_write_that_concerns_no_other_store_sends_no_notification(
    world: World, listening_store: PostgresStore
) -> None:
    task = await world.start_claimed("a")
    [first] = await world.graph("graph", unit(1), unit(2, 1))
    counter = await _settled_counter(listening_store)

    await world.advance(done(first, 2), claim_limit=1)
    await world.commit(task, facts=[result("s")])
    await world.commit(task, then=waiting(run_at=world.now() + 10**6))
    await world.store.heartbeat("w1", LEASE)

    assert await listening_store.wait_for_change(counter) == counter


async def test_one_call_sends_one_notification(world: World, store: PostgresStore, other: asyncpg.Connection) -> None:

    notifications: list[object] = []
    await other.add_listener("holdfast_holdfast", lambda *arguments: notifications.append(arguments[3]))

    await store.create([NewRun(FLOW, f"r{n}") for n in range(50)])
    await other.execute("SELECT 1")

    assert notifications == [store._database._store_id]  # type: ignore[union-attr]


async def test_each_single_write_that_others_may_wait_for_sends_one_notification(
    world: World, store: PostgresStore, other: asyncpg.Connection
) -> None:
    notifications: list[object] = []
    await other.add_listener("holdfast_holdfast", lambda *arguments: notifications.append(arguments[3]))

    await world.start("a")  # due
    task = await world.start_claimed("b")  # not due: its worker begins it
    await world.commit(task, facts=[result("s")], then=Finish(Status.COMPLETE))  # ended
    await other.execute("SELECT 1")

    assert notifications == [store._listener._store_id] * 2


async def test_a_store_ignores_its_own_notifications(world: World, store: PostgresStore) -> None:
    counter = await _settled_counter(store)

    await world.start("a")

    assert await store.wait_for_change(counter) == counter


async def test_a_rolled_back_write_is_not_noticed(
    world: World, store: PostgresStore, listening_store: PostgresStore, other: asyncpg.Connection
) -> None:

    counter = await _settled_counter(listening_store)
    await other.execute("BEGIN")
    await store.create([NewRun(FLOW, "a")], connection=other)
    await other.execute("ROLLBACK")

    assert await listening_store.wait_for_change(counter) == counter
    assert await world.ids() == []


async def test_after_a_broken_connection_the_change_counter_increases_and_notifications_arrive_again(
    world: World, listening_store: PostgresStore, other: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    counter = await _settled_counter(listening_store)

    await other.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'holdfast'"
        " AND datname = current_database()"
    )
    async with asyncio.timeout(60):
        while await listening_store.wait_for_change(counter) == counter:
            pass
        while not listening_store._listener._receives:
            await asyncio.sleep(0.01)
    counter = await _settled_counter(listening_store)
    monkeypatch.setattr(listener, "_WAIT_S", 3600.0)
    change = asyncio.create_task(listening_store.wait_for_change(counter))
    await world.start("a")

    async with asyncio.timeout(60):
        assert await change != counter


@pytest.mark.promise("no-lost-wakeup")
async def test_without_a_listening_connection_the_change_counter_increases_at_intervals(
    url: str, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(_: Database) -> Any:
        raise ConnectionRefusedError

    monkeypatch.setattr(Database, "connect", refuse)
    unnotified = PostgresStore(url, random=SystemRandomness())
    await unnotified.open()

    counters = [await unnotified.wait_for_change(None)]
    async with asyncio.timeout(60):
        while len(counters) < 3:
            counters.append(await unnotified.wait_for_change(counters[-1]))

    assert len(set(counters)) == 3
    await unnotified.close()


@pytest.mark.promise("no-lost-wakeup")
async def test_behind_a_pooler_without_notifications_the_store_polls(
    url: str, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.store.postgres.listener._ECHO_S", 0.1)
    monkeypatch.setattr(Database, "connect", _silent_connect(Database.connect))
    unnotified = PostgresStore(f"{url}&statement_cache_size=0", random=SystemRandomness())
    await unnotified.open()

    counter = await unnotified.wait_for_change(None)
    async with asyncio.timeout(60):
        assert await unnotified.wait_for_change(counter) != counter

    assert not unnotified._listener._receives
    await unnotified.close()


class _SilentConnection:
    """A connection on which LISTEN succeeds and no notification arrives."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    async def add_listener(self, *_: object) -> None: ...


def _silent_connect(connect: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    async def connected(database: Database) -> Any:
        return _SilentConnection(await connect(database))

    return connected
