"""Control requests: pause, resume, cancel, terminate, restart. Terminal runs are never changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.store.postgres.rows import affected, columns, encode_text, record, unit_rows
from holdfast.store.postgres.sql import statements
from holdfast.store.postgres.tx import Row, Tx
from holdfast.store.protocol import AffectedRuns, ControlResult, Expiry, NewUnit, RunRecord, cancel_reason

RESTARTED = "restarted"
_UNIT_WIDTH = 3


class Target(NamedTuple):
    workflow: str
    instance_id: str


class TerminateRequest(NamedTuple):
    target: Target
    reason: str | None


class CancelRequest(NamedTuple):
    target: Target
    payload: bytes
    deadline_ms: int | None


class RestartRequest(NamedTuple):
    target: Target
    expires_ms: int | None
    expiry: Expiry | None
    options: bytes | None
    token: int
    """By which a repeated call recognises the run that it created."""
    units: Sequence[NewUnit] = ()


async def pause(tx: Tx, target: Target) -> RunRecord | None:
    row = await _row(tx, "pause", target)
    return None if row is None else record(row)


async def resume(tx: Tx, target: Target) -> RunRecord | None:
    row = await _row(tx, "resume", target)
    return None if row is None else record(row)


async def terminate(tx: Tx, request: TerminateRequest) -> ControlResult:
    return _control_result(await _row(tx, "terminate", request.target, encode_text(request.reason)))


async def cancel(tx: Tx, request: CancelRequest) -> ControlResult:
    reason = encode_text(cancel_reason(request.payload))
    return _control_result(await _row(tx, "cancel", request.target, request.payload, reason, request.deadline_ms))


async def restart(tx: Tx, request: RestartRequest) -> ControlResult:
    expiry = None if request.expires_ms is None else request.expiry
    arguments = (encode_text(RESTARTED), request.expires_ms, expiry, request.options, request.token)
    units = columns(unit_rows(request.units), _UNIT_WIDTH)
    return _control_result(await _row(tx, "restart", request.target, *arguments, *units))


async def _row(tx: Tx, statement: str, target: Target, *arguments: object) -> Row | None:
    row = await tx.connection.fetchrow(
        statements("control", tx.schema)[statement], tx.now, tx.store_id, *target, *arguments
    )
    return None if row is None else tuple(row)


def _control_result(row: Row | None) -> ControlResult:
    if row is None:
        return ControlResult(None, AffectedRuns())
    ended, woken, work, *fields = row
    return ControlResult(record(fields), affected(ended, woken, work) or AffectedRuns())
