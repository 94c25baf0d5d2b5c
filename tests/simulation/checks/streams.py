"""Checks streams: each successful attempt's items once and in order, and each item of workflow code once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from holdfast.core import codec
from holdfast.store.protocol.streams import WriterState, unpack
from holdfast.store.sqlite import streams
from holdfast.testing.simulation.database import SimulatedDatabase
from simulation.payloads import opened_value


def stream_failures(database: SimulatedDatabase) -> Iterator[str]:
    for run, name in database.rows("SELECT run, name FROM holdfast_stream ORDER BY run, name"):
        chunks = database.rows(streams._SQL["chunks"], run, name, 0, -1)
        yield from _offsets(run, name, chunks)
        items = [
            (step_key, codec.plain(opened_value(database.connection, value)))
            for _, _, step_key, _, state, _, data in chunks
            if state == WriterState.SUCCEEDED
            for _, value in unpack(data)
        ]
        yield from _code(run, items) if name == "code" else _steps(database, run, items)


def _offsets(run: int, name: str, chunks: list[Any]) -> Iterator[str]:
    following = 1
    for first, count, _, _, _, closes, data in chunks:
        if first != following or (not closes and count != len([*unpack(data)])):
            yield f"the stream {name} of run {run} has a gap or an overlap at offset {first}"
        following = first + count


def _code(run: int, items: list[tuple[str | None, Any]]) -> Iterator[str]:
    """Check that no item of workflow code is stored twice, and that an end follows its beginning."""
    written = [tuple(value) for _, value in items]
    for item, times in Counter(written).items():
        if times > 1:
            yield f"the code of run {run} has written {item} {times} times"
    for key in {key for key, what in written if what == "end"}:
        if (key, "begin") not in written or written.index((key, "begin")) > written.index((key, "end")):
            yield f"the stream of run {run} has the end of {key} before its beginning"


def _steps(database: SimulatedDatabase, run: int, items: list[tuple[str | None, Any]]) -> Iterator[str]:
    """Check that the output has the items of each recorded result once and in order, and of no other step."""
    results = {
        key: codec.plain(value)
        for key, value in database.rows(
            "SELECT key, value FROM holdfast_fact WHERE run = ? AND state = 0 AND ok = 1 AND kind = 'do' "
            "AND event_type IS NULL", run
        )
    }  # fmt: skip
    settled = {key for (key,) in database.rows("SELECT key FROM holdfast_fact WHERE run = ? AND state = 8 AND ok", run)}
    for key in dict.fromkeys([*settled, *(str(key) for key, _ in items)]):
        found = [value for step_key, value in items if step_key == key]
        expected = [[key, n] for n in range(results.get(key, 0))]
        if found != expected:
            yield f"the output of step {key} of run {run} is {found}, and must be {expected}"
