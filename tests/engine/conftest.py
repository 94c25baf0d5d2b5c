"""An app, and a harness that runs it in virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.testing import Harness


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A run that never ends shall not hold up the others for long."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.timeout(20))


@pytest.fixture
def app() -> Holdfast:
    return Holdfast("sqlite://")


@pytest.fixture
async def h(app: Holdfast) -> AsyncIterator[Harness]:
    async with Harness(app, seed=7) as harness:
        yield harness
