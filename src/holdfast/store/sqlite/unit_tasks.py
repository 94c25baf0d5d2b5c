"""Tasks of units: their insertion, and the START fact that each claim of a unit writes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from holdfast.core.model import TaskKind
from holdfast.store.protocol import FIRST_EPOCH, Fact, FactState, NewUnit
from holdfast.store.sqlite.rows import encode_text, fact_rows
from holdfast.store.sqlite.sql import statements
from holdfast.store.sqlite.tx import Row, Tx

_SQL = statements("unit_tasks")
_NEW_FACT = statements("commit")["insert_fact"]
_START = int(FactState.START)
_NODE = "node"
_UNUSED_FACT_COLUMNS = (None,) * 5


class UnitQueue(NamedTuple):
    """The queue columns that all units of a run share."""

    run: int
    workflow: str
    queue: str
    priority: int
    run_at: int
    pin: str = ""


class OwnerLease(NamedTuple):
    """The owner that claims units, and the end of its lease."""

    owner: str
    until: int

    @property
    def start(self) -> bytes:
        """The value of the START facts that a claim writes."""
        return json.dumps({"owner": self.owner, "lease": self.until}).encode()


class Start(NamedTuple):
    """The START fact of a claim of a unit."""

    run: int
    key: Any
    """The encoded key, as stored."""
    epoch: int
    at: int


class UnitInserts:
    """Inserts of units and facts of new runs, grouped by statement."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx
        self._tasks: list[Row] = []
        self._facts: list[Row] = []

    def plan(self, run: int, plan: Iterable[Fact]) -> None:
        self._facts += fact_rows(run, plan)

    def add(self, place: UnitQueue, units: Sequence[NewUnit]) -> None:
        kind, (run, workflow, queue, priority, run_at, pin) = TaskKind.RUN, place
        lane = (workflow, queue, kind.bucket, kind, priority)
        self._tasks += [
            (run, unit, *lane, None if missing else run_at, None, None, 0, missing, encode_text(key), None, pin)
            for unit, key, missing in units
        ]

    def add_claimed(self, place: UnitQueue, units: Sequence[NewUnit], owner_lease: OwnerLease) -> None:
        now, kind, (run, workflow, queue, priority, run_at, pin) = self._tx.now, TaskKind.RUN, place
        lane = (workflow, queue, kind.bucket, kind, priority)
        self._tasks += [
            (run, unit, *lane, run_at, *owner_lease, FIRST_EPOCH, 0, encode_text(key), now, pin)
            for unit, key, _ in units
        ]
        self._facts += start_rows([Start(run, encode_text(key), FIRST_EPOCH, now) for _, key, _ in units], owner_lease)

    def write(self) -> None:
        self._tx.connection.executemany(_SQL["insert_unit"], self._tasks)
        self._tx.connection.executemany(_NEW_FACT, self._facts)


def next_start(now: int, last: int | None) -> int:
    """The time of a unit's next START. The times of the STARTs of a unit are distinct and increasing."""
    return now if last is None or last < now else last + 1


def write_starts(tx: Tx, starts: Sequence[Start], owner_lease: OwnerLease) -> None:
    tx.connection.executemany(_NEW_FACT, start_rows(starts, owner_lease))


def start_rows(starts: Sequence[Start], owner_lease: OwnerLease) -> list[Row]:
    value = owner_lease.start
    return [
        (run, _START, key, epoch, _NODE, at, at, None, True, value, None, 0, *_UNUSED_FACT_COLUMNS)
        for run, key, epoch, at in starts
    ]
