"""The registering side of an app: workflows, steps, graphs and chains.

Chains, graphs and the models that explain stored runs are imported where they are used, because most programs define
workflows only, and importing the rest takes as long as importing this module.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar, overload

from holdfast.core.checks import check_count, check_flag
from holdfast.core.durations import Duration, timeout_ms, to_ms
from holdfast.core.functions import check_function, type_hints
from holdfast.core.limits import Limits
from holdfast.core.names import check_step_name, check_workflow_name
from holdfast.core.retention import Retention, check_retention
from holdfast.core.retry import Retry, check_retry
from holdfast.core.secret import has_secret
from holdfast.declarations import Declarations
from holdfast.errors import InvalidOptionError
from holdfast.kernel.attempt import StepTx, Transaction
from holdfast.kernel.definition import Definition, Registry
from holdfast.kernel.events import declared_events
from holdfast.kernel.flow import Limit, check_limits
from holdfast.ports import Runtime
from holdfast.workflow.context import Context, OptionalInput, Workflow
from holdfast.workflow.driver import WorkflowOptions, define
from holdfast.workflow.naming import StepNames
from holdfast.workflow.steps import Step, check_raises, inspect_step

if TYPE_CHECKING:
    from holdfast.chain.chain import Chain
    from holdfast.core.outbound import OutboundEvent
    from holdfast.core.start_policies import Batch
    from holdfast.decorators import BatchDecorator, NoTransaction, StepDecorator, WorkflowDecorator
    from holdfast.graph.definition import Graph
    from holdfast.kernel.model import Models
    from holdfast.payloads import Codec

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
D = TypeVar("D", bound="Callable[[OutboundEvent], Any]")

_DEFINING = ("holdfast.app", "holdfast.definitions", "holdfast.graph.", "holdfast.chain.")
"""Modules whose frames are between a user's module and the code that inspects it."""


