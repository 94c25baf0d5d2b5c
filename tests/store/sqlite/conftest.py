"""Fixtures: a database file, and an open store on it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.store.sqlite import SqliteStore
from store.world import FakeClock, World


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "store.db")


@pytest.fixture
async def store(path: str, clock: FakeClock) -> AsyncIterator[SqliteStore]:
    """An open store on a new file."""
    store = SqliteStore(path, clock=clock)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
def world(store: SqliteStore, clock: FakeClock) -> World:
    return World(store, clock)
