"""The shop, open with a worker, and a client that speaks to it in the same process."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from http_api import Api, client_of, opened
from http_shop import Gates, make_shop

from holdfast import Holdfast
from holdfast.testing import Harness


@pytest.fixture
def shop() -> tuple[Holdfast, Gates]:
    return make_shop()


@pytest.fixture
def gates(shop: tuple[Holdfast, Gates]) -> Gates:
    return shop[1]


@pytest.fixture
async def api(shop: tuple[Holdfast, Gates]) -> AsyncIterator[Api]:
    async with opened(shop[0]) as api:
        yield api


@pytest.fixture
async def h(shop: tuple[Holdfast, Gates]) -> AsyncIterator[Harness]:
    async with Harness(shop[0], seed=7) as harness:
        yield harness


@pytest.fixture
async def virtual(h: Harness) -> AsyncIterator[Api]:
    """The API over a harness: nothing moves until the test says so."""
    async with client_of(h.app.asgi()) as http:
        yield Api(http)
