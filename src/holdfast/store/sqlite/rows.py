"""Rows to records and back. Free text that is not valid Unicode travels as bytes, and comes back the same."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from holdfast.core.model import Status
from holdfast.store.protocol import Fact, Log, Mail, RunRecord, Signal, StoredLog
from holdfast.store.sqlite.tx import Row

Text = str | bytes

_STATUSES = {status.value: status for status in Status}
_PAUSE = int(Signal.PAUSE)
_NO_TOPICS: frozenset[str] = frozenset()
_STATUS, _NOTE, _CURRENT, _OWNER, _LOSSES, _PAUSING, _FIELDS, _TOPICS = 5, 17, 23, 25, 26, 27, 30, 31


def safe(text: str) -> Text:
    """``text`` as SQLite can store it: lone surrogates have no UTF-8, so such a string is kept as a BLOB."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")
    return text


def safe_or_none(text: str | None) -> Text | None:
    return None if text is None else safe(text)


def unsafe(text: Any) -> Any:
    """The opposite of ``safe``; None stays None."""
    return text.decode("utf-8", "surrogatepass") if type(text) is bytes else text


def record(row: Row) -> RunRecord:
    """A row of holdfast_record: RunRecord's fields in their order, then columns of the store's own."""
    fields = list(row[:_FIELDS])
    fields[_STATUS] = _STATUSES[row[_STATUS]]
    fields[_NOTE] = unsafe(row[_NOTE])
    fields[_CURRENT] = row[_CURRENT] == 1
    fields[_LOSSES] = row[_LOSSES] or 0
    fields[_PAUSING] = ((row[_PAUSING] or 0) & _PAUSE) != 0
    topics = row[_TOPICS]
    fields.append(frozenset(topics.split()) if topics and row[_OWNER] is None else _NO_TOPICS)
    return RunRecord(*fields)


def fact_rows(run: int, facts: Iterable[Fact]) -> list[Row]:
    return [(run, *fact) if fact.key.isascii() and fact.name is None else _fact_row(run, fact) for fact in facts]


def _fact_row(run: int, fact: Fact) -> Row:
    state, key, n, kind, at, started_at, seq, ok, value, name, *rest = fact
    return (run, state, safe(key), n, kind, at, started_at, seq, ok, value, safe_or_none(name), *rest)


def fact(row: Row) -> Fact:
    state, key, n, kind, at, started_at, seq, ok, value, name, *rest = row
    return Fact(state, unsafe(key), n, kind, at, started_at, seq, ok == 1, value, unsafe(name), *rest)


def mail(row: Row) -> Mail:
    n, type_, payload, created_at, sender, delivered_at, consumed_by, ask = row
    return Mail(n, type_, payload, created_at, unsafe(sender), delivered_at, unsafe(consumed_by), unsafe(ask))


def log_rows(run: int, lines: Iterable[Log]) -> list[Row]:
    return [
        (run, level, category, safe(message), data, at, safe_or_none(step_key), *rest)
        for level, category, message, data, at, step_key, *rest in lines
    ]


def stored_log(row: Row) -> StoredLog:
    n, level, category, message, data, at, step_key, attempt, is_replay = row
    return StoredLog(n, Log(level, category, unsafe(message), data, at, unsafe(step_key), attempt, is_replay == 1))
