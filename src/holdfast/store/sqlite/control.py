"""Control requests, with their audit records. Terminal runs are never changed."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.core.model import Status, TaskKind
from holdfast.store.protocol import (
    CANCEL,
    GRAPH,
    RESOLVE,
    AffectedRuns,
    Audit,
    CancelRun,
    ContinueRun,
    ControlRequest,
    ControlResult,
    DeleteInstance,
    MoveRun,
    PauseRun,
    RedeliverOutbox,
    ReplyByHand,
    ResolveStep,
    ResolveUnit,
    RestartRun,
    ResumeRun,
    RunRecord,
    SendEvent,
    TerminateRun,
    audited_outcome,
    cancel_reason,
)
from holdfast.store.sqlite import audit, ends, outbox, repair, replies, successors
from holdfast.store.sqlite.advance import write_unowned
from holdfast.store.sqlite.pausing import set_paused
from holdfast.store.sqlite.reads import find_run, record_of
from holdfast.store.sqlite.send import QueuedEvent, add_effect, add_event, send
from holdfast.store.sqlite.sql import statements
from holdfast.store.sqlite.tx import Tx

_SQL = statements("control")
RESTARTED = "restarted"


class ControlCall(NamedTuple):
    request: ControlRequest
    audit: Audit | None = None


def control(tx: Tx, call: ControlCall) -> ControlResult:
    result = _apply(tx, call.request)
    if call.audit is not None and result.run is not None:
        audit.write(tx, call.audit, *audited_outcome(call.request, result))
    return result


def _apply(tx: Tx, request: ControlRequest) -> ControlResult:
    match request:
        case ContinueRun():
            return repair.continue_run(tx, request)
        case SendEvent(event):
            [sent] = send(tx, [event])
            return ControlResult(sent.run, AffectedRuns(), refused=not sent.accepted, sent=sent)
        case _:
            return _apply_to_current(tx, request)


def _apply_to_current(tx: Tx, request: ControlRequest) -> ControlResult:
    """Apply a request on the current run of an instance, or with a number on that run."""
    number = request.number if isinstance(request, RedeliverOutbox) else None
    run = find_run(tx, request.workflow, request.instance_id, number)
    affected = AffectedRuns()
    if run is None or _names_another_run(tx, run, request):
        return ControlResult(run, affected, refused=run is not None)
    match request:  # RecordAction changes nothing
        case PauseRun():
            pause(tx, run)
        case ResumeRun():
            resume(tx, run)
        case TerminateRun():
            terminate(tx, run, request.reason, affected)
        case CancelRun():
            cancel(tx, run, request, affected)
        case RestartRun():
            run = restart(tx, run, request, affected)
        case RedeliverOutbox():
            return ControlResult(run, affected, outbox.redeliver(tx, run.run))
        case MoveRun():
            move(tx, run, request, affected)
        case ResolveStep():
            resolve(tx, run, request, affected)
        case ResolveUnit():
            return resolve_unit(tx, run, request)
        case ReplyByHand():
            return replies.reply_by_hand(tx, run, request)
        case DeleteInstance():
            return repair.delete(tx, run)
    return ControlResult(run, affected, refused=run.status.terminal and isinstance(request, _ON_OPEN_RUNS))


_ON_OPEN_RUNS = (PauseRun, TerminateRun, CancelRun, MoveRun, ResolveStep)
"""Requests that are refused if the run has ended."""


def _names_another_run(tx: Tx, run: RunRecord, request: ControlRequest) -> bool:
    """True if the request is about a run in whose place there is another one now."""
    match request:
        case RestartRun(line=int(line)):
            return not successors.is_in_line(tx, run.run, line)
        case RestartRun(run=int(only)) | DeleteInstance(run=int(only)):
            return only != run.run
        case _:
            return False


def resolve(tx: Tx, run: RunRecord, request: ResolveStep, affected: AffectedRuns) -> None:
    if not run.status.terminal:
        add_effect(affected, run.run, add_event(tx, run, QueuedEvent(RESOLVE, request.payload)))


def resolve_unit(tx: Tx, run: RunRecord, request: ResolveUnit) -> ControlResult:
    if run.run != request.advance.task.run or run.status.terminal:
        return ControlResult(run, AffectedRuns(), refused=True)
    done = write_unowned(tx, request.advance, paused=run.status is Status.PAUSED)
    return ControlResult(run, AffectedRuns(work=done), refused=not done)


def pause(tx: Tx, run: RunRecord) -> None:
    if run.status.terminal or run.status is Status.PAUSED:
        return
    if run.owner is None:
        set_paused(tx, run.run)
    else:
        tx.connection.execute(_SQL["signal_pause"], (run.run,))


def resume(tx: Tx, run: RunRecord) -> None:
    if run.status is Status.PAUSED:
        kind = TaskKind.RESUME
        begun = run.started_at is not None or tx.connection.execute(_SQL["has_begun"], (run.run,)).get
        tx.connection.execute(_SQL["resume_task"], (run.run, tx.now, kind, kind.bucket, begun))
        tx.connection.execute(_SQL["resume_run"], (run.run, tx.now))
    elif run.pausing:
        tx.connection.execute(_SQL["withdraw_pause"], (run.run,))


def move(tx: Tx, run: RunRecord, request: MoveRun, affected: AffectedRuns) -> None:
    if run.status.terminal:
        return
    pinned = tx.connection.execute(_SQL["move_run"], (run.run, request.version, request.pinned, tx.now)).get
    tx.connection.execute(_SQL["move_tasks"], (run.run, request.version, pinned))
    affected.work = True


def terminate(tx: Tx, run: RunRecord, reason: str | None, affected: AffectedRuns) -> None:
    if not run.status.terminal:
        ends.merge(affected, ends.terminate(tx, run.run, reason))


def cancel(tx: Tx, run: RunRecord, request: CancelRun, affected: AffectedRuns) -> None:
    if not run.status.terminal:
        request_cancel(tx, run, QueuedEvent(CANCEL, request.payload), request.deadline_ms, affected)


def request_cancel(tx: Tx, run: RunRecord, event: QueuedEvent, deadline_ms: int | None, affected: AffectedRuns) -> None:
    """Cancel a run that has not ended. A graph, and a held run, have no code that could react, and end at once."""
    if run.kind == GRAPH or tx.connection.execute(_SQL["is_held"], (run.run,)).get:
        ends.merge(affected, ends.cancel(tx, run.run, cancel_reason(event.payload)))
        return
    add_effect(affected, run.run, add_event(tx, run, event))
    if deadline_ms is not None:
        tx.connection.execute(_SQL["set_cancel_deadline"], (run.run, tx.now + deadline_ms))
        affected.work = True  # a worker must end the run then, so workers must read the next due time again


def restart(tx: Tx, old: RunRecord, request: RestartRun, affected: AffectedRuns) -> RunRecord:
    """Create the new run and end the old one; returns the new run."""
    was_running = not old.status.terminal
    expires = successors.expires_in(request.expires_ms, request.expiry, tx.now)
    successor = successors.Successor(old.params, tx.now, 1, expires, request.options, request.units, in_line=False)
    new = successors.create_successor(tx, old, successor)
    affected.work = True
    if was_running:
        ends.close(tx, old.run, RESTARTED)  # after the successor has taken its place among singletons
        affected.ended.append(old.run)
        ends.merge(affected, ends.propagate(tx, [ends.End(old.run, new)]).get(old.run))
    return record_of(tx, new)
