"""Makes runs with their tasks."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.model import Status, TaskKind
from holdfast.store.protocol import Created, NewRun, RunRecord
from holdfast.store.sqlite.connection import Tx
from holdfast.store.sqlite.reads import find_current
from holdfast.store.sqlite.rows import Row
from holdfast.store.sqlite.sql import statements

_SQL = statements("create")


def create(tx: Tx, runs: Sequence[NewRun]) -> list[Created]:
    connection = tx.connection
    last: int = connection.execute(_SQL["last_id"]).get
    numbered = list(enumerate(runs, last + 1))
    before = connection.total_changes()
    connection.executemany(_SQL["run"], [_run_row(id, new, tx.now) for id, new in numbered])
    if connection.total_changes() - before == len(runs):
        made = {id for id, _ in numbered}
    else:
        made = {id for (id,) in connection.execute(_SQL["made"], (last,))}
    connection.executemany(_SQL["task"], [_task_row(id, new, tx.now) for id, new in numbered if id in made])
    return [_created(id, new, tx.now) if id in made else _existing(tx, new) for id, new in numbered]


def _run_row(id: int, new: NewRun, now: int) -> Row:
    return (id, new.workflow, new.instance_id, new.kind, new.params, new.queue, new.priority, new.seed, now)


def _task_row(id: int, new: NewRun, now: int) -> Row:
    lease_until, epoch = (None, 0) if new.owner is None else (now + new.lease_ms, 1)
    kind = TaskKind.RUN
    return (
        id,
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


def _created(id: int, new: NewRun, now: int) -> Created:
    run = RunRecord(
        run=id,
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
        instance=id,
        seed=new.seed,
        run_at=now + new.delay_ms,
        owner=new.owner,
    )
    return Created(True, run, 0 if new.owner is None else 1)


def _existing(tx: Tx, new: NewRun) -> Created:
    run = find_current(tx, new.workflow, new.instance_id)
    if run is None:
        raise AssertionError(f"{new.workflow}/{new.instance_id} exists and cannot be found")
    return Created(False, run)
