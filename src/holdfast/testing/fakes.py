"""Fakes in place of steps: what the harness calls instead of a function of the app.

A fake takes the arguments of the step and may be ``async`` or not, whichever the step is. Its result is encoded,
checked and decoded as that of the step, whose retries and timeout stay.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.core.show import shown
from holdfast.errors import InvalidOptionError
from holdfast.graph.definition import Node, _only_in_a_run
from holdfast.kernel.attempt import StepTx, Transaction
from holdfast.kernel.driver import Call
from holdfast.workflow.steps import Step, inspect_step

Steps = Mapping[Callable[..., Any], Callable[..., Any]]


class Fakes:
    """The functions that are replaced, each with its fake."""

    def __init__(self, steps: Steps) -> None:
        self._fakes = {_plain(step): _callable(fake, "the fake of a step") for step, fake in steps.items()}

    def function(self, call: Call) -> Callable[..., Any]:
        """The function to run for a call: a fake, fitted to the way the step is called, or the step's own."""
        function = call.function
        fake = self._fakes.get(function) if self._fakes else None
        if fake is None:
            return function
        if call.wants_tx is not None:
            fake = _without_tx(fake)
        return _awaited(fake) if call.is_async else _in_thread(fake)


def _plain(step: Any) -> Callable[..., Any]:
    """The function under which calls of a step are known."""
    if isinstance(step, Node) and step.fn is _only_in_a_run:
        raise InvalidOptionError(
            f"steps= of the harness: node {step.name!r} runs a workflow; replace the steps of that"
        )
    return _callable(step.fn if isinstance(step, Step | Node) else step, "a step to be replaced")


def _callable(function: Any, what: str) -> Callable[..., Any]:
    if not callable(function):
        raise InvalidOptionError(f"steps= of the harness: {what} must be a function, not {shown(function)}")
    found: Callable[..., Any] = function
    return found


def _without_tx(fake: Callable[..., Any]) -> Callable[..., Any]:
    """Hand on the step's transaction only if the fake has a parameter for it."""
    spec = inspect_step(fake)

    def call(*args: Any, **kwargs: Any) -> Any:
        [tx] = [value for value in (*args, *kwargs.values()) if isinstance(value, StepTx | Transaction)]
        plain = tuple(value for value in args if value is not tx)
        named = {name: value for name, value in kwargs.items() if value is not tx}
        args, kwargs = spec.arguments(plain, named, tx)  # type: ignore[assignment]
        return fake(*args, **kwargs)

    return call


def _awaited(fake: Callable[..., Any]) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> Any:
        value = fake(*args, **kwargs)
        return await value if inspect.isawaitable(value) else value

    return call


def _in_thread(fake: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        value = fake(*args, **kwargs)
        return asyncio.run(_coroutine(value)) if inspect.isawaitable(value) else value

    return call


async def _coroutine(awaitable: Any) -> Any:
    return await awaitable
