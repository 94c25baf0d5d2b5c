"""A server for the short soak."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from chaos.server import Server

from .soak import SERVER


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server(**SERVER)
    try:
        await server.start()
        yield server
    finally:
        server.destroy()
