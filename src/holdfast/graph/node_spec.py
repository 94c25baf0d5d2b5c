"""The definition of one node in this process: its functions with their parameters, its edges and its options."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.core import codec
from holdfast.core.functions import check_function, is_async, type_hints
from holdfast.core.retry import Retry
from holdfast.errors import DefinitionError
from holdfast.graph.edges import is_list, is_mismatch, item_type
from holdfast.graph.items import Failed, Ok
from holdfast.graph.shape import COLLECT, NodeShape
from holdfast.kernel.flow import Limit

PARAMS = "params"
"""The name of the parameter that receives the input of the run."""


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
                    f"{what} takes a parameter {parameter.name!r} that is not available; available are "
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
    limits: tuple[Limit, ...] = ()

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
        for what, function in (("its function", self.function), ("its when=", self.when), ("its input=", self.input)):
            if function is not None:
                yield what, function


def check_edge(source: NodeSpec, target: NodeSpec) -> None:
    """Raise ``DefinitionError`` if the result of a node does not fit the parameters of one that comes after it."""
    if source.name not in target.after or source.function is None:
        return
    returned = source.returns
    mapped = target.map == source.name
    if mapped and not is_list(returned):
        raise DefinitionError(
            f"node {target.name!r} is mapped over {source.name!r}, which returns {_shown(returned)}, not a list"
        )
    for what, function in target.functions:
        for parameter in function.parameters:
            passed = item_type(returned) if mapped and what != "its when=" else returned
            if parameter.name == source.name and is_mismatch(passed, parameter.annotation):
                raise DefinitionError(
                    f"node {target.name!r}: {what} takes {parameter.name}: {_shown(parameter.annotation)}, and "
                    f"node {source.name!r} returns {_shown(passed)}"
                )


def _shown(annotation: Any) -> str:
    return (
        annotation.__name__ if isinstance(annotation, type) and not hasattr(annotation, "__args__") else str(annotation)
    )
