"""One server for the tests of one process; a database, and proxies before it, for each test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from .proxy import Proxy
from .scene import Scene
from .server import Server

MakeProxy = Callable[[], Awaitable[Proxy]]


@pytest.fixture(scope="session")
def one_server() -> Iterator[Server]:
    server = Server()
    try:
        yield server
    finally:
        server.destroy()


@pytest.fixture
async def server(one_server: Server) -> Server:
    """The server, running, whatever the test before has done to it."""
    if not one_server.running:
        await one_server.start()
    return one_server


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
        await asyncio.wait_for(proxy.close(), 10)


@pytest.fixture
async def proxy(make_proxy: MakeProxy) -> Proxy:
    return await make_proxy()


@pytest.fixture
async def scene(server: Server, database: str, proxy: Proxy, tmp_path: Path) -> AsyncIterator[Scene]:
    scene = Scene(server, database, proxy, tmp_path)
    try:
        await scene.prepare()
        yield scene
    finally:
        await scene.close()
