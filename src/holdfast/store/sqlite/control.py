"""What people do to runs: pause, resume, terminate, restart. Terminal runs are never changed."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.core.model import Status, TaskKind
from holdfast.store.protocol import RunRecord
from holdfast.store.sqlite.reads import find_current
from holdfast.store.sqlite.rows import safe_or_none
from holdfast.store.sqlite.sql import statements
from holdfast.store.sqlite.tx import Tx

_SQL = statements("control")
_PAUSE = statements("pause")
_NEW_TASK = statements("create")["task"]
RESTARTED = "restarted"


class Target(NamedTuple):
    workflow: str
    instance_id: str
    reason: str | None = None


def set_paused(tx: Tx, run: int, note: str | None = None) -> None:
    """The run is paused; its task stays, for the sake of its epoch, held by nobody and never due."""
    tx.connection.execute(_PAUSE["run"], (run, safe_or_none(note), tx.now))
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


def terminate(tx: Tx, target: Target) -> RunRecord | None:
    run = find_current(tx, target.workflow, target.instance_id)
    if run is not None and not run.status.terminal:
        _end(tx, run.run, target.reason)
    return run


def restart(tx: Tx, target: Target) -> RunRecord | None:
    old = find_current(tx, target.workflow, target.instance_id)
    if old is None:
        return None
    if not old.status.terminal:
        _end(tx, old.run, RESTARTED)
    tx.connection.execute(_SQL["supersede"], (old.run,))
    tx.connection.execute(_SQL["again"], (old.run, tx.now))
    new, kind = tx.connection.last_insert_rowid(), TaskKind.RUN
    row = (new, old.workflow, old.queue, kind.bucket, kind, old.priority, tx.now, None, None, 0)
    tx.connection.execute(_NEW_TASK, row)
    return find_current(tx, target.workflow, target.instance_id)


def _end(tx: Tx, run: int, reason: str | None) -> None:
    tx.connection.execute(_SQL["terminate"], (run, safe_or_none(reason), tx.now))
    tx.connection.execute(_SQL["drop_task"], (run,))
