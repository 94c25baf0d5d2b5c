"""Conversion between rows and records.

Free text is stored as bytes, because PostgreSQL's TEXT cannot hold NUL, and UTF-8 cannot encode lone surrogates.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, overload

from holdfast.core.model import Status
from holdfast.store.postgres.tx import Row
from holdfast.store.protocol import (
    AffectedRuns,
    Fact,
    Log,
    MailboxPage,
    NewUnit,
    RunRecord,
    Signal,
    StoredEvent,
    StoredLog,
)

_STATUSES = {status.value: status for status in Status}
_PAUSE = int(Signal.PAUSE)
_STATUS, _UPDATED_AT, _NOTE, _RUN_AT, _OWNER, _LOSSES, _PAUSING, _TOPICS, _FIELDS = 5, 12, 17, 24, 25, 26, 27, 30, 31
_NO_TOPICS: frozenset[str] = frozenset()
PAGE_SIZE = 500
"""Maximum number of events in a mailbox page. The SQL functions read one more, to see whether there are more."""
_EMPTY_PAGE = MailboxPage((), complete=True, last=0)


@overload
def encode_text(text: str) -> bytes: ...


@overload
def encode_text(text: str | None) -> bytes | None: ...


def encode_text(text: str | None) -> bytes | None:
    return None if text is None else text.encode("utf-8", "surrogatepass")


def decode_text(text: bytes | None) -> Any:
    return None if text is None else text.decode("utf-8", "surrogatepass")


def record(row: Row) -> RunRecord:
    """Build a record from a row of holdfast_record: the fields of RunRecord in their order, then other columns."""
    fields = list(row[:_FIELDS])
    fields[_STATUS] = _STATUSES[row[_STATUS]]
    fields[_NOTE] = decode_text(row[_NOTE])
    fields[_LOSSES] = row[_LOSSES] or 0
    fields[_PAUSING] = ((row[_PAUSING] or 0) & _PAUSE) != 0
    topics = row[_TOPICS]
    fields[_TOPICS] = frozenset(topics.split()) if topics and row[_OWNER] is None else _NO_TOPICS
    return RunRecord(*fields)


def claimed_row(row: Row, owner: str, now: int) -> Row:
    """The holdfast_record row of a waiting run as it is after a claim by ``owner``."""
    fields = list(row)
    fields[_OWNER] = owner
    if fields[_RUN_AT] is None or fields[_RUN_AT] > now:
        fields[_RUN_AT] = now
    if fields[_STATUS] == Status.WAITING:
        fields[_STATUS], fields[_UPDATED_AT] = Status.ACTIVE, now
    return fields


def affected(ended: list[int] | None, woken: list[int] | None, work: bool | None) -> AffectedRuns | None:
    return AffectedRuns(ended or [], woken or [], bool(work)) if ended or woken or work else None


def fact_rows(facts: Iterable[Fact], *prefix: int) -> list[Row]:
    """Rows of facts; each begins with ``prefix``, which names the commit or run that the fact belongs to."""
    return [
        (*prefix, state, encode_text(key), n, kind, at, started_at, seq, ok, value, encode_text(name), *rest)
        for state, key, n, kind, at, started_at, seq, ok, value, name, *rest in facts
    ]


def fact(row: Row) -> Fact:
    state, key, n, kind, at, started_at, seq, ok, value, name, *rest = row
    return Fact(state, decode_text(key), n, kind, at, started_at, seq, ok, value, decode_text(name), *rest)


def stored_event(row: Row) -> StoredEvent:
    n, type_, payload, created_at, sender, delivered_at, consumed_by, ask = row
    return StoredEvent(
        n, type_, payload, created_at, decode_text(sender), delivered_at, decode_text(consumed_by), decode_text(ask)
    )


def mailbox_page(row: Row) -> MailboxPage:
    """Build a page from a row of holdfast_mailbox_page: an array per column, and the number of the last event."""
    *arrays, last = row
    if arrays[0] is None:
        return _EMPTY_PAGE if last is None else MailboxPage((), complete=True, last=last)
    events = [
        StoredEvent(n, type_, payload, at, decode_text(sender), ask=decode_text(ask))
        for n, type_, payload, at, sender, ask in zip(*arrays, strict=True)
    ]
    return MailboxPage(events[:PAGE_SIZE], complete=len(events) <= PAGE_SIZE, last=last)


def log_rows(lines: Iterable[Log], *prefix: int) -> list[Row]:
    return [
        (*prefix, level, category, encode_text(message), data, at, encode_text(step_key), *rest)
        for level, category, message, data, at, step_key, *rest in lines
    ]


def stored_log(row: Row) -> StoredLog:
    n, level, category, message, data, at, step_key, attempt, is_replay = row
    return StoredLog(n, Log(level, category, decode_text(message), data, at, decode_text(step_key), attempt, is_replay))


def unit_rows(units: Iterable[NewUnit]) -> list[Row]:
    return [(unit, encode_text(key), missing) for unit, key, missing in units]


def columns(rows: Sequence[Row], width: int) -> list[Row]:
    """Transpose rows into one array per column: the form in which a batch is passed to a SQL function."""
    return list(zip(*rows, strict=True)) if rows else [()] * width