class Definitions(Declarations):
    """The definitions of an app, and the decorators that register them. ``Holdfast`` is the subclass that runs them."""

    def __init__(self, limits: Limits, runtime: Runtime) -> None:
        self.limits = limits
        self.runtime = runtime
        self.registry = Registry(_load_models)
        self._step_names = StepNames()

    @overload
    def workflow(self, fn: OptionalInput[T, R], /) -> Workflow[T | None, R]: ...

    @overload
    def workflow(self, fn: Callable[[Context, T], Coroutine[Any, Any, R]], /) -> Workflow[T, R]: ...

    @overload
    def workflow(self, fn: Callable[[Context], Coroutine[Any, Any, R]], /) -> Workflow[None, R]: ...

    @overload
    def workflow(
        self,
        /,
        *,
        name: str | None = ...,
        retry: Retry | None = ...,
        timeout: Duration | None = ...,
        persist: Literal["step", "task"] = ...,
        cancel: Literal["raise", "event"] = ...,
        trap_links: bool = ...,
        events: Mapping[str, Any] | None = ...,
        replay: Literal["lenient", "strict"] = ...,
        pinned: bool = ...,
        retention: Retention | None = ...,
        limits: Iterable[Limit] = ...,
        hold: Literal["working", "until_end"] = ...,
        mcp: bool = ...,
        codec: Codec | Iterable[Codec] | None = ...,
    ) -> WorkflowDecorator: ...

    @overload
    def workflow(
        self,
        /,
        *,
        batch: Batch,
        name: str | None = ...,
        retry: Retry | None = ...,
        timeout: Duration | None = ...,
        persist: Literal["step", "task"] = ...,
        cancel: Literal["raise", "event"] = ...,
        trap_links: bool = ...,
        events: Mapping[str, Any] | None = ...,
        replay: Literal["lenient", "strict"] = ...,
        pinned: bool = ...,
        retention: Retention | None = ...,
        limits: Iterable[Limit] = ...,
        hold: Literal["working", "until_end"] = ...,
        mcp: bool = ...,
        codec: Codec | Iterable[Codec] | None = ...,
    ) -> BatchDecorator: ...

    def workflow(
        self,
        fn: Callable[..., Coroutine[Any, Any, Any]] | None = None,
        /,
        *,
        name: str | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        persist: Literal["step", "task"] = "step",
        cancel: Literal["raise", "event"] = "raise",
        trap_links: bool = False,
        events: Mapping[str, Any] | None = None,
        replay: Literal["lenient", "strict"] = "lenient",
        pinned: bool = False,
        retention: Retention | None = None,
        limits: Iterable[Limit] = (),
        hold: Literal["working", "until_end"] = "working",
        mcp: bool = False,
        batch: Batch | None = None,
        codec: Codec | Iterable[Codec] | None = None,
    ) -> Any:
        """Register workflow code: ``async def fn(ctx)`` or ``async def fn(ctx, params)``.

        ``retry`` (default: none) and ``timeout`` apply to a run as a whole; a start may replace them.
        ``persist="step"`` makes every step durable before the next begins; ``"task"`` keeps results in memory until
        the run suspends, which is faster and repeats more steps after a crash. ``cancel="event"`` reports a
        cancellation in ``ctx.events`` only, instead of raising it; ``trap_links`` does the same for a linked run that
        failed. ``events`` maps event types to the types of their payloads: sending an event that does not fit raises an
        error. ``replay="strict"`` parks a run that is about to call a step without a record while a recorded result
        belongs to a step that is no longer registered; ``"lenient"`` writes a warning. ``pinned``: a run finishes on
        the release that started it (``WorkerConfig(version=)``). ``retention``: how long finished runs are kept,
        instead of the app's ``retention``. ``limits``: limits of the runs (``app.limit``). A run counts while a worker
        executes it or a step of it; with ``hold="until_end"`` from its first turn to its end. ``mcp``: offer the
        workflow as a tool of the MCP server (``holdfast mcp``), with its docstring as the description. ``batch``:
        starts are collected, and one run receives the list of their params. ``codec``: codecs of the values of its
        runs, instead of the app's ``codec``.
        """
        check_flag("mcp", mcp)
        check_flag("trap_links", trap_links)
        _check_choice("hold", hold, "working", "until_end")
        _check_choice("persist", persist, "step", "task")
        _check_choice("cancel", cancel, "raise", "event")
        _check_choice("replay", replay, "lenient", "strict")
        options = WorkflowOptions(
            persist, cancel, trap_links, None if retry is None else check_retry(retry),
            None if timeout is None else timeout_ms("timeout", timeout), declared_events(events, self.limits), replay,
            check_flag("pinned", pinned), check_retention(retention), check_limits("a workflow", limits), hold,
            None if batch is None else _checked_batch(batch),
        )  # fmt: skip
        local_names = _caller_names()

        def register(function: Callable[..., Coroutine[Any, Any, Any]]) -> Workflow[Any, Any]:
            chosen = check_workflow_name(_name_of(function) if name is None else name, self.limits)
            self._add_workflow(chosen, function, options, local_names, codec)
            if mcp:
                self.registry.mcp_tools[chosen] = inspect.getdoc(function) or ""
            return Workflow(chosen, function)

        return register if fn is None else register(fn)

    def _add_workflow(
        self,
        name: str,
        function: Callable[..., Coroutine[Any, Any, Any]],
        options: WorkflowOptions,
        local_names: Mapping[str, Any],
        codec: Codec | Iterable[Codec] | None,
    ) -> None:
        definition = define(
            name, function, limits=self.limits, now=self.runtime.time.now, options=options, local_names=local_names,
            step_names=self._step_names,
        )  # fmt: skip
        definition.annotations = lambda: type_hints(function, local_names).values()
        self.registry.add(definition)
        if codec is not None:
            from holdfast.payloads.codecs import check_codec

            self.registry.codecs[name] = check_codec(codec)

    @overload
    def step(self, fn: Callable[Concatenate[NoTransaction, ...], Coroutine[Any, Any, R]], /) -> Step[..., R]: ...

    @overload
    def step(self, fn: Callable[Concatenate[NoTransaction, ...], R], /) -> Step[..., R]: ...

    @overload
    def step(self, fn: Callable[Concatenate[StepTx, P], Coroutine[Any, Any, R]], /) -> Step[P, R]: ...

    @overload
    def step(self, fn: Callable[Concatenate[Transaction, P], Coroutine[Any, Any, R]], /) -> Step[P, R]: ...

    @overload
    def step(self, fn: Callable[Concatenate[StepTx, P], R], /) -> Step[P, R]: ...

    @overload
    def step(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> Step[P, R]: ...

    @overload
    def step(self, fn: Callable[P, R], /) -> Step[P, R]: ...

    @overload
    def step(
        self,
        /,
        *,
        name: str | None = ...,
        retry: Retry | None = ...,
        timeout: Duration | None = ...,
        raises: tuple[type[BaseException], ...] | None = ...,
        renamed_from: str | tuple[str, ...] = ...,
        limits: Iterable[Limit] = ...,
    ) -> StepDecorator: ...

    def step(
        self,
        fn: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        raises: tuple[type[BaseException], ...] | None = None,
        renamed_from: str | tuple[str, ...] = (),
        limits: Iterable[Limit] = (),
    ) -> Any:
        """Register a step: a function whose result is recorded.

        Async functions run on the worker's event loop, plain functions in threads. ``renamed_from``: one or several
        earlier names of the step; open runs use the results that they have recorded under those names. ``limits``:
        limits of the attempts in progress, over all runs and workers (``app.limit``).
        """
        if retry is not None:
            check_retry(retry)
        if timeout is not None:
            to_ms(timeout, "timeout")
        if raises is not None:
            check_raises(raises)
        old_names = (renamed_from,) if isinstance(renamed_from, str) else tuple(renamed_from)
        for old in old_names:
            check_step_name(old, self.limits)
        local_names, checked_limits = _caller_names(), check_limits("a step", limits)

        def register(function: Callable[..., Any]) -> Step[Any, Any]:
            chosen = check_step_name(_name_of(function) if name is None else name, self.limits)
            check_function(f"step {chosen!r}", function)
            spec = inspect_step(function, local_names).with_options(retry, timeout, raises)
            if checked_limits:
                spec = replace(spec, limits=checked_limits)
            self.registry.add_step(chosen, spec.check_types)
            self.registry.step_secrets[chosen] = lambda: any(
                map(has_secret, type_hints(function, local_names).values())
            )
            self._step_names.register(chosen, old_names)
            return Step(chosen, spec, function)

        return register if fn is None else register(fn)

    def retired_steps(self, *names: str) -> None:
        """Declare that steps were removed on purpose: open runs that have recorded them continue without a warning."""
        self._step_names.retire([check_step_name(name, self.limits) for name in names])

    @overload
    def graph(
        self, name: str, version: int = ..., *, params: type[T], pinned: bool = ..., retention: Retention | None = ...
    ) -> Graph[T]: ...

    @overload
    def graph(
        self, name: str, version: int = ..., *, params: Any = ..., pinned: bool = ..., retention: Retention | None = ...
    ) -> Graph[Any]: ...

    def graph(
        self, name: str, version: int = 1, *, params: Any = Any, pinned: bool = False,
        retention: Retention | None = None,
    ) -> Graph[Any]:  # fmt: skip
        """Register a graph; its nodes are added with ``@graph.node``. ``version`` is recorded with each run.

        ``params``: the type of its input, if the annotations of the nodes do not define it. ``pinned`` and
        ``retention``: as in ``@app.workflow``.
        """
        from holdfast.graph.definition import Graph
        from holdfast.graph.model import define as define_graph

        check_workflow_name(name, self.limits)
        check_count("version", version)
        check_flag("pinned", pinned)
        check_retention(retention)

        def defined(graph: Graph[Any]) -> Definition:
            return define_graph(graph, self.limits, pinned=pinned, retention=retention)

        graph: Graph[Any] = Graph(
            name, version, params,
            limits=self.limits, local_names=_caller_names,
            changed=lambda changed: self.registry.replace(defined(changed)),
        )  # fmt: skip
        self.registry.add(defined(graph))
        return graph

    @overload
    def chain(
        self, name: str, version: int = ..., *, params: type[T], pinned: bool = ..., retention: Retention | None = ...
    ) -> Chain[T]: ...

    @overload
    def chain(
        self, name: str, version: int = ..., *, params: Any = ..., pinned: bool = ..., retention: Retention | None = ...
    ) -> Chain[Any]: ...

    def chain(
        self, name: str, version: int = 1, *, params: Any = Any, pinned: bool = False,
        retention: Retention | None = None,
    ) -> Chain[Any]:  # fmt: skip
        """Register a chain; its steps are added with ``@chain.step("TYPE")``. ``version`` is recorded with each run.

        ``params``: the type of its input. ``pinned`` and ``retention``: as in ``@app.workflow``.
        """
        from holdfast.chain.chain import define as define_chain

        chain, definition = define_chain(name, version, params, limits=self.limits, now=self.runtime.time.now)
        definition.pinned, definition.retention = check_flag("pinned", pinned), check_retention(retention)
        self.registry.add(definition)
        return chain


def _load_models() -> Models:
    from holdfast.models import load_models

    return load_models()


def _name_of(function: Any) -> Any:
    return getattr(function, "__name__", "")


def _check_choice(name: str, value: str, first: str, second: str) -> None:
    """Check an option that has two values."""
    if value not in (first, second):
        raise InvalidOptionError(f"{name} must be {first!r} or {second!r}, not {value!r}")


def _checked_batch(batch: Batch) -> Batch | None:
    from holdfast.core.start_policies import check_batch

    return check_batch(batch)


def _caller_names() -> Mapping[str, Any]:
    """Local names where the decorator is used: annotations may refer to classes defined inside a function."""
    frame = caller()
    if frame is None:
        return {}
    return dict(frame.f_locals) if frame.f_locals is not frame.f_globals else {}


def caller() -> FrameType | None:
    """The innermost frame outside the modules that define apps, graphs and chains: that of the user's code."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").startswith(_DEFINING):
        frame = frame.f_back
    return frame
