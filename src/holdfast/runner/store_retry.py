"""Retries of store calls while the store fails.

A turn keeps its unwritten state in memory meanwhile. The lease of its task limits how long that is useful.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from holdfast.errors import StoreError
from holdfast.ports import Randomness

_log = logging.getLogger("holdfast")
_MAX_BACKOFF_S = 5.0

R = TypeVar("R")


def backoff(failures: int, random: Randomness) -> float:
    """Seconds to wait after this many consecutive failures: doubling from 50 ms, with jitter."""
    doubled: float = 0.05 * 2 ** min(failures - 1, 10)
    return min(_MAX_BACKOFF_S, doubled) * (0.5 + random.random())


async def call_with_retry(call: Callable[[], Awaitable[R]], what: str, random: Randomness) -> R:
    """Call until no ``StoreError`` is raised. ``what`` names the call in log lines."""
    failures = 0
    while True:
        try:
            return await call()
        except StoreError as error:
            failures += 1
            pause = backoff(failures, random)
            _log.warning("could not %s (%s), trying again in %.1f s: %s", what, error.code, pause, error)
            await asyncio.sleep(pause)
