"""Guards that accept only the documented JSON form of a type: no number as text, no text as a boolean.

Pydantic converts more than its JSON schema documents: an ``int`` accepts ``"12"`` and ``true``. Recorded values are
decoded with these conversions; inputs from outside are accepted only in the documented form.
This module owns the rules for single values; ``typed`` applies them to the parts of a type.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, TypeAlias

from holdfast.core.lowering import json_form

Guard: TypeAlias = Callable[[Any], Any]
Schema: TypeAlias = Mapping[str, Any]

DECIMAL = r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,9})?$"
BASE64 = r"^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"

_PLAIN = (type(None), bool, int, float, str, list, dict)


class _Mismatch:
    """A value that fits no type. Pydantic refuses it with its own message about the expected type."""

    def __repr__(self) -> str:
        return "a value of another JSON type"


_MISMATCH = _Mismatch()


def guard(schema: Schema) -> Guard | None:
    """A function that passes plain values to a pydantic schema only in the schema's JSON form. None: no restriction."""
    if "strict" in schema:
        return None  # the user has set the strictness
    return _guard_of(schema)


def is_lax(schema: Schema) -> bool:
    """True if the user has allowed the schema to accept more than its own JSON form."""
    return schema.get("strict") is False and _guard_of(schema) is not None


def _guard_of(schema: Schema) -> Guard | None:
    match schema.get("type"):
        case "enum" if not _has_custom_lookup(schema["cls"]):
            return _only(_one_of([member.value for member in schema["members"]]))
        case "literal":
            return _only(_one_of(schema["expected"]))
        case str() as type_ if type_ in _FORMS:
            return _only(_FORMS[type_])
        case _:
            return None


def _has_custom_lookup(enum: type[Enum]) -> bool:
    """True if the enum overrides ``_missing_``, and so may accept values that no member has."""
    return getattr(enum._missing_, "__func__", None) is not getattr(Enum._missing_, "__func__", None)


def _only(fits: Callable[[Any], bool]) -> Guard:
    """A guard that replaces plain values that do not fit. Other values come from a user's validator and pass."""
    return lambda value: value if type(value) not in _PLAIN or fits(value) else _MISMATCH


def _one_of(values: list[Any]) -> Callable[[Any], bool]:
    allowed = {_canonical(value) for value in values}
    return lambda value: _canonical(value) in allowed


def _canonical(value: Any) -> str:
    return json.dumps(int(value) if _is_whole(value) else value, default=json_form)


def _is_whole(value: Any) -> bool:
    """True for an integer in the sense of JSON Schema, in which 5.0 is an integer."""
    return (isinstance(value, int) and not isinstance(value, bool)) or (isinstance(value, float) and value.is_integer())


def _is_number(value: Any) -> bool:
    """True for a number that a float can hold. A larger int would become infinity."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        float(value)
    except OverflowError:
        return False
    return True


def _is_text(pattern: str) -> Callable[[Any], bool]:
    compiled = re.compile(pattern, re.ASCII | re.DOTALL)
    return lambda value: isinstance(value, str) and compiled.match(value) is not None


def _is_decimal(value: Any) -> bool:
    return (isinstance(value, int | float) and not isinstance(value, bool)) or _is_decimal_text(value)


_is_decimal_text = _is_text(DECIMAL.removesuffix("$") + r"\Z")

# Checks by the type of a pydantic schema. Pydantic does no conversions for the types that are not listed.
_FORMS: Mapping[str, Callable[[Any], bool]] = {
    "int": _is_whole,
    "float": _is_number,
    "bool": lambda value: isinstance(value, bool),
    "decimal": _is_decimal,
    "datetime": _is_text(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d"),
    "date": _is_text(r"\d{4}-\d\d-\d\d\Z"),
    "time": _is_text(r"\d\d:\d\d"),
    "timedelta": _is_text(r"[+-]?P"),
    "named-tuple": lambda value: isinstance(value, list),
    "call": lambda value: isinstance(value, list),  # a named tuple in pydantic before 2.14
}
