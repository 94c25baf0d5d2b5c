"""The instrument itself: what a cut does to a client and to the database, seen with the plain driver."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from .proxy import Proxy, When
from .server import Server

BROKEN = (asyncpg.PostgresConnectionError, ConnectionError, asyncpg.InterfaceError)


class Client:
    def __init__(self, url: str, direct: asyncpg.Connection[Any]) -> None:
        self.url = url
        self.direct = direct

    async def connect(self) -> asyncpg.Connection[Any]:
        return await asyncpg.connect(self.url, timeout=5)

    async def rows(self) -> list[int]:
        return [row["n"] for row in await self.direct.fetch("SELECT n FROM t ORDER BY n")]


@pytest.fixture
async def client(server: Server, database: str, proxy: Proxy) -> AsyncIterator[Client]:
    direct = await server.connect(database)
    await direct.execute("CREATE TABLE t (n INT)")
    yield Client(server.url(database, sockets=proxy.sockets), direct)
    await direct.close()


async def insert(connection: asyncpg.Connection[Any], n: int, how: str) -> None:
    if how == "alone":
        await connection.execute("INSERT INTO t VALUES ($1)", n)
    elif how == "plain text":
        await connection.execute(f"INSERT INTO t VALUES ({n})")
    else:
        async with connection.transaction():
            await connection.execute("INSERT INTO t VALUES ($1)", n)


@pytest.mark.parametrize("how", ["alone", "plain text", "in a transaction"])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_commit_is_cut_before_or_after(client: Client, proxy: Proxy, when: When, how: str) -> None:
    connection = await client.connect()
    await insert(connection, 1, how)
    cut = proxy.cut(when, nth=2)

    await insert(connection, 2, how)
    with pytest.raises(BROKEN):
        await insert(connection, 3, how)

    assert cut.fired is not None
    assert "INSERT INTO t" in cut.fired
    assert await client.rows() == ([1, 2] if when == "before" else [1, 2, 3])


async def test_only_what_matches_is_cut(client: Client, proxy: Proxy) -> None:
    connection = await client.connect()
    cut = proxy.cut("after", matching="delete", answering=b"DELETE 1")

    await insert(connection, 1, "alone")
    await connection.execute("DELETE FROM t WHERE n = 7")
    await connection.fetch("SELECT * FROM t")
    assert cut.fired is None
    with pytest.raises(BROKEN):
        await connection.execute("DELETE FROM t WHERE n = $1", 1)

    assert await client.rows() == []


async def test_a_share_of_commits_is_cut_by_chance(client: Client, proxy: Proxy) -> None:
    known = 0
    with proxy.chance(seed=1, share=0.3) as cuts:
        for n in range(40):
            try:
                connection = await client.connect()
                await insert(connection, n, "alone")
                await connection.close()
                known += 1
            except BROKEN:
                pass

    assert known == 40 - len(cuts)
    assert known < len(await client.rows()) < 40


async def test_a_black_hole_keeps_everything_and_gives_it_back_late(client: Client, proxy: Proxy) -> None:
    connection = await client.connect()
    async with proxy.black_hole():
        writing = asyncio.create_task(insert(connection, 1, "alone"))
        await asyncio.wait([writing], timeout=0.2)
        assert not writing.done()
        assert await client.rows() == []

    await asyncio.wait_for(writing, 5)
    assert await client.rows() == [1]
    await connection.close()


async def test_nobody_gets_in_while_it_is_away(client: Client, proxy: Proxy) -> None:
    connection = await client.connect()
    with proxy.away():
        with pytest.raises(BROKEN):
            await insert(connection, 1, "alone")
        with pytest.raises(BROKEN):
            await client.connect()

    connection = await client.connect()
    with proxy.slow(0.05):
        await insert(connection, 2, "plain text")
    await connection.close()
    assert await client.rows() == [2]
