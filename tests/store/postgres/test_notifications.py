"""Stores hear of each other: at once by LISTEN, soon without it, and nothing is missed in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import asyncpg
import pytest

from holdfast.core.model import Status
from holdfast.ports import SystemRandomness
from holdfast.store.postgres import PostgresStore
from holdfast.store.postgres.database import Database
from holdfast.store.protocol import Finish, NewRun, Outbound, TaskRef
from store.world import FLOW, LEASE, FakeClock, World, done, result, unit, waiting


@pytest.fixture
async def hearer(url: str, store: PostgresStore, clock: FakeClock) -> AsyncIterator[PostgresStore]:
    """Another store on the same database."""
    hearer = PostgresStore(url, clock=clock, random=SystemRandomness())
    await hearer.open()
    yield hearer
    await hearer.close()


async def _due(world: World) -> None:
    await world.start("new")


async def _sent_to_a_waiter(world: World) -> None:
    await world.send("go", "waiter")


async def _sent_to_a_holder(world: World) -> None:
    await world.send("go", "held")


async def _ended(world: World) -> None:
    await world.commit(await _held(world), then=Finish(Status.COMPLETE))


async def _released(world: World) -> None:
    await world.commit(await _held(world), then=waiting(run_at=await world.now()))


async def _terminated(world: World) -> None:
    await world.store.terminate(FLOW, "waiter")


async def _paused(world: World) -> None:
    await world.store.pause(FLOW, "held")


async def _restarted(world: World) -> None:
    await world.store.restart(FLOW, "waiter")


async def _given_back(world: World) -> None:
    await world.store.release([await _held(world)])


async def _reaped(world: World) -> None:
    world.clock.advance(LEASE)
    await world.store.reap(9)


async def _opened(world: World) -> None:
    await world.advance(done(TaskRef((await world.find("graph")).run, 1, "w1", 1), 2))


async def _said(world: World) -> None:
    await world.commit(await _held(world), facts=[result("s")], outbox=[Outbound("t", None, "s")])


async def _held(world: World) -> TaskRef:
    return TaskRef((await world.find("held")).run, 0, "w1", 1)


@pytest.mark.parametrize(
    "act",
    [
        _due,
        _sent_to_a_waiter,
        _sent_to_a_holder,
        _ended,
        _released,
        _terminated,
        _paused,
        _restarted,
        _given_back,
        _reaped,
        _opened,
        _said,
    ],
)
async def test_what_others_may_wait_for_is_heard_at_once(
    world: World, hearer: PostgresStore, act: Callable[[World], Awaitable[None]]
) -> None:
    await world.begin("held")
    await world.wait("waiter", "go")
    await world.graph("graph", unit(1), unit(2, 1), unit(3, 1))
    number = await _quiet(hearer)
    waiting_for = asyncio.create_task(hearer.changed(number))
    await asyncio.sleep(0)

    await act(world)

    async with asyncio.timeout(0.9):  # less than the time after which it answers anyway
        assert await waiting_for != number


async def _quiet(store: PostgresStore) -> int:
    """The number once everything before has been heard."""
    number = await store.changed(None)
    while (after := await store.changed(number)) != number:
        number = after
    return number


async def test_what_concerns_nobody_else_is_not_told(world: World, hearer: PostgresStore) -> None:
    task = await world.begin("a")
    [first] = await world.graph("graph", unit(1), unit(2, 1))
    number = await _quiet(hearer)

    await world.advance(done(first, 2), room=1)
    await world.commit(task, facts=[result("s")])
    await world.commit(task, then=waiting(run_at=await world.now() + 10**6))
    await world.store.heartbeat("w1", LEASE)

    assert await hearer.changed(number) == number


async def test_one_call_is_one_notification(world: World, store: PostgresStore, other: asyncpg.Connection) -> None:

    heard: list[object] = []
    await other.add_listener("holdfast_holdfast", lambda *said: heard.append(said[3]))

    await store.create([NewRun(FLOW, f"r{n}") for n in range(50)])
    await other.execute("SELECT 1")

    assert heard == [store._database._by]  # type: ignore[union-attr]


async def test_who_is_alone_does_not_tell_of_single_writes(
    world: World, store: PostgresStore, other: asyncpg.Connection
) -> None:
    heard: list[object] = []
    await other.add_listener("holdfast_holdfast", lambda *said: heard.append(said[3]))
    await asyncio.sleep(0.15)  # others would have answered by now
    assert store._listener.is_alone()

    await world.start("a")
    task = await world.begin("b")
    await world.commit(task, facts=[result("s")], then=Finish(Status.COMPLETE))
    await other.execute("SELECT 1")

    assert heard == []


async def test_nobody_is_alone_once_another_store_is_there(
    store: PostgresStore, url: str, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await asyncio.sleep(0.15)
    assert store._listener.is_alone()

    late = PostgresStore(url, clock=clock, random=SystemRandomness())
    await late.open()
    async with asyncio.timeout(5):
        while store._listener.is_alone():
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.15)
    assert not late._listener.is_alone()

    await late.close()
    monkeypatch.setattr("holdfast.store.postgres.listener._FORGET_S", 0.05)
    await asyncio.sleep(0.1)
    assert store._listener.is_alone()


async def test_who_was_alone_tells_a_newcomer_that_there_may_be_news(
    store: PostgresStore, other: asyncpg.Connection, url: str, clock: FakeClock
) -> None:
    heard: list[object] = []
    await other.add_listener("holdfast_holdfast", lambda *said: heard.append(said[3]))
    await asyncio.sleep(0.15)
    assert store._listener.is_alone()

    late = PostgresStore(url, clock=clock, random=SystemRandomness())
    await late.open()

    async with asyncio.timeout(30):
        while heard.count(store._listener._by) < 2:  # once more, for what was under way
            await asyncio.sleep(0.01)
    assert late._listener._by not in heard
    await late.close()


async def test_ones_own_writes_are_not_heard(world: World, store: PostgresStore) -> None:
    number = await _quiet(store)

    await world.start("a")

    assert await store.changed(number) == number


async def test_what_is_rolled_back_is_not_heard(
    world: World, store: PostgresStore, hearer: PostgresStore, other: asyncpg.Connection
) -> None:

    number = await _quiet(hearer)
    await other.execute("BEGIN")
    await store.create([NewRun(FLOW, "a")], connection=other)
    await other.execute("ROLLBACK")

    assert await hearer.changed(number) == number
    assert await world.ids() == []


async def test_after_a_break_the_number_moves_and_it_hears_again(
    world: World, hearer: PostgresStore, other: asyncpg.Connection
) -> None:
    number = await _quiet(hearer)

    await other.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'holdfast'"
        " AND datname = current_database()"
    )
    async with asyncio.timeout(20):
        while await hearer.changed(number) == number:
            pass
        while not hearer._listener._hears:
            await asyncio.sleep(0.01)
    number = await _quiet(hearer)
    waiting_for = asyncio.create_task(hearer.changed(number))
    await world.start("a")

    async with asyncio.timeout(0.9):
        assert await waiting_for != number


async def test_without_a_listener_it_answers_something_new_every_so_often(
    url: str, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(_: Database) -> Any:
        raise ConnectionRefusedError

    monkeypatch.setattr(Database, "connect", refuse)
    deaf = PostgresStore(url, random=SystemRandomness())
    await deaf.open()

    numbers = [await deaf.changed(None)]
    async with asyncio.timeout(5):
        while len(numbers) < 3:
            numbers.append(await deaf.changed(numbers[-1]))

    assert len(set(numbers)) == 3
    await deaf.close()


async def test_behind_a_pooler_that_passes_nothing_on_it_guesses(
    url: str, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.store.postgres.listener._ECHO_S", 0.1)
    monkeypatch.setattr(Database, "connect", _deaf_connect(Database.connect))
    deaf = PostgresStore(f"{url}&statement_cache_size=0", random=SystemRandomness())
    await deaf.open()

    number = await deaf.changed(None)
    async with asyncio.timeout(5):
        assert await deaf.changed(number) != number

    assert not deaf._listener._hears
    await deaf.close()


class _Deaf:
    """A connection on which LISTEN is granted and nothing comes."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    async def add_listener(self, *_: object) -> None: ...


def _deaf_connect(connect: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    async def connected(database: Database) -> Any:
        return _Deaf(await connect(database))

    return connected
