"""Fixtures of the browser tests: one Chromium for the test process, an app with runs on each kind of store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
from browser_shop import HOSTILE, define_shop

from holdfast import Holdfast
from postgres_harness import CleanSchemas

if TYPE_CHECKING:
    from browser_visit import Served
    from playwright.async_api import Browser


@pytest_asyncio.fixture(scope="session")
async def chromium() -> AsyncIterator[Browser]:
    pytest.importorskip("playwright", reason="playwright is not installed: pip install playwright")
    from browser_visit import MISSING, chromium_path, open_browser

    if chromium_path() is None:
        pytest.skip(MISSING)
    async with open_browser() as browser:
        yield browser


@pytest.fixture(params=["sqlite", "postgres"])
def each_store(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest_asyncio.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Served]:
    """The shop on SQLite with some runs."""
    async with _served_shop(Holdfast(f"sqlite:///{tmp_path}/shop.db")) as served:
        yield served


@pytest_asyncio.fixture
async def stored_shop(each_store: str, tmp_path: Path) -> AsyncIterator[Served]:
    """The shop on each kind of store."""
    if each_store == "sqlite":
        async with _served_shop(Holdfast(f"sqlite:///{tmp_path}/shop.db")) as served:
            yield served
        return
    with CleanSchemas.one() as (url, schema):
        async with _served_shop(Holdfast(url, schema=schema)) as served:
            yield served


def _served_shop(app: Holdfast):
    from contextlib import asynccontextmanager

    from browser_visit import serve

    @asynccontextmanager
    async def served() -> AsyncIterator[Served]:
        define_shop(app)
        async with serve(app) as running:
            await start_runs(app)
            yield running

    return served()


async def start_runs(app: Holdfast) -> None:
    """One run that waits, one that failed, one of each other model, one with hostile values."""
    for name, total in (("o-1", 10), ("o-2", -1)):
        await app.start("fulfil", {"id": name, "total": total}, id=name)
    await app.start("parcels", "o-1", id="p-1")
    await app.start("etl", 4, id="e-1")
    await app.start("hostile", HOSTILE, id="h-1")
