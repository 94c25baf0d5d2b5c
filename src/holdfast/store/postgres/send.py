"""Sends events to the mailboxes of runs, and wakes runs that wait for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.store.postgres.claim import claim_of_woken
from holdfast.store.postgres.columns import EVENT
from holdfast.store.postgres.rows import record
from holdfast.store.postgres.sql import statements
from holdfast.store.postgres.text import encode_text
from holdfast.store.postgres.tx import Row, Tx
from holdfast.store.protocol import SUSPECT_LOSSES, Claimant, NewEvent, Sent

_NOT_UTF8 = b"\xff"
"""First byte of a dedup key made for a call. No UTF-8 text begins with it, so it never equals a sender's key."""
_NO_CLAIMANT: Row = (None, None, None, None)
_SEND_ONE_RECORD = 13
"""Position of the run's record in the row that the statement send_one returns."""


class SendRequest(NamedTuple):
    """An event to send, and the token by which a repeated call recognises its row."""

    event: NewEvent
    token: int


async def send(tx: Tx, requests: Sequence[SendRequest]) -> list[Sent]:
    if not requests:
        return []
    if len(requests) == 1:
        sent = await _send_one(tx, requests[0])
        if sent is not None:
            return [sent]
    sql = statements("send", tx.schema)["send"]
    arguments = EVENT.arrays([_row(request) for request in requests])
    rows = await tx.connection.fetch(sql, tx.now, tx.store_id, SUSPECT_LOSSES, tx.is_retry, *arguments)
    return [_sent(tuple(row.values()), request.event) for row, request in zip(rows, requests, strict=True)]


async def _send_one(tx: Tx, request: SendRequest) -> Sent | None:
    """Send one event to an unfinished run. None: the call needs the general function."""
    sql = statements("send", tx.schema)["send_one"]
    at = None if request.event.prediction is None else request.event.prediction.at
    arguments = EVENT.encode(_row(request))
    row = tuple(await tx.connection.fetchrow(sql, tx.now, tx.store_id, SUSPECT_LOSSES, at, *arguments))
    return None if row[_SEND_ONE_RECORD] is None else _sent((True, False, *row), request.event)


def topics_text(topics: frozenset[str]) -> str:
    return f" {' '.join(sorted(topics))} " if topics else ""


def dedup_key(event: NewEvent, token: int) -> bytes:
    """The sender's dedup key, or one made for this call."""
    own = encode_text(event.dedup)
    return _NOT_UTF8 + token.to_bytes(8, "big", signed=True) if own is None else own


def _row(request: SendRequest) -> Row:
    event = request.event
    return (
        event.workflow,
        event.instance_id,
        event.type,
        event.payload,
        event.sender,
        dedup_key(event, request.token),
        request.token,
        event.ask,
        *_claimant(event.claimant),
        event.trace,
    )


def _claimant(claimant: Claimant | None) -> Row:
    if claimant is None:
        return _NO_CLAIMANT
    return (claimant.owner, claimant.lease_ms, "\n".join(("", *claimant.queues, "")), claimant.version)


def _sent(row: Row, event: NewEvent) -> Sent:
    accepted, duplicate, woken, epoch, kind, lost, now = row[:7]
    mailbox, fields = row[7:15], row[15:]
    run = None if fields[0] is None else record(fields)
    if epoch is None or run is None or event.claimant is None:
        return Sent(run, accepted=accepted, duplicate=duplicate, woken=woken)
    claim = claim_of_woken(fields, event.claimant, epoch, kind, lost, now, mailbox)
    return Sent(run, accepted=accepted, duplicate=duplicate, woken=woken, claim=claim)
