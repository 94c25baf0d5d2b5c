"""Bounded, redacted text of values: the local variables of workflow code as a person may see them.

A value is hidden if its name (of a variable, a field, or a key of a mapping) contains one of the redacted names.
Formatting never raises: a value whose ``repr`` fails is shown as its type.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Any

from holdfast.core.show import type_name
from holdfast.errors import InvalidOptionError

REDACTED = "<redacted>"
DEFAULT_NAMES = (
    "password", "passwd", "passphrase", "secret", "token", "api_key", "access_key", "private_key", "authorization",
    "credential", "cookie",
)  # fmt: skip
"""Names that are redacted in every app."""

_MAX_TEXT = 200
"""Maximum length of the text of one value."""
_MAX_ITEMS = 20
_MAX_DEPTH = 4
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_SEPARATORS = re.compile(r"[^a-z0-9]")


def redacted_names(names: Iterable[str]) -> tuple[str, ...]:
    """The checked names of ``Holdfast(redact=...)``."""
    chosen = tuple(names)
    if isinstance(names, str) or not all(isinstance(name, str) and _plain(name) for name in chosen):
        raise InvalidOptionError(f"redact= takes names of variables and fields, such as ('iban',), not {names!r}")
    return chosen


class Redaction:
    """The names whose values an app hides, and the text of all other values."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        """``names``: names to redact besides ``DEFAULT_NAMES``. Case and separators do not matter."""
        words = dict.fromkeys(_plain(name) for name in (*DEFAULT_NAMES, *names))
        self._word = re.compile("|".join(map(re.escape, words)))
        spelled = "|".join("[-_ ]?".join(map(re.escape, word)) for word in words)
        self._assignment = re.compile(
            rf"""(?i)((?:{spelled})[\w-]*["']?\s*[:=]\s*)("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|(?:bearer\s+)?[^\s,;&)}}\]]+)"""
        )

    def hides(self, name: object) -> bool:
        """True if values of this name are secret."""
        return isinstance(name, str) and self._word.search(_plain(name)) is not None

    def plain(self, value: Any) -> Any:
        """A JSON value in which values of redacted names are hidden, and values that a text assigns to them."""
        if isinstance(value, str):
            return self.message(value)
        if isinstance(value, dict):
            return {key: REDACTED if self.hides(key) else self.plain(item) for key, item in value.items()}
        return [self.plain(item) for item in value] if isinstance(value, list) else value

    def message(self, text: str) -> str:
        """A text without the values that it assigns to redacted names."""
        return self._without_assignments(text)

    def local(self, name: str, value: Any) -> str:
        """The text of a variable."""
        return REDACTED if self.hides(name) else self.text(value)

    def text(self, value: Any) -> str:
        """The text of a value, at most ``_MAX_TEXT`` characters."""
        try:
            text = self._shown(value, _MAX_DEPTH)
        except Exception:  # a user's class with attributes that raise
            text = f"<{type_name(value)}>"
        return text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 1] + "…"

    def _shown(self, value: Any, depth: int) -> str:
        if isinstance(value, str | bytes | bytearray):
            return self._without_assignments(_bounded_repr(value))
        if value is None or isinstance(value, bool | int | float):
            return _bounded_repr(value)
        if depth == 0:
            return "…"
        if isinstance(value, Mapping):
            return "{" + self._joined(self._entry(*entry, depth) for entry in value.items()) + "}"
        if (fields := _fields(value)) is not None:
            parts = (
                f"{name}={REDACTED if self.hides(name) else self._shown(item, depth - 1)}" for name, item in fields
            )
            return f"{type(value).__name__}({self._joined(parts)})"
        brackets = _brackets(value)
        if brackets is None:
            return self._without_assignments(_ADDRESS.sub("", _bounded_repr(value)))
        return brackets[0] + self._joined(self._shown(item, depth - 1) for item in value) + brackets[1]

    def _entry(self, key: Any, value: Any, depth: int) -> str:
        return f"{self._shown(key, depth - 1)}: {REDACTED if self.hides(key) else self._shown(value, depth - 1)}"

    @staticmethod
    def _joined(parts: Iterable[str]) -> str:
        """At most ``_MAX_ITEMS`` parts, and no more than fit into the text."""
        chosen: list[str] = []
        length = 0
        for part in parts:
            if len(chosen) == _MAX_ITEMS or length > _MAX_TEXT:
                return ", ".join([*chosen, "…"])
            chosen.append(part)
            length += len(part)
        return ", ".join(chosen)

    def _without_assignments(self, text: str) -> str:
        """Hide values that a text assigns to a redacted name: ``token=abc``, ``"password": "abc"``."""
        return self._assignment.sub(rf"\1{REDACTED}", text)


def _plain(name: str) -> str:
    return _SEPARATORS.sub("", name.lower())


def _bounded_repr(value: Any) -> str:
    """``repr`` of a value. Twice the maximum length, so that an assignment at the end is still recognised."""
    if isinstance(value, str | bytes | bytearray):
        value = value[: 2 * _MAX_TEXT]
    try:
        return repr(value)[: 2 * _MAX_TEXT]
    except Exception:  # a user's __repr__, or an int too long to print
        return f"<{type_name(value)}>"


def _fields(value: Any) -> Iterator[tuple[str, Any]] | None:
    """Names and values of the fields of a dataclass, a named tuple, a pydantic model or an attrs class."""
    cls = type(value)
    if dataclasses.is_dataclass(cls):
        names: Iterable[str] = [field.name for field in dataclasses.fields(cls) if field.repr]
    elif isinstance(value, tuple) and hasattr(cls, "_fields"):
        names = cls._fields
    elif hasattr(cls, "model_fields") or hasattr(cls, "__attrs_attrs__"):
        found = cls.model_fields if hasattr(cls, "model_fields") else [field.name for field in cls.__attrs_attrs__]
        names = list(found)
    else:
        return None
    return ((name, getattr(value, name, "…")) for name in names)


def _brackets(value: Any) -> tuple[str, str] | None:
    if isinstance(value, list):
        return "[", "]"
    if isinstance(value, tuple):
        return "(", ",)" if len(value) == 1 else ")"
    if isinstance(value, Set) and value:
        return "{", "}"
    return None
