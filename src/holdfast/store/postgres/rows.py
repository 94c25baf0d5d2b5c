"""Rows to records and back. Free text is kept as bytes: PostgreSQL's text has no NUL, and UTF-8 no lone surrogates."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, overload

from holdfast.core.model import Status
from holdfast.store.postgres.tx import Row
from holdfast.store.protocol import Fact, Log, Mail, RunRecord, Signal, StoredLog

_STATUSES = {status.value: status for status in Status}
_PAUSE = int(Signal.PAUSE)
_STATUS, _NOTE, _LOSSES, _FIELDS = 5, 17, 20, 22
RECORD_WIDTH = 25
"""How many columns holdfast_record has."""


@overload
def packed(text: str) -> bytes: ...


@overload
def packed(text: str | None) -> bytes | None: ...


def packed(text: str | None) -> bytes | None:
    return None if text is None else text.encode("utf-8", "surrogatepass")


def unpacked(text: bytes | None) -> Any:
    return None if text is None else text.decode("utf-8", "surrogatepass")


def record(row: Row) -> RunRecord:
    """A row of holdfast_record: RunRecord's fields in their order, then columns of the store's own."""
    fields = list(row[:_FIELDS])
    fields[_STATUS] = _STATUSES[row[_STATUS]]
    note, _, _, losses, signal = row[_NOTE:_FIELDS]
    fields[_NOTE] = unpacked(note)
    fields[_LOSSES:] = losses or 0, signal is not None and signal & _PAUSE != 0
    return RunRecord(*fields)


def fact_rows(commit: int, needs: int, facts: Iterable[Fact]) -> list[Row]:
    """``commit``: the number of the commit in its batch; ``needs``: what it must come to."""
    return [
        (commit, needs, state, packed(key), n, kind, at, started_at, seq, ok, value, packed(name), *rest)
        for state, key, n, kind, at, started_at, seq, ok, value, name, *rest in facts
    ]


def fact(row: Row) -> Fact:
    state, key, n, kind, at, started_at, seq, ok, value, name, *rest = row
    return Fact(state, unpacked(key), n, kind, at, started_at, seq, ok, value, unpacked(name), *rest)


def mail(row: Row) -> Mail:
    n, type_, payload, created_at, sender, delivered_at, consumed_by = row
    return Mail(n, type_, payload, created_at, unpacked(sender), delivered_at, unpacked(consumed_by))


def log_rows(commit: int, needs: int, lines: Iterable[Log]) -> list[Row]:
    return [
        (commit, needs, level, category, packed(message), data, at, packed(step_key), *rest)
        for level, category, message, data, at, step_key, *rest in lines
    ]


def stored_log(row: Row) -> StoredLog:
    n, level, category, message, data, at, step_key, attempt, is_replay = row
    return StoredLog(n, Log(level, category, unpacked(message), data, at, unpacked(step_key), attempt, is_replay))


def columns(rows: list[Row], width: int) -> list[Row]:
    """Rows as arrays, one for each column, which is how a batch travels."""
    return list(zip(*rows, strict=True)) if rows else [()] * width
