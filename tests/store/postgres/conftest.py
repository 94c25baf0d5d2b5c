"""Fixtures: databases, stores, and a proxy before the server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import pytest

from holdfast.ports import SystemRandomness
from holdfast.store.postgres import PostgresStore
from postgres_server import CleanDatabases, new_database, server
from store.postgres.fault_tools import Proxy
from store.world import FakeClock, World

_databases = CleanDatabases(shared=False)


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty database; for a test with a store or world fixture, one that has the engine's schema already."""
    if {"store", "world"} & set(request.fixturenames):
        yield _databases.of(tmp_path)
        _databases.release(tmp_path)
    else:
        yield new_database()


@pytest.fixture
async def store(url: str, clock: FakeClock) -> AsyncIterator[PostgresStore]:
    """An open store on a new database."""
    store = PostgresStore(url, clock=clock, random=SystemRandomness())
    await store.open()
    yield store
    await store.close()


@pytest.fixture
def world(store: PostgresStore, clock: FakeClock) -> World:
    return World(store, clock, numbered=True)


@pytest.fixture
async def other(url: str) -> AsyncIterator[asyncpg.Connection]:
    """A separate connection to the same database."""
    connection = await asyncpg.connect(url)
    yield connection
    await connection.close()


@pytest.fixture
async def proxy(tmp_path: Path) -> AsyncIterator[Proxy]:
    """A proxy between a store and the server that can break connections."""
    proxy = Proxy(tmp_path, server().folder)
    await proxy.start()
    yield proxy
    await proxy.stop()
