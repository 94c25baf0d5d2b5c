"""Definitions of graphs: nodes, the edges between them, and the checks at the time of definition."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, NamedTuple, ParamSpec, TypeAlias, TypeVar, get_args, overload

from holdfast.core import codec
from holdfast.core.durations import Duration
from holdfast.core.functions import check_function, is_async, type_hints
from holdfast.core.limits import Limits
from holdfast.core.names import check_node_name
from holdfast.core.retry import Retry
from holdfast.core.show import shown
from holdfast.core.typed import check_annotation
from holdfast.errors import DefinitionError, InvalidOptionError
from holdfast.graph.edges import is_list, is_mismatch, item_type
from holdfast.graph.items import Failed, Ok
from holdfast.graph.mermaid import mermaid
from holdfast.graph.shape import COLLECT, MAX_NODES, NodeShape, Shape, cycle
from holdfast.kernel.definition import Blueprint
from holdfast.kernel.requests import timeout_ms
from holdfast.kernel.startable import In, Startable
from holdfast.kernel.unit_driver import PLAN_KEY
from holdfast.store.protocol import Fact, FactState

P = ParamSpec("P")
R = TypeVar("R", covariant=True)

PARAMS = "params"
"""The name of the parameter that receives the input of the run."""
DEFAULT_TIMEOUT_MS = 600_000

MapErrors: TypeAlias = Literal["fail", "collect"]


@dataclass(slots=True, eq=False)
class Parameter:
    name: str
    annotation: Any
    decode: Callable[[Any], Any]
    required: bool


@dataclass(slots=True, eq=False)
class Function:
    """A user's function whose parameters receive results by name."""

    call: Callable[..., Any]
    parameters: tuple[Parameter, ...]
    returns: Any

    @classmethod
    def of(
        cls, what: str, function: Callable[..., Any], provided: Iterable[str], local_names: Mapping[str, Any]
    ) -> Function:
        hints = type_hints(function, local_names)
        available = [PARAMS, *provided]
        parameters = []
        for parameter in inspect.signature(function).parameters.values():
            if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                raise DefinitionError(f"{what}: parameter {parameter} cannot be passed by name")
            if parameter.name not in available:
                if parameter.default is not parameter.empty:
                    continue
                raise DefinitionError(
                    f"{what} takes a parameter {parameter.name!r} that is not available; there are "
                    f"{', '.join(available)}. Name a node in after= to get its result"
                )
            hint = hints.get(parameter.name, Any)
            required = parameter.default is parameter.empty
            parameters.append(Parameter(parameter.name, hint, codec.decoder(hint), required))
        return cls(function, tuple(parameters), hints.get("return", Any))

    @classmethod
    def plain(
        cls, what: str, function: Callable[..., Any], provided: Iterable[str], local_names: Mapping[str, Any]
    ) -> Function:
        """A function that is called between nodes and must not be async."""
        check_function(what, function)
        if is_async(function):
            raise DefinitionError(f"{what} must be a plain function, not `async def`; await in a node instead")
        return cls.of(what, function, provided, local_names)

    @property
    def annotations(self) -> Iterable[Any]:
        return (*(parameter.annotation for parameter in self.parameters), self.returns)


class _Map(NamedTuple):
    """``map=`` and ``map_errors=`` of a node."""

    over: Any
    errors: MapErrors

    @property
    def collects(self) -> bool:
        if self.errors not in get_args(MapErrors):
            raise InvalidOptionError(f'map_errors must be "fail" or "collect", not {shown(self.errors)}')
        if self.errors == COLLECT and self.over is None:
            raise InvalidOptionError("map_errors= is for a node with map=")
        return self.errors == COLLECT


@dataclass(slots=True, eq=False)
class NodeSpec:
    """The definition of a node in this process. The edges of a run's nodes are those of its stored shape."""

    name: str
    after: tuple[str, ...]
    map: str | None
    collects: bool
    """True if failed items are part of the node's result."""
    function: Function | None
    """None for a node that starts ``run``."""
    is_async: bool
    decode: Callable[[Any], Any]
    retry: Retry
    timeout_ms: int | None
    when: Function | None
    run: str | None
    input: Function | None

    @property
    def shape(self) -> NodeShape:
        return NodeShape(self.name, self.after, self.map, self.run, COLLECT if self.collects else None)

    @property
    def returns(self) -> Any:
        """The type of the node's result; ``Any`` if it is not known."""
        returned = Any if self.function is None else self.function.returns
        if self.map is None:
            return returned
        return list[Ok[returned] | Failed] if self.collects else list[returned]  # type: ignore[valid-type]

    @property
    def functions(self) -> Iterable[tuple[str, Function]]:
        for what, function in (("it", self.function), ("its when=", self.when), ("its input=", self.input)):
            if function is not None:
                yield what, function


