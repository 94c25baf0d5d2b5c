"""Short words for what most tests of the engine do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from holdfast import Handle
from holdfast.testing import Harness


async def finish(h: Harness, workflow: Any, params: Any = None, **options: Any) -> Any:
    """The result of a run that needs nothing but to be run."""
    run = await h.start(workflow, params, **options)
    await h.run_until_idle()
    return await run.result(timeout=5)


async def replayed(h: Harness, workflow: Any, params: Any = None) -> tuple[Any, Any]:
    """The result of a warm run, and that of one whose worker is dropped at every rest.

    For workflows that wait for nothing but time.
    """
    warm = await h.start(workflow, params, id="warm")
    cold = await h.start(workflow, params, id="cold")
    for _ in range(50):
        await h.run_until_idle()
        if (await warm.status()).status in ("complete", "errored"):
            break
        await h.restart()
        await h.advance("1 hour")
    return await warm.result(timeout=5), await cold.result(timeout=5)


async def step_keys(run: Handle[Any]) -> list[str]:
    return [step.step_key for step in (await run.history()).steps]


async def until(fact: Callable[[], Awaitable[Any]], *, seconds: float = 5) -> Any:
    """Wait for a fact of a real run; its value."""
    async with asyncio.timeout(seconds):
        while not (found := await fact()):
            await asyncio.sleep(0.002)
        return found


async def until_status(run: Handle[Any], *wanted: str) -> str:
    async def reached() -> str:
        status = (await run.status()).status
        return status if status in wanted else ""

    return str(await until(reached))


async def lose_worker(h: Harness) -> None:
    """The worker dies without a word; its leases run out, and another one stands ready."""
    h._the_worker().abandon()
    h._worker = h._new_worker()
    await h.advance("31 seconds", run=False)
