"""Fixtures: an app in a harness on each store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from holdfast import Holdfast
from holdfast.testing import Harness
from postgres_harness import CleanStore

Open = Callable[[Holdfast], AbstractAsyncContextManager[Harness]]


@pytest.fixture(params=["sqlite", "postgres"])
def opened(request: pytest.FixtureRequest) -> Open:
    """A function that opens an app in a harness, on one of the stores."""

    @asynccontextmanager
    async def enter(app: Holdfast) -> AsyncIterator[Harness]:
        async with Harness(app, seed=7, store=CleanStore if request.param == "postgres" else None) as harness:
            yield harness

    return enter
