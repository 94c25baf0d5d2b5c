"""Control requests: pause, resume, cancel, terminate, restart. Terminal runs are never changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.core.model import Status, TaskKind
from holdfast.store.protocol import (
    CANCEL,
    GRAPH,
    AffectedRuns,
    ControlResult,
    Expiry,
    NewUnit,
    RunRecord,
    cancel_reason,
)
from holdfast.store.sqlite import ends, successors
from holdfast.store.sqlite.reads import find_current
from holdfast.store.sqlite.rows import encode_text_or_none
from holdfast.store.sqlite.send import QueuedEvent, add_effect, add_event
from holdfast.store.sqlite.sql import statements
from holdfast.store.sqlite.tx import Tx

_SQL = statements("control")
_PAUSE = statements("pause")
RESTARTED = "restarted"


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
    options: bytes | None = None
    units: Sequence[NewUnit] = ()


def set_paused(tx: Tx, run: int, note: str | None = None) -> None:
    """Pause the run. Its task is kept for its epoch, without an owner and never due. Its units are not due either."""
    tx.connection.execute(_PAUSE["run"], (run, encode_text_or_none(note), tx.now))
    tx.connection.execute(_PAUSE["task"], (run,))


def pause(tx: Tx, target: Target) -> RunRecord | None:
    run = find_current(tx, target.workflow, target.instance_id)
    if run is None or run.status.terminal or run.status is Status.PAUSED:
        return run
    if run.owner is None:
        set_paused(tx, run.run)
    else:
        tx.connection.execute(_SQL["signal_pause"], (run.run,))
    return run


def resume(tx: Tx, target: Target) -> RunRecord | None:
    run = find_current(tx, target.workflow, target.instance_id)
    if run is None:
        return None
    if run.status is Status.PAUSED:
        kind = TaskKind.RESUME
        tx.connection.execute(_SQL["resume_run"], (run.run, tx.now))
        tx.connection.execute(_SQL["resume_task"], (run.run, tx.now, kind, kind.bucket))
    elif run.pausing:
        tx.connection.execute(_SQL["withdraw_pause"], (run.run,))
    return run


def terminate(tx: Tx, request: TerminateRequest) -> ControlResult:
    run = find_current(tx, *request.target)
    if run is None or run.status.terminal:
        return ControlResult(run, AffectedRuns())
    return ControlResult(run, ends.terminate(tx, run.run, request.reason))


def cancel(tx: Tx, request: CancelRequest) -> ControlResult:
    run = find_current(tx, *request.target)
    affected = AffectedRuns()
    if run is not None and not run.status.terminal:
        request_cancel(tx, run, QueuedEvent(CANCEL, request.payload), request.deadline_ms, affected)
    return ControlResult(run, affected)


def request_cancel(tx: Tx, run: RunRecord, event: QueuedEvent, deadline_ms: int | None, affected: AffectedRuns) -> None:
    """Cancel a run that has not ended. A graph has no code that could react, and ends at once."""
    if run.kind == GRAPH:
        ends.merge(affected, ends.cancel(tx, run.run, cancel_reason(event.payload)))
        return
    add_effect(affected, run.run, add_event(tx, run, event))
    if deadline_ms is not None:
        tx.connection.execute(_SQL["set_cancel_deadline"], (run.run, tx.now + deadline_ms))
        affected.work = True  # a worker must end the run then, so workers must read the next due time again


def restart(tx: Tx, request: RestartRequest) -> ControlResult:
    old = find_current(tx, *request.target)
    if old is None:
        return ControlResult(None, AffectedRuns())
    was_running = not old.status.terminal
    if was_running:
        ends.close(tx, old.run, RESTARTED)
    expires = successors.expires_in(request.expires_ms, request.expiry, tx.now)
    successor = successors.Successor(old.params, tx.now, 1, expires, request.options, request.units, in_line=False)
    new = successors.create_successor(tx, old, successor)
    affected = AffectedRuns(work=True)
    if was_running:
        affected.ended.append(old.run)
        ends.merge(affected, ends.propagate(tx, [ends.End(old.run, new)]).get(old.run))
    return ControlResult(find_current(tx, *request.target), affected)
