"""Detection of a name that ``ctx.do`` uses for two different calls.

A second call with the same name returns the recorded result, whatever its function and arguments are. Another function
or other arguments are almost always a mistake. Only calls of one execution are compared: arguments are not stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

from holdfast.core import codec


class NamedCall(NamedTuple):
    """The function and the arguments of a ``ctx.do`` call."""

    function: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


def difference(first: NamedCall, second: NamedCall) -> str | None:
    """The difference between two calls, as text; None if there is none, or the calls cannot be compared."""
    first, second = _unwrapped(first), _unwrapped(second)
    if not _same_function(first.function, second.function):
        return f"another function ({_name(second.function)}, not {_name(first.function)})"
    return None if _same_arguments(first, second) else "other arguments"


def _unwrapped(call: NamedCall) -> NamedCall:
    """The call with a ``functools.partial`` replaced by its function and arguments."""
    function = call.function
    if not isinstance(function, partial):
        return call
    return _unwrapped(NamedCall(function.func, (*function.args, *call.args), {**function.keywords, **call.kwargs}))


def _same_function(first: Any, second: Any) -> bool:
    """True also for two functions made by the same definition: lambdas, closures, bound methods."""
    if first is second or first == second:
        return True
    code = getattr(first, "__code__", None)
    return code is not None and code is getattr(second, "__code__", None)


def _same_arguments(first: NamedCall, second: NamedCall) -> bool:
    try:
        return _encoded(first) == _encoded(second)
    except Exception:  # arguments that cannot be encoded as JSON are not compared
        return True


def _encoded(call: NamedCall) -> bytes:
    return codec.encode([call.args, dict(call.kwargs)], what="arguments")


def _name(function: Any) -> str:
    return str(getattr(function, "__qualname__", None) or repr(function))


def warning(name: str, how: str) -> str:
    return (
        f"step {name!r} was requested again with {how}; the recorded result of the first call is returned and nothing "
        "is called. Give the second step another name, for example with the item or the index in it"
    )