@dataclass(eq=False)
class Node(Generic[P, R]):
    """A node of a graph. Calling it calls the function it was made from."""

    name: str
    fn: Callable[P, R] = field(repr=False)

    def __post_init__(self) -> None:
        functools.update_wrapper(self, self.fn)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.fn(*args, **kwargs)


class Graph(Startable[In, Any]):
    """A graph of nodes, made by ``app.graph``.

    Example::

        etl = app.graph("etl")

        @etl.node
        async def extract(params: Source) -> list[int]: ...

        @etl.node(after=[extract])
        async def total(extract: list[int]) -> int: ...
    """

    def __init__(
        self,
        name: str,
        version: int,
        params: Any,
        *,
        limits: Limits,
        local_names: Callable[[], Mapping[str, Any]],
        changed: Callable[[Graph[Any]], None],
    ) -> None:
        self.name = name
        self.version = version
        self._params = params
        self._limits = limits
        self._local_names = local_names
        self._changed = changed
        self._specs: dict[str, NodeSpec] = {}
        self._undefined: dict[str, list[str]] = {}
        """Names of nodes that are not defined yet, each with the nodes that come after it."""
        self._inputs: list[Parameter] = []
        self._shape: Shape | None = None

    def __repr__(self) -> str:
        return f"<Graph {self.name} of {len(self._specs)} nodes>"

    # --- building

    @overload
    def node(self, fn: Callable[P, R], /) -> Node[P, R]: ...

    @overload
    def node(
        self,
        /,
        *,
        name: str | None = ...,
        after: Iterable[Any] = ...,
        map: Any = ...,
        map_errors: MapErrors = ...,
        when: Callable[..., bool] | None = ...,
        retry: Retry | None = ...,
        timeout: Duration | None = ...,
    ) -> Callable[[Callable[P, R]], Node[P, R]]: ...

    @overload
    def node(
        self,
        /,
        *,
        run: Any,
        input: Callable[..., Any] | None = ...,
        name: str | None = ...,
        after: Iterable[Any] = ...,
        map: Any = ...,
        map_errors: MapErrors = ...,
        when: Callable[..., bool] | None = ...,
    ) -> Node[..., Any]: ...

    def node(
        self,
        fn: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        after: Iterable[Any] = (),
        map: Any = None,
        map_errors: MapErrors = "fail",
        when: Callable[..., bool] | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        run: Any = None,
        input: Callable[..., Any] | None = None,
    ) -> Any:
        """Add a node: a function (or step) whose parameters are named after the nodes whose results they receive.

        ``after``: the nodes that must be done before this one, as nodes or by name. ``map``: a node that returns a
        list; the function is called once for each item, and the result is the list of results. ``map_errors``: the
        effect of failed items when all items have ended: ``"fail"`` fails the node; with ``"collect"`` the result is a
        list of ``Ok | Failed``. ``when``: a function of the results; if it returns false, the node and all nodes after
        it are skipped. ``run``: a workflow, chain or graph that is started in place of a function. ``input``: a
        function of the results that returns the input of that run.
        """
        if run is not None:
            return self._add_child(run, input, name, after, _Map(map, map_errors), when)
        if input is not None:
            raise InvalidOptionError("input= is for a node with run=; a function gets the results in its parameters")
        local_names, mapped = self._local_names(), _Map(map, map_errors)

        def register(function: Callable[..., Any]) -> Node[Any, Any]:
            return self._add_function(function, name, after, mapped, when, retry, timeout, local_names)

        return register if fn is None else register(fn)

    def _add_function(
        self, function: Callable[..., Any], name: str | None, after: Iterable[Any], mapped: _Map,
        when: Callable[..., bool] | None, retry: Retry | None, timeout: Duration | None,
        local_names: Mapping[str, Any],
    ) -> Node[Any, Any]:  # fmt: skip
        if not callable(function):
            raise DefinitionError(f"a node needs a function, not {shown(function)}")
        chosen = self._check_name(str(getattr(function, "__name__", "")) if name is None else name)
        check_function(f"node {chosen!r}", inspect.unwrap(function))
        step = getattr(function, "spec", None)  # a registered step: the node keeps its retry and timeout
        plain = inspect.unwrap(function)
        if retry is not None and not isinstance(retry, Retry):
            raise InvalidOptionError(f"retry must be a Retry(...), not {shown(retry)}")
        parents, map_over = self._edges(chosen, after, mapped.over)
        node_function = Function.of(f"node {chosen!r}", plain, parents, local_names)
        self._add(
            NodeSpec(
                chosen,
                parents,
                map_over,
                mapped.collects,
                function=node_function,
                is_async=is_async(plain),
                decode=codec.decoder(node_function.returns),
                retry=retry or getattr(step, "retry", None) or Retry(),
                timeout_ms=timeout_ms("timeout", timeout)
                if timeout is not None
                else getattr(step, "timeout_ms", DEFAULT_TIMEOUT_MS),
                when=None if when is None else Function.plain(f"when= of node {chosen!r}", when, parents, local_names),
                run=None,
                input=None,
            )
        )
        return Node(chosen, plain)

    def _add_child(
        self, run: Any, make_input: Callable[..., Any] | None, name: str | None, after: Iterable[Any], mapped: _Map,
        when: Callable[..., bool] | None,
    ) -> Node[..., Any]:  # fmt: skip
        workflow = run if isinstance(run, str) else getattr(run, "name", None)
        if not isinstance(workflow, str):
            raise DefinitionError(f"run= must be a workflow, a chain, a graph or a name, not {shown(run)}")
        chosen = self._check_name(workflow if name is None else name)
        local_names = self._local_names()
        parents, map_over = self._edges(chosen, after, mapped.over)
        self._add(
            NodeSpec(
                chosen,
                parents,
                map_over,
                mapped.collects,
                function=None,
                is_async=False,
                decode=codec.decoder(Any),
                retry=Retry(),
                timeout_ms=None,
                when=None if when is None else Function.plain(f"when= of node {chosen!r}", when, parents, local_names),
                run=workflow,
                input=None
                if make_input is None
                else Function.plain(f"input= of node {chosen!r}", make_input, parents, local_names),
            )
        )
        return Node(chosen, _not_callable)

    def _check_name(self, name: str) -> str:
        chosen = check_node_name(name, self._limits)
        if chosen == PARAMS:
            raise DefinitionError(f"a node cannot be named {PARAMS!r}: that parameter receives the input of the run")
        if chosen in self._specs:
            raise DefinitionError(f"graph {self.name!r} has a node {chosen!r} already; give one of them another name=")
        if len(self._specs) + 1 >= MAX_NODES:
            raise DefinitionError(f"graph {self.name!r} has {len(self._specs)} nodes, and more cannot be numbered")
        return chosen

    def _edges(self, name: str, after: Iterable[Any], map_over: Any) -> tuple[tuple[str, ...], str | None]:
        if isinstance(after, str | Node) or not isinstance(after, Iterable):
            raise DefinitionError(f"after= of node {name!r} must be a list of nodes, not {shown(after)}")
        parents = [self._parent(name, parent) for parent in after]
        if map_over is not None:
            map_over = self._parent(name, map_over)
            if map_over not in parents:
                parents.append(map_over)
        if len(set(parents)) < len(parents):
            raise DefinitionError(f"after= of node {name!r} names a node twice: {', '.join(parents)}")
        return tuple(parents), map_over

    def _parent(self, name: str, parent: Any) -> str:
        if isinstance(parent, str):
            return parent
        parent_name = getattr(parent, "name", None) or getattr(parent, "__name__", None)
        if not isinstance(parent_name, str) or parent_name not in self._specs:
            raise DefinitionError(
                f"node {name!r} comes after {shown(parent)}, which is no node of graph {self.name!r}; give the name of "
                "a node that is defined later as text"
            )
        return parent_name

    def _add(self, spec: NodeSpec) -> None:
        successors = self._undefined.get(spec.name, [])
        if successors or spec.name in spec.after:
            self._check_cycle(spec)
        for parent in spec.after:
            if parent in self._specs:
                self._check_edge(self._specs[parent], spec)
        for name in successors:
            self._check_edge(spec, self._specs[name])
        self._specs[spec.name] = spec
        self._undefined.pop(spec.name, None)
        for parent in spec.after:
            if parent not in self._specs:
                self._undefined.setdefault(parent, []).append(spec.name)
        self._shape = None
        inputs = [p for _, function in spec.functions for p in function.parameters if p.name == PARAMS]
        if inputs:
            self._inputs += inputs
            self.__dict__.pop("_exact", None)
            self._changed(self)

    def _check_cycle(self, spec: NodeSpec) -> None:
        path = cycle({node.name: node.after for node in (*self._specs.values(), spec)})
        if path is not None:
            raise DefinitionError(f"graph {self.name!r} has a cycle: {' -> '.join(reversed(path))}")

    def _check_edge(self, source: NodeSpec, target: NodeSpec) -> None:
        if source.name not in target.after or source.function is None:
            return
        returned = source.returns
        mapped = target.map == source.name
        if mapped and not is_list(returned):
            raise DefinitionError(
                f"node {target.name!r} is mapped over {source.name!r}, which returns {_shown(returned)} and no list"
            )
        for what, function in target.functions:
            for parameter in function.parameters:
                passed = item_type(returned) if mapped and what != "its when=" else returned
                if parameter.name == source.name and is_mismatch(passed, parameter.annotation):
                    raise DefinitionError(
                        f"node {target.name!r}: {what} takes {parameter.name}: {_shown(parameter.annotation)}, and "
                        f"node {source.name!r} gives {_shown(passed)}"
                    )

    # --- reading

    @property
    def shape(self) -> Shape:
        """The nodes with their edges. Raises ``DefinitionError`` for an empty graph or an undefined predecessor."""
        if self._shape is None:
            if not self._specs:
                raise DefinitionError(f"graph {self.name!r} has no nodes")
            for spec in self._specs.values():
                for parent in spec.after:
                    if parent not in self._specs:
                        raise DefinitionError(
                            f"node {spec.name!r} comes after {parent!r}, which graph {self.name!r} does not have; "
                            f"it has {', '.join(self._specs)}"
                        )
            self._shape = Shape([spec.shape for spec in self._specs.values()])
        return self._shape

    def check_types(self) -> None:
        """Raise ``DefinitionError`` if an annotation by which values are decoded cannot be resolved."""
        for spec in self._specs.values():
            for _, function in spec.functions:
                for annotation in function.annotations:
                    check_annotation(annotation)

    @property
    def specs(self) -> Mapping[str, NodeSpec]:
        return self._specs

    @property
    def params_type(self) -> Any:
        """The type given to ``app.graph``, or the first annotation of a node's ``params`` parameter."""
        if self._params is not Any:
            return self._params
        return next((p.annotation for p in self._inputs if p.annotation is not Any), Any)

    def decode_params(self, value: Any) -> Any:
        """Decode the input of a run. Every node must accept the input; it may be None if no node requires it."""
        if value is None and not any(p.required for p in self._inputs):
            return None
        decoded = self._exact(value)
        for parameter in self._inputs:
            parameter.decode(value)
        return decoded

    @functools.cached_property
    def _exact(self) -> Callable[[Any], Any]:
        return codec.decoder(self.params_type, exact=True)

    def blueprint(self, now_ms: int) -> Blueprint:
        shape = self.shape
        meta = Fact(FactState.PLAN, PLAN_KEY, 0, "meta", now_ms, now_ms, value=shape.meta(self.version, now_ms))
        return Blueprint([meta], shape.units)

    def to_mermaid(self) -> str:
        """The graph as a Mermaid flowchart."""
        return mermaid(self.shape)


def _not_callable(*_: Any) -> Any:
    raise DefinitionError("this node starts another run; it cannot be called")


def _shown(annotation: Any) -> str:
    return (
        annotation.__name__ if isinstance(annotation, type) and not hasattr(annotation, "__args__") else str(annotation)
    )
