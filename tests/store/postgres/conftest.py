"""Databases, and stores on one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from holdfast.ports import SystemRandomness
from holdfast.store.postgres import PostgresStore
from postgres_server import new_database, server
from store.postgres.inside import Proxy
from store.world import FakeClock, World


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    """An empty database; for a test that has a store opened on it, one that has the schema already."""
    return new_database(migrated="store" in request.fixturenames)


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
    """A connection of somebody else's to the same database."""
    connection = await asyncpg.connect(url)
    yield connection
    await connection.close()


@pytest.fixture
async def proxy(tmp_path: Path) -> AsyncIterator[Proxy]:
    """Between a store and the server, to cut lines."""
    proxy = Proxy(tmp_path, server().folder)
    await proxy.start()
    yield proxy
    await proxy.stop()
