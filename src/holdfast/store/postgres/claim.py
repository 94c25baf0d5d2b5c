"""Takes due tasks. What it costs depends on the number of lanes and of tasks taken, not of tasks waiting."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.core.model import TaskKind
from holdfast.store.postgres.rows import mailbag, record, taken
from holdfast.store.postgres.sql import statements
from holdfast.store.postgres.tx import Row, Tx
from holdfast.store.protocol import Claim, Claimant, ClaimRequest, ClaimResult, TaskRef

_BUCKETS = [0, 1, 2]
_WITHOUT_SUSPECTS = [0, 1]
_NOW, _OVERDUE, _UNIT, _EPOCH, _KIND, _LOST, _BAG, _RECORD = 0, 2, 3, 4, 5, 6, slice(7, 14), 14


@dataclass(slots=True)
class Claiming:
    request: ClaimRequest
    token: int
    doubtful: list[int]
    """Claims of this owner whose answers got lost: what they took is answered now. To look for it takes time."""


async def claim(tx: Tx, claiming: Claiming) -> ClaimResult:
    request, doubtful = claiming.request, claiming.doubtful
    claiming.doubtful = [*doubtful, claiming.token]  # if this is tried again
    sql, who = statements("claim", tx.schema), (tx.now, request.owner, request.lease_ms, request.limit)
    if request.run is None:
        buckets = _BUCKETS if request.suspects else _WITHOUT_SUSPECTS
        lanes = (list(request.queues), sorted(request.workflows), buckets)
        rows = await tx.connection.fetch(sql["claim"], *who, *lanes, claiming.token, doubtful)
    else:
        of = (request.run, request.suspects)
        rows = await tx.connection.fetch(sql["claim_units"], *who, *of, claiming.token, doubtful)
    *claimed, last = [tuple(row.values()) for row in rows]
    now, next_due = last[:2]
    claims = tuple(_claim(row, request.owner) for row in claimed if not row[_OVERDUE])
    overdue = tuple(_claim(row, request.owner) for row in claimed if row[_OVERDUE])
    return ClaimResult(claims, next_due, now, overdue)


def _claim(row: Row, owner: str) -> Claim:
    fields = row[_RECORD:]
    task = TaskRef(fields[0], row[_UNIT], owner, row[_EPOCH])
    return Claim(task, TaskKind(row[_KIND]), row[_LOST], record(fields), mailbag(row[_BAG]), row[_NOW])


def claim_of_awoken(fields: Row, by: Claimant, epoch: int, kind: int, lost: bool, now: int, bag: Row) -> Claim:
    """Of a run that an event woke; ``fields``: its row as it was when the event came."""
    task = TaskRef(fields[0], 0, by.owner, epoch)
    return Claim(task, TaskKind(kind), lost, record(taken(fields, by.owner, now)), mailbag(bag), now)
