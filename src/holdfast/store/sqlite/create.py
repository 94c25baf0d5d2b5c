"""Makes runs with their tasks."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.model import Status, TaskKind
from holdfast.store.protocol import FIRST_EPOCH, Created, NewRun, RunRecord
from holdfast.store.sqlite.reads import find_current
from holdfast.store.sqlite.sql import statements
from holdfast.store.sqlite.tx import Row, Tx

_SQL = statements("create")


def create(tx: Tx, runs: Sequence[NewRun]) -> list[Created]:
    connection = tx.connection
    last: int = connection.execute(_SQL["last_id"]).get
    numbered = list(enumerate(runs, last + 1))
    before = connection.total_changes()
    connection.executemany(_SQL["run"], [_run_row(run, new, tx.now) for run, new in numbered])
    if connection.total_changes() - before == len(runs):
        made = {run for run, _ in numbered}
    else:
        made = {run for (run,) in connection.execute(_SQL["made"], (last,))}
    connection.executemany(_SQL["task"], [_task_row(run, new, tx.now) for run, new in numbered if run in made])
    return [_created(run, new, tx.now) if run in made else _existing(tx, new) for run, new in numbered]


def _run_row(run: int, new: NewRun, now: int) -> Row:
    return (run, new.workflow, new.instance_id, new.kind, new.params, new.queue, new.priority, new.seed, now)


def _task_row(run: int, new: NewRun, now: int) -> Row:
    lease_until, epoch = (None, 0) if new.owner is None else (now + new.lease_ms, FIRST_EPOCH)
    kind = TaskKind.RUN
    return (
        run,
        new.workflow,
        new.queue,
        kind.bucket,
        kind,
        new.priority,
        now + new.delay_ms,
        new.owner,
        lease_until,
        epoch,
    )


def _created(run: int, new: NewRun, now: int) -> Created:
    made = RunRecord(
        run=run,
        workflow=new.workflow,
        instance_id=new.instance_id,
        number=0,
        kind=new.kind,
        status=Status.ACTIVE,
        params=new.params,
        output=None,
        error=None,
        queue=new.queue,
        priority=new.priority,
        created_at=now,
        updated_at=now,
        started_at=None,
        completed_at=None,
        instance=run,
        seed=new.seed,
        run_at=now + new.delay_ms,
        owner=new.owner,
    )
    return Created(True, made, 0 if new.owner is None else FIRST_EPOCH)


def _existing(tx: Tx, new: NewRun) -> Created:
    run = find_current(tx, new.workflow, new.instance_id)
    if run is None:
        raise AssertionError(f"{new.workflow}/{new.instance_id} exists and cannot be found")
    return Created(False, run)
