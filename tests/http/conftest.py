"""Fixtures: the app of ``http_shop``, open with a worker or in a harness, and a client in the same process.

Modules with ``EVERY_STORE = True`` run on every store, because the store takes part in what they test. Their tests of
requests that are refused before the store is read are marked ``above_the_store``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from http_api import Api, client_of, opened
from http_shop import Gates, make_shop

from holdfast import Holdfast
from holdfast.testing import Harness
from postgres_harness import CleanSchemas, CleanStore


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    above = metafunc.definition.get_closest_marker("above_the_store") is not None
    if getattr(metafunc.module, "EVERY_STORE", False) and "database" in metafunc.fixturenames and not above:
        metafunc.parametrize("database", ["sqlite", "postgres"], indirect=True)


@pytest.fixture
def database(request: pytest.FixtureRequest) -> str:
    return str(getattr(request, "param", "sqlite"))


@pytest.fixture
def database_options(database: str) -> Iterator[dict[str, Any]]:
    """The options of an app that select its database."""
    if database == "sqlite":
        yield {"url": "sqlite://"}
        return
    with CleanSchemas.one() as (url, schema):
        yield {"url": url, "schema": schema}


@pytest.fixture
def shop(database_options: dict[str, Any]) -> tuple[Holdfast, Gates]:
    return make_shop(**database_options)


@pytest.fixture
def gates(shop: tuple[Holdfast, Gates]) -> Gates:
    return shop[1]


@pytest.fixture
async def api(shop: tuple[Holdfast, Gates]) -> AsyncIterator[Api]:
    async with opened(shop[0]) as api:
        yield api


@pytest.fixture
async def h(shop: tuple[Holdfast, Gates], database: str) -> AsyncIterator[Harness]:
    async with Harness(shop[0], seed=7, store=CleanStore if database == "postgres" else None) as harness:
        yield harness


@pytest.fixture
async def virtual(h: Harness) -> AsyncIterator[Api]:
    """The API over a harness: runs advance only when the test advances them."""
    async with client_of(h.app.asgi()) as http:
        yield Api(http)
