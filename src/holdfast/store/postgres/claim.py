"""Claims due tasks. The cost depends on the number of lanes (equal queue, workflow, bucket and priority) and claims."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.core.model import TaskKind
from holdfast.store.postgres.constants import Bucket
from holdfast.store.postgres.rows import claimed_row, mailbox_page, record
from holdfast.store.postgres.sql import statements
from holdfast.store.postgres.tx import Row, Tx
from holdfast.store.protocol import Claim, Claimant, ClaimRequest, ClaimResult, TaskRef

_BUCKETS = [Bucket.CONTINUING, Bucket.STARTING, Bucket.SUSPECT]
_WITHOUT_SUSPECTS = [Bucket.CONTINUING, Bucket.STARTING]
_NOW, _OVERDUE, _UNIT, _EPOCH, _KIND, _LOST, _MAILBOX, _RECORD = 0, 2, 3, 4, 5, 6, slice(7, 15), 15


@dataclass(slots=True)
class ClaimCall:
    request: ClaimRequest
    token: int
    unanswered: list[int]
    """Tokens of earlier claims of this owner whose replies were lost; this call returns their tasks too."""


async def claim(tx: Tx, call: ClaimCall) -> ClaimResult:
    request, unanswered = call.request, call.unanswered
    call.unanswered = [*unanswered, call.token]  # for a retry of this call
    sql, owner = statements("claim", tx.schema), (tx.now, request.owner, request.lease_ms, request.limit)
    version = (request.version, sorted(request.pinned))
    if request.run is None:
        buckets = _BUCKETS if request.suspects else _WITHOUT_SUSPECTS
        lanes = (list(request.queues), sorted(request.workflows), buckets)
        rows = await tx.connection.fetch(sql["claim"], *owner, *lanes, call.token, unanswered, *version)
    else:
        units = (request.run, request.suspects)
        rows = await tx.connection.fetch(sql["claim_units"], *owner, *units, call.token, unanswered, *version)
    *claimed, last = [tuple(row.values()) for row in rows]
    now, next_due = last[:2]
    claims = tuple(_claim(row, request.owner) for row in claimed if not row[_OVERDUE])
    overdue = tuple(_claim(row, request.owner) for row in claimed if row[_OVERDUE])
    return ClaimResult(claims, next_due, now, overdue)


def _claim(row: Row, owner: str) -> Claim:
    fields = row[_RECORD:]
    task = TaskRef(fields[0], row[_UNIT], owner, row[_EPOCH])
    return Claim(task, TaskKind(row[_KIND]), row[_LOST], record(fields), mailbox_page(row[_MAILBOX]), row[_NOW])


def claim_of_woken(fields: Row, claimant: Claimant, epoch: int, kind: int, lost: bool, now: int, mailbox: Row) -> Claim:
    """The claim of a run that an event woke. ``fields``: the row of its record before the event."""
    task = TaskRef(fields[0], 0, claimant.owner, epoch)
    return Claim(
        task, TaskKind(kind), lost, record(claimed_row(fields, claimant.owner, now)), mailbox_page(mailbox), now
    )
