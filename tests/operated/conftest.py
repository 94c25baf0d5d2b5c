"""Fixtures of these tests, which run with ``--long`` only."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from chaos.server import Server

_FOLDER = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == _FOLDER:
            item.add_marker(pytest.mark.timeout(1200))
            if not config.getoption("--long"):
                item.add_marker(pytest.mark.skip(reason="takes minutes: --long, or make operated"))


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    await server.start()
    yield server
    server.destroy()
