"""Applies advances of units: the fence first, then facts, then tasks that are deleted, inserted and made due.

Advances of units other than unit 0 that neither add nor remove units are written together, with one statement for
each kind of row. An advance that removes or adds units changes what other advances read, and so does an advance of the
run itself (unit 0). These are applied alone, in their order.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from holdfast.core.model import TaskKind
from holdfast.store.protocol import Advance, Advanced, Claimant, Signal, TaskRef, UnitRelease
from holdfast.store.sqlite.mailbox import deliver
from holdfast.store.sqlite.pausing import set_paused
from holdfast.store.sqlite.queues import paused_queues
from holdfast.store.sqlite.rows import encode_text, fact_rows, log_rows
from holdfast.store.sqlite.sql import statements
from holdfast.store.sqlite.tx import Row, Tx
from holdfast.store.sqlite.unit_tasks import OwnerLease, Start, next_start, write_starts

_SQL = statements("advance")
_WRITES = _SQL | {name: statements("commit")[name] for name in ("insert_fact", "insert_log", "set_started")}
_DUE = (TaskKind.RESUME, TaskKind.RESUME.bucket)
_WAITING = (TaskKind.RETRY, TaskKind.RETRY.bucket)

Unit = tuple[int, int]
"""A run's id and the number of a unit."""


class AdvanceRequest(NamedTuple):
    advances: Sequence[Advance]
    claimant: Claimant
    claim_limit: int


class _Ownership(NamedTuple):
    """The columns of a task that the fence reads, and whether its run is paused."""

    owner: str | None
    epoch: int
    signal: int
    paused: int


class _UnitTask(NamedTuple):
    """The task of a unit after its ``missing`` was decremented."""

    run: int
    unit: int
    missing: int
    owner: str | None
    run_at: int | None
    epoch: int
    key: Any
    started_at: int | None
    pin: str


def advance(tx: Tx, request: AdvanceRequest) -> Advanced:
    applied: list[bool] = []
    claimer = _Claimer(tx, request.claimant, 0 if _is_paused(tx, request) else request.claim_limit)
    for part in _parts(request.advances):
        batch = _Batch(tx, claimer)
        applied += batch.add(part)
        batch.write()
    return Advanced(applied, claimer.claimed, claimer.due)


def write_unowned(tx: Tx, one: Advance, *, paused: bool) -> bool:
    """Write the outcome of a unit without a claim, and delete the unit's task. False: the unit has no task any more."""
    if not _read_ownerships(tx, [one]):
        return False
    batch = _Batch(tx, _Claimer(tx, None, 0))
    batch.add_unfenced(one, paused=paused)
    batch.write()
    return True


def _is_paused(tx: Tx, request: AdvanceRequest) -> bool:
    """True if a queue is paused in which a run of the request is. No unit of the request is claimed then."""
    if not request.claim_limit or not paused_queues(tx):
        return False
    runs = json.dumps([one.task.run for one in request.advances])
    return bool(tx.connection.execute(_SQL["in_paused_queue"], (runs,)).get)


def _parts(advances: Sequence[Advance]) -> Iterator[list[Advance]]:
    together: list[Advance] = []
    for one in advances:
        alone = one.task.unit == 0 or one.removed_units or one.new_units
        if alone and together:
            yield together
            together = []
        if alone:
            yield [one]
        else:
            together.append(one)
    if together:
        yield together


def _read_ownerships(tx: Tx, advances: Sequence[Advance]) -> dict[Unit, _Ownership]:
    units = json.dumps([one.task[:2] for one in advances])
    found = json.loads(tx.connection.execute(_SQL["fence"], (units,)).get)
    return {(run, unit): _Ownership(*ownership) for run, unit, *ownership in found}


class _Claimer:
    """Claims units that become due, up to a limit."""

    def __init__(self, tx: Tx, claimant: Claimant | None, claim_limit: int) -> None:
        """``claimant``: None if nothing is claimed."""
        self._tx = tx
        self._claims_left = max(claim_limit, 0)
        self._owner_lease = None if claimant is None else OwnerLease(claimant.owner, tx.now + claimant.lease_ms)
        self._pins = ("",) if claimant is None else ("", claimant.version)
        self.claimed: list[TaskRef] = []
        self.due = False
        """True if more units became due than were claimed."""

    def make_due(self, ready: Sequence[_UnitTask]) -> None:
        """Make units due and claim them. Unit 0 is claimed regardless of the limit, because its turn is short.

        Units of a run that was moved to another version are left to workers of that version.
        """
        if self._owner_lease is None:
            self._leave_unclaimed(ready)
            return
        units = [one for one in ready if one.unit]
        fitting = [one for one in units if one.pin in self._pins]
        claimed, left = fitting[: self._claims_left], fitting[self._claims_left :]
        left += [one for one in units if one.pin not in self._pins]
        self._claims_left -= len(claimed)
        self._claim([*claimed, *(one for one in ready if one.unit == 0)], self._owner_lease)
        self._leave_unclaimed(left)

    def _claim(self, ready: Sequence[_UnitTask], owner_lease: OwnerLease) -> None:
        if not ready:
            return
        now = self._tx.now
        starts = [Start(one.run, one.key, one.epoch + 1, next_start(now, one.started_at)) for one in ready]
        rows = [
            (one.run, one.unit, now, *_DUE, *owner_lease, start.epoch, start.at if one.unit else None)
            for one, start in zip(ready, starts, strict=True)
        ]
        self._tx.connection.executemany(_SQL["claim"], rows)
        write_starts(self._tx, [start for one, start in zip(ready, starts, strict=True) if one.unit], owner_lease)
        self.claimed += [TaskRef(one.run, one.unit, owner_lease.owner, one.epoch + 1) for one in ready]

    def _leave_unclaimed(self, ready: Sequence[_UnitTask]) -> None:
        if not ready:
            return
        self.due = True
        now = self._tx.now
        self._tx.connection.executemany(_SQL["make_due"], [(one.run, one.unit, now, *_DUE) for one in ready])


