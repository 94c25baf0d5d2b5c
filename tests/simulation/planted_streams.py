"""Bugs of streams, as patches: the owner of an attribute, its name, and a function from the original to another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.kernel.streams import AttemptStreams
from holdfast.store.sqlite import streams

Patches = list[tuple[Any, str, Callable[[Any], Any]]]


def _without_waiting(_original: Any) -> Any:
    """Report the outcome of an attempt before its last items are stored."""

    async def store(_streams: Any) -> None: ...

    return store


def _everything(_original: Any) -> Any:
    """Write all items of a repeated call again."""
    return lambda _tx, one, _head, _writer: [*one.items, None] if one.closes else [*one.items]


def _any_claim(original: Any) -> Any:
    """Take the items that an attempt wrote under an earlier claim for those of the attempt with the same number."""
    by_claim = "f.n = c.epoch * 16777216 + c.attempt"
    return {**original, "chunks": original["chunks"].replace(by_claim, "f.n % 16777216 = c.attempt")}


BUGS: dict[str, Patches] = {
    "lost_chunk": [(AttemptStreams, "store", _without_waiting)],
    "chunk_written_again": [(streams, "_not_stored", _everything)],
    "duplicated_chunk_after_takeover": [(streams, "_SQL", _any_claim)],
}
