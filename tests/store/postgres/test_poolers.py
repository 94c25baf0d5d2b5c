"""What a pooler between a store and the server makes of LISTEN. Tried with PgBouncer too; these are in its place."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any

import asyncpg

from holdfast.ports import SystemClock, SystemRandomness
from holdfast.store.postgres import PostgresStore
from holdfast.store.postgres.listener import Listener
from holdfast.store.protocol import PageQuery
from store.foreseeing import KEY, foresee, post, write
from store.world import FakeClock, World, waiting

SERVER_PID = 7


class Shared:
    """To a pooler in transaction mode: what the server says goes to whoever has it just then."""

    def __init__(self) -> None:
        self._heard: Callable[..., None] | None = None

    async def add_listener(self, _channel: str, heard: Callable[..., None]) -> None:
        self._heard = heard

    async def fetchval(self, _sql: str, channel: str, said: str) -> int:
        if self._heard is not None:
            self._heard(self, SERVER_PID, channel, said)
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


class Whole:
    """To a pooler in session mode: a connection to the server, under another number."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def get_server_pid(self) -> int:
        return -1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


@asynccontextmanager
async def _listening(connect: Callable[[], Awaitable[Any]]) -> AsyncIterator[Listener]:
    listener = Listener(connect, "holdfast_test", "me", SystemRandomness(), SystemClock())
    async with asyncio.timeout(1):  # a store opens at once, whether it will hear or not
        await listener.start()
    try:
        yield listener
    finally:
        await listener.stop()


async def test_through_a_transaction_pooler_it_hears_only_itself_and_so_guesses() -> None:
    async def connect() -> Shared:
        return Shared()

    async with _listening(connect) as listener:
        number = await listener.changed(None)

        assert await listener.changed(number) != number
        assert not listener.is_alone()


async def test_through_a_session_pooler_it_hears(url: str) -> None:
    async def connect() -> Whole:
        return Whole(await asyncpg.connect(url))

    async with _listening(connect) as listener, asyncio.timeout(10):
        while not listener._hears:
            await asyncio.sleep(0.01)


async def test_an_event_with_its_turn_goes_through_a_transaction_pooler(url: str, clock: FakeClock) -> None:
    world = World(PostgresStore(f"{url}&statement_cache_size=0", clock=clock, random=SystemRandomness()), clock)
    await world.store.open()
    run = await world.wait("a", "go")
    other = await foresee(world, run)

    await write(world, await foresee(world, run, waiting("go")))
    sent = await post(world, other)

    assert (sent.committed, sent.accepted) == (None, True)
    assert [mail.consumed_by for mail in await world.store.events(PageQuery(run.run))] == [KEY, None]
    await world.store.close()
