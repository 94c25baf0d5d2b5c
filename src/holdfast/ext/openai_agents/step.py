"""A step that this adapter makes in the run whose workflow code runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from holdfast.ext.options import StepOptions
from holdfast.workflow.context import current_context

__all__ = ["step"]


async def step(name: str, options: StepOptions, body: Callable[[], Awaitable[Any]]) -> Any:
    """The recorded result of a step of the current run. ``body`` returns JSON."""

    async def call() -> Any:
        return await body()

    return await current_context().call(name, call, retry=options.retry, timeout=options.timeout)
