"""Fixtures: one server for the tests of a process; a database, and proxies before it, for each test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from .environment import Environment
from .proxy import Proxy
from .server import Server

MakeProxy = Callable[[], Awaitable[Proxy]]


@pytest.fixture(scope="session")
def session_server() -> Iterator[Server]:
    server = Server()
    try:
        yield server
    finally:
        server.destroy()


@pytest.fixture
async def server(session_server: Server) -> Server:
    """The running server; started again if an earlier test stopped it."""
    if not session_server.running:
        await session_server.start()
    return session_server


@pytest.fixture
async def database(server: Server) -> AsyncIterator[str]:
    name = await server.new_database()
    yield name
    await server.drop_database(name)


@pytest.fixture
async def make_proxy(server: Server, tmp_path: Path) -> AsyncIterator[MakeProxy]:
    proxies: list[Proxy] = []

    async def make() -> Proxy:
        proxy = Proxy(server.folder / "proxies" / f"{len(proxies)}", server.sockets)
        proxies.append(proxy)
        await proxy.open()
        return proxy

    yield make
    for proxy in proxies:
        await asyncio.wait_for(proxy.close(), 60)


@pytest.fixture
async def proxy(make_proxy: MakeProxy) -> Proxy:
    return await make_proxy()


@pytest.fixture
async def env(server: Server, database: str, proxy: Proxy, tmp_path: Path) -> AsyncIterator[Environment]:
    env = Environment(server, database, proxy, tmp_path)
    try:
        await env.prepare()
        yield env
    finally:
        await env.close()
