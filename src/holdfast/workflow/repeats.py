"""Repeated names of ``ctx.do``: whether a second call means the same step as the first.

The same name again returns the recorded result, whatever the second call passes. Other arguments or another function
are almost always a mistake. Only calls of one execution are compared: arguments are not stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

from holdfast.core import codec


class Given(NamedTuple):
    """What a call of ``ctx.do`` passed besides the name."""

    function: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


def difference(first: Given, second: Given) -> str | None:
    """How the second call differs from the first; None if they mean the same, or cannot be compared."""
    first, second = _unwrapped(first), _unwrapped(second)
    if not _same_function(first.function, second.function):
        return f"another function ({_name(second.function)}, not {_name(first.function)})"
    return None if _same_arguments(first, second) else "other arguments"


def _unwrapped(given: Given) -> Given:
    """The call that a ``functools.partial`` stands for."""
    function = given.function
    if not isinstance(function, partial):
        return given
    return _unwrapped(Given(function.func, (*function.args, *given.args), {**function.keywords, **given.kwargs}))


def _same_function(first: Any, second: Any) -> bool:
    """True also for functions that the same definition made at two times: a lambda, a closure, a bound method."""
    if first is second or first == second:
        return True
    code = getattr(first, "__code__", None)
    return code is not None and code is getattr(second, "__code__", None)


def _same_arguments(first: Given, second: Given) -> bool:
    try:
        return _encoded(first) == _encoded(second)
    except Exception:  # arguments may be anything; what is no JSON is not compared
        return True


def _encoded(given: Given) -> bytes:
    return codec.encode([given.args, dict(given.kwargs)], what="arguments")


def _name(function: Any) -> str:
    return str(getattr(function, "__qualname__", None) or repr(function))


def warning(name: str, how: str) -> str:
    return (
        f"step {name!r} was asked for again with {how}; the recorded result of the first call is returned and nothing "
        "is called. Give the second step another name, for example with the item or the index in it"
    )
