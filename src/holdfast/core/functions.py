"""What can be known of a function: its annotations as types, whether it is async, what it closes over."""

from __future__ import annotations

import functools
import inspect
import sys
import typing
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any


def type_hints(function: Callable[..., Any], local_names: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Annotations of a function as types; those that cannot be resolved are left out."""
    target = function.func if isinstance(function, functools.partial) else function
    if not inspect.isroutine(target):
        target = getattr(target, "__call__", target)  # noqa: B004  (an object that is called)
    scope = {**(local_names or {}), **closure_of(target)}
    try:
        return typing.get_type_hints(target, localns=scope, include_extras=True)
    except (NameError, TypeError, AttributeError):
        return _resolvable_hints(target, scope)


def _resolvable_hints(target: Any, scope: Mapping[str, Any]) -> dict[str, Any]:
    found = {}
    module = sys.modules.get(getattr(target, "__module__", ""), None)
    for name, annotation in getattr(target, "__annotations__", {}).items():
        holder = type("Holder", (), {"__annotations__": {name: annotation}})
        try:
            hints = typing.get_type_hints(holder, globalns=vars(module) if module else {}, localns=dict(scope))
        except (NameError, TypeError, AttributeError):
            continue
        found.update(hints)
    return found


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
