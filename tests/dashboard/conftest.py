"""Fixtures of the browser tests: one Chromium for the folder, an app with runs on each kind of store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
from browser_shop import WORKFLOWS, define_shop, forget_calls, until_it_waits_for_approval

from holdfast import Holdfast, RunFailedError, StateError
from postgres_harness import CleanSchemas

if TYPE_CHECKING:
    from browser_visit import Served
    from playwright.async_api import Browser


@pytest_asyncio.fixture(scope="package")
async def chromium() -> AsyncIterator[Browser]:
    pytest.importorskip("playwright", reason="playwright is not installed: pip install playwright")
    from browser_visit import MISSING, chromium_path, open_browser

    if chromium_path() is None:
        pytest.skip(MISSING)
    async with open_browser() as browser:
        yield browser


@pytest.fixture(params=["sqlite", "postgres"], scope="package")
def each_store(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest_asyncio.fixture(scope="package")
async def sqlite_server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    """The shop on SQLite, one server for the tests of this folder."""
    from browser_visit import serve

    app = Holdfast(f"sqlite:///{tmp_path_factory.mktemp('browser')}/shop.db")
    define_shop(app)
    async with serve(app) as served:
        yield served


@pytest_asyncio.fixture(scope="package")
async def postgres_server() -> AsyncIterator[Served]:
    """The shop on PostgreSQL, one server for the tests of this folder."""
    from browser_visit import serve

    with CleanSchemas.one() as (url, schema):
        app = Holdfast(url, schema=schema)
        define_shop(app)
        async with serve(app) as served:
            yield served


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests of keys, gestures and texts use SQLite; with ``--long`` every test uses both stores."""
    if "usual_store" in metafunc.fixturenames:
        stores = ["sqlite", "postgres"] if metafunc.config.getoption("--long") else ["sqlite"]
        metafunc.parametrize("usual_store", stores, scope="session")


@pytest.fixture
def usual_server(usual_store: str, request: pytest.FixtureRequest) -> Served:
    server: Served = request.getfixturevalue(f"{usual_store}_server")
    return server


@pytest_asyncio.fixture
async def shop(usual_server: Served) -> Served:
    """The shop with some new runs."""
    return await _with_new_runs(usual_server)


@pytest.fixture
def stored_server(each_store: str, request: pytest.FixtureRequest) -> Served:
    server: Served = request.getfixturevalue(f"{each_store}_server")
    return server


@pytest_asyncio.fixture
async def stored_shop(stored_server: Served) -> Served:
    """The shop on each kind of store, with some new runs."""
    return await _with_new_runs(stored_server)


async def _with_new_runs(served: Served) -> Served:
    """Delete the runs of the test before, and start the runs that each test expects."""
    app = served.app
    found = [run for name in WORKFLOWS for run in (await app.list(name, limit=100)).items]
    for run in found:
        handle = await app.get(run.workflow_name, run.id)
        with suppress(StateError):  # it has ended
            await handle.terminate()
        await handle.delete()
    await start_runs(app)
    await _settled(app)
    return served


async def _settled(app: Holdfast) -> None:
    """Wait until the first order waits and the second has failed: a page that counts runs shows their statuses."""
    with suppress(RunFailedError):
        await (await app.get("fulfil", "o-2")).result(timeout=60)
    await until_it_waits_for_approval(await app.get("fulfil", "o-1"))


async def start_runs(app: Holdfast) -> None:
    """One run that waits, one that failed, one of each other model."""
    forget_calls()
    for name, total in (("o-1", 10), ("o-2", -1)):
        await app.start("fulfil", {"id": name, "total": total}, id=name)
    await app.start("parcels", "o-1", id="p-1")
    await app.start("etl", 4, id="e-1")
