"""Puts events into runs' mailboxes, and wakes who waits for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.store.postgres.rows import columns, packed, record
from holdfast.store.postgres.sql import statements
from holdfast.store.postgres.tx import Row, Tx
from holdfast.store.protocol import NewEvent, Sent

_WIDTH = 7
_NO_TEXT = b"\xff"
"""No UTF-8 begins like this: a key made for a call is never one of a sender's."""


class Sending(NamedTuple):
    """An event, and a number by which the call that sent it knows its row again."""

    event: NewEvent
    token: int


async def send(tx: Tx, events: Sequence[Sending]) -> list[Sent]:
    if not events:
        return []
    sql = statements("send", tx.schema)["send"]
    rows = await tx.connection.fetch(sql, tx.now, tx.by, *columns([_row(one) for one in events], _WIDTH))
    return [_sent(tuple(row.values())) for row in rows]


def topics_text(topics: frozenset[str]) -> str:
    return f" {' '.join(sorted(topics))} " if topics else ""


def _row(one: Sending) -> Row:
    event = one.event
    dedup = packed(event.dedup)
    if dedup is None:
        dedup = _NO_TEXT + one.token.to_bytes(8, "big", signed=True)
    return (event.workflow, event.instance_id, event.type, event.payload, packed(event.sender), dedup, one.token)


def _sent(row: Row) -> Sent:
    accepted, duplicate, woken, *fields = row
    run = None if fields[0] is None else record(fields)
    return Sent(run, accepted=accepted, duplicate=duplicate, woken=woken)
