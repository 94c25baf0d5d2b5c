"""What can be known of a function: its annotations as types, the arguments it takes, whether the engine can call it."""

from __future__ import annotations

import functools
import inspect
import sys
import typing
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from holdfast.errors import DefinitionError

_UNRESOLVABLE = (NameError, TypeError, AttributeError, SyntaxError)


def type_hints(function: Callable[..., Any], local_names: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Annotations of a function as types; each that cannot be resolved yet is an ``Unresolved``."""
    target = function.func if isinstance(function, functools.partial) else function
    if not inspect.isroutine(target):
        target = getattr(target, "__call__", target)  # noqa: B004  (an object that is called)
    scope = local_names or {}
    try:
        return typing.get_type_hints(target, localns={**scope, **closure_of(target)}, include_extras=True)
    except _UNRESOLVABLE:
        return {name: _hint(target, name, scope) for name in getattr(target, "__annotations__", {})}


def _hint(target: Any, name: str, scope: Mapping[str, Any]) -> Any:
    unresolved = Unresolved(target, name, scope)
    try:
        return unresolved.evaluate()
    except _UNRESOLVABLE:
        return unresolved


class Unresolved:
    """An annotation that names something that is not defined yet, or only for type checkers.

    A forward reference can be resolved when its module is complete: when the app opens, or at its first use.
    """

    def __init__(self, target: Any, name: str, scope: Mapping[str, Any]) -> None:
        self._target = target
        self._name = name
        self._scope = scope

    def __repr__(self) -> str:
        return str(self._target.__annotations__[self._name])

    def evaluate(self) -> Any:
        holder = type("Holder", (), {"__annotations__": {self._name: self._target.__annotations__[self._name]}})
        names = getattr(inspect.unwrap(self._target), "__globals__", {})
        scope = {**self._scope, **closure_of(self._target)}
        return typing.get_type_hints(holder, globalns=names, localns=scope, include_extras=True)[self._name]

    def resolve(self) -> Any:
        """The type; raises ``DefinitionError`` if the annotation still cannot be resolved."""
        try:
            return self.evaluate()
        except _UNRESOLVABLE as error:
            function = f"{self._target.__module__}.{self._target.__qualname__}"
            place = f"the result of {function}" if self._name == "return" else f"{self._name!r} of {function}"
            raise DefinitionError(
                f"the annotation {self!r} of {place} cannot be resolved: {error}. "
                "Values are decoded by it at run time; import what it names outside of `if TYPE_CHECKING:`"
            ) from None


def resolved(annotation: Any) -> Any:
    """An annotation as a type; raises ``DefinitionError`` if it cannot be resolved."""
    return annotation.resolve() if isinstance(annotation, Unresolved) else annotation


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments that a function takes."""

    signature: inspect.Signature | None
    """None: not known, so that any arguments pass."""
    least: int = 0
    most: int = 0
    """From ``least`` to ``most`` positional arguments and no others pass without a look at the signature."""

    @classmethod
    def of(cls, function: Callable[..., Any], without: str = "") -> Arguments:
        """``without``: a parameter that somebody else provides.

        The function itself decides, not what it wraps: a decorator may add arguments of its own.
        """
        try:
            signature = inspect.signature(function, follow_wrapped=False)
        except (TypeError, ValueError):  # something built in
            return cls(None)
        parameters = [one for one in signature.parameters.values() if one.name != without]
        signature = signature.replace(parameters=parameters)
        positional = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
        if any(one.kind is one.KEYWORD_ONLY and one.default is one.empty for one in parameters):
            return cls(signature, 1, 0)
        least = sum(one.default is one.empty for one in positional)
        endless = any(one.kind is one.VAR_POSITIONAL for one in parameters)
        return cls(signature, least, sys.maxsize if endless else len(positional))

    def check(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Raise ``TypeError``, as a call would, if an argument is missing or not expected."""
        if (kwargs or not self.least <= len(args) <= self.most) and self.signature is not None:
            self.signature.bind(*args, **kwargs)


def check_function(what: str, function: Any) -> None:
    """Raise ``DefinitionError`` for a definition that no call can satisfy. ``what`` is its name in the message."""
    check_no_generator(what, function)
    if _is_in_class_body(function):
        raise DefinitionError(
            f"{what} is a method, and nobody would pass its {_first_parameter(function)!r}; "
            "define it outside of the class, or register the bound method of an object"
        )


def check_no_generator(what: str, function: Any) -> None:
    for one in (function, getattr(function, "__call__", None)):  # noqa: B004  (an object that is called)
        if inspect.isasyncgenfunction(one) or inspect.isgeneratorfunction(one):
            raise DefinitionError(f"{what} is a generator function (it has `yield`); return a value instead")


def check_handler(what: str, function: Any) -> None:
    """Raise ``DefinitionError`` unless the function can be called with one positional argument."""
    check_function(what, function)
    try:
        Arguments.of(function).check((None,), {})
    except TypeError as error:
        raise DefinitionError(f"{what} is called with one argument: {error}") from None


def _is_in_class_body(function: Any) -> bool:
    """True for a function that is defined in a class and takes the object or the class."""
    if not inspect.isfunction(function):
        return False
    owner = function.__qualname__.rpartition(".")[0]
    return bool(owner) and not owner.endswith("<locals>") and _first_parameter(function) in ("self", "cls")


def _first_parameter(function: Any) -> str:
    return next(iter(inspect.signature(function).parameters), "")


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling it gives something to await."""
    while isinstance(function, functools.partial):
        function = function.func
    call = getattr(function, "__call__", None)  # noqa: B004
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def closure_of(function: Any) -> dict[str, Any]:
    """The variables a function closes over, as far as they have a value yet."""
    cells = getattr(function, "__closure__", None) or ()
    names = function.__code__.co_freevars if cells else ()
    values: dict[str, Any] = {}
    for name, cell in zip(names, cells, strict=True):
        with suppress(ValueError):  # a variable that is assigned later
            values[name] = cell.cell_contents
    return values
