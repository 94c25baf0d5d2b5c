"""Whether what a node returns can be what another takes, as far as annotations tell.

Results go through JSON, so what counts is the JSON form. Only what is sure not to fit is refused.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.graph.items import Failed, Ok

_FORMS: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    type(None): "nothing",
    Ok: "an object",
    Failed: "an object",
}
_FITS = {("a whole number", "a number")}


def misfit(given: Any, wanted: Any) -> bool:
    """Whether a value of the one annotation is sure not to be one of the other."""
    if given is wanted:
        return False
    if _is_union(given):
        return all(misfit(one, wanted) for one in typing.get_args(given))
    if _is_union(wanted):
        return all(misfit(given, one) for one in typing.get_args(wanted))
    ours, theirs = _form(given), _form(wanted)
    if ours is None or theirs is None:
        return False
    if ours != theirs:
        return (ours, theirs) not in _FITS
    return ours == "a list" and misfit(item_of(given), item_of(wanted))


def item_of(annotation: Any) -> Any:
    """Of what a list is one, as far as is known."""
    arguments = typing.get_args(annotation)
    if _form(annotation) != "a list" or not arguments:
        return Any
    if typing.get_origin(annotation) is tuple and (len(arguments) != 2 or arguments[1] is not ...):
        return Any
    return arguments[0]


def is_list(annotation: Any) -> bool:
    """Whether it may be a list."""
    if _is_union(annotation):
        return any(is_list(one) for one in typing.get_args(annotation))
    return _form(annotation) in (None, "a list")


def _is_union(annotation: Any) -> bool:
    return typing.get_origin(annotation) in (typing.Union, types.UnionType)


def _form(annotation: Any) -> str | None:
    """How JSON shows it; None: that depends."""
    origin = typing.get_origin(annotation) or annotation
    if origin in _FORMS:
        return _FORMS[origin]
    if isinstance(origin, type):
        if issubclass(origin, list | tuple | set | frozenset) or origin is Sequence:
            return None if hasattr(origin, "_fields") else "a list"
        if issubclass(origin, dict) or origin is Mapping:
            return "an object"
    return None
