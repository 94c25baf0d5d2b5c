"""Checks of edges: whether the result of a node can fit a parameter of its successor, by their annotations.

Results are passed as JSON, so the JSON forms are compared. An edge is refused only if the types are certain not to fit.
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


def is_mismatch(returned: Any, parameter: Any) -> bool:
    """True if no value of the annotation ``returned`` can be a value of the annotation ``parameter``."""
    if returned is parameter:
        return False
    if _is_union(returned):
        return all(is_mismatch(member, parameter) for member in typing.get_args(returned))
    if _is_union(parameter):
        return all(is_mismatch(returned, member) for member in typing.get_args(parameter))
    returned_form, parameter_form = _form(returned), _form(parameter)
    if returned_form is None or parameter_form is None:
        return False
    if returned_form != parameter_form:
        return (returned_form, parameter_form) not in _FITS
    return returned_form == "a list" and is_mismatch(item_type(returned), item_type(parameter))


def item_type(annotation: Any) -> Any:
    """The item type of a list annotation; ``Any`` if it is not known."""
    arguments = typing.get_args(annotation)
    if _form(annotation) != "a list" or not arguments:
        return Any
    if typing.get_origin(annotation) is tuple and (len(arguments) != 2 or arguments[1] is not ...):
        return Any
    return arguments[0]


def is_list(annotation: Any) -> bool:
    """True if a value of the annotation can be a list."""
    if _is_union(annotation):
        return any(is_list(member) for member in typing.get_args(annotation))
    return _form(annotation) in (None, "a list")


def _is_union(annotation: Any) -> bool:
    return typing.get_origin(annotation) in (typing.Union, types.UnionType)


def _form(annotation: Any) -> str | None:
    """The JSON form of an annotation's values. None: it depends on the value or is not known."""
    origin = typing.get_origin(annotation) or annotation
    if origin in _FORMS:
        return _FORMS[origin]
    if isinstance(origin, type):
        if issubclass(origin, list | tuple | set | frozenset) or origin is Sequence:
            return None if hasattr(origin, "_fields") else "a list"
        if issubclass(origin, dict) or origin is Mapping:
            return "an object"
    return None
