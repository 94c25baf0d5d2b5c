"""Wait for a condition, or for a server that is unavailable, with a time limit."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar

from holdfast import Holdfast, StoreError

R = TypeVar("R")


async def until(condition: Callable[[], Any], message: Callable[[], str] | str, seconds: float = 60) -> Any:
    """Wait until ``condition`` returns a true value, plain or awaitable; returns the value."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return value
        assert time.monotonic() < end, f"after {seconds} s: {message if isinstance(message, str) else message()}"
        await asyncio.sleep(0.02)


async def retry_until_available(call: Callable[[], Awaitable[R]], seconds: float = 120) -> R:
    """Repeat a call while it fails with a StoreError, as a client does: with the same ids."""
    async with asyncio.timeout(seconds):
        while True:
            try:
                return await call()
            except StoreError:
                await asyncio.sleep(0.05)


@asynccontextmanager
async def connected(app: Holdfast) -> AsyncIterator[None]:
    """``app.connect()``, repeated while the server is unavailable."""
    async with AsyncExitStack() as stack:
        await retry_until_available(lambda: stack.enter_async_context(app.connect()))
        yield
