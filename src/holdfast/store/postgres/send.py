"""Puts events into runs' mailboxes, and wakes who waits for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.store.postgres.claim import claim_of_awoken
from holdfast.store.postgres.rows import columns, packed, record
from holdfast.store.postgres.sql import statements
from holdfast.store.postgres.tx import Row, Tx
from holdfast.store.protocol import SUSPECT_LOSSES, Claimant, NewEvent, Sent

_WIDTH = 11
_NO_TEXT = b"\xff"
"""No UTF-8 begins like this: a key made for a call is never one of a sender's."""
_NOBODY: Row = (None, None, None)
_ONE_RUN = 12
"""Where the answer to a single event has its run."""


class Sending(NamedTuple):
    """An event, and a number by which the call that sent it knows its row again."""

    event: NewEvent
    token: int


async def send(tx: Tx, events: Sequence[Sending]) -> list[Sent]:
    if not events:
        return []
    if len(events) == 1:
        sent = await _send_one(tx, events[0])
        if sent is not None:
            return [sent]
    sql = statements("send", tx.schema)["send"]
    given = columns([_row(one) for one in events], _WIDTH)
    rows = await tx.connection.fetch(sql, tx.now, tx.by, *given, SUSPECT_LOSSES, tx.again)
    return [_sent(tuple(row.values()), one.event) for row, one in zip(rows, events, strict=True)]


async def _send_one(tx: Tx, one: Sending) -> Sent | None:
    """None: there is more to it than to put an event into the mailbox of a run that lives."""
    sql = statements("send", tx.schema)["send_one"]
    at = None if one.event.foreseen is None else one.event.foreseen.at
    row = tuple(await tx.connection.fetchrow(sql, tx.now, tx.by, *_row(one), SUSPECT_LOSSES, tx.quiet, at))
    return None if row[_ONE_RUN] is None else _sent((True, False, *row), one.event)


def topics_text(topics: frozenset[str]) -> str:
    return f" {' '.join(sorted(topics))} " if topics else ""


def dedup_key(event: NewEvent, token: int) -> bytes:
    """The sender's own, or one made for this call."""
    own = packed(event.dedup)
    return _NO_TEXT + token.to_bytes(8, "big", signed=True) if own is None else own


def _row(one: Sending) -> Row:
    event = one.event
    return (
        event.workflow,
        event.instance_id,
        event.type,
        event.payload,
        packed(event.sender),
        dedup_key(event, one.token),
        one.token,
        packed(event.ask),
        *_claimant(event.claimant),
    )


def _claimant(claimant: Claimant | None) -> Row:
    if claimant is None:
        return _NOBODY
    return (claimant.owner, claimant.lease_ms, "\n".join(("", *claimant.queues, "")))


def _sent(row: Row, event: NewEvent) -> Sent:
    accepted, duplicate, woken, epoch, kind, lost, now = row[:7]
    bag, fields = row[7:14], row[14:]
    run = None if fields[0] is None else record(fields)
    if epoch is None or run is None or event.claimant is None:
        return Sent(run, accepted=accepted, duplicate=duplicate, woken=woken)
    claim = claim_of_awoken(fields, event.claimant, epoch, kind, lost, now, bag)
    return Sent(run, accepted=accepted, duplicate=duplicate, woken=woken, claim=claim)
