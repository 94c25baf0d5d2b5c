"""The interface of watches, which check the engine's promises while a simulated database executes operations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

Rows = Callable[..., list[tuple[Any, ...]]]
"""Runs a query: SQL, then its arguments."""


class Watch(Protocol):
    """An observer of a simulated database. Violations of promises are returned as text."""

    def before(self, operation: str, args: tuple[Any, ...], /) -> Any:
        """Return the state that ``after`` needs. Operations may overlap, so the watch does not keep it."""

    def after(self, operation: str, args: tuple[Any, ...], answer: Any, before: Any, /) -> Iterator[str]:
        """Check an operation that was executed without an error. ``before`` is the state that ``before`` returned."""
        ...
