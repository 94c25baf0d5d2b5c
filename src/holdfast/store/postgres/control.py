"""Control requests, with their audit records. Terminal runs are never changed."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.store.postgres import audit, outbox, repair
from holdfast.store.postgres.columns import ADVANCE, UNIT
from holdfast.store.postgres.reads import find_run
from holdfast.store.postgres.rows import affected, record
from holdfast.store.postgres.send import SendRequest, send
from holdfast.store.postgres.sql import statements
from holdfast.store.postgres.text import encode_text
from holdfast.store.postgres.tx import Row, Tx
from holdfast.store.protocol import (
    AffectedRuns,
    Audit,
    CancelRun,
    ContinueRun,
    ControlRequest,
    ControlResult,
    DeleteInstance,
    MoveRun,
    PauseRun,
    RecordAction,
    RedeliverOutbox,
    ReplyByHand,
    ResolveStep,
    ResolveUnit,
    RestartRun,
    ResumeRun,
    SendEvent,
    TerminateRun,
    audited_outcome,
    cancel_reason,
)

RESTARTED = "restarted"


class ControlCall(NamedTuple):
    request: ControlRequest
    token: int
    """Token by which a repeated call recognises the run that its restart created."""
    audit: Audit | None = None


_OnCurrentRun = (
    PauseRun | ResumeRun | TerminateRun | CancelRun | RedeliverOutbox | MoveRun | ResolveStep | ReplyByHand
    | ResolveUnit | RecordAction
)  # fmt: skip
_ON_OPEN_RUNS = (PauseRun, TerminateRun, CancelRun, MoveRun, ResolveStep)
"""Requests that are refused if the run has ended."""


async def control(tx: Tx, call: ControlCall) -> ControlResult:
    request = call.request
    result = await _apply(tx, call)
    if result.run is not None and result.run.status.terminal and isinstance(request, _ON_OPEN_RUNS):
        result = result._replace(refused=True)
    if call.audit is not None and result.run is not None:
        await audit.write(tx, call.audit, *audited_outcome(request, result))
    return result


async def _apply(tx: Tx, call: ControlCall) -> ControlResult:
    request = call.request
    match request:
        case ContinueRun():
            return await repair.continue_run(tx, request, call.token)
        case SendEvent(event):
            [sent] = await send(tx, [SendRequest(event, call.token)])
            return ControlResult(sent.run, AffectedRuns(), refused=not sent.accepted, sent=sent)
        case DeleteInstance():
            return await repair.delete(tx, request)
        case RestartRun():
            return await _restart(tx, request, call.token)
        case _:
            return await _apply_to_current(tx, request)


async def _apply_to_current(tx: Tx, request: _OnCurrentRun) -> ControlResult:
    """Apply a request that a token need not identify, because repeating it has no further effect."""
    match request:
        case ResolveStep():
            return _control_result(await _row(tx, "resolve", request, request.payload))
        case ReplyByHand():
            return await _reply(tx, request)
        case ResolveUnit():
            return await _resolve_unit(tx, request)
        case PauseRun():
            return _record_only(await _row(tx, "pause", request))
        case ResumeRun():
            return _record_only(await _row(tx, "resume", request))
        case TerminateRun():
            return _control_result(await _row(tx, "terminate", request, encode_text(request.reason)))
        case CancelRun():
            arguments = (request.payload, encode_text(cancel_reason(request.payload)), request.deadline_ms)
            return _control_result(await _row(tx, "cancel", request, *arguments))
        case RedeliverOutbox():
            return await _redeliver(tx, request)
        case MoveRun():
            row = await _row(tx, "move", request, request.version, request.pinned)
            return _record_only(row)._replace(affected=AffectedRuns(work=True))
        case RecordAction():
            return ControlResult(await find_run(tx, request.workflow, request.instance_id, None), AffectedRuns())


async def _restart(tx: Tx, request: RestartRun, token: int) -> ControlResult:
    sql = statements("control", tx.schema)
    expiry, only = None if request.expires_ms is None else request.expiry, request.run
    if request.line is not None:
        current = await tx.connection.fetchval(sql["current_in_line"], request.line)
        only = request.line if current is None else current
    arguments = (encode_text(RESTARTED), request.expires_ms, expiry, request.options, token, only)
    units = UNIT.arrays(request.units)
    result = _control_result(await _row(tx, "restart", request, *arguments, *units))
    if only is None or result.run is None:
        return result
    created = await tx.connection.fetchval(sql["is_made_by"], result.run.run, token)
    return result._replace(refused=not created)


async def _resolve_unit(tx: Tx, request: ResolveUnit) -> ControlResult:
    one = request.advance
    facts = ADVANCE.parts["facts"].arrays([(1, *fact) for fact in (*one.results, *one.facts)])
    decrements = ([unit for unit, _ in one.decrements], [by for _, by in one.decrements])
    unit = (one.task.run, one.task.unit, list(one.removed_units), *decrements)
    row = await _row(tx, "resolve_unit", request, *unit, *facts)
    if row is None:
        return ControlResult(None, AffectedRuns())
    done, *fields = row
    return ControlResult(record(fields), AffectedRuns(work=done), refused=not done)


async def _reply(tx: Tx, request: ReplyByHand) -> ControlResult:
    row = await _row(tx, "reply_by_hand", request, request.number, request.event, *request.reply)
    if row is None:
        return ControlResult(None, AffectedRuns())
    done, *rest = row
    return _control_result(tuple(rest))._replace(refused=not done)


async def _redeliver(tx: Tx, request: RedeliverOutbox) -> ControlResult:
    run = await find_run(tx, request.workflow, request.instance_id, request.number)
    redelivered = 0 if run is None else await outbox.redeliver(tx, run.run)
    return ControlResult(run, AffectedRuns(), redelivered)


async def _row(tx: Tx, statement: str, request: ControlRequest, *arguments: object) -> Row | None:
    sql = statements("control", tx.schema)[statement]
    address = (request.workflow, request.instance_id)
    row = await tx.connection.fetchrow(sql, tx.now, tx.store_id, *address, *arguments)
    return None if row is None else tuple(row)


def _record_only(row: Row | None) -> ControlResult:
    return ControlResult(None if row is None else record(row), AffectedRuns())


def _control_result(row: Row | None) -> ControlResult:
    if row is None:
        return ControlResult(None, AffectedRuns())
    ended, woken, work, *fields = row
    return ControlResult(record(fields), affected(ended, woken, work) or AffectedRuns())
