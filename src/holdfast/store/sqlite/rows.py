"""Conversion between rows and records. Free text that is not valid Unicode is stored as bytes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from holdfast.core.model import Status
from holdfast.store.protocol import Fact, Log, RunRecord, Signal, StoredEvent, StoredLog, damaged_record
from holdfast.store.sqlite.tx import Row

Text = str | bytes

_STATUSES = {status.value: status for status in Status}
_PAUSE = int(Signal.PAUSE)
_NO_TOPICS: frozenset[str] = frozenset()
_STATUS, _NOTE, _CURRENT, _PINNED, _OWNER, _LOSSES, _PAUSING, _FIELDS, _TOPICS = 5, 17, 23, 25, 28, 29, 30, 33, 34


_KEY, _OK, _NAME = 1, 7, 9
"""Positions of columns in the row of a fact."""


def encode_text(text: str) -> Text:
    """Encode ``text`` for SQLite: a string with lone surrogates has no UTF-8 form and is stored as a BLOB."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")
    return text


def encode_text_or_none(text: str | None) -> Text | None:
    return None if text is None else encode_text(text)


def decode_text(text: Any) -> Any:
    """The opposite of ``encode_text``; None stays None. Bytes that ``encode_text`` does not make become ``\ufffd``."""
    if type(text) is not bytes:
        return text
    try:
        return text.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return text.decode("utf-8", "replace")


def record(row: Row) -> RunRecord:
    """Convert a row of holdfast_record: RunRecord's fields in their order, then columns that only the store uses."""
    fields = list(row[:_FIELDS])
    status = _STATUSES.get(row[_STATUS])
    fields[_STATUS] = status or Status.PAUSED
    fields[_NOTE] = decode_text(row[_NOTE])
    fields[_CURRENT] = row[_CURRENT] == 1
    fields[_PINNED] = row[_PINNED] == 1
    fields[_LOSSES] = row[_LOSSES] or 0
    fields[_PAUSING] = ((row[_PAUSING] or 0) & _PAUSE) != 0
    topics = row[_TOPICS]
    fields.append(frozenset(topics.split()) if topics and row[_OWNER] is None else _NO_TOPICS)
    return RunRecord(*fields) if status is not None else damaged_record(fields, row[_STATUS])


def fact_rows(run: int, facts: Iterable[Fact]) -> list[Row]:
    return [
        (run, *fact) if fact.key.isascii() and ((name := fact.name) is None or name.isascii()) else _fact_row(run, fact)
        for fact in facts
    ]


def _fact_row(run: int, fact: Fact) -> Row:
    state, key, n, kind, at, started_at, seq, ok, value, name, *rest = fact
    return (run, state, encode_text(key), n, kind, at, started_at, seq, ok, value, encode_text_or_none(name), *rest)


def fact(row: Row) -> Fact:
    if type(row[_KEY]) is bytes or type(row[_NAME]) is bytes:
        state, key, n, kind, at, started_at, seq, ok, value, name, *rest = row
        return Fact(state, decode_text(key), n, kind, at, started_at, seq, ok == 1, value, decode_text(name), *rest)
    return Fact._make((*row[:_OK], row[_OK] == 1, *row[_OK + 1 :]))


def stored_event(row: Row) -> StoredEvent:
    n, type_, payload, created_at, sender, delivered_at, consumed_by, ask, trace = row
    sender, consumed_by, ask = decode_text(sender), decode_text(consumed_by), decode_text(ask)
    return StoredEvent(n, type_, payload, created_at, sender, delivered_at, consumed_by, ask, trace)


def log_rows(run: int, logs: Iterable[Log]) -> list[Row]:
    return [
        (run, level, category, encode_text(message), data, at, encode_text_or_none(step_key), *rest)
        for level, category, message, data, at, step_key, *rest in logs
    ]


def stored_log(row: Row) -> StoredLog:
    n, level, category, message, data, at, step_key, attempt, is_replay = row
    return StoredLog(
        n, Log(level, category, decode_text(message), data, at, decode_text(step_key), attempt, is_replay == 1)
    )
