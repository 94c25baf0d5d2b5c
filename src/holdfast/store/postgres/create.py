"""Makes runs with their tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.core.model import Status
from holdfast.store.postgres.rows import columns, record
from holdfast.store.postgres.sql import statements
from holdfast.store.postgres.tx import Row, Tx
from holdfast.store.protocol import FIRST_EPOCH, Created, NewRun, RunRecord

_WIDTH = 11


class Making(NamedTuple):
    """A run to make, and a number by which the call that made it knows its row again."""

    new: NewRun
    token: int


async def create(tx: Tx, runs: Sequence[Making]) -> list[Created]:
    if not runs:
        return []
    sql = statements("create", tx.schema)["create"]
    made = await tx.connection.fetch(sql, tx.now, tx.by, *columns([_row(one) for one in runs], _WIDTH))
    answers: dict[int, Created] = {}
    for row in made:
        ord_, run, created_at = row.values()
        answers[ord_ - 1] = _created(run, runs[ord_ - 1].new, created_at)
    if len(answers) < len(runs):
        answers |= await _existing(tx, {n: one.new for n, one in enumerate(runs) if n not in answers})
    return [answers[n] for n in range(len(runs))]


def _row(one: Making) -> Row:
    new = one.new
    return (
        new.workflow,
        new.instance_id,
        new.kind,
        new.params,
        new.queue,
        new.priority,
        new.delay_ms,
        new.seed,
        new.owner,
        new.lease_ms,
        one.token,
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


async def _existing(tx: Tx, asked: dict[int, NewRun]) -> dict[int, Created]:
    numbers = list(asked)
    names = columns([(new.workflow, new.instance_id) for new in asked.values()], 2)
    rows = await tx.connection.fetch(statements("reads", tx.schema)["currents"], *names)
    found = {}
    for row in rows:
        ord_, *fields = row.values()
        found[numbers[ord_ - 1]] = Created(False, record(fields))
    return found
