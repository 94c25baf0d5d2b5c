"""Rows to records and back. Free text is kept as bytes: PostgreSQL's text has no NUL, and UTF-8 no lone surrogates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, overload

from holdfast.core.model import Status
from holdfast.store.postgres.tx import Row
from holdfast.store.protocol import Fact, Log, Mail, Mailbag, NewUnit, RunRecord, Signal, StoredLog, Touched

_STATUSES = {status.value: status for status in Status}
_PAUSE = int(Signal.PAUSE)
_STATUS, _UPDATED_AT, _NOTE, _RUN_AT, _OWNER, _LOSSES, _PAUSING, _TOPICS, _FIELDS = 5, 12, 17, 24, 25, 26, 27, 30, 31
_NO_TOPICS: frozenset[str] = frozenset()
BAGFUL = 500
"""How many events are handed out at once: a mailbox of a million is read bag by bag."""
NO_MAIL = Mailbag((), complete=True, last=0)


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
    fields[_NOTE] = unpacked(row[_NOTE])
    fields[_LOSSES] = row[_LOSSES] or 0
    fields[_PAUSING] = ((row[_PAUSING] or 0) & _PAUSE) != 0
    topics = row[_TOPICS]
    fields[_TOPICS] = frozenset(topics.split()) if topics and row[_OWNER] is None else _NO_TOPICS
    return RunRecord(*fields)


def taken(row: Row, owner: str, now: int) -> Row:
    """A row of holdfast_record of one that waited, as it is once somebody has taken it."""
    fields = list(row)
    fields[_OWNER] = owner
    if fields[_RUN_AT] is None or fields[_RUN_AT] > now:
        fields[_RUN_AT] = now
    if fields[_STATUS] == Status.WAITING:
        fields[_STATUS], fields[_UPDATED_AT] = Status.ACTIVE, now
    return fields


def touched(ended: list[int] | None, woken: list[int] | None, work: bool | None) -> Touched | None:
    return Touched(ended or [], woken or [], bool(work)) if ended or woken or work else None


def fact_rows(facts: Iterable[Fact], *of: int) -> list[Row]:
    """``of``: what each row begins with, to say what it belongs to."""
    return [
        (*of, state, packed(key), n, kind, at, started_at, seq, ok, value, packed(name), *rest)
        for state, key, n, kind, at, started_at, seq, ok, value, name, *rest in facts
    ]


def fact(row: Row) -> Fact:
    state, key, n, kind, at, started_at, seq, ok, value, name, *rest = row
    return Fact(state, unpacked(key), n, kind, at, started_at, seq, ok, value, unpacked(name), *rest)


def mail(row: Row) -> Mail:
    n, type_, payload, created_at, sender, delivered_at, consumed_by, ask = row
    return Mail(n, type_, payload, created_at, unpacked(sender), delivered_at, unpacked(consumed_by), unpacked(ask))


def mailbag(row: Row) -> Mailbag:
    """What holdfast_mailbag answers: a list for each column of the events, and the number of the last one of all."""
    *lists, last = row
    if lists[0] is None:
        return NO_MAIL if last is None else Mailbag((), complete=True, last=last)
    found = [
        Mail(n, type_, payload, at, unpacked(sender), ask=unpacked(ask))
        for n, type_, payload, at, sender, ask in zip(*lists, strict=True)
    ]
    return Mailbag(found[:BAGFUL], complete=len(found) <= BAGFUL, last=last)


def log_rows(lines: Iterable[Log], *of: int) -> list[Row]:
    return [
        (*of, level, category, packed(message), data, at, packed(step_key), *rest)
        for level, category, message, data, at, step_key, *rest in lines
    ]


def stored_log(row: Row) -> StoredLog:
    n, level, category, message, data, at, step_key, attempt, is_replay = row
    return StoredLog(n, Log(level, category, unpacked(message), data, at, unpacked(step_key), attempt, is_replay))


def unit_rows(units: Iterable[NewUnit]) -> list[Row]:
    return [(unit, packed(key), missing) for unit, key, missing in units]


def columns(rows: Sequence[Row], width: int) -> list[Row]:
    """Rows as arrays, one for each column, which is how a batch travels."""
    return list(zip(*rows, strict=True)) if rows else [()] * width
