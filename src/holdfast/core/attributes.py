"""Search attributes and the memo of a run. Runs are found by their search attributes; the memo is only displayed.

This module owns the types of attributes and how they compare. Text compares by code points, datetimes as their text in
UTC, booleans as 0 and 1. A number and a text are never equal.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeAlias

from holdfast.core import codec
from holdfast.core.lowering import SURROGATE_PAIR
from holdfast.core.show import shown
from holdfast.errors import InvalidOptionError

Scalar = str | int | float
Condition: TypeAlias = tuple[str, str, Scalar]
"""A condition on an attribute: its key, an operator, and the value to compare with."""

_KEY = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.-]{0,63}")
_MAX_TEXT = 1000
_MAX_KEYS = 100
_MAX_INT = 2**53
_OPERATIONS = {"=": operator.eq, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
OPERATORS = (*_OPERATIONS,)


def check_search(values: Any) -> dict[str, Any]:
    """Return the attributes as plain JSON values. Raises an error that names an invalid attribute."""
    if not isinstance(values, Mapping):
        raise InvalidOptionError(f"search must be a mapping of names to values, not {shown(values)}")
    if len(values) > _MAX_KEYS:
        raise InvalidOptionError(f"search has {len(values)} attributes; at most {_MAX_KEYS} are allowed")
    return {check_key(key): _plain(key, value) for key, value in values.items()}


def check_memo(values: Any, limit: int) -> dict[str, Any]:
    if not isinstance(values, Mapping) or not all(isinstance(key, str) for key in values):
        raise InvalidOptionError(f"memo must be a mapping with text as keys, not {shown(values)}")
    plain: dict[str, Any] = codec.plain(codec.encode(dict(values), what="memo", limit=limit))
    return plain


def check_key(key: Any) -> str:
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        raise InvalidOptionError(
            f"search attribute {shown(key)}: a name has up to 64 letters, digits, '_', '.' and '-', "
            "and begins with a letter or '_'"
        )
    return key


def terms_of(values: Mapping[str, Any]) -> list[tuple[str, Scalar]]:
    """The index terms of attributes: one for each attribute, or one for each text of a list."""
    terms: list[tuple[str, Scalar]] = []
    for key, value in values.items():
        elements = value if isinstance(value, list) else [value]
        terms += [(key, comparable(element)) for element in dict.fromkeys(elements)]
    return terms


def comparable(value: Any) -> Scalar:
    """A plain attribute in the form in which the store compares it."""
    return int(value) if isinstance(value, bool) else value


def conditions(key: str, spec: Any) -> list[Condition]:
    """Conditions on one attribute. ``spec`` is one condition or a list of them: ``[(">=", 5), ("<", 10)]``."""
    return [_condition(key, part) for part in (spec if isinstance(spec, list) else [spec])]


def matches(condition: Condition, values: Mapping[str, Any]) -> bool:
    """True if attributes meet a condition. The stores apply the same rule in lists."""
    key, op, operand = condition
    return any(
        isinstance(value, str) == isinstance(operand, str) and _OPERATIONS[op](value, operand)
        for name, value in terms_of(values)
        if name == key
    )


def _condition(key: str, spec: Any) -> Condition:
    """One condition. ``spec`` is a value to equal, or a pair such as ``(">=", 5)``."""
    op, value = "=", spec
    if isinstance(spec, tuple):
        if len(spec) != 2 or spec[0] not in OPERATORS:
            raise InvalidOptionError(
                f"search {key!r}: a filter is a value, or a pair such as ('>=', 5); not {shown(spec)}"
            )
        op, value = spec
    if isinstance(value, list | tuple):
        raise InvalidOptionError(f"search {key!r}: a filter compares with one value, not {shown(value)}")
    return check_key(key), op, comparable(_plain(key, value))


def _plain(key: str, value: Any) -> Any:
    if isinstance(value, bool) or (isinstance(value, int) and abs(value) <= _MAX_INT):
        return value if isinstance(value, bool) else int(value)
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, str) and len(value) <= _MAX_TEXT and not SURROGATE_PAIR.search(value):
        return str.__str__(value)
    if isinstance(value, datetime):
        return _datetime_text(key, value)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes) and all(isinstance(v, str) for v in value):
        return [_plain(key, text) for text in value]
    raise InvalidOptionError(
        f"search attribute {key!r} must be text of up to {_MAX_TEXT} characters, an int up to 2**53, "
        f"a finite float, a bool, an aware datetime or a list of texts, not {shown(value)}"
    )


def _datetime_text(key: str, value: datetime) -> str:
    """Text of a fixed width, so that the order of the texts is the order of the times."""
    if value.tzinfo is None:
        raise InvalidOptionError(f"search attribute {key!r} needs an aware datetime, not {value!r}")
    try:
        utc = value.astimezone(UTC)
    except OverflowError:
        raise InvalidOptionError(f"search attribute {key!r}: {value!r} is no date in UTC") from None
    return utc.isoformat(timespec="milliseconds").replace("+00:00", "Z")
