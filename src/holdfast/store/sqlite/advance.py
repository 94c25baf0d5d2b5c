"""Applies what became of units: fence first, then facts, then the tasks that go, come and open.

Units that have nothing to do with each other but what they open are written together, a statement for each kind of
row. One that takes away or adds tasks changes what others find, and so does the run itself: such are applied alone,
in their order.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from holdfast.core.model import TaskKind
from holdfast.store.protocol import Advance, Advanced, Claimant, GiveBack, Signal, TaskRef
from holdfast.store.sqlite.commit import deliver
from holdfast.store.sqlite.control import set_paused
from holdfast.store.sqlite.rows import fact_rows, log_rows, safe
from holdfast.store.sqlite.sql import statements
from holdfast.store.sqlite.tx import Row, Tx
from holdfast.store.sqlite.units import Holder, Start, next_start, write_starts

_SQL = statements("advance")
_WRITES = _SQL | {name: statements("commit")[name] for name in ("fact", "log", "started")}
_OPENED = (TaskKind.RESUME, TaskKind.RESUME.bucket)
_WAITS = (TaskKind.RETRY, TaskKind.RETRY.bucket)

Unit = tuple[int, int]
"""A run and the unit's number."""


class Advancing(NamedTuple):
    advances: Sequence[Advance]
    claimant: Claimant
    room: int


class _Hold(NamedTuple):
    """What a task says of its holder, and its run of itself."""

    owner: str | None
    epoch: int
    signal: int
    paused: int


class _Opened(NamedTuple):
    """A unit that misses less now."""

    run: int
    unit: int
    missing: int
    owner: str | None
    run_at: int | None
    epoch: int
    key: Any
    started_at: int | None


def advance(tx: Tx, asked: Advancing) -> Advanced:
    applied: list[bool] = []
    taking = _Taking(tx, asked.claimant, asked.room)
    for part in _parts(asked.advances):
        step = _Step(tx, taking)
        applied += step.add(part)
        step.write()
    return Advanced(applied, taking.taken, taking.due)


def _parts(advances: Sequence[Advance]) -> Iterator[list[Advance]]:
    together: list[Advance] = []
    for one in advances:
        alone = one.task.unit == 0 or one.drops or one.adds
        if alone and together:
            yield together
            together = []
        if alone:
            yield [one]
        else:
            together.append(one)
    if together:
        yield together


def _holds(tx: Tx, advances: Sequence[Advance]) -> dict[Unit, _Hold]:
    asked = json.dumps([one.task[:2] for one in advances])
    found = json.loads(tx.connection.execute(_SQL["fence"], (asked,)).get)
    return {(run, unit): _Hold(*hold) for run, unit, *hold in found}


class _Taking:
    """Who takes what becomes due, and how much of it."""

    def __init__(self, tx: Tx, claimant: Claimant, room: int) -> None:
        self._tx = tx
        self._room = max(room, 0)
        self._holder = Holder(claimant.owner, tx.now + claimant.lease_ms)
        self.taken: list[TaskRef] = []
        self.due = False
        """More became due than was taken."""

    def open(self, opened: Sequence[_Opened]) -> None:
        """Units become due. A run itself is taken whatever the room: there is little left to do."""
        units = [one for one in opened if one.unit]
        taken, left = units[: self._room], units[self._room :]
        self._room -= len(taken)
        self._take([*taken, *(one for one in opened if one.unit == 0)])
        self._leave(left)

    def _take(self, opened: Sequence[_Opened]) -> None:
        if not opened:
            return
        now, holder = self._tx.now, self._holder
        starts = [Start(one.run, one.key, one.epoch + 1, next_start(now, one.started_at)) for one in opened]
        rows = [
            (one.run, one.unit, now, *_OPENED, *holder, start.epoch, start.at if one.unit else None)
            for one, start in zip(opened, starts, strict=True)
        ]
        self._tx.connection.executemany(_SQL["take"], rows)
        write_starts(self._tx, [start for one, start in zip(opened, starts, strict=True) if one.unit], holder)
        self.taken += [TaskRef(one.run, one.unit, holder.owner, one.epoch + 1) for one in opened]

    def _leave(self, opened: Sequence[_Opened]) -> None:
        if not opened:
            return
        self.due = True
        now = self._tx.now
        self._tx.connection.executemany(_SQL["open"], [(one.run, one.unit, now, *_OPENED) for one in opened])


