"""A store that fails for a while is waited out: what a turn knows is safe in memory, its lease decides how long."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from holdfast.errors import StoreError
from holdfast.ports import Randomness

_log = logging.getLogger("holdfast")
_LONGEST_BACKOFF = 5.0

R = TypeVar("R")


def backoff(failures: int, random: Randomness) -> float:
    """Seconds to wait after so many failures in a row: doubling from 50 ms, spread so that many do not come at once."""
    doubled: float = 0.05 * 2 ** min(failures - 1, 10)
    return min(_LONGEST_BACKOFF, doubled) * (0.5 + random.random())


async def patiently(call: Callable[[], Awaitable[R]], what: str, random: Randomness) -> R:
    """Call until the store answers."""
    failures = 0
    while True:
        try:
            return await call()
        except StoreError as error:
            failures += 1
            pause = backoff(failures, random)
            _log.warning("could not %s (%s), trying again in %.1f s: %s", what, error.code, pause, error)
            await asyncio.sleep(pause)
