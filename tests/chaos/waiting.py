"""Wait for facts, and for a server that is away, with a bound."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar

from holdfast import Holdfast, StoreError

R = TypeVar("R")


async def until(fact: Callable[[], Any], what: Callable[[], str] | str, seconds: float = 20) -> Any:
    """Wait until a fact holds, plain or awaited; what it was."""
    end = time.monotonic() + seconds
    while True:
        found = fact()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return found
        assert time.monotonic() < end, f"after {seconds} s: {what if isinstance(what, str) else what()}"
        await asyncio.sleep(0.02)


async def insist(call: Callable[[], Awaitable[R]], seconds: float = 120) -> R:
    """What a client does whose call failed: the same again, with the same ids."""
    async with asyncio.timeout(seconds):
        while True:
            try:
                return await call()
            except StoreError:
                await asyncio.sleep(0.05)


@asynccontextmanager
async def connected(app: Holdfast) -> AsyncIterator[None]:
    """``app.connect()``, tried again while the server is away."""
    async with AsyncExitStack() as stack:
        await insist(lambda: stack.enter_async_context(app.connect()))
        yield
