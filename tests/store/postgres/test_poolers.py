"""LISTEN through a pooler between a store and the server. Fakes stand in for PgBouncer, which was tried too."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any

import asyncpg

from holdfast.ports import SystemRandomness
from holdfast.store.postgres import PostgresStore
from holdfast.store.postgres.listener import Listener
from holdfast.store.protocol import EventsQuery
from store.predictions import KEY, predict, send_and_commit, send_event
from store.world import FakeClock, World, waiting

SERVER_PID = 7


class TransactionPooler:
    """A connection to a pooler in transaction mode: notifications go to the client that uses the session just then."""

    def __init__(self) -> None:
        self._callback: Callable[..., None] | None = None

    async def add_listener(self, _channel: str, callback: Callable[..., None]) -> None:
        self._callback = callback

    async def fetchval(self, _sql: str, channel: str, payload: str) -> int:
        if self._callback is not None:
            self._callback(self, SERVER_PID, channel, payload)
        return SERVER_PID

    execute = fetchval

    def transaction(self) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    def get_server_pid(self) -> int:
        return SERVER_PID + 1

    def is_closed(self) -> bool:
        return False

    def add_termination_listener(self, _: object) -> None: ...

    def terminate(self) -> None: ...


class SessionPooler:
    """A connection to a pooler in session mode: one to the server, with another pid."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def get_server_pid(self) -> int:
        return -1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


@asynccontextmanager
async def _listener(connect: Callable[[], Awaitable[Any]]) -> AsyncIterator[Listener]:
    listener = Listener(connect, "holdfast_test", "me", SystemRandomness())
    async with asyncio.timeout(1):  # a store opens at once, whether notifications arrive or not
        await listener.start()
    try:
        yield listener
    finally:
        await listener.stop()


async def test_a_listener_behind_a_transaction_pooler_receives_only_its_own_notifications_and_polls() -> None:
    async def connect() -> TransactionPooler:
        return TransactionPooler()

    async with _listener(connect) as listener:
        counter = await listener.wait_for_change(None)

        assert await listener.wait_for_change(counter) != counter


async def test_a_listener_behind_a_session_pooler_receives_notifications(url: str) -> None:
    async def connect() -> SessionPooler:
        return SessionPooler(await asyncpg.connect(url))

    async with _listener(connect) as listener, asyncio.timeout(60):
        while not listener._receives:
            await asyncio.sleep(0.01)


async def test_an_event_with_its_predicted_turn_is_written_through_a_transaction_pooler(
    url: str, clock: FakeClock
) -> None:
    world = World(PostgresStore(f"{url}&statement_cache_size=0", clock=clock, random=SystemRandomness()), clock)
    await world.store.open()
    run = await world.start_waiting("a", "go")
    other = await predict(world, run)

    await send_and_commit(world, await predict(world, run, waiting("go")))
    sent = await send_event(world, other)

    assert (sent.committed, sent.accepted) == (None, True)
    assert [event.consumed_by for event in await world.store.read(EventsQuery(run.run))] == [KEY, None]
    await world.store.close()
