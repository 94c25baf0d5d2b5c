"""Helpers that run workflows in a harness or wait for the state of a real run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from holdfast import Handle
from holdfast.testing import Harness


async def finish(h: Harness, workflow: Any, params: Any = None, **options: Any) -> Any:
    """Run a workflow that waits for nothing, and return its result."""
    run = await h.start(workflow, params, **options)
    await h.run_until_idle()
    return await run.result(timeout=60)


async def warm_and_cold(h: Harness, workflow: Any, params: Any = None) -> tuple[Any, Any]:
    """Return the result of a warm run, and that of a run whose worker is dropped whenever the run is suspended.

    The workflow must wait for nothing but time.
    """
    warm = await h.start(workflow, params, id="warm")
    cold = await h.start(workflow, params, id="cold")
    for _ in range(50):
        await h.run_until_idle()
        if (await warm.status()).status in ("complete", "errored"):
            break
        await h.restart()
        await h.advance("1 hour")
    return await warm.result(timeout=60), await cold.result(timeout=60)


async def step_keys(run: Handle[Any]) -> list[str]:
    return [step.step_key for step in (await run.history()).steps]


async def until(condition: Callable[[], Awaitable[Any]], *, seconds: float = 60) -> Any:
    """Wait until a condition on a real run holds, and return its value."""
    async with asyncio.timeout(seconds):
        while not (value := await condition()):
            await asyncio.sleep(0.002)
        return value


async def until_status(run: Handle[Any], *statuses: str) -> str:
    async def reached() -> str:
        status = (await run.status()).status
        return status if status in statuses else ""

    return str(await until(reached))


async def lose_worker(h: Harness) -> None:
    """Abandon the worker, create another one and let the leases of the first expire."""
    h._the_worker().abandon()
    h._worker = h._new_worker()
    await h.advance("31 seconds", run=False)
