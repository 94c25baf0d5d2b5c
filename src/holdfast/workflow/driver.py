"""Workflow functions as definitions: the driver that runs them on the replay machine."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, Literal, TypeVar

from holdfast.core import codec
from holdfast.core.limits import Limits
from holdfast.errors import DefinitionError, ParamsInvalidError
from holdfast.kernel.definition import Definition
from holdfast.store.protocol import RunRecord, Snapshot
from holdfast.workflow.context import Context
from holdfast.workflow.machine import Machine
from holdfast.workflow.steps import type_hints

R = TypeVar("R", covariant=True)


@dataclass(eq=False)
class Workflow(Generic[R]):
    """A registered workflow function: what ``app.start`` takes. ``fn`` is the plain function."""

    name: str
    fn: Callable[..., Coroutine[Any, Any, R]] = field(repr=False)


class ReplayDriver:
    """Opens machines for one workflow function."""

    def __init__(
        self, name: str, fn: Callable[..., Any], takes_params: bool, definition_types: _Types, limits: Limits,
        now: Callable[[], datetime],
    ) -> None:  # fmt: skip
        self.name = name
        self._fn = fn
        self._takes_params = takes_params
        self._types = definition_types
        self._limits = limits
        self._now = now

    def open(self, run: RunRecord, snapshot: Snapshot | None) -> Machine:
        return Machine(self, run, snapshot, self._limits)

    async def main(self, machine: Machine) -> Any:
        context = Context(machine, self._now)
        if not self._takes_params:
            return await self._fn(context)
        try:
            params = self._types.params(codec.plain(machine.run.params))
        except ParamsInvalidError as error:
            return await machine.diverge(f"the recorded params do not fit the workflow's annotation any more: {error}")
        return await self._fn(context, params)

    def encode_output(self, value: Any) -> bytes:
        return codec.encode(value, what=f"result of workflow {self.name!r}", limit=self._limits.result)


@dataclass(frozen=True, slots=True)
class _Types:
    params: Callable[[Any], Any]
    output: Callable[[Any], Any]


def define(
    name: str,
    fn: Callable[..., Any],
    *,
    limits: Limits,
    now: Callable[[], datetime],
    persist: Literal["step", "task"],
    local_names: Mapping[str, Any] | None = None,
) -> Definition:
    """The definition of a workflow function: ``async def fn(ctx)`` or ``async def fn(ctx, params)``."""
    if not inspect.iscoroutinefunction(fn):
        raise DefinitionError(f"workflow {name!r} must be an `async def` function")
    parameters = list(inspect.signature(fn).parameters.values())
    required = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if not 1 <= len(required) <= 2 or len(required) != len(parameters):
        raise DefinitionError(
            f"workflow {name!r} must take the context and at most one input value: "
            f"`async def {fn.__name__}(ctx: Context, params: YourType)`"
        )
    hints = type_hints(fn, local_names)
    takes_params = len(required) == 2
    types = _Types(
        params=_params_decoder(required[1], hints) if takes_params else _no_params,
        output=codec.decoder(hints.get("return", Any)),
    )
    driver = ReplayDriver(name, fn, takes_params, types, limits, now)
    return Definition(
        name=name,
        kind="workflow",
        driver=driver,
        decode_params=types.params,
        decode_output=types.output,
        persist=persist,
    )


def _params_decoder(parameter: inspect.Parameter, hints: Mapping[str, Any]) -> Callable[[Any], Any]:
    decode = codec.decoder(hints.get(parameter.name, Any))
    if parameter.default is inspect.Parameter.empty:
        return decode
    return lambda value: parameter.default if value is None else decode(value)


def _no_params(value: Any) -> None:
    if value is not None:
        raise ParamsInvalidError(
            "it takes no input", [{"path": [], "message": "no input expected", "type": "no_params"}]
        )
