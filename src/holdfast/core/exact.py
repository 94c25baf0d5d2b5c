"""What an input of a type looks like in JSON, exactly: no number written as text, no text for a truth value.

Pydantic converts what it can, and its JSON schema does not say so: to an ``int``, ``"12"`` and ``true`` are as good
as 12. That is right for what was recorded once. An input from outside is read as it is documented.
Owns the rules for single values; which of them stand where in a type is up to ``typed``.
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


class _Nothing:
    """Fits no type, so pydantic refuses it, and says what it wanted in its own words."""

    def __repr__(self) -> str:
        return "a value of another JSON type"


_NOTHING = _Nothing()


def guard(schema: Schema) -> Guard | None:
    """What lets a plain value through to this pydantic schema only in its own JSON form; None: anything may try."""
    if "strict" in schema:
        return None  # the user has decided
    return _guard_of(schema)


def is_lax(schema: Schema) -> bool:
    """Whether the user has decided that this takes more than its own JSON form."""
    return schema.get("strict") is False and _guard_of(schema) is not None


def _guard_of(schema: Schema) -> Guard | None:
    match schema.get("type"):
        case "enum" if not _has_other_names(schema["cls"]):
            return _only(_one_of([member.value for member in schema["members"]]))
        case "literal":
            return _only(_one_of(schema["expected"]))
        case str() as type_ if type_ in _FORMS:
            return _only(_FORMS[type_])
        case _:
            return None


def _has_other_names(enum: type[Enum]) -> bool:
    return getattr(enum._missing_, "__func__", None) is not getattr(Enum._missing_, "__func__", None)


def _only(fits: Callable[[Any], bool]) -> Guard:
    """Values that are not plain were made by a validator of the user's, who knows what it does."""
    return lambda value: value if type(value) not in _PLAIN or fits(value) else _NOTHING


def _one_of(values: list[Any]) -> Callable[[Any], bool]:
    allowed = {_canonical(value) for value in values}
    return lambda value: _canonical(value) in allowed


def _canonical(value: Any) -> str:
    return json.dumps(int(value) if _is_whole(value) else value, default=json_form)


def _is_whole(value: Any) -> bool:
    """To JSON, 5.0 is an integer."""
    return (isinstance(value, int) and not isinstance(value, bool)) or (isinstance(value, float) and value.is_integer())


def _is_number(value: Any) -> bool:
    """An int that no float can hold would become infinity."""
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

# by the type of a pydantic schema; what is not here converts nothing
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
    "call": lambda value: isinstance(value, list),  # the same, as pydantic before 2.14 has it
}
