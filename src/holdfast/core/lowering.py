"""Conversion of Python values to plain JSON values, with errors that name the path of a value without a JSON form.

This module owns the table of types. ``codec`` turns plain values into bytes; ``typed`` decodes values by annotations.
"""

from __future__ import annotations

import math
import re
from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from pathlib import PurePath
from typing import Any, NoReturn, TypeAlias, TypeGuard, TypeVar, cast
from uuid import UUID

from holdfast.core.secret import Secret, secret_form
from holdfast.core.show import shown, type_name
from holdfast.errors import NotSerializableError

T = TypeVar("T")

MAX_DEPTH = 200
MAX_DIGITS = 4300  # Python's own limit for reading an int from text
SURROGATE_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")

Where: TypeAlias = "tuple[Where, object] | None"  # keys and indexes, from a value up to its root

_INT_BOUND = 10**MAX_DIGITS
_HINTS = {
    "set": "; use a list",
    "frozenset": "; use a list",
    "generator": "; use a list",
    "coroutine": "; was an await forgotten?",
}


def is_object(value: object) -> TypeGuard[dict[Any, Any]]:
    return isinstance(value, dict)


def is_array(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, list | tuple)


def json_form(value: object) -> Any:
    """The next simpler form of a value that is not a JSON type. Raises ``TypeError`` if the value has none."""
    convert = _CONVERT.get(type(value))
    if convert is not None:
        return convert(value)
    if isinstance(value, Enum):
        return value.value
    serializer = getattr(type(value), "__pydantic_serializer__", None)
    if serializer is not None:
        # round_trip leaves out computed fields, which the model does not accept as input
        form = serializer.to_python(value, mode="python", by_alias=True, round_trip=True, warnings=False)
        if form is not value:  # a SecretStr returns itself: it has no JSON form by intent
            return form
    if is_dataclass(value) and not isinstance(value, type):
        return {name: getattr(value, name) for name in _init_fields(type(value))}
    for base, convert in _CONVERT.items():
        if isinstance(value, base):
            return convert(value)
    raise TypeError(f"no JSON form for {type_name(value)}")


@lru_cache(maxsize=1024)
def _init_fields(cls: Any) -> tuple[str, ...]:
    """Names of the stored fields. A field with ``init=False`` is derived from the others by ``__post_init__``."""
    return tuple(f.name for f in fields(cls) if f.init)


def _decimal(value: Decimal) -> str:
    if not value.is_finite():
        raise ValueError("not a finite number")
    return str(value)


def _iso_duration(value: timedelta) -> str:
    sign, value = ("-", -value) if value.days < 0 else ("", value)
    return f"{sign}P{value.days}DT{value.seconds}.{value.microseconds:06}S"


def _base64(value: bytes | bytearray) -> str:
    return b64encode(value).decode("ascii")


_CONVERT: dict[type[Any], Callable[[Any], Any]] = {
    datetime: datetime.isoformat,
    date: date.isoformat,
    time: time.isoformat,
    timedelta: _iso_duration,
    UUID: str,
    Decimal: _decimal,
    bytes: _base64,
    bytearray: _base64,
    PurePath: str,
    Secret: secret_form,
}


def add_form(kind: type[T], convert: Callable[[T], Any]) -> None:
    """Add a type to the table: one of a module that most programs do not load."""
    _CONVERT[kind] = convert


def lower(value: Any, what: str) -> Any:
    """Convert a value to plain JSON types. Raises ``NotSerializableError`` with the path and the type."""
    return _Lowering(what).lower(value, None, 0)


class _Lowering:
    """The conversion of one value. ``inside`` holds the ids of the containers around the current value."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.inside: set[int] = set()

    def lower(self, value: Any, where: Where, depth: int) -> Any:
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return self.text(value, where)
        if isinstance(value, int | float):
            return self.number(value, where)
        if id(value) in self.inside:
            self.refuse(where, "contains itself")
        self.inside.add(id(value))
        try:
            return self.compound(value, where, depth)
        finally:
            self.inside.discard(id(value))

    def compound(self, value: Any, where: Where, depth: int) -> Any:
        if not (is_object(value) or is_array(value)):
            return self.lower(self.form(value, where), where, depth)
        if depth >= MAX_DEPTH:
            self.refuse(where, f"is nested deeper than {MAX_DEPTH} levels")
        if is_object(value):
            return self.mapping(value, where, depth + 1)
        return [self.lower(element, (where, index), depth + 1) for index, element in enumerate(value)]

    def mapping(self, value: dict[Any, Any], where: Where, depth: int) -> dict[str, Any]:
        lowered: dict[str, Any] = {}
        for key, element in value.items():
            here = (where, key)
            text = self.text(self.key(key, where), here)
            if text in lowered:
                self.refuse(where, f"has two keys that both become {shown(text)}")
            lowered[text] = self.lower(element, here, depth)
        return lowered

    def key(self, key: Any, where: Where) -> str:
        try:
            return key_text(key)
        except (TypeError, ValueError):
            self.refuse(where, f"has a key of type {type_name(key)}, which cannot be a JSON key")

    def text(self, value: str, where: Where) -> str:
        # In JSON, such a pair is written like the character that it encodes, and would be read back as that character.
        if not value.isascii() and SURROGATE_PAIR.search(value):
            self.refuse(where, "is text with two surrogates that form a pair, which JSON reads as one character")
        return value

    def number(self, value: float, where: Where) -> float:
        if isinstance(value, float):
            if not math.isfinite(value):
                self.refuse(where, f"is {float.__repr__(value)}, which has no JSON form (float)")
        elif not -_INT_BOUND < value < _INT_BOUND:
            self.refuse(where, f"is an int of more than {MAX_DIGITS} digits")
        return value

    def form(self, value: Any, where: Where) -> Any:
        try:
            return json_form(value)
        except TypeError as error:
            if str(error).startswith("no JSON form"):
                name = type_name(value)
                self.refuse(where, f"is of type {name}, which has no JSON form{_HINTS.get(name, '')}")
            self.refuse_conversion(value, where, error)
        except Exception as error:  # the serializer of a user's model may raise any error
            self.refuse_conversion(value, where, error)

    def refuse_conversion(self, value: Any, where: Where, error: Exception) -> NoReturn:
        self.refuse(where, f"of type {type_name(value)} could not be converted: {error}", error)

    def refuse(self, where: Where, problem: str, cause: Exception | None = None) -> NoReturn:
        raise NotSerializableError(f"{self.what}{_path(where)} {problem}") from cause


def key_text(key: Any) -> str:
    """Convert a dict key to JSON text. Raises ``TypeError`` or ``ValueError`` if the key has no text form."""
    if isinstance(key, str):
        return str.__str__(key)
    if key is None or isinstance(key, bool):
        return {None: "null", True: "true", False: "false"}[key]
    if isinstance(key, Enum):
        return key_text(key.value)
    if isinstance(key, int):
        return int.__repr__(key)
    if isinstance(key, float) and math.isfinite(key):
        return float.__repr__(key)
    if isinstance(key, UUID | date | time):  # a datetime is a date
        return cast("str", json_form(key))
    raise TypeError(f"{type_name(key)} cannot be a JSON key")


def _path(where: Where) -> str:
    steps: list[str] = []
    while where is not None:
        where, step = where
        if isinstance(step, str) and step.isidentifier():
            steps.append(f".{step}" if len(step) <= 40 else f".{step[:40]}…")
        else:
            steps.append(f"[{shown(step, 40)}]")
    return "".join(reversed(steps))
