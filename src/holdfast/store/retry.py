"""Retries of store calls: the loop, the backoff, and the part of the engine that retries each kind of failure.

The store retries failures inside one intent, because only the store can tell whether an attempt was committed: each
attempt writes a marker (a token, a receipt, a transaction number), and the next attempt looks for it. If the retries of
the store do not succeed, the caller gets a ``StoreError``; a call that the caller repeats looks for the same markers.

| failure | retried by | until |
|---|---|---|
| PostgreSQL: deadlock, serialization failure | the intent, ``postgres/database.py`` | 20 failures |
| PostgreSQL: connection lost, outcome unknown | the intent, ``postgres/database.py`` | ``connect_timeout`` |
| SQLite: another process has the file locked | the statement, by SQLite's ``busy_timeout`` | the timeout |
| ``StoreError`` of a turn's commit, read or lease | the turn, ``runner/store_retry.py`` | the store answers |
| ``StoreError`` of a background loop | the loop's next iteration, ``runner/background_loop.py`` | the worker stops |
| ``StoreError`` of a step's live transaction | not at all: the turn reloads the run | |
| ``StoreError`` of a client's call | not by the engine: the client's caller decides | |
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import TypeVar

from holdfast.ports import Randomness

E = TypeVar("E", bound=Exception)
R = TypeVar("R")

PauseAfter = Callable[[E, int, float], float]
"""Takes an error, the number of failures so far and the deadline; returns the seconds to wait, or raises."""


def backoff(failures: int, random: Randomness, first_s: float = 0.05, max_s: float = 5.0) -> float:
    """Seconds to wait after this many consecutive failures: doubling from ``first_s`` to ``max_s``, with jitter."""
    doubled: float = first_s * 2 ** min(failures - 1, 10)
    return min(max_s, doubled) * (0.5 + random.random())


async def call_with_retry(
    call: Callable[[], Awaitable[R]],
    errors: type[E] | tuple[type[E], ...],
    pause_after: PauseAfter[E],
    deadline: float = math.inf,
) -> R:
    """Call until none of ``errors`` is raised, or ``pause_after`` raises. ``deadline`` is passed to ``pause_after``."""
    failures = 0
    while True:
        try:
            return await call()
        except errors as error:
            failures += 1
            pause = pause_after(error, failures, deadline)
        await asyncio.sleep(pause)
