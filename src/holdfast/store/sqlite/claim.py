"""Takes due tasks. What it costs depends on the number of lanes and of tasks taken, not of tasks waiting."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple

from holdfast.core.model import TaskKind
from holdfast.store.protocol import Claim, Claimant, ClaimRequest, ClaimResult, Mailbag, TaskRef
from holdfast.store.sqlite.mailbox import EMPTY, mailbags
from holdfast.store.sqlite.reads import records_by_run
from holdfast.store.sqlite.sql import statements
from holdfast.store.sqlite.tx import Row, Tx

_SQL = statements("claim")

SUSPECT_BUCKET = 2
"""The lanes of tasks that lost several holders in a row: the last ones."""
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


def claim(tx: Tx, request: ClaimRequest) -> ClaimResult:
    overdue = _overdue(tx, request) if request.limit else []
    lanes = _lanes(tx, request)
    due = _due(tx, lanes, request.limit)
    if not due:
        return ClaimResult((), _next_due(tx, lanes), tx.now, overdue)
    _take(tx, due, request)
    if due[-1].bucket == SUSPECT_BUCKET:
        request = replace(request, suspects=False)  # one is enough
    claims = _claims(tx, due, request.owner, mailbags(tx, [task.run for task in due]))
    return ClaimResult(claims, _next_due(tx, _lanes(tx, request)), tx.now, overdue)


def take(tx: Tx, run: int, claimant: Claimant) -> Claim:
    """Take one run, whether its turn has come or not."""
    due = [_Due(*row) for row in tx.connection.execute(_SQL["place"], (run,))]
    _take(tx, due, claimant)
    [claimed] = _claims(tx, due, claimant.owner, mailbags(tx, [run]))
    return claimed


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
    tx.connection.executemany(_SQL["activate"], [(task.run, tx.now) for task in due])


def _hold(tx: Tx, due: list[_Due], by: ClaimRequest | Claimant) -> None:
    until = tx.now + by.lease_ms
    tx.connection.executemany(_SQL["take"], [(task.run, task.unit, by.owner, until) for task in due])


def _claims(tx: Tx, due: list[_Due], owner: str, bags: Mapping[int, Mailbag]) -> list[Claim]:
    records = records_by_run(tx, json.dumps([task.run for task in due]))
    return [
        Claim(
            TaskRef(task.run, task.unit, owner, task.epoch + 1),
            TaskKind(task.kind),
            task.lost == 1,
            records[task.run],
            bags.get(task.run, EMPTY),
        )
        for task in due
    ]
