"""Tests of the proxy itself: the effect of a cut on a client and on the database, with the plain driver."""

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
        return await asyncpg.connect(self.url, timeout=300)

    async def rows(self) -> list[int]:
        return [row["n"] for row in await self.direct.fetch("SELECT n FROM t ORDER BY n")]


@pytest.fixture
async def client(server: Server, database: str, proxy: Proxy) -> AsyncIterator[Client]:
    direct = await server.connect(database)
    await direct.execute("CREATE TABLE t (n INT)")
    yield Client(server.url(database, sockets=proxy.sockets), direct)
    await direct.close()


async def insert(connection: asyncpg.Connection[Any], n: int, mode: str) -> None:
    if mode == "alone":
        await connection.execute("INSERT INTO t VALUES ($1)", n)
    elif mode == "plain text":
        await connection.execute(f"INSERT INTO t VALUES ({n})")
    else:
        async with connection.transaction():
            await connection.execute("INSERT INTO t VALUES ($1)", n)


@pytest.mark.parametrize("mode", ["alone", "plain text", "in a transaction"])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_commit_is_cut_before_or_after(client: Client, proxy: Proxy, when: When, mode: str) -> None:
    connection = await client.connect()
    await insert(connection, 1, mode)
    cut = proxy.cut(when, nth=2)

    await insert(connection, 2, mode)
    with pytest.raises(BROKEN):
        await insert(connection, 3, mode)

    assert cut.fired is not None
    assert "INSERT INTO t" in cut.fired
    assert await client.rows() == ([1, 2] if when == "before" else [1, 2, 3])


async def test_only_a_matching_commit_is_cut(client: Client, proxy: Proxy) -> None:
    connection = await client.connect()
    cut = proxy.cut("after", matching="delete", reply_contains=b"DELETE 1")

    await insert(connection, 1, "alone")
    await connection.execute("DELETE FROM t WHERE n = 7")
    await connection.fetch("SELECT * FROM t")
    assert cut.fired is None
    with pytest.raises(BROKEN):
        await connection.execute("DELETE FROM t WHERE n = $1", 1)

    assert await client.rows() == []


async def test_a_random_share_of_commits_is_cut(client: Client, proxy: Proxy) -> None:
    acknowledged = 0
    with proxy.cut_randomly(seed=1, share=0.3) as cuts:
        for n in range(40):
            try:
                connection = await client.connect()
                await insert(connection, n, "alone")
                await connection.close()
                acknowledged += 1
            except BROKEN:
                pass

    assert acknowledged == 40 - len(cuts)
    assert acknowledged < len(await client.rows()) < 40


async def test_a_black_hole_delays_all_messages(client: Client, proxy: Proxy) -> None:
    connection = await client.connect()
    async with proxy.black_hole():
        writing = asyncio.create_task(insert(connection, 1, "alone"))
        await asyncio.wait([writing], timeout=0.2)
        assert not writing.done()
        assert await client.rows() == []

    await asyncio.wait_for(writing, 60)
    assert await client.rows() == [1]
    await connection.close()


async def test_connections_are_refused_while_the_proxy_is_unavailable(client: Client, proxy: Proxy) -> None:
    connection = await client.connect()
    with proxy.unavailable():
        with pytest.raises(BROKEN):
            await insert(connection, 1, "alone")
        with pytest.raises(BROKEN):
            await client.connect()

    connection = await client.connect()
    with proxy.slow(0.05):
        await insert(connection, 2, "plain text")
    await connection.close()
    assert await client.rows() == [2]
