"""Waiting for the runs of a harness's worker: for its turns, and for steps that work in real time."""

from __future__ import annotations

import asyncio
import math

from holdfast.runner.worker import Worker
from holdfast.testing.counting_store import CountingStore
from holdfast.testing.driven_client import HarnessError
from holdfast.testing.step_activity import TrackingSpawn

# Steps of user code run in real time. While only steps are in flight, the harness polls at this interval.
_POLL_SECONDS = 0.001
_PASSES_BETWEEN_PAUSES = 20
"""While a worker waits for the database, the harness pauses after this many passes, so as not to use a whole core."""


async def settle(worker: Worker, store: CountingStore, spawn: TrackingSpawn, real_seconds: float) -> None:
    """Wait until every owned run is suspended, or waits for steps that only virtual time or the test can end."""
    loop = asyncio.get_running_loop()
    quiet, passes, deadline = 0, 0, math.inf
    while worker.busy and quiet < 3 and not store.dropped:
        await asyncio.sleep(0)
        if not worker.blocked():
            quiet, passes, deadline = 0, passes + 1, math.inf
            if passes % _PASSES_BETWEEN_PAUSES == 0:
                await asyncio.sleep(_POLL_SECONDS)
        elif not spawn.working(loop):
            quiet += 1
        else:  # only steps are in flight
            quiet, deadline = 0, min(deadline, loop.time() + real_seconds)
            if loop.time() > deadline:
                raise _too_long(spawn, loop, real_seconds)
            await asyncio.sleep(_POLL_SECONDS)


def _too_long(spawn: TrackingSpawn, loop: asyncio.AbstractEventLoop, real_seconds: float) -> HarnessError:
    steps = {f"step {a.key!r} of {a.pid}{f' at {place}' if place else ''}" for a, place in spawn.in_flight(loop)}
    return HarnessError(
        f"{'; '.join(sorted(steps)) or 'a step'} has not ended in {real_seconds:g} seconds of real time. "
        "The harness waits for threads, processes, sockets and real timers of steps. Put a fake in place of "
        "a slow step (`Harness(app, steps={step: fake})`), or allow more time with real_timeout="
    )
