"""Fixtures that run the conformance suite on every store. A new store is one more entry in ``STORES``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from holdfast.ports import SystemRandomness
from holdfast.store.postgres import PostgresStore
from holdfast.store.protocol import Store
from holdfast.store.sqlite import SqliteDriver, SqliteStore
from postgres_server import CleanDatabases
from store.world import Database, FakeClock, World

_databases = CleanDatabases(shared=True)


def _sqlite_file(folder: Path, clock: FakeClock) -> Store:
    return SqliteStore(str(folder / "store.db"), clock=clock)


def _sqlite_memory(folder: Path, clock: FakeClock) -> Store:
    return SqliteStore(None, clock=clock)


def _sqlite3(folder: Path, clock: FakeClock) -> Store:
    return SqliteStore(str(folder / "store.db"), clock=clock, driver=SqliteDriver.SQLITE3)


def _postgres(folder: Path, clock: FakeClock) -> Store:
    return PostgresStore(_databases.of(folder), clock=clock, random=SystemRandomness())


STORES: dict[str, Callable[[Path, FakeClock], Store]] = {
    "sqlite": _sqlite_file,
    "sqlite-memory": _sqlite_memory,
    "sqlite3": _sqlite3,
    "postgres": _postgres,
}
NUMBERED = ["postgres"]
"""Stores whose placeholders are $1, $2."""
SHARED = ["sqlite", "postgres"]
"""Stores whose database can be open in two store objects at the same time, in one process or two."""


IN_MEMORY = ("test_claim.py", "test_commit.py", "test_lifecycle.py", "test_transactions.py")
"""Tests that always run on a database in memory too; the other tests do so with ``--long``. A database in memory
differs only in its connections, and the tests of the engine use it."""
WITH_SQLITE3 = ("test_transactions.py", "test_create.py", "test_statements.py")
"""Tests that always run with the driver ``sqlite3`` too; the other tests do so with ``--long``."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--long"):
        left_out = {item for item in items if "[sqlite-memory" in item.name and item.path.name not in IN_MEMORY}
        left_out |= {item for item in items if "[sqlite3" in item.name and item.path.name not in WITH_SQLITE3}
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=list(STORES))
async def world(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> AsyncIterator[World]:
    """An open store on an empty database."""
    store = STORES[request.param](tmp_path, clock)
    await store.open()
    yield World(store, clock, numbered=request.param in NUMBERED)
    await store.close()
    _databases.release(tmp_path)


@pytest.fixture(params=SHARED)
def database(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> Iterator[Database]:
    """Creates any number of stores on one database."""
    yield lambda: STORES[request.param](tmp_path, clock)
    _databases.release(tmp_path)
