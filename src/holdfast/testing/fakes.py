"""Fakes: functions that the harness calls in place of steps.

A fake takes the arguments of the step. It may be ``async`` or not, independently of the step. Its result is encoded,
checked and decoded like the step's result. The step's retries and timeout apply to the fake.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.core.show import shown
from holdfast.errors import InvalidOptionError
from holdfast.graph.definition import Node, _not_callable
from holdfast.kernel.attempt import StepTx, Transaction
from holdfast.kernel.driver import Call
from holdfast.workflow.steps import Step, inspect_step

Steps = Mapping[Callable[..., Any], Callable[..., Any]]


class Fakes:
    """The replaced functions, each with its fake."""

    def __init__(self, steps: Steps) -> None:
        self._fakes = {_function_of(step): _callable(fake, "the fake of a step") for step, fake in steps.items()}

    def function(self, call: Call) -> Callable[..., Any]:
        """Return the function to run for a call: the fake, adapted to the kind of call, or the step's function."""
        function = call.function
        fake = self._fakes.get(function) if self._fakes else None
        if fake is None:
            return function
        if call.wants_tx is not None:
            fake = _without_tx(fake)
        return _awaited(fake) if call.is_async else _in_thread(fake)


def _function_of(step: Any) -> Callable[..., Any]:
    """Return the function of a step: the ``function`` of its calls."""
    if isinstance(step, Node) and step.fn is _not_callable:
        raise InvalidOptionError(
            f"steps= of the harness: node {step.name!r} runs a workflow; replace the steps of that workflow"
        )
    return _callable(step.fn if isinstance(step, Step | Node) else step, "a step to be replaced")


def _callable(function: Any, role: str) -> Callable[..., Any]:
    if not callable(function):
        raise InvalidOptionError(f"steps= of the harness: {role} must be a function, not {shown(function)}")
    checked: Callable[..., Any] = function
    return checked


def _without_tx(fake: Callable[..., Any]) -> Callable[..., Any]:
    """Pass the step's transaction to the fake only if the fake has a parameter for it."""
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
