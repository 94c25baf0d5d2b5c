"""Workflow functions as definitions: the driver that runs them on the replay machine."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from holdfast.core import codec
from holdfast.core.functions import check_function, type_hints
from holdfast.core.limits import Limits
from holdfast.core.retention import Retention
from holdfast.core.retry import Retry
from holdfast.core.typed import check_annotation, untyped
from holdfast.errors import DefinitionError, ParamsInvalidError
from holdfast.kernel.definition import Definition, encoded_params
from holdfast.kernel.events import Decode, Events, read_payload
from holdfast.kernel.flow import Limit
from holdfast.workflow.context import Context, enter
from holdfast.workflow.naming import StepNames

if TYPE_CHECKING:
    from holdfast.core.redaction import Redaction
    from holdfast.core.start_policies import Batch
    from holdfast.kernel.inspection import Subject
    from holdfast.kernel.requests import Requests
    from holdfast.store.protocol import RunRecord, Snapshot, StoredEvent
    from holdfast.workflow.inspection import WorkflowInspection
    from holdfast.workflow.machine import Machine

WORKFLOW = "workflow"
"""The kind of a workflow's runs."""


class ReplayDriver:
    """Opens machines for one workflow function."""

    def __init__(
        self, name: str, fn: Callable[..., Any], takes_params: bool, definition_types: _Types, limits: Limits,
        now: Callable[[], datetime], options: WorkflowOptions, step_names: StepNames,
    ) -> None:  # fmt: skip
        self.name = name
        self.raises_cancel = options.cancel == "raise"
        self.trap_links = options.trap_links
        self.step_names = step_names
        self._strict = options.replay == "strict"
        self._fn = fn
        self._takes_params = takes_params
        self._types = definition_types
        self._limits = limits
        self._now = now
        self._events = options.events

    def open(self, run: RunRecord, snapshot: Snapshot | None, requests: Requests, *, strict: bool = False) -> Machine:
        from holdfast.workflow.machine import Machine  # noqa: PLC0415  (loaded to run workflows, not to define them)

        return Machine(self, run, snapshot, self._limits, requests, strict=strict or self._strict)

    def inspect(self, subject: Subject, requests: Requests, redaction: Redaction) -> WorkflowInspection:
        from holdfast.workflow.inspection import WorkflowInspection  # noqa: PLC0415  (see above)

        return WorkflowInspection(self, subject, requests, redaction, self._fn)

    async def main(self, machine: Machine) -> Any:
        context = Context(machine, self._now)
        enter(context)
        if not self._takes_params:
            return await self._fn(context)
        try:
            params = self._types.params(codec.plain(machine.run.params))
        except ParamsInvalidError as error:
            return await machine.execution.diverge_by_value(
                f"the recorded params do not fit the workflow's annotation any more: {error}"
            )
        return await self._fn(context, params)

    def event_decoder(self, type: str) -> Decode:
        declared = self._events.get(type)
        return untyped if declared is None else declared.decode

    def decode_payload(self, event: StoredEvent) -> Any:
        return read_payload(event.type, event.payload, self.event_decoder(event.type))

    def encode_params(self, value: Any) -> bytes | None:
        return encoded_params(self.name, value, self._types.exact_params, self._limits)

    def encode_output(self, value: Any) -> bytes:
        what = f"result of workflow {self.name!r}"
        data = codec.encode(value, what=what, limit=self._limits.output)
        return codec.check_result(what, value, data, self._types.output)


@dataclass(slots=True, eq=False)
class _Types:
    params: Callable[[Any], Any]
    """Decoder of recorded params: lenient, so that a started run continues."""
    exact_params: Callable[[Any], Any]
    """Decoder of the params of a new run: accepts only the documented form."""
    output: Callable[[Any], Any]


@dataclass(slots=True, eq=False)
class WorkflowOptions:
    """Options of a workflow's runs. A start may override some of them."""

    persist: Literal["step", "task"] = "step"
    cancel: Literal["raise", "event"] = "raise"
    trap_links: bool = False
    retry: Retry | None = None
    run_ms: int | None = None
    events: Events = field(default_factory=dict)
    replay: Literal["lenient", "strict"] = "lenient"
    pinned: bool = False
    retention: Retention | None = None
    limits: tuple[Limit, ...] = ()
    hold: Literal["working", "until_end"] = "working"
    batch: Batch | None = None


def define(
    name: str,
    fn: Callable[..., Any],
    *,
    limits: Limits,
    now: Callable[[], datetime],
    options: WorkflowOptions,
    local_names: Mapping[str, Any] | None = None,
    step_names: StepNames | None = None,
) -> Definition:
    """The definition of a workflow function: ``async def fn(ctx)`` or ``async def fn(ctx, params)``."""
    check_function(f"workflow {name!r}", fn)
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
    returns = hints.get("return", Any)
    params_type = hints.get(required[1].name, Any) if takes_params else None
    types = _Types(
        params=_params_decoder(required[1], params_type) if takes_params else _no_params,
        exact_params=_params_decoder(required[1], params_type, exact=True) if takes_params else _no_params,
        output=codec.decoder(returns),
    )
    driver = ReplayDriver(name, fn, takes_params, types, limits, now, options, step_names or StepNames())
    return Definition(
        name=name,
        kind=WORKFLOW,
        driver=driver,
        decode_params=types.exact_params,
        params_type=params_type,
        decode_output=types.output,
        persist=options.persist,
        retry=options.retry,
        run_ms=options.run_ms,
        pinned=options.pinned,
        limits=options.limits,
        hold=options.hold,
        batch=options.batch,
        retention=options.retention,
        events=options.events,
        inspect=driver.inspect,
        check=partial(_check, params_type, returns),
        doc=inspect.cleandoc(fn.__doc__ or ""),
    )


def _check(*annotations: Any) -> None:
    for annotation in annotations:
        check_annotation(annotation)


def _params_decoder(parameter: inspect.Parameter, annotation: Any, *, exact: bool = False) -> Callable[[Any], Any]:
    decode = codec.decoder(annotation, exact=exact)
    if parameter.default is inspect.Parameter.empty:
        return decode
    return lambda value: parameter.default if value is None else decode(value)


def _no_params(value: Any) -> None:
    if value is not None:
        raise ParamsInvalidError(
            "it takes no input", [{"path": [], "message": "no input expected", "type": "no_params"}]
        )
