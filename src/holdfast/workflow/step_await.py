"""The coroutine that workflow code awaits for the result of a step.

A module of its own, because a compiled build leaves it as it is: the coroutine is shown in stacks, and Python's
functions for coroutines must know its state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.workflow.step_calls import StepCalls
    from holdfast.workflow.steps import StepSpec


async def await_step(
    calls: StepCalls, key: str, name: str | None, spec: StepSpec, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Return the value of the step, or raise its error, once its result is delivered."""
    result = calls.begin(key)
    if result is not None:
        return calls.value_of(result, spec)
    step = calls.request(key, name, spec, args, kwargs)
    future = step.future
    try:
        return await future
    except asyncio.CancelledError:
        calls.abandon(step)
        raise
    finally:
        del step, future  # an error's traceback refers to this frame: the frame must not refer to the error
