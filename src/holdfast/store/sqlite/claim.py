"""Claims due tasks. The cost depends on the number of lanes (equal queue, workflow, bucket and priority) and claims."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, NamedTuple

from holdfast.core.model import TaskKind
from holdfast.store.protocol import Claim, Claimant, ClaimRequest, ClaimResult, MailboxPage, TaskRef
from holdfast.store.sqlite import fair_keys
from holdfast.store.sqlite.mailbox import EMPTY, mailbox_pages
from holdfast.store.sqlite.reads import records_by_run
from holdfast.store.sqlite.sql import statements
from holdfast.store.sqlite.tx import Row, Tx
from holdfast.store.sqlite.unit_tasks import OwnerLease, Start, next_start, write_starts

_SQL = statements("claim")

SUSPECT_BUCKET = 2
"""The bucket of suspects, whose lanes come last."""
_NO_BUCKET = -1
_MAX_OVERDUE = 100
"""Maximum number of overdue runs in one claim."""


class _Lane(NamedTuple):
    bucket: int
    priority: int
    queue: str
    workflow: str
    pin: str
    run_at: int
    """The time at which the first task of the lane is due."""


class _Due(NamedTuple):
    run_at: int
    run: int
    unit: int
    kind: int
    lost: int
    epoch: int
    bucket: int
    key: Any
    """The key of a unit, as stored."""
    started_at: int | None
    """The time of a unit's last START."""


