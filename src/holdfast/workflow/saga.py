"""Compensation: undo steps that run if a block of workflow code fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Protocol, overload

from holdfast.errors import InvalidOptionError
from holdfast.kernel.attempt import StepTx, Transaction
from holdfast.workflow import guard
from holdfast.workflow.libraries import shielded
from holdfast.workflow.loop import WorkflowLoop
from holdfast.workflow.steps import Step, StepSpec, spec_of

P = ParamSpec("P")


class StepCaller(Protocol):
    @property
    def loop(self) -> WorkflowLoop: ...

    def call(
        self, name: str, spec: StepSpec, args: tuple[Any, ...], kwargs: dict[str, Any], *, registered: bool = ...
    ) -> Coroutine[Any, Any, Any]: ...


class Saga:
    """Collects undo steps. If the block fails or is cancelled, they run, the last one added first.

    An undo step is an ordinary step: durable, retried, in the history. An undo step that fails does not stop the
    others; its failure becomes a note on the block's error, which is raised again at the end. A cancellation does not
    stop them either.
    """

    def __init__(self, steps: StepCaller) -> None:
        self._steps = steps
        self._undos: list[tuple[str, Callable[[], Coroutine[Any, Any, Any]]]] = []

    @overload
    def add(self, undo: Callable[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> None: ...

    @overload
    def add(
        self,
        undo: Callable[Concatenate[StepTx, P], Any] | Callable[Concatenate[Transaction, P], Any],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> None: ...

    def add(self, undo: Callable[..., Any], /, *args: Any, **kwargs: Any) -> None:
        """Add an undo step with its arguments."""
        guard.check(self._steps.loop, "saga.add")
        if not callable(undo):
            raise InvalidOptionError(f"saga.add takes a step or a function, not {undo!r}")
        registered = isinstance(undo, Step)
        name = undo.name if isinstance(undo, Step) else getattr(undo, "__name__", "undo")
        spec = spec_of(undo)
        spec.check_arguments(name, args, kwargs)  # now, so that wrong arguments do not fail during the undo
        self._undos.append((name, partial(self._steps.call, name, spec, args, kwargs, registered=registered)))

    async def __aenter__(self) -> Saga:
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception | asyncio.CancelledError):  # not RunDropped: the run continues
            with shielded():
                await self._undo_all(error)

    async def _undo_all(self, error: BaseException) -> None:
        """Run all undo steps, even if this task is cancelled meanwhile, so that no block stays half undone."""
        cancelled: asyncio.CancelledError | None = None
        while self._undos:
            name, undo = self._undos.pop()
            undoing = asyncio.ensure_future(undo())
            while not undoing.done():
                try:
                    await asyncio.wait([undoing])
                except asyncio.CancelledError as again:
                    cancelled = again
            failed = asyncio.CancelledError() if undoing.cancelled() else undoing.exception()
            if failed is not None:
                error.add_note(f"undo step {name!r} failed: {type(failed).__name__}: {failed}")
        if cancelled is not None and not isinstance(error, asyncio.CancelledError):
            raise cancelled from error
