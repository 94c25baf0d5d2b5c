"""Replies to events: stored with the event, and sent to the run that asked."""

from __future__ import annotations

import json

from holdfast.store.protocol import (
    REPLY,
    AffectedRuns,
    ControlResult,
    RepliesQuery,
    Reply,
    ReplyByHand,
    ReplyQuery,
    ReplyToEvent,
    RunRecord,
)
from holdfast.store.sqlite import ends
from holdfast.store.sqlite.reads import find_current
from holdfast.store.sqlite.rows import decode_text, encode_text
from holdfast.store.sqlite.send import QueuedEvent, add_effect, add_event
from holdfast.store.sqlite.sql import statements
from holdfast.store.sqlite.tx import Tx

_SQL = statements("replies")


def reply_to_event(tx: Tx, run: RunRecord, operation: ReplyToEvent, affected: AffectedRuns) -> bool:
    """Store a reply with its event, unless the event has one; false: there is no such event."""
    key, reply = (run.run, operation.event), operation.reply
    found = tx.connection.execute(_SQL["sender_and_ask"], key).fetchone()
    if found is None:
        return False
    tx.connection.execute(_SQL["set_reply"], (*key, reply.ok, reply.value, tx.now))
    sender, ask = map(decode_text, found)
    if sender is not None and ask is not None and tx.connection.changes():
        _send_reply(tx, run, sender, ask, operation, affected)
    return True


def _send_reply(tx: Tx, run: RunRecord, to: str, ask: str, operation: ReplyToEvent, affected: AffectedRuns) -> None:
    """Send a REPLY to the current run of the asking pid. A client that asked reads the reply from the event."""
    workflow, _, instance_id = to.partition("/")
    asking_run = find_current(tx, workflow, instance_id)
    if asking_run is None or asking_run.status.terminal:
        return
    reply = operation.reply
    ok = b"true" if reply.ok else b"false"
    payload = b'{"ask":%s,"ok":%s,"value":%s}' % (json.dumps(ask).encode(), ok, reply.value or b"null")
    event = QueuedEvent(REPLY, payload, sender=ends.pid_of(run), trace=operation.trace)
    effect = add_event(tx, asking_run, event)
    add_effect(affected, asking_run.run, effect)


def reply_by_hand(tx: Tx, run: RunRecord, request: ReplyByHand) -> ControlResult:
    affected = AffectedRuns()
    found = tx.connection.execute(_SQL["sender_and_ask"], (run.run, request.event)).fetchone()
    if run.number != request.number or run.status.terminal or found is None or found[1] is None:
        return ControlResult(run, affected, refused=True)
    reply_to_event(tx, run, ReplyToEvent(request.event, request.reply), affected)
    stored = replies(tx, RepliesQuery(run.run, (request.event,)))[request.event]
    return ControlResult(run, affected, refused=stored != request.reply)


def reply(tx: Tx, query: ReplyQuery) -> Reply | None:
    row = tx.connection.execute(_SQL["reply"], (query.run, encode_text(query.dedup))).fetchone()
    return None if row is None else Reply(row[0] == 1, row[1])


def replies(tx: Tx, query: RepliesQuery) -> dict[int, Reply]:
    rows = tx.connection.execute(_SQL["replies"], (query.run, json.dumps(query.events)))
    return {n: Reply(ok == 1, value) for n, ok, value in rows}
