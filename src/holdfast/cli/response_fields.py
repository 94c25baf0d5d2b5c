"""Lenient access to the fields of responses. A field that is missing or has an unexpected type reads as empty.

So a newer server, an older server or a server of another kind cannot crash a command; the output is only incomplete.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

TERMINAL = frozenset({"complete", "errored", "terminated", "cancelled"})
"""The statuses of a run that has ended."""


class Fields:
    """One JSON object of a response."""

    def __init__(self, value: object) -> None:
        self._fields: Mapping[str, Any] = value if isinstance(value, dict) else {}

    def __contains__(self, name: str) -> bool:
        return name in self._fields

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __bool__(self) -> bool:
        return bool(self._fields)

    def plain(self) -> dict[str, Any]:
        """All fields, as they were received."""
        return dict(self._fields)

    def any(self, name: str) -> Any:
        return self._fields.get(name)

    def text(self, name: str) -> str:
        value = self._fields.get(name)
        return value if isinstance(value, str) else ""

    def number(self, name: str) -> int | None:
        value = self._fields.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def true(self, name: str) -> bool:
        return self._fields.get(name) is True

    def time(self, name: str) -> datetime | None:
        try:
            at = datetime.fromisoformat(self.text(name))
        except ValueError:
            return None
        return at.astimezone(UTC) if at.tzinfo is not None else at.replace(tzinfo=UTC)

    def fields(self, name: str) -> Fields:
        return Fields(self._fields.get(name))

    def texts(self, name: str) -> list[str]:
        value = self._fields.get(name)
        return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []

    def list(self, name: str) -> list[Fields]:
        value = self._fields.get(name)
        return [Fields(item) for item in value] if isinstance(value, list) else []


def without_replayed(logs: list[Fields]) -> list[Fields]:
    """The log lines, without those that a replay wrote again."""
    return [log for log in logs if not log.true("isReplay")]