def claim(tx: Tx, request: ClaimRequest) -> ClaimResult:
    if request.run is not None:
        return _claim_units(tx, request, request.run)
    overdue = _overdue(tx, request) if request.limit else []
    by_key = _claim_by_key(tx, request, -(-request.limit // 2))  # the rest is for other workflows of the queues
    lanes = _lanes(tx, request)
    due = _due(tx, lanes, request.limit - len(by_key))
    if not due and not by_key:
        return ClaimResult((), _next_due(tx, lanes), tx.now, overdue)
    _claim_tasks(tx, due, request)
    if due and due[-1].bucket == SUSPECT_BUCKET:
        request = replace(request, suspects=False)  # at most one suspect per worker
    if by_key:
        due = [*by_key, *due, *_claim_by_key(tx, request, request.limit - len(by_key) - len(due))]
    runs = [task.run for task in due if task.unit == 0]
    claims = _claims(tx, due, request.owner, mailbox_pages(tx, runs) if runs else {})
    return ClaimResult(claims, _next_due(tx, _lanes(tx, request)), tx.now, overdue)


def _claim_by_key(tx: Tx, request: ClaimRequest, room: int) -> list[_Due]:
    """Claim runs that have not begun, of workflows whose keys are claimed in turn."""
    claimed: list[_Due] = []
    for rows in fair_keys.due(tx, request, room):
        found = [_Due(*row) for row in rows]
        _claim_tasks(tx, found, request)
        claimed += found
    return claimed


def claim_runs(tx: Tx, runs: Sequence[int], claimant: Claimant) -> list[Claim]:
    """Claim these runs, regardless of the order of the queue."""
    due = [_Due(*row) for row in tx.connection.execute(_SQL["tasks_of_runs"], (json.dumps(runs),))]
    _claim_tasks(tx, due, claimant)
    return _claims(tx, due, claimant.owner, mailbox_pages(tx, runs))


def _claim_units(tx: Tx, request: ClaimRequest, run: int) -> ClaimResult:
    """Claim units of one run."""
    if tx.connection.execute(_SQL["is_run_in_paused_queue"], (run,)).get:
        return ClaimResult([], None, tx.now)
    left_out = _NO_BUCKET if request.suspects else SUSPECT_BUCKET
    run_rows = tx.connection.execute(_SQL["due_run"], (run, tx.now)).fetchall() if request.limit else []
    room = request.limit - len(run_rows)
    rows = tx.connection.execute(_SQL["due_units"], (run, tx.now, left_out, room, request.version))
    found = [_Due(*row) for row in [*run_rows, *rows]]
    # Unit 0 calls no user code, so it is not treated as a suspect.
    suspects = [task for task in found if task.bucket == SUSPECT_BUCKET and task.unit]
    due = [task for task in found if task not in suspects[1:]]  # at most one suspect per worker
    if due:
        _claim_tasks(tx, due, request)
    left_out = SUSPECT_BUCKET if suspects else left_out
    next_due: int | None = tx.connection.execute(_SQL["next_due_unit"], (run, left_out)).get
    pages = mailbox_pages(tx, [run]) if run_rows else {}
    return ClaimResult(_claims(tx, due, request.owner, pages), next_due, tx.now)


def _overdue(tx: Tx, request: ClaimRequest) -> list[Claim]:
    """Claim expired runs, including owned ones. Almost always one query finds that there are none."""
    expires = _expires(tx)
    if expires is None or expires > tx.now:
        return []
    due = [_Due(*row) for row in tx.connection.execute(_SQL["overdue"], (tx.now, _MAX_OVERDUE))]
    _set_owner(tx, due, request)
    claims = _claims(tx, due, request.owner, {})
    until = tx.now + request.lease_ms
    tx.connection.executemany(_SQL["postpone_expiry"], [(task.run, task.unit, until) for task in due])
    return claims


def _expires(tx: Tx) -> int | None:
    expires: int | None = tx.connection.execute(_SQL["next_expiry"]).get
    return expires


def _lanes(tx: Tx, request: ClaimRequest) -> list[_Lane]:
    queues_and_workflows = (json.dumps(list(request.queues)), json.dumps(sorted(request.workflows)))
    buckets = json.dumps([0, 1, SUSPECT_BUCKET] if request.suspects else [0, 1])
    pins = json.dumps([""] if request.version is None else ["", request.version])
    found = tx.connection.execute(_SQL["lanes"], (*queues_and_workflows, tx.now, request.limit, buckets, pins)).get
    return sorted(_Lane(*lane) for lane in json.loads(found))


def _next_due(tx: Tx, lanes: list[_Lane]) -> int | None:
    expires = _expires(tx)
    times = [lane.run_at for lane in lanes] if expires is None else [expires, *(lane.run_at for lane in lanes)]
    return min(times, default=None)


def _due(tx: Tx, lanes: list[_Lane], limit: int) -> list[_Due]:
    """The first ``limit`` due tasks in the order of the lanes; lanes of equal rank are merged by time."""
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
    key = (lane.queue, lane.workflow, lane.pin, lane.bucket, lane.priority)
    return tx.connection.execute(_SQL["due"], (*key, tx.now, limit)).fetchall()


def _claim_tasks(tx: Tx, due: list[_Due], by: ClaimRequest | Claimant) -> None:
    _set_owner(tx, due, by)
    runs = {task.run for task in due}
    tx.connection.executemany(_SQL["activate"], [(run, tx.now) for run in runs])
    if isinstance(by, ClaimRequest) and by.version is not None:
        _set_versions(tx, runs, by.version, json.dumps(sorted(by.pinned)))


def _set_versions(tx: Tx, runs: Iterable[int], version: str, pinned: str) -> None:
    """Set the version of runs that have none. All units of a run that becomes pinned are pinned."""
    for run in runs:
        if tx.connection.execute(_SQL["set_version"], (run, version, pinned)).get:
            tx.connection.execute(_SQL["set_pin"], (run, version))


def _set_owner(tx: Tx, due: list[_Due], by: ClaimRequest | Claimant) -> None:
    until = tx.now + by.lease_ms
    run_rows = [(task.run, 0, by.owner, until) for task in due if task.unit == 0]
    tx.connection.executemany(_SQL["claim_run"], run_rows)
    if len(run_rows) < len(due):
        _set_unit_owner(tx, [task for task in due if task.unit], OwnerLease(by.owner, until))


def _set_unit_owner(tx: Tx, due: list[_Due], owner_lease: OwnerLease) -> None:
    at = [next_start(tx.now, task.started_at) for task in due]
    tx.connection.executemany(
        _SQL["claim_unit"], [(*task[1:3], *owner_lease, when) for task, when in zip(due, at, strict=True)]
    )
    write_starts(
        tx, [Start(task.run, task.key, task.epoch + 1, when) for task, when in zip(due, at, strict=True)], owner_lease
    )


def _claims(tx: Tx, due: list[_Due], owner: str, pages: Mapping[int, MailboxPage]) -> list[Claim]:
    records = records_by_run(tx, json.dumps(list({task.run for task in due})))
    return [
        Claim(
            TaskRef(task.run, task.unit, owner, task.epoch + 1),
            TaskKind(task.kind),
            task.lost == 1,
            records[task.run],
            pages.get(task.run, EMPTY) if task.unit == 0 else EMPTY,
            tx.now,
        )
        for task in due
    ]
