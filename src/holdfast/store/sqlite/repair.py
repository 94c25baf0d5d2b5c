"""Runs that continue from the recorded history of another run, and the deletion of instances."""

from __future__ import annotations

import json
from collections.abc import Sequence

from holdfast.core.model import Status, TaskKind
from holdfast.store.protocol import AffectedRuns, ContinueRun, ControlResult, NewUnit, RunRecord
from holdfast.store.sqlite import ends, singletons, successors
from holdfast.store.sqlite.reads import find_current, record_of, records_by_run
from holdfast.store.sqlite.rows import fact_rows
from holdfast.store.sqlite.send import send_engine_event
from holdfast.store.sqlite.sql import statements
from holdfast.store.sqlite.tx import Tx
from holdfast.store.sqlite.unit_tasks import UnitInserts, UnitQueue
from holdfast.store.sqlite.watching import watch

_SQL = statements("repair")
_INSERT_TASK = statements("create")["insert_task"]
_COPY_PLAN = statements("successors")["copy_plan"]
_INSERT_FACT = statements("commit")["insert_fact"]


def continue_run(tx: Tx, request: ContinueRun) -> ControlResult:
    affected = AffectedRuns()
    source = records_by_run(tx, json.dumps([request.run])).get(request.run)
    if source is None:
        return ControlResult(None, affected)
    if request.fork_id is None:
        if not source.current or source.status is not Status.ERRORED:
            return ControlResult(source, affected, refused=True)
        new = _insert_successor(tx, source, request)
        tx.connection.execute(_SQL["move_undelivered"], (source.run, new))
        tx.connection.execute(_SQL["set_retried"], (source.run,))
    else:
        existing = find_current(tx, request.workflow, request.fork_id)
        if existing is not None:
            return ControlResult(existing, affected, refused=True)
        new = _insert_fork(tx, source, request, request.fork_id)
    tx.connection.execute(_SQL["set_history"], (new, source.started_at, request.origin))
    tx.connection.execute(_SQL["copy_events"], (source.run, new, json.dumps(request.events)))
    tx.connection.executemany(_INSERT_FACT, fact_rows(new, request.facts))
    if request.units:
        tx.connection.execute(_SQL["set_open_nodes"], (new, request.open_nodes))
    _watch(tx, new, request, affected)
    if request.fork_id is not None:
        tx.connection.execute(_SQL["delete_watches"], (json.dumps([new]),))
    affected.work = True
    return ControlResult(record_of(tx, new), affected)


def _insert_successor(tx: Tx, source: RunRecord, request: ContinueRun) -> int:
    expires = successors.expires_in(request.expires_ms, request.expiry, tx.now)
    successor = successors.Successor(
        request.params, tx.now, source.attempt, expires, request.options, request.units, in_line=True
    )
    return successors.create_successor(tx, source, successor)


def _insert_fork(tx: Tx, source: RunRecord, request: ContinueRun, id: str) -> int:
    row = (source.run, id, request.params, request.options, tx.now)
    tx.connection.execute(_SQL["insert_fork"], row)
    new, kind = tx.connection.last_insert_rowid(), TaskKind.RUN
    tx.connection.execute(_SQL["set_instance"], (new,))
    tx.connection.execute(_SQL["copy_terms"], (source.instance, new))
    expires = successors.expires_in(request.expires_ms, request.expiry, tx.now)
    run_at = None if request.units else tx.now
    queue = (new, source.workflow, source.queue, kind.bucket, kind, source.priority, run_at)
    tx.connection.execute(_INSERT_TASK, (*queue, None, None, 0, *expires, len(request.units), ""))
    tx.connection.execute(_COPY_PLAN, (source.run, new))
    if request.units:
        _insert_units(tx, UnitQueue(new, source.workflow, source.queue, source.priority, tx.now), request.units)
    singletons.inherit(tx, source, new, tx.now, forked=True)
    return new


def _insert_units(tx: Tx, queue: UnitQueue, new: Sequence[NewUnit]) -> None:
    units = UnitInserts(tx)
    units.add(queue, new)
    units.write()


def _watch(tx: Tx, run: int, request: ContinueRun, affected: AffectedRuns) -> None:
    for pid, kind in request.watches:
        workflow, _, instance_id = pid.partition("/")
        target = find_current(tx, workflow, instance_id)
        if target is None:
            continue
        if target.status.terminal:
            send_engine_event(tx, run, ends.exit_event(target, kind), affected)
        else:
            watch(tx, run, target.run, kind)


def delete(tx: Tx, run: RunRecord) -> ControlResult:
    if not run.status.terminal:
        return ControlResult(run, AffectedRuns(), refused=True)
    runs = json.dumps([one for (one,) in tx.connection.execute(_SQL["runs"], (run.workflow, run.instance_id))])
    for name in ("facts", "events", "logs", "outbox", "streams", "chunks", "watches", "watchers", "runs_of_instance"):
        tx.connection.execute(_SQL[f"delete_{name}"], (runs,))
    tx.connection.execute(_SQL["delete_terms"], (run.instance,))
    return ControlResult(run, AffectedRuns())
