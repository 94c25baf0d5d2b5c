"""Takes due tasks. What it costs depends on the number of lanes and of tasks taken, not of tasks waiting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.core.model import TaskKind
from holdfast.store.postgres.rows import record, unpacked
from holdfast.store.postgres.sql import statements
from holdfast.store.postgres.tx import Row, Tx
from holdfast.store.protocol import Claim, ClaimRequest, ClaimResult, Mail, TaskRef

_BUCKETS = [0, 1, 2]
_WITHOUT_SUSPECTS = [0, 1]
_MAIL, _RECORD, _EPOCH = slice(4, 9), 9, 22


@dataclass(slots=True)
class Claiming:
    request: ClaimRequest
    token: int
    doubtful: list[int]
    """Claims of this owner whose answers got lost: what they took is answered now. To look for it takes time."""


async def claim(tx: Tx, claiming: Claiming) -> ClaimResult:
    request, doubtful = claiming.request, claiming.doubtful
    claiming.doubtful = [*doubtful, claiming.token]  # if this is tried again
    rows = await tx.connection.fetch(
        statements("claim", tx.schema)["claim"],
        tx.now,
        request.owner,
        request.lease_ms,
        request.limit,
        list(request.queues),
        sorted(request.workflows),
        _BUCKETS if request.suspects else _WITHOUT_SUSPECTS,
        claiming.token,
        doubtful,
    )
    *claims, last = [tuple(row.values()) for row in rows]
    now, next_due = last[:2]
    return ClaimResult(tuple(_claim(row, request.owner) for row in claims), next_due, now)


def _claim(row: Row, owner: str) -> Claim:
    fields = row[_RECORD:]
    task = TaskRef(fields[0], 0, owner, fields[_EPOCH])
    return Claim(task, TaskKind(row[2]), row[3], record(fields), _mail(*row[_MAIL]))


def _mail(
    numbers: list[int] | None, types: list[str], payloads: list[bytes | None], ats: list[int], senders: list[bytes]
) -> Sequence[Mail]:
    if numbers is None:
        return ()
    return [
        Mail(n, type_, payload, at, unpacked(sender))
        for n, type_, payload, at, sender in zip(numbers, types, payloads, ats, senders, strict=True)
    ]
