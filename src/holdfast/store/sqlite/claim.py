"""Takes due tasks. What it costs depends on the number of lanes and of tasks taken, not of tasks waiting."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from itertools import groupby
from typing import Any, NamedTuple

from holdfast.core.model import TaskKind
from holdfast.store.protocol import Claim, Claimant, ClaimRequest, ClaimResult, Mailbag, TaskRef
from holdfast.store.sqlite.mailbox import EMPTY, mailbags
from holdfast.store.sqlite.reads import records_by_run
from holdfast.store.sqlite.sql import statements
from holdfast.store.sqlite.tx import Row, Tx
from holdfast.store.sqlite.units import Holder, Start, next_start, write_starts

_SQL = statements("claim")

SUSPECT_BUCKET = 2
"""The lanes of tasks that lost several holders in a row: the last ones."""
_NO_BUCKET = -1
_OVERDUE = 100
"""How many runs whose time has run out are handed out at once."""


class _Lane(NamedTuple):
    bucket: int
    priority: int
    queue: str
    workflow: str
    run_at: int
    """When its first task is due."""


class _Due(NamedTuple):
    run_at: int
    run: int
    unit: int
    kind: int
    lost: int
    epoch: int
    bucket: int
    key: Any
    """Of a unit, as it is stored."""
    started_at: int | None
    """The time of a unit's last START."""


def claim(tx: Tx, request: ClaimRequest) -> ClaimResult:
    if request.run is not None:
        return _claim_units(tx, request, request.run)
    overdue = _overdue(tx, request) if request.limit else []
    lanes = _lanes(tx, request)
    due = _due(tx, lanes, request.limit)
    if not due:
        return ClaimResult((), _next_due(tx, lanes), tx.now, overdue)
    _take(tx, due, request)
    if due[-1].bucket == SUSPECT_BUCKET:
        request = replace(request, suspects=False)  # one is enough
    itself = [task.run for task in due if task.unit == 0]
    claims = _claims(tx, due, request.owner, mailbags(tx, itself) if itself else {})
    return ClaimResult(claims, _next_due(tx, _lanes(tx, request)), tx.now, overdue)


def take(tx: Tx, run: int, claimant: Claimant) -> Claim:
    """Take one run, whether its turn has come or not."""
    due = [_Due(*row) for row in tx.connection.execute(_SQL["place"], (run,))]
    _take(tx, due, claimant)
    [claimed] = _claims(tx, due, claimant.owner, mailbags(tx, [run]))
    return claimed


def _claim_units(tx: Tx, request: ClaimRequest, run: int) -> ClaimResult:
    """Of one run only."""
    left_out = _NO_BUCKET if request.suspects else SUSPECT_BUCKET
    itself = tx.connection.execute(_SQL["itself"], (run, tx.now)).fetchall() if request.limit else []
    rows = tx.connection.execute(_SQL["due_of_run"], (run, tx.now, left_out, request.limit - len(itself)))
    found = [_Due(*row) for row in [*itself, *rows]]
    # The run itself calls no code of users, so that it needs no care as a suspect.
    suspects = [task for task in found if task.bucket == SUSPECT_BUCKET and task.unit]
    due = [task for task in found if task not in suspects[1:]]  # one is enough
    if due:
        _take(tx, due, request)
    left_out = SUSPECT_BUCKET if suspects else left_out
    next_due: int | None = tx.connection.execute(_SQL["next_of_run"], (run, left_out)).get
    bags = mailbags(tx, [run]) if itself else {}
    return ClaimResult(_claims(tx, due, request.owner, bags), next_due, tx.now)


def _overdue(tx: Tx, request: ClaimRequest) -> list[Claim]:
    """Whoever holds them: a run whose time has run out is to end. Almost always one look finds that there are none."""
    expires = _expires(tx)
    if expires is None or expires > tx.now:
        return []
    due = [_Due(*row) for row in tx.connection.execute(_SQL["overdue"], (tx.now, _OVERDUE))]
    _hold(tx, due, request)
    claims = _claims(tx, due, request.owner, {})
    until = tx.now + request.lease_ms
    tx.connection.executemany(_SQL["put_off"], [(task.run, task.unit, until) for task in due])
    return claims


def _expires(tx: Tx) -> int | None:
    expires: int | None = tx.connection.execute(_SQL["expires"]).get
    return expires


def _lanes(tx: Tx, request: ClaimRequest) -> list[_Lane]:
    asked = (json.dumps(list(request.queues)), json.dumps(sorted(request.workflows)))
    buckets = json.dumps([0, 1, SUSPECT_BUCKET] if request.suspects else [0, 1])
    found = tx.connection.execute(_SQL["lanes"], (*asked, tx.now, request.limit, buckets)).get
    return sorted(_Lane(*lane) for lane in json.loads(found))


def _next_due(tx: Tx, lanes: list[_Lane]) -> int | None:
    expires = _expires(tx)
    times = [lane.run_at for lane in lanes] if expires is None else [expires, *(lane.run_at for lane in lanes)]
    return min(times, default=None)


def _due(tx: Tx, lanes: list[_Lane], limit: int) -> list[_Due]:
    """The first ``limit`` due tasks: in the order of lanes, those of equal rank merged by time."""
    chosen: list[_Due] = []
    heads = [lane for lane in lanes if lane.run_at <= tx.now]
    for (bucket, _), equals in groupby(heads, lambda lane: (lane.bucket, lane.priority)):
        room = limit - len(chosen)
        if bucket == SUSPECT_BUCKET:
            room = min(room, 1)
        if room <= 0:
            break
        found = [_Due(*row) for lane in equals for row in _due_in(tx, lane, room)]
        chosen += sorted(found)[:room]
        if bucket == SUSPECT_BUCKET:
            break
    return chosen


def _due_in(tx: Tx, lane: _Lane, limit: int) -> list[Row]:
    key = (lane.queue, lane.workflow, lane.bucket, lane.priority)
    return tx.connection.execute(_SQL["due"], (*key, tx.now, limit)).fetchall()


def _take(tx: Tx, due: list[_Due], by: ClaimRequest | Claimant) -> None:
    _hold(tx, due, by)
    tx.connection.executemany(_SQL["activate"], [(run, tx.now) for run in {task.run for task in due}])


def _hold(tx: Tx, due: list[_Due], by: ClaimRequest | Claimant) -> None:
    until = tx.now + by.lease_ms
    itself = [(task.run, 0, by.owner, until) for task in due if task.unit == 0]
    tx.connection.executemany(_SQL["take"], itself)
    if len(itself) < len(due):
        _start(tx, [task for task in due if task.unit], Holder(by.owner, until))


def _start(tx: Tx, due: list[_Due], holder: Holder) -> None:
    at = [next_start(tx.now, task.started_at) for task in due]
    tx.connection.executemany(
        _SQL["take_unit"], [(*task[1:3], *holder, when) for task, when in zip(due, at, strict=True)]
    )
    write_starts(
        tx, [Start(task.run, task.key, task.epoch + 1, when) for task, when in zip(due, at, strict=True)], holder
    )


def _claims(tx: Tx, due: list[_Due], owner: str, bags: Mapping[int, Mailbag]) -> list[Claim]:
    records = records_by_run(tx, json.dumps(list({task.run for task in due})))
    return [
        Claim(
            TaskRef(task.run, task.unit, owner, task.epoch + 1),
            TaskKind(task.kind),
            task.lost == 1,
            records[task.run],
            bags.get(task.run, EMPTY) if task.unit == 0 else EMPTY,
            tx.now,
        )
        for task in due
    ]
