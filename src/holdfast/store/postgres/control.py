"""What people do to runs: pause, resume, cancel, terminate, restart. Terminal runs are never changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.store.postgres.rows import columns, packed, record, touched, unit_rows
from holdfast.store.postgres.sql import statements
from holdfast.store.postgres.tx import Row, Tx
from holdfast.store.protocol import Expiry, NewUnit, RunRecord, Steered, Touched, reason_of

RESTARTED = "restarted"
_UNIT_WIDTH = 3


class Target(NamedTuple):
    workflow: str
    instance_id: str


class Ending(NamedTuple):
    target: Target
    reason: str | None


class Cancelling(NamedTuple):
    target: Target
    payload: bytes
    deadline_ms: int | None


class Restarting(NamedTuple):
    target: Target
    expires_ms: int | None
    expiry: Expiry | None
    options: bytes | None
    token: int
    """By which it knows the run again that it made."""
    units: Sequence[NewUnit] = ()


async def pause(tx: Tx, target: Target) -> RunRecord | None:
    row = await _row(tx, "pause", target)
    return None if row is None else record(row)


async def resume(tx: Tx, target: Target) -> RunRecord | None:
    row = await _row(tx, "resume", target)
    return None if row is None else record(row)


async def terminate(tx: Tx, asked: Ending) -> Steered:
    return _steered(await _row(tx, "terminate", asked.target, packed(asked.reason)))


async def cancel(tx: Tx, asked: Cancelling) -> Steered:
    reason = packed(reason_of(asked.payload))
    return _steered(await _row(tx, "cancel", asked.target, asked.payload, reason, asked.deadline_ms))


async def restart(tx: Tx, asked: Restarting) -> Steered:
    expiry = None if asked.expires_ms is None else asked.expiry
    more = (packed(RESTARTED), asked.expires_ms, expiry, asked.options, asked.token)
    units = columns(unit_rows(asked.units), _UNIT_WIDTH)
    return _steered(await _row(tx, "restart", asked.target, *more, *units))


async def _row(tx: Tx, verb: str, target: Target, *more: object) -> Row | None:
    row = await tx.connection.fetchrow(statements("control", tx.schema)[verb], tx.now, tx.by, *target, *more)
    return None if row is None else tuple(row)


def _steered(row: Row | None) -> Steered:
    if row is None:
        return Steered(None, Touched())
    ended, woken, work, *fields = row
    return Steered(record(fields), touched(ended, woken, work) or Touched())
