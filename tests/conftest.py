"""Options of the whole suite."""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx._transports.default as httpx_transports
import pytest
import pytest_asyncio

sys.path.insert(0, str(Path(__file__).parent))

import postgres_connections
import postgres_server
from hostile import plugin as hostile


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--long", action="store_true", help="visit every kill point, and try more generated input (takes a while)"
    )
    hostile.add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    hostile.configure(config)
    postgres_connections.install()
    # Each httpx client reads all certificate authorities, which takes longer than most requests.
    httpx_transports.create_ssl_context = functools.cache(httpx_transports.create_ssl_context)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Ten thousand tests are many objects: without this, each ``gc.collect()`` of a test looks at all of them."""
    gc.collect()
    gc.freeze()


@pytest_asyncio.fixture(scope="session", loop_scope="session", autouse=True)
async def connections_that_are_used_again() -> AsyncIterator[None]:
    yield
    await postgres_connections.close_kept()
    postgres_server.close_helper()
