"""Inspection of user functions: annotations as types, accepted arguments, and whether the engine can call them."""

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
    """The annotations of a function as types. An annotation that cannot be resolved yet is an ``Unresolved``."""
    target = function.func if isinstance(function, functools.partial) else function
    if not inspect.isroutine(target):
        target = getattr(target, "__call__", target)  # noqa: B004  (a callable object)
    scope = local_names or {}
    try:
        return typing.get_type_hints(target, localns={**scope, **closure_variables(target)}, include_extras=True)
    except _UNRESOLVABLE:
        return {name: _hint(target, name, scope) for name in getattr(target, "__annotations__", {})}


def _hint(target: Any, name: str, scope: Mapping[str, Any]) -> Any:
    unresolved = Unresolved(target, name, scope)
    try:
        return unresolved.evaluate()
    except _UNRESOLVABLE:
        return unresolved


class Unresolved:
    """An annotation with a name that is not defined yet, or that is defined only for type checkers.

    A forward reference is resolved after its module is complete: when the app opens, or at the first use.
    """

    def __init__(self, target: Any, name: str, scope: Mapping[str, Any]) -> None:
        self._target = target
        self._name = name
        self._scope = scope

    def __repr__(self) -> str:
        return str(self._target.__annotations__[self._name])

    def evaluate(self) -> Any:
        owner = type("Owner", (), {"__annotations__": {self._name: self._target.__annotations__[self._name]}})
        names = getattr(inspect.unwrap(self._target), "__globals__", {})
        scope = {**self._scope, **closure_variables(self._target)}
        return typing.get_type_hints(owner, globalns=names, localns=scope, include_extras=True)[self._name]

    def resolve(self) -> Any:
        """Return the type. Raises ``DefinitionError`` if the annotation still cannot be resolved."""
        try:
            return self.evaluate()
        except _UNRESOLVABLE as error:
            function = f"{self._target.__module__}.{self._target.__qualname__}"
            annotated = f"the result of {function}" if self._name == "return" else f"{self._name!r} of {function}"
            raise DefinitionError(
                f"the annotation {self!r} of {annotated} cannot be resolved: {error}. "
                "Values are decoded by this annotation at run time; import its names outside of `if TYPE_CHECKING:`"
            ) from None


def resolved(annotation: Any) -> Any:
    """Return an annotation as a type. Raises ``DefinitionError`` if the annotation cannot be resolved."""
    return annotation.resolve() if isinstance(annotation, Unresolved) else annotation


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments that a function accepts."""

    signature: inspect.Signature | None
    """None: the signature is not known, and all arguments pass."""
    min_positional: int = 0
    max_positional: int = 0
    """A call with ``min_positional`` to ``max_positional`` positional arguments and no keyword arguments passes without
    binding the signature."""

    @classmethod
    def of(cls, function: Callable[..., Any], without: str = "") -> Arguments:
        """Read the arguments of a function. ``without``: the name of a parameter that the caller does not pass.

        The signature is that of the function itself, not of a wrapped function: a decorator may add arguments.
        """
        try:
            signature = inspect.signature(function, follow_wrapped=False)
        except (TypeError, ValueError):  # a built-in without a signature
            return cls(None)
        parameters = [p for p in signature.parameters.values() if p.name != without]
        signature = signature.replace(parameters=parameters)
        positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        if any(p.kind is p.KEYWORD_ONLY and p.default is p.empty for p in parameters):
            return cls(signature, 1, 0)  # an empty range: every call binds the signature
        required = sum(p.default is p.empty for p in positional)
        unlimited = any(p.kind is p.VAR_POSITIONAL for p in parameters)
        return cls(signature, required, sys.maxsize if unlimited else len(positional))

    def check(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Raise ``TypeError``, as a call does, if an argument is missing or unexpected."""
        if (kwargs or not self.min_positional <= len(args) <= self.max_positional) and self.signature is not None:
            self.signature.bind(*args, **kwargs)

    def named(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
        """The arguments of a call by the names of the parameters."""
        if self.signature is None:
            return {**{f"argument_{n}": value for n, value in enumerate(args)}, **kwargs}
        return self.signature.bind(*args, **kwargs).arguments


def check_function(what: str, function: Any) -> None:
    """Raise ``DefinitionError`` for a function that the engine cannot call. ``what`` names it in the message."""
    check_no_generator(what, function)
    if _is_in_class_body(function):
        raise DefinitionError(
            f"{what} is a method, and the engine does not pass its {_first_parameter(function)!r}; "
            "define it outside of the class, or register the bound method of an object"
        )


def check_no_generator(what: str, function: Any) -> None:
    for candidate in (function, getattr(function, "__call__", None)):  # noqa: B004  (a callable object)
        if inspect.isasyncgenfunction(candidate) or inspect.isgeneratorfunction(candidate):
            raise DefinitionError(f"{what} is a generator function (it has `yield`); return a value instead")


def check_handler(what: str, function: Any) -> None:
    """Raise ``DefinitionError`` unless the function can be called with one positional argument."""
    check_function(what, function)
    try:
        Arguments.of(function).check((None,), {})
    except TypeError as error:
        raise DefinitionError(f"{what} must accept one positional argument: {error}") from None


def _is_in_class_body(function: Any) -> bool:
    """True for a function that is defined in a class body and takes ``self`` or ``cls``."""
    if not inspect.isfunction(function):
        return False
    owner = function.__qualname__.rpartition(".")[0]
    return bool(owner) and not owner.endswith("<locals>") and _first_parameter(function) in ("self", "cls")


def _first_parameter(function: Any) -> str:
    return next(iter(inspect.signature(function).parameters), "")


def is_async(function: Callable[..., Any]) -> bool:
    """True if a call of the function returns an awaitable."""
    while isinstance(function, functools.partial):
        function = function.func
    call = getattr(function, "__call__", None)  # noqa: B004
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def closure_variables(function: Any) -> dict[str, Any]:
    """The variables that a function closes over and that have a value."""
    cells = getattr(function, "__closure__", None) or ()
    names = function.__code__.co_freevars if cells else ()
    values: dict[str, Any] = {}
    for name, cell in zip(names, cells, strict=True):
        with suppress(ValueError):  # the variable is assigned later
            values[name] = cell.cell_contents
    return values
