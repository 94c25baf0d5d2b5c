"""Wait for facts, with a bound."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any


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
