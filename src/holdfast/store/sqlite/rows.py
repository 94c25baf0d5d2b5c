"""Rows to records and back. Free text that is not valid Unicode travels as bytes, so that it comes back the same."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from holdfast.core.model import Status
from holdfast.store.protocol import Fact, Log, Mail, RunRecord, Signal, StoredLog

Row = tuple[Any, ...]
Text = str | bytes

_STATUSES = {status.value: status for status in Status}
_STATUS = 5
_NOTE = 17


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
    """A row of holdfast_record, whose columns are RunRecord's fields in their order, then some of the store's own."""
    note, run_at, owner, losses, signal = row[_NOTE : _NOTE + 5]
    pausing = signal is not None and signal & Signal.PAUSE != 0
    return RunRecord(
        *row[:_STATUS], _STATUSES[row[_STATUS]], *row[_STATUS + 1 : _NOTE], unsafe(note), run_at, owner, losses or 0, pausing
    )


def fact_rows(run: int, facts: Iterable[Fact]) -> list[Row]:
    return [
        (run, *fact)
        if fact.key.isascii() and (fact.name is None or fact.name.isascii())
        else (run, *fact._replace(key=safe(fact.key), name=safe_or_none(fact.name)))  # type: ignore[arg-type]
        for fact in facts
    ]


def fact(row: Row) -> Fact:
    state, key, n, kind, at, started_at, seq, ok, value, name, *rest = row
    return Fact(state, unsafe(key), n, kind, at, started_at, seq, ok == 1, value, unsafe(name), *rest)


def mail(row: Row) -> Mail:
    n, type_, payload, created_at, sender, delivered_at, consumed_by = row
    return Mail(n, type_, payload, created_at, unsafe(sender), delivered_at, unsafe(consumed_by))


def log_rows(run: int, lines: Iterable[Log]) -> list[Row]:
    return [
        (run, *line._replace(message=safe(line.message), step_key=safe_or_none(line.step_key)))
        for line in lines
    ]  # type: ignore[arg-type]


def stored_log(row: Row) -> StoredLog:
    n, level, category, message, data, at, step_key, attempt, is_replay = row
    return StoredLog(
        n, Log(level, category, unsafe(message), data, at, unsafe(step_key), attempt, is_replay == 1)
    )
