"""Definitions of graphs: nodes (``node_spec.py``), the edges between them, and the checks at the time of definition."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, NamedTuple, ParamSpec, TypeAlias, TypeVar, get_args, overload

from holdfast.core import codec
from holdfast.core.durations import Duration, timeout_ms
from holdfast.core.functions import check_function, is_async
from holdfast.core.limits import Limits
from holdfast.core.names import check_node_name
from holdfast.core.retry import Retry, check_retry
from holdfast.core.show import shown
from holdfast.core.typed import check_annotation
from holdfast.errors import DefinitionError, InvalidOptionError
from holdfast.graph.mermaid import mermaid
from holdfast.graph.node_spec import PARAMS, Function, NodeSpec, Parameter, check_edge
from holdfast.graph.shape import COLLECT, MAX_NODES, Shape, cycle
from holdfast.kernel.definition import Blueprint
from holdfast.kernel.flow import Limit, check_limits
from holdfast.kernel.startable import In, Startable
from holdfast.kernel.unit_driver import PLAN_KEY
from holdfast.store.protocol import Fact, FactState

P = ParamSpec("P")
R = TypeVar("R", covariant=True)

DEFAULT_TIMEOUT_MS = 600_000

MapErrors: TypeAlias = Literal["fail", "collect"]


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
        limits: Iterable[Limit] = ...,
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
        limits: Iterable[Limit] = (),
        run: Any = None,
        input: Callable[..., Any] | None = None,
    ) -> Any:
        """Add a node: a function (or step) whose parameters are named after the nodes whose results they receive.

        ``after``: the nodes that must be done before this one, as nodes or by name. ``map``: a node that returns a
        list; the function is called once for each item, and the result is the list of results. ``map_errors``: the
        effect of failed items when all items have ended: ``"fail"`` fails the node; with ``"collect"`` the result is a
        list of ``Ok | Failed``. ``when``: a function of the results; if it returns false, the node and all nodes after
        it are skipped. ``run``: a workflow, chain or graph that is started in place of a function. ``input``: a
        function of the results that returns the input of that run. ``limits``: limits under which the function runs;
        ``limit.by(fn)`` gets the arguments of the function by name.
        """
        if run is not None:
            return self._add_run_node(run, input, name, after, _Map(map, map_errors), when)
        if input is not None:
            raise InvalidOptionError("input= is for a node with run=; a function gets the results in its parameters")
        local_names, mapped = self._local_names(), _Map(map, map_errors)
        checked_limits = check_limits("a node", limits)

        def register(function: Callable[..., Any]) -> Node[Any, Any]:
            return self._add_function(function, name, after, mapped, when, retry, timeout, local_names, checked_limits)

        return register if fn is None else register(fn)

    def _add_function(
        self, function: Callable[..., Any], name: str | None, after: Iterable[Any], mapped: _Map,
        when: Callable[..., bool] | None, retry: Retry | None, timeout: Duration | None,
        local_names: Mapping[str, Any], limits: tuple[Limit, ...],
    ) -> Node[Any, Any]:  # fmt: skip
        if not callable(function):
            raise DefinitionError(f"a node needs a function, not {shown(function)}")
        chosen = self._check_name(str(getattr(function, "__name__", "")) if name is None else name)
        check_function(f"node {chosen!r}", inspect.unwrap(function))
        step = getattr(function, "spec", None)  # a registered step: the node keeps its retry and timeout
        plain = inspect.unwrap(function)
        if retry is not None:
            check_retry(retry)
        predecessors, map_over = self._edges(chosen, after, mapped.over)
        node_function = Function.of(f"node {chosen!r}", plain, predecessors, local_names)
        self._add(
            NodeSpec(
                chosen,
                predecessors,
                map_over,
                mapped.collects,
                function=node_function,
                is_async=is_async(plain),
                decode=codec.decoder(node_function.returns),
                retry=retry or getattr(step, "retry", None) or Retry(),
                timeout_ms=timeout_ms("timeout", timeout)
                if timeout is not None
                else getattr(step, "timeout_ms", DEFAULT_TIMEOUT_MS),
                when=None
                if when is None
                else Function.plain(f"when= of node {chosen!r}", when, predecessors, local_names),
                run=None,
                input=None,
                limits=limits or getattr(step, "limits", ()),
            )
        )
        return Node(chosen, plain)

    def _add_run_node(
        self, run: Any, make_input: Callable[..., Any] | None, name: str | None, after: Iterable[Any], mapped: _Map,
        when: Callable[..., bool] | None,
    ) -> Node[..., Any]:  # fmt: skip
        workflow = run if isinstance(run, str) else getattr(run, "name", None)
        if not isinstance(workflow, str):
            raise DefinitionError(f"run= must be a workflow, a chain, a graph or a name, not {shown(run)}")
        chosen = self._check_name(workflow if name is None else name)
        local_names = self._local_names()
        predecessors, map_over = self._edges(chosen, after, mapped.over)
        self._add(
            NodeSpec(
                chosen,
                predecessors,
                map_over,
                mapped.collects,
                function=None,
                is_async=False,
                decode=codec.decoder(Any),
                retry=Retry(),
                timeout_ms=None,
                when=None
                if when is None
                else Function.plain(f"when= of node {chosen!r}", when, predecessors, local_names),
                run=workflow,
                input=None
                if make_input is None
                else Function.plain(f"input= of node {chosen!r}", make_input, predecessors, local_names),
            )
        )
        return Node(chosen, _not_callable)

    def _check_name(self, name: str) -> str:
        chosen = check_node_name(name, self._limits)
        if chosen == PARAMS:
            raise DefinitionError(f"a node cannot be named {PARAMS!r}: that parameter receives the input of the run")
        if chosen in self._specs:
            raise DefinitionError(f"graph {self.name!r} has a node {chosen!r} already; pass another name=")
        if len(self._specs) + 1 >= MAX_NODES:
            raise DefinitionError(f"graph {self.name!r} has {len(self._specs)} nodes, which is the maximum")
        return chosen

    def _edges(self, name: str, after: Iterable[Any], map_over: Any) -> tuple[tuple[str, ...], str | None]:
        if isinstance(after, str | Node) or not isinstance(after, Iterable):
            raise DefinitionError(f"after= of node {name!r} must be a list of nodes, not {shown(after)}")
        predecessors = [self._predecessor_name(name, predecessor) for predecessor in after]
        if map_over is not None:
            map_over = self._predecessor_name(name, map_over)
            if map_over not in predecessors:
                predecessors.append(map_over)
        if len(set(predecessors)) < len(predecessors):
            raise DefinitionError(f"after= of node {name!r} names a node twice: {', '.join(predecessors)}")
        return tuple(predecessors), map_over

    def _predecessor_name(self, name: str, predecessor: Any) -> str:
        if isinstance(predecessor, str):
            return predecessor
        predecessor_name = getattr(predecessor, "name", None) or getattr(predecessor, "__name__", None)
        if not isinstance(predecessor_name, str) or predecessor_name not in self._specs:
            raise DefinitionError(
                f"node {name!r} comes after {shown(predecessor)}, which is not a node of graph {self.name!r}; "
                "give the name of a node that is defined later as text"
            )
        return predecessor_name

    def _add(self, spec: NodeSpec) -> None:
        successors = self._undefined.get(spec.name, [])
        if successors or spec.name in spec.after:
            self._check_cycle(spec)
        for predecessor in spec.after:
            if predecessor in self._specs:
                check_edge(self._specs[predecessor], spec)
        for name in successors:
            check_edge(spec, self._specs[name])
        self._specs[spec.name] = spec
        self._undefined.pop(spec.name, None)
        for predecessor in spec.after:
            if predecessor not in self._specs:
                self._undefined.setdefault(predecessor, []).append(spec.name)
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

    # --- reading

    @property
    def shape(self) -> Shape:
        """The nodes with their edges. Raises ``DefinitionError`` for an empty graph or an undefined predecessor."""
        if self._shape is None:
            if not self._specs:
                raise DefinitionError(f"graph {self.name!r} has no nodes")
            for spec in self._specs.values():
                for predecessor in spec.after:
                    if predecessor not in self._specs:
                        raise DefinitionError(
                            f"node {spec.name!r} comes after {predecessor!r}, which graph {self.name!r} does not have; "
                            f"it has {', '.join(self._specs)}"
                        )
            self._shape = Shape([spec.shape for spec in self._specs.values()])
        return self._shape

    def check_types(self) -> None:
        """Raise ``DefinitionError`` if an annotation by which values are decoded cannot be resolved."""
        for annotation in self.annotations():
            check_annotation(annotation)

    def annotations(self) -> Iterator[Any]:
        """The annotations of all nodes."""
        for spec in self._specs.values():
            for _, function in spec.functions:
                yield from function.annotations

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
