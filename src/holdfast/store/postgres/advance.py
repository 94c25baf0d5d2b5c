"""Applies advances of units: one call of a function in the database for each batch.

If the connection breaks before the reply, the call is repeated under the same number, as commits are: the receipt shows
whether the first attempt was committed, and which tasks it claimed. This also works if the server was unavailable for
so long that the call failed: a later call with the same ``Advance`` objects returns the result of the first attempt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from holdfast.errors import StoreError
from holdfast.ports import Randomness
from holdfast.store.postgres.batch import Receipt
from holdfast.store.postgres.columns import ADVANCE
from holdfast.store.postgres.database import Database
from holdfast.store.postgres.receipts import Receipts
from holdfast.store.postgres.sql import statements
from holdfast.store.postgres.tokens import token
from holdfast.store.postgres.tx import Row, Tx
from holdfast.store.protocol import Advance, Advanced, Claimant, TaskRef

_NO_RELEASE: Row = (False, None, None)


class AdvanceRequest(NamedTuple):
    advances: Sequence[Advance]
    claimant: Claimant
    claim_limit: int
    receipt: Receipt
    token: int
    """Distinguishes the tasks that this call claims from tasks that the claimant claims meanwhile by other calls."""


async def advance(tx: Tx, request: AdvanceRequest) -> Advanced:
    sql, claimant = statements("advance", tx.schema)["advance"], request.claimant
    claim = (claimant.owner, claimant.lease_ms, request.claim_limit, request.token, claimant.version)
    row = await tx.connection.fetchrow(sql, tx.now, tx.store_id, *request.receipt, *claim, *_columns(request.advances))
    applied, taken, due = row
    third = len(taken) // 3
    tasks = zip(taken[:third], taken[third : 2 * third], taken[2 * third :], strict=True)
    return Advanced(
        [done == 1 for done in applied], [TaskRef(run, unit, claimant.owner, n) for run, unit, n in tasks], due
    )


def _columns(advances: Sequence[Advance]) -> list[Any]:
    """The array arguments of holdfast_advance."""
    rows: list[Row] = []
    facts: list[Row] = []
    logs: list[Row] = []
    deliveries: list[Row] = []
    decrements: list[Row] = []
    removed_units: list[Row] = []
    new_units: list[Row] = []
    for n, one in enumerate(advances, 1):
        release = _NO_RELEASE if one.release is None else (True, *one.release)
        rows.append((*one.task, *release, one.seen, one.started_at))
        facts += [(n, *fact) for fact in (*one.results, *one.facts)]
        logs += [(n, *log) for log in one.logs]
        deliveries += [(n, *delivery) for delivery in one.deliveries]
        decrements += [(n, *decrement) for decrement in one.decrements]
        removed_units += [(n, unit) for unit in one.removed_units]
        new_units += [(n, *unit) for unit in one.new_units]
    return ADVANCE.arrays(
        advances=rows,
        facts=facts,
        logs=logs,
        deliveries=deliveries,
        decrements=decrements,
        removed_units=removed_units,
        new_units=new_units,
    )


@dataclass(slots=True)
class _Call:
    """A call of which some transactions are not finished."""

    advances: Sequence[Advance]
    """Referenced here so that their ``id`` values are not reused."""
    claimant: Claimant
    claim_limit: int
    transactions: list[list[Advance]]
    """The batches that are left to apply."""
    pending: AdvanceRequest | None = None
    """The batch whose outcome is not known."""
    applied: list[bool] = field(default_factory=list)
    claimed: list[TaskRef] = field(default_factory=list)
    due: bool = False

    def add(self, result: Advanced) -> None:
        self.transactions.pop(0)
        self.applied += result.applied
        self.claimed += result.claimed
        self.claim_limit -= sum(1 for task in result.claimed if task.unit)
        self.due = self.due or result.due


class Advances:
    """The advances of one store."""

    def __init__(self, database: Database, receipts: Receipts, random: Randomness) -> None:
        self._database = database
        self._receipts = receipts
        self._random = random
        self._pending: dict[tuple[int, ...], _Call] = {}

    async def apply(self, advances: Sequence[Advance], claimant: Claimant, claim_limit: int) -> Advanced:
        key = tuple(id(one) for one in advances)
        call = self._pending.pop(key, None) or _Call(advances, claimant, claim_limit, list(transactions(advances)))
        try:
            while call.transactions:
                await self._apply_next(call)
        except StoreError:  # the batch may have been committed nevertheless
            self._pending[key] = call
            raise
        return Advanced(call.applied, call.claimed, call.due)

    async def _apply_next(self, call: _Call) -> None:
        if call.pending is None:
            receipt = self._receipts.take()
            call.pending = AdvanceRequest(
                call.transactions[0], call.claimant, call.claim_limit, receipt, token(self._random)
            )
        try:
            result = await self._database.call(advance, call.pending)
        except StoreError:
            raise
        except BaseException:
            self._receipts.free(call.pending.receipt)
            raise
        self._receipts.free(call.pending.receipt)
        call.pending = None
        call.add(result)


def transactions(advances: Sequence[Advance]) -> Iterator[list[Advance]]:
    """Split advances into transactions.

    In one transaction no task is advanced twice or after its removal, and no unit is added and then removed.
    """
    batch: list[Advance] = []
    released: set[tuple[int, int]] = set()
    added: set[tuple[int, int]] = set()
    for one in advances:
        run, unit = one.task[:2]
        removed_units = {(run, other) for other in one.removed_units}
        if (run, unit) in released or not added.isdisjoint(removed_units):
            yield batch
            batch, released, added = [], set(), set()
        batch.append(one)
        released |= {(run, unit), *removed_units}
        added |= {(run, other.unit) for other in one.new_units}
    if batch:
        yield batch
