"""What a run says of itself: attributes under which it can be found, and a memo that is only shown.

Owns the types an attribute can have and how they compare. Texts compare by their code points, moments as their text in
UTC, truth values as 0 and 1; numbers and texts are never equal.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeAlias

from holdfast.core import codec
from holdfast.core.show import shown
from holdfast.errors import InvalidOptionError

Scalar = str | int | float
Compared: TypeAlias = tuple[str, str, Scalar]
"""A condition on an attribute: its key, an operator, and the value it is compared with."""

_KEY = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.-]{0,63}")
_LONGEST_TEXT = 1000
_MOST_KEYS = 100
_LARGEST_INT = 2**53
_OPERATIONS = {"=": operator.eq, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
OPERATORS = (*_OPERATIONS,)


def check_search(values: Any) -> dict[str, Any]:
    """The attributes as plain JSON values, or an error that names the one that cannot be."""
    if not isinstance(values, Mapping):
        raise InvalidOptionError(f"search must be a mapping of names to values, not {shown(values)}")
    if len(values) > _MOST_KEYS:
        raise InvalidOptionError(f"search has {len(values)} attributes; at most {_MOST_KEYS} are allowed")
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
    """Attributes as what is looked for: one term each, or one for each text of a list."""
    found: list[tuple[str, Scalar]] = []
    for key, value in values.items():
        several = value if isinstance(value, list) else [value]
        found += [(key, comparable(one)) for one in dict.fromkeys(several)]
    return found


def comparable(value: Any) -> Scalar:
    """A plain attribute as the store compares it."""
    return int(value) if isinstance(value, bool) else value


def conditions(key: str, asked: Any) -> list[Compared]:
    """A filter, or a list of filters that all must hold: ``[(">=", 5), ("<", 10)]``."""
    return [_condition(key, one) for one in (asked if isinstance(asked, list) else [asked])]


def holds(condition: Compared, values: Mapping[str, Any]) -> bool:
    """True if attributes meet a condition, as the stores decide it when they list."""
    key, op, wanted = condition
    return any(
        isinstance(value, str) == isinstance(wanted, str) and _OPERATIONS[op](value, wanted)
        for name, value in terms_of(values)
        if name == key
    )


def _condition(key: str, asked: Any) -> Compared:
    """A value that it equals, or ``(">=", 5)``."""
    op, value = "=", asked
    if isinstance(asked, tuple):
        if len(asked) != 2 or asked[0] not in OPERATORS:
            raise InvalidOptionError(
                f"search {key!r}: a filter is a value, or a pair such as ('>=', 5); not {shown(asked)}"
            )
        op, value = asked
    if isinstance(value, list | tuple):
        raise InvalidOptionError(f"search {key!r}: a filter compares with one value, not {shown(value)}")
    return check_key(key), op, comparable(_plain(key, value))


def _plain(key: str, value: Any) -> Any:
    if isinstance(value, bool) or (isinstance(value, int) and abs(value) <= _LARGEST_INT):
        return value if isinstance(value, bool) else int(value)
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, str) and len(value) <= _LONGEST_TEXT:
        return str.__str__(value)
    if isinstance(value, datetime):
        return _moment(key, value)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes) and all(isinstance(v, str) for v in value):
        return [_plain(key, one) for one in value]
    raise InvalidOptionError(
        f"search attribute {key!r} must be text of up to {_LONGEST_TEXT} characters, an int up to 2**53, "
        f"a finite float, a bool, an aware datetime or a list of texts, not {shown(value)}"
    )


def _moment(key: str, value: datetime) -> str:
    """Text of one width, so that the order of texts is the order of times."""
    if value.tzinfo is None:
        raise InvalidOptionError(f"search attribute {key!r} needs an aware datetime, not {value!r}")
    return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
