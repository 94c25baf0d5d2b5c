"""The result of a mapped node, computed from its items: the list of their results, or the node's error.

The functions take the ITEM facts of one node, in the order of the list it is mapped over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from holdfast.core import codec
from holdfast.core.failure import Failure
from holdfast.errors import ErrorInfo
from holdfast.store.protocol import Fact

T = TypeVar("T", covariant=True)

_MAX_LISTED = 20
"""Maximum number of failed items listed in the error of a node."""
_MAX_LISTED_MESSAGE = 200
_MAX_COLLECTED_MESSAGE = 2_000


@dataclass(frozen=True, slots=True)
class Ok(Generic[T]):
    """An item of a node with ``map_errors="collect"`` that has a result."""

    value: T


@dataclass(frozen=True, slots=True)
class Failed:
    """An item of a node with ``map_errors="collect"`` that failed permanently."""

    error: ErrorInfo


def values_of(items: Sequence[Fact]) -> bytes:
    """The list of results. Every item must have succeeded."""
    return _list([item.value or b"null" for item in items])


def collected(items: Sequence[Fact]) -> bytes:
    """The list of ``Ok | Failed`` as JSON: ``{"value": ...}`` or ``{"error": {"name", "message"}}``."""
    return _list([_collected(item) for item in items])


def error_of(items: Sequence[Fact]) -> Failure | None:
    """The error of a node with failed items: the first item's error, with a message that lists the failed items.

    None: no item failed. The error is not retryable if the error of any item is not.
    """
    failed = [(item.n, Failure.decode(item.value or b"{}")) for item in items if not item.ok]
    if not failed:
        return None
    number, first = failed[0]
    if len(failed) == 1:
        return replace(first, message=f"item {number}: {first.message}")
    final = any(error.retryable is False for _, error in failed)
    return replace(
        first,
        message=_message(failed, len(items)),
        retryable=False if final else first.retryable,
        details=_details(failed),
        args=None,
        cause=first,
    )


def _list(parts: Sequence[bytes]) -> bytes:
    return b"[" + b",".join(parts) + b"]"


def _collected(item: Fact) -> bytes:
    if item.ok:
        return b'{"value":' + (item.value or b"null") + b"}"
    error = Failure.decode(item.value or b"{}")
    shown = {"name": error.name, "message": _shorten(error.message, _MAX_COLLECTED_MESSAGE)}
    return codec.encode({"error": shown}, what="error of an item")


def _message(failed: Sequence[tuple[int, Failure]], count: int) -> str:
    listed = [
        f"item {n}: {error.name}: {_shorten(error.message, _MAX_LISTED_MESSAGE)}" for n, error in failed[:_MAX_LISTED]
    ]
    more = [f"and {len(failed) - _MAX_LISTED} more"] if len(failed) > _MAX_LISTED else []
    return f"{len(failed)} of {count} items failed: " + "; ".join([*listed, *more])


def _details(failed: Sequence[tuple[int, Failure]]) -> dict[str, Any]:
    items = [
        {"item": n, "name": error.name, "message": _shorten(error.message, _MAX_LISTED_MESSAGE)}
        for n, error in failed[:_MAX_LISTED]
    ]
    return {"failed": len(failed), "items": items}


def _shorten(text: str, max_length: int) -> str:
    return text if len(text) <= max_length else text[: max_length - 1] + "…"