class _Step:
    """Rows of units that are written together, gathered by statement."""

    def __init__(self, tx: Tx, taking: _Taking) -> None:
        self._tx = tx
        self._taking = taking
        self._rows: dict[str, list[Row]] = {}
        self._results: list[Row] = []
        self._deliveries: list[Row] = []
        self._opens: Counter[Unit] = Counter()
        """Who misses how many less; also those of whom it is only asked whether they miss something."""
        self._at_once: set[Unit] = set()
        """Due whatever they miss."""
        self._asleep: set[int] = set()
        """Runs that are paused: nothing of them is due."""
        self._pausing: list[int] = []
        self._itself: Advance | None = None
        """Of the run itself, which is given back."""

    def add(self, advances: Sequence[Advance]) -> list[bool]:
        holds = _holds(self._tx, advances)
        return [self._add(one, holds) for one in advances]

    def write(self) -> None:
        self._write("fact")
        self._write_results()
        deliver(self._tx, self._deliveries)
        for name in ("log", "started", "give_back", "go"):
            self._write(name)
        self._add_units()
        self._open()
        for run in self._pausing:
            set_paused(self._tx, run)

    def _put(self, name: str, *rows: Row) -> None:
        self._rows.setdefault(name, []).extend(rows)

    def _write(self, name: str) -> None:
        if (rows := self._rows.get(name)) is not None:
            self._tx.connection.executemany(_WRITES[name], rows)

    def _write_results(self) -> None:
        """Of each that is new, the run itself misses one less."""
        if self._results:
            new = self._tx.connection.executemany(_SQL["result"], self._results).fetchall()
            self._opens.update((run, 0) for (run,) in new)

    def _add(self, one: Advance, holds: dict[Unit, _Hold]) -> bool:
        """Whether the fence holds. It does so once: the task goes by this, or is given back."""
        hold = holds.get(one.task[:2])
        if hold is None or hold.owner != one.task.owner or hold.epoch != one.task.epoch:
            return False
        del holds[one.task[:2]]
        if hold.paused:
            self._asleep.add(one.task.run)
        if hold.signal & Signal.PAUSE:
            self._asleep.add(one.task.run)
            self._pausing.append(one.task.run)
        self._observe(one)
        self._move(one)
        return True

    def _observe(self, one: Advance) -> None:
        run = one.task.run
        self._results += fact_rows(run, one.results)
        if one.facts:
            self._put("fact", *fact_rows(run, one.facts))
        if one.deliveries:
            self._deliveries += [(run, event, at, safe(key)) for event, key, at in one.deliveries]
        if one.logs:
            self._put("log", *log_rows(run, one.logs))
        if one.started_at is not None:
            self._put("started", (run, one.started_at, self._tx.now))

    def _move(self, one: Advance) -> None:
        run = one.task.run
        if one.then is None:
            self._put("go", one.task[:2])
        else:
            self._give_back(one, one.then)
        if one.drops:
            self._put("go", *((run, unit) for unit in one.drops))
        if one.adds:
            self._put("add", *((run, unit, safe(key), missing, *_OPENED) for unit, key, missing in one.adds))
        for unit, by in one.opens:
            self._opens[run, unit] += by

    def _give_back(self, one: Advance, then: GiveBack) -> None:
        run, unit = one.task[:2]
        run_at = None if run in self._asleep else then.run_at
        if run_at is not None and run_at <= self._tx.now:
            self._at_once.add((run, unit))
            self._opens[run, unit] += 0
            run_at = None
        self._put("give_back", (run, unit, run_at, *_WAITS, None if unit == 0 else then.missing))
        if unit == 0:
            self._itself = one
            self._opens[run, unit] += 0

    def _add_units(self) -> None:
        if (rows := self._rows.get("add")) is not None:
            for run, unit, missing in self._tx.connection.executemany(_SQL["add"], rows).fetchall():
                if not missing:
                    self._opens[run, unit] += 0

    def _open(self) -> None:
        self._look_for_mail()
        asked = [(run, unit, by) for (run, unit), by in self._opens.items()]
        lowered = self._tx.connection.executemany(_SQL["lower"], asked).fetchall()
        self._taking.open([one for one in map(_Opened._make, lowered) if self._is_ready(one)])

    def _is_ready(self, one: _Opened) -> bool:
        if one.owner is not None or one.run in self._asleep:
            return False
        if one.run_at is not None and one.run_at <= self._tx.now:
            return False  # it was before
        return one.missing == 0 or (one.run, one.unit) in self._at_once

    def _look_for_mail(self) -> None:
        if self._itself is not None:
            run, seen = self._itself.task.run, self._itself.seen
            if self._tx.connection.execute(_SQL["mail"], (run, seen)).get:
                self._at_once.add((run, 0))
