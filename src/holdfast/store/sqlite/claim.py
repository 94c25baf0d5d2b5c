"""Takes due tasks. What it costs depends on the number of lanes and of tasks taken, not of tasks waiting."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple

from holdfast.core.model import TaskKind
from holdfast.store.protocol import Claim, ClaimRequest, ClaimResult, Mail, TaskRef
from holdfast.store.sqlite.reads import records_by_run
from holdfast.store.sqlite.rows import mail
from holdfast.store.sqlite.sql import statements
from holdfast.store.sqlite.tx import Row, Tx

_SQL = statements("claim")

SUSPECT_BUCKET = 2
"""The lanes of tasks that lost several holders in a row: the last ones."""


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


def claim(tx: Tx, request: ClaimRequest) -> ClaimResult:
    lanes = _lanes(tx, request)
    due = _due(tx, lanes, request.limit)
    if not due:
        return ClaimResult((), _next_due(lanes), tx.now)
    _take(tx, due, request)
    if due[-1].bucket == SUSPECT_BUCKET:
        request = replace(request, suspects=False)  # one is enough
    return ClaimResult(_claims(tx, due, request.owner), _next_due(_lanes(tx, request)), tx.now)


def _lanes(tx: Tx, request: ClaimRequest) -> list[_Lane]:
    asked = (json.dumps(list(request.queues)), json.dumps(sorted(request.workflows)))
    buckets = json.dumps([0, 1, SUSPECT_BUCKET] if request.suspects else [0, 1])
    found = tx.connection.execute(_SQL["lanes"], (*asked, tx.now, request.limit, buckets)).get
    return sorted(_Lane(*lane) for lane in json.loads(found))


def _next_due(lanes: list[_Lane]) -> int | None:
    return min((lane.run_at for lane in lanes), default=None)


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


def _take(tx: Tx, due: list[_Due], request: ClaimRequest) -> None:
    until = tx.now + request.lease_ms
    tx.connection.executemany(_SQL["take"], [(task.run, task.unit, request.owner, until) for task in due])
    tx.connection.executemany(_SQL["activate"], [(task.run, tx.now) for task in due])


def _claims(tx: Tx, due: list[_Due], owner: str) -> list[Claim]:
    runs = json.dumps([task.run for task in due])
    records = records_by_run(tx, runs)
    mailboxes: defaultdict[int, list[Mail]] = defaultdict(list)
    for run, *row in tx.connection.execute(_SQL["mail"], (runs,)):
        mailboxes[run].append(mail(tuple(row)))
    return [
        Claim(
            TaskRef(task.run, task.unit, owner, task.epoch + 1),
            TaskKind(task.kind),
            task.lost == 1,
            records[task.run],
            mailboxes.get(task.run, ()),
        )
        for task in due
    ]
