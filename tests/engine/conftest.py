"""An app, and a harness that runs it in virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from holdfast import Holdfast
from holdfast.testing import Harness


@pytest.fixture
def app() -> Holdfast:
    return Holdfast("sqlite://")


@pytest.fixture
async def h(app: Holdfast) -> AsyncIterator[Harness]:
    async with Harness(app, seed=7) as harness:
        yield harness
