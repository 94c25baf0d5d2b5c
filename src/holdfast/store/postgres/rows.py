"""Records of the store protocol, made from stored rows."""

from __future__ import annotations

from holdfast.core.model import Status
from holdfast.store.postgres.columns import FACT, LOG
from holdfast.store.postgres.text import decode_text
from holdfast.store.postgres.tx import Row
from holdfast.store.protocol import (
    AffectedRuns,
    Fact,
    Log,
    MailboxPage,
    RunRecord,
    Signal,
    StoredEvent,
    StoredLog,
    damaged_record,
)

_STATUSES = {status.value: status for status in Status}
_PAUSE = int(Signal.PAUSE)
_STATUS, _UPDATED_AT, _NOTE, _RUN_AT, _OWNER, _LOSSES, _PAUSING, _TOPICS, _FIELDS = 5, 12, 17, 27, 28, 29, 30, 33, 34
_NO_TOPICS: frozenset[str] = frozenset()
PAGE_SIZE = 500
"""Maximum number of events in a mailbox page. The SQL functions read one more, to see whether there are more."""
MANY_RUNS = 20_000
"""Maximum number of runs in a range of times that is read for each page of a list."""
MAX_BIGINT = 2**63 - 1
_EMPTY_PAGE = MailboxPage((), complete=True, last=0)


def record(row: Row) -> RunRecord:
    """Build a record from a row of holdfast_record: the fields of RunRecord in their order, then other columns."""
    fields = list(row[:_FIELDS])
    status = _STATUSES.get(row[_STATUS])
    fields[_STATUS] = status or Status.PAUSED
    fields[_NOTE] = decode_text(row[_NOTE])
    fields[_LOSSES] = row[_LOSSES] or 0
    fields[_PAUSING] = ((row[_PAUSING] or 0) & _PAUSE) != 0
    topics = row[_TOPICS]
    fields[_TOPICS] = frozenset(topics.split()) if topics and row[_OWNER] is None else _NO_TOPICS
    return RunRecord(*fields) if status is not None else damaged_record(fields, row[_STATUS])


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


def fact(row: Row) -> Fact:
    return Fact(*FACT.decode(row))


def stored_event(row: Row) -> StoredEvent:
    n, type_, payload, created_at, sender, delivered_at, consumed_by, ask, trace = row
    sender, consumed_by, ask = decode_text(sender), decode_text(consumed_by), decode_text(ask)
    return StoredEvent(n, type_, payload, created_at, sender, delivered_at, consumed_by, ask, trace)


def mailbox_page(row: Row) -> MailboxPage:
    """Build a page from a row of holdfast_mailbox_page: an array per column, and the number of the last event."""
    *arrays, last = row
    if arrays[0] is None:
        return _EMPTY_PAGE if last is None else MailboxPage((), complete=True, last=last)
    events = [
        StoredEvent(n, type_, payload, at, decode_text(sender), ask=decode_text(ask), trace=trace)
        for n, type_, payload, at, sender, ask, trace in zip(*arrays, strict=True)
    ]
    return MailboxPage(events[:PAGE_SIZE], complete=len(events) <= PAGE_SIZE, last=last)


def stored_log(row: Row) -> StoredLog:
    n, *log = row
    return StoredLog(n, Log(*LOG.decode(log)))
