"""Units as tasks: how they come into the queue, and the START that each claim of one writes. How they go on is not
known here."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from holdfast.core.model import TaskKind
from holdfast.store.protocol import FIRST_EPOCH, Fact, FactState, NewUnit
from holdfast.store.sqlite.rows import fact_rows, safe
from holdfast.store.sqlite.sql import statements
from holdfast.store.sqlite.tx import Row, Tx

_SQL = statements("units")
_NEW_FACT = statements("commit")["fact"]
_START = int(FactState.START)
_NODE = "node"
_NO_MORE = (None,) * 5


class Place(NamedTuple):
    """Where the units of a run stand in the queue, and from when on."""

    run: int
    workflow: str
    queue: str
    priority: int
    run_at: int


class Holder(NamedTuple):
    """Who takes units, and until when."""

    owner: str
    until: int

    @property
    def start(self) -> bytes:
        """What the START facts of its claims say."""
        return json.dumps({"owner": self.owner, "lease": self.until}).encode()


class Start(NamedTuple):
    """A claim of a unit."""

    run: int
    key: Any
    """As it is stored."""
    epoch: int
    at: int


class Units:
    """Units of new runs, gathered by statement."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx
        self._tasks: list[Row] = []
        self._facts: list[Row] = []

    def plan(self, run: int, plan: Iterable[Fact]) -> None:
        self._facts += fact_rows(run, plan)

    def add(self, place: Place, units: Sequence[NewUnit]) -> None:
        kind, (run, workflow, queue, priority, run_at) = TaskKind.RUN, place
        lane = (workflow, queue, kind.bucket, kind, priority)
        self._tasks += [
            (run, unit, *lane, None if missing else run_at, None, None, 0, missing, safe(key), None)
            for unit, key, missing in units
        ]

    def add_claimed(self, place: Place, units: Sequence[NewUnit], holder: Holder) -> None:
        now, kind, (run, workflow, queue, priority, run_at) = self._tx.now, TaskKind.RUN, place
        lane = (workflow, queue, kind.bucket, kind, priority)
        self._tasks += [(run, unit, *lane, run_at, *holder, FIRST_EPOCH, 0, safe(key), now) for unit, key, _ in units]
        self._facts += start_rows([Start(run, safe(key), FIRST_EPOCH, now) for _, key, _ in units], holder)

    def write(self) -> None:
        self._tx.connection.executemany(_SQL["unit"], self._tasks)
        self._tx.connection.executemany(_NEW_FACT, self._facts)


def next_start(now: int, last: int | None) -> int:
    """Each START of a unit has a time of its own, after those before."""
    return now if last is None or last < now else last + 1


def write_starts(tx: Tx, starts: Sequence[Start], holder: Holder) -> None:
    tx.connection.executemany(_NEW_FACT, start_rows(starts, holder))


def start_rows(starts: Sequence[Start], holder: Holder) -> list[Row]:
    value = holder.start
    return [
        (run, _START, key, epoch, _NODE, at, at, None, True, value, None, 0, *_NO_MORE)
        for run, key, epoch, at in starts
    ]