class _Batch:
    """Rows of advances that are written together, grouped by statement."""

    def __init__(self, tx: Tx, claimer: _Claimer) -> None:
        self._tx = tx
        self._claimer = claimer
        self._rows: dict[str, list[Row]] = {}
        self._results: list[Row] = []
        self._deliveries: list[Row] = []
        self._decrements: Counter[Unit] = Counter()
        """Decrement of ``missing`` per unit; 0 means: only check whether the unit is ready."""
        self._due_now: set[Unit] = set()
        """Units that are due even if their ``missing`` is not 0."""
        self._paused_runs: set[int] = set()
        """Runs that are paused or being paused: none of their units is made due."""
        self._pausing: list[int] = []
        self._run_release: Advance | None = None
        """The advance that releases unit 0."""

    def add(self, advances: Sequence[Advance]) -> list[bool]:
        ownerships = _read_ownerships(self._tx, advances)
        return [self._add(one, ownerships) for one in advances]

    def add_unfenced(self, one: Advance, *, paused: bool) -> None:
        """Add the rows of an advance that a client writes; ``paused``: the run is paused."""
        if paused:
            self._paused_runs.add(one.task.run)
        self._observe(one)
        self._change_tasks(one)

    def write(self) -> None:
        self._write("insert_fact")
        self._write_results()
        deliver(self._tx, self._deliveries)
        for name in ("insert_log", "set_started", "release", "delete_task"):
            self._write(name)
        self._add_units()
        self._make_due()
        for run in self._pausing:
            set_paused(self._tx, run)

    def _put(self, name: str, *rows: Row) -> None:
        self._rows.setdefault(name, []).extend(rows)

    def _write(self, name: str) -> None:
        if (rows := self._rows.get(name)) is not None:
            self._tx.connection.executemany(_WRITES[name], rows)

    def _write_results(self) -> None:
        """Insert the RESULT facts. Each new one decrements ``missing`` of unit 0."""
        if self._results:
            new = self._tx.connection.executemany(_SQL["result"], self._results).fetchall()
            self._decrements.update((run, 0) for (run,) in new)

    def _add(self, one: Advance, ownerships: dict[Unit, _Ownership]) -> bool:
        """Add the rows of an advance if the fence holds.

        The fence holds for one advance of a task only, because each advance deletes or releases the task.
        """
        ownership = ownerships.get(one.task[:2])
        if ownership is None or ownership.owner != one.task.owner or ownership.epoch != one.task.epoch:
            return False
        del ownerships[one.task[:2]]
        if ownership.paused:
            self._paused_runs.add(one.task.run)
        if ownership.signal & Signal.PAUSE:
            self._paused_runs.add(one.task.run)
            self._pausing.append(one.task.run)
        self._observe(one)
        self._change_tasks(one)
        return True

    def _observe(self, one: Advance) -> None:
        run = one.task.run
        self._results += fact_rows(run, one.results)
        if one.facts:
            self._put("insert_fact", *fact_rows(run, one.facts))
        if one.deliveries:
            self._deliveries += [(run, event, at, encode_text(key)) for event, key, at in one.deliveries]
        if one.logs:
            self._put("insert_log", *log_rows(run, one.logs))
        if one.started_at is not None:
            self._put("set_started", (run, one.started_at, self._tx.now))

    def _change_tasks(self, one: Advance) -> None:
        run = one.task.run
        if one.release is None:
            self._put("delete_task", one.task[:2])
        else:
            self._release(one, one.release)
        if one.removed_units:
            self._put("delete_task", *((run, unit) for unit in one.removed_units))
        if one.new_units:
            self._put(
                "insert_unit", *((run, unit, encode_text(key), missing, *_DUE) for unit, key, missing in one.new_units)
            )
        for unit, by in one.decrements:
            self._decrements[run, unit] += by

    def _release(self, one: Advance, release: UnitRelease) -> None:
        run, unit = one.task[:2]
        run_at, resume_at = release.run_at, None
        if run in self._paused_runs:
            run_at, resume_at = None, release.run_at
        if run_at is not None and run_at <= self._tx.now:
            self._due_now.add((run, unit))
            self._decrements[run, unit] += 0
            run_at = None
        self._put("release", (run, unit, run_at, *_WAITING, None if unit == 0 else release.missing, resume_at))
        if unit == 0:
            self._run_release = one
            self._decrements[run, unit] += 0

    def _add_units(self) -> None:
        if (rows := self._rows.get("insert_unit")) is not None:
            for run, unit, missing in self._tx.connection.executemany(_SQL["insert_unit"], rows).fetchall():
                if not missing:
                    self._decrements[run, unit] += 0

    def _make_due(self) -> None:
        self._check_engine_events()
        rows = [(run, unit, by) for (run, unit), by in self._decrements.items()]
        decremented = self._tx.connection.executemany(_SQL["decrement"], rows).fetchall()
        self._claimer.make_due([one for one in map(_UnitTask._make, decremented) if self._is_ready(one)])

    def _is_ready(self, one: _UnitTask) -> bool:
        if one.owner is not None or one.run in self._paused_runs:
            return False
        if one.run_at is not None and one.run_at <= self._tx.now:
            return False  # due already
        return one.missing == 0 or (one.run, one.unit) in self._due_now

    def _check_engine_events(self) -> None:
        if self._run_release is not None:
            run, seen = self._run_release.task.run, self._run_release.seen
            if self._tx.connection.execute(_SQL["has_engine_events"], (run, seen)).get:
                self._due_now.add((run, 0))
