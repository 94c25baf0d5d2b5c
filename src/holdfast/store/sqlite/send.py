"""Puts events into runs' mailboxes, and wakes who waits for them."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.model import Status, TaskKind
from holdfast.store.protocol import NewEvent, Sent, Signal
from holdfast.store.sqlite.reads import TOPICS, current_row
from holdfast.store.sqlite.rows import record, safe_or_none
from holdfast.store.sqlite.sql import statements
from holdfast.store.sqlite.tx import Tx

_SQL = statements("send")
_ANY = " * "


def send(tx: Tx, events: Sequence[NewEvent]) -> list[Sent]:
    return [_send(tx, event) for event in events]


def topics_text(topics: frozenset[str]) -> str:
    return f" {' '.join(sorted(topics))} " if topics else ""


def _send(tx: Tx, event: NewEvent) -> Sent:
    row = current_row(tx, event.workflow, event.instance_id)
    if row is None:
        return Sent(None, accepted=False)
    run = record(row)
    if run.status.terminal:
        return Sent(run, accepted=False)
    sender, dedup = safe_or_none(event.sender), safe_or_none(event.dedup)
    tx.connection.execute(_SQL["event"], (run.run, event.type, event.payload, tx.now, sender, dedup))
    if tx.connection.changes() == 0:
        return Sent(run, accepted=True, duplicate=True)
    if run.owner is not None:
        tx.connection.execute(_SQL["signal"], (run.run, Signal.MAIL))
        return Sent(run, accepted=True, woken=True)
    if run.status is Status.PAUSED or not wanted(event.type, row[TOPICS]):
        return Sent(run, accepted=True)
    if run.run_at is None or run.run_at > tx.now:
        tx.connection.execute(_SQL["wake"], (run.run, tx.now, TaskKind.WAKE, TaskKind.WAKE.bucket))
    return Sent(run, accepted=True, woken=True)


def wanted(type: str, topics: str) -> bool:
    return topics == _ANY or f" {type} " in topics
