"""Applies what became of units: one call of a function in the database for a batch of them.

When a connection breaks before the answer, the call is made again under the same number, as commits are: the receipt
tells whether it was done, and what was taken. That works also if the server stayed away for so long that the call
failed, for whoever comes with the same ``Advance`` objects again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from holdfast.errors import StoreError
from holdfast.ports import Randomness
from holdfast.store.postgres.batch import Receipt
from holdfast.store.postgres.database import Database
from holdfast.store.postgres.receipts import Receipts
from holdfast.store.postgres.rows import columns, fact_rows, log_rows, packed, unit_rows
from holdfast.store.postgres.sql import statements
from holdfast.store.postgres.tokens import token
from holdfast.store.postgres.tx import Row, Tx
from holdfast.store.protocol import Advance, Advanced, Claimant, TaskRef

_WIDTH, _FACT_WIDTH, _LOG_WIDTH, _DELIVERY_WIDTH, _OPEN_WIDTH, _DROP_WIDTH, _ADD_WIDTH = 9, 17, 9, 4, 3, 2, 4
_GOES: Row = (False, None, None)


class Advancing(NamedTuple):
    advances: Sequence[Advance]
    claimant: Claimant
    room: int
    receipt: Receipt
    token: int
    """By which what it takes is known from what the claimant claims meanwhile."""


async def advance(tx: Tx, asked: Advancing) -> Advanced:
    sql, by = statements("advance", tx.schema)["advance"], asked.claimant
    claimant = (by.owner, by.lease_ms, asked.room, asked.token, tx.quiet)
    row = await tx.connection.fetchrow(sql, tx.now, tx.by, *asked.receipt, *claimant, *_columns(asked.advances))
    applied, taken, due = row
    third = len(taken) // 3
    tasks = zip(taken[:third], taken[third : 2 * third], taken[2 * third :], strict=True)
    return Advanced([done == 1 for done in applied], [TaskRef(run, unit, by.owner, n) for run, unit, n in tasks], due)


def _columns(advances: Sequence[Advance]) -> list[Any]:
    heads: list[Row] = []
    facts: list[Row] = []
    logs: list[Row] = []
    deliveries: list[Row] = []
    opens: list[Row] = []
    drops: list[Row] = []
    adds: list[Row] = []
    for n, one in enumerate(advances, 1):
        back = _GOES if one.then is None else (True, *one.then)
        heads.append((*one.task, *back, one.seen, one.started_at))
        facts += fact_rows(one.results, n)
        facts += fact_rows(one.facts, n)
        logs += log_rows(one.logs, n)
        deliveries += [(n, event, packed(key), at) for event, key, at in one.deliveries]
        opens += [(n, *opening) for opening in one.opens]
        drops += [(n, unit) for unit in one.drops]
        adds += [(n, *row) for row in unit_rows(one.adds)]
    return [
        *columns(heads, _WIDTH),
        *columns(facts, _FACT_WIDTH),
        *columns(logs, _LOG_WIDTH),
        *columns(deliveries, _DELIVERY_WIDTH),
        *columns(opens, _OPEN_WIDTH),
        *columns(drops, _DROP_WIDTH),
        *columns(adds, _ADD_WIDTH),
    ]


@dataclass(slots=True)
class _Call:
    """A call that is not answered yet."""

    advances: Sequence[Advance]
    """Kept, or their ``id`` would be used again."""
    claimant: Claimant
    room: int
    parts: list[list[Advance]]
    """What is left to do."""
    pending: Advancing | None = None
    """The part whose outcome is not known."""
    applied: list[bool] = field(default_factory=list)
    taken: list[TaskRef] = field(default_factory=list)
    due: bool = False

    def add(self, answer: Advanced) -> None:
        self.parts.pop(0)
        self.applied += answer.applied
        self.taken += answer.taken
        self.room -= sum(1 for task in answer.taken if task.unit)
        self.due = self.due or answer.due


class Advances:
    """Those of one store."""

    def __init__(self, database: Database, receipts: Receipts, random: Randomness) -> None:
        self._database = database
        self._receipts = receipts
        self._random = random
        self._pending: dict[tuple[int, ...], _Call] = {}

    async def apply(self, advances: Sequence[Advance], claimant: Claimant, room: int) -> Advanced:
        key = tuple(id(one) for one in advances)
        call = self._pending.pop(key, None) or _Call(advances, claimant, room, list(parts(advances)))
        try:
            while call.parts:
                await self._go_on(call)
        except StoreError:  # it may have been done all the same
            self._pending[key] = call
            raise
        return Advanced(call.applied, call.taken, call.due)

    async def _go_on(self, call: _Call) -> None:
        if call.pending is None:
            receipt = self._receipts.take()
            call.pending = Advancing(call.parts[0], call.claimant, call.room, receipt, token(self._random))
        try:
            answer = await self._database.call(advance, call.pending)
        except StoreError:
            raise
        except BaseException:
            self._receipts.free(call.pending.receipt)
            raise
        self._receipts.free(call.pending.receipt)
        call.pending = None
        call.add(answer)


def parts(advances: Sequence[Advance]) -> Iterator[list[Advance]]:
    """What is one transaction each: all, but for such as undo what another one here has done to a task."""
    together: list[Advance] = []
    gone: set[tuple[int, int]] = set()
    added: set[tuple[int, int]] = set()
    for one in advances:
        run, unit = one.task[:2]
        drops = {(run, other) for other in one.drops}
        if (run, unit) in gone or not added.isdisjoint(drops):
            yield together
            together, gone, added = [], set(), set()
        together.append(one)
        gone |= {(run, unit), *drops}
        added |= {(run, other.unit) for other in one.adds}
    if together:
        yield together
