"""Types of ``@app.workflow(...)`` and ``@app.step(...)``, for type checkers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar, overload

from holdfast.kernel.attempt import StepTx, Transaction
from holdfast.workflow.context import Context, OptionalInput, Workflow
from holdfast.workflow.steps import Step

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class NoTransaction:
    """A type for overloads: a parameter that accepts ``NoTransaction`` accepts any type, so it is not a transaction."""


class WorkflowDecorator:
    """The type of ``@app.workflow(...)``."""

    @overload
    def __call__(self, fn: OptionalInput[T, R], /) -> Workflow[T | None, R]: ...

    @overload
    def __call__(self, fn: Callable[[Context, T], Coroutine[Any, Any, R]], /) -> Workflow[T, R]: ...

    @overload
    def __call__(self, fn: Callable[[Context], Coroutine[Any, Any, R]], /) -> Workflow[None, R]: ...

    def __call__(self, fn: Callable[..., Any], /) -> Any: ...


class BatchDecorator:
    """The type of ``@app.workflow(batch=...)``: the function takes a list, and a start one item of it."""

    def __call__(self, fn: Callable[[Context, list[T]], Coroutine[Any, Any, R]], /) -> Workflow[T, R]:
        raise NotImplementedError


class StepDecorator:
    """The type of ``@app.step(...)``."""

    @overload
    def __call__(self, fn: Callable[Concatenate[NoTransaction, ...], Awaitable[R]], /) -> Step[..., R]: ...

    @overload
    def __call__(self, fn: Callable[Concatenate[NoTransaction, ...], R], /) -> Step[..., R]: ...

    @overload
    def __call__(self, fn: Callable[Concatenate[StepTx, P], Awaitable[R]], /) -> Step[P, R]: ...

    @overload
    def __call__(self, fn: Callable[Concatenate[Transaction, P], Awaitable[R]], /) -> Step[P, R]: ...

    @overload
    def __call__(self, fn: Callable[Concatenate[StepTx, P], R], /) -> Step[P, R]: ...

    @overload
    def __call__(self, fn: Callable[P, Awaitable[R]], /) -> Step[P, R]: ...

    @overload
    def __call__(self, fn: Callable[P, R], /) -> Step[P, R]: ...

    def __call__(self, fn: Callable[..., Any], /) -> Any: ...
