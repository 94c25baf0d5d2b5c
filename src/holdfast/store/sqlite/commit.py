"""Applies commits: fence first, then what was observed, then what follows.

Commits that touch nothing but their own run are written together, a statement for each kind of row. One
that starts runs, sends events, acts on others or carries users' statements may change what others see, and is applied
alone. What follows from the ends of runs comes last, after all rows are written.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from holdfast.core.model import TaskKind
from holdfast.errors import StateError
from holdfast.store.protocol import (
    Attributes,
    Commit,
    Committed,
    Created,
    FactState,
    Finish,
    NextRun,
    Observed,
    Park,
    Release,
    Sent,
    Signal,
    TaskRef,
    Touched,
    Verdict,
)
from holdfast.store.sqlite import ends
from holdfast.store.sqlite.acts import facts_of, perform
from holdfast.store.sqlite.control import set_paused
from holdfast.store.sqlite.create import create
from holdfast.store.sqlite.guard import TransactionGone
from holdfast.store.sqlite.outbox import outbox_rows
from holdfast.store.sqlite.reads import find_current
from holdfast.store.sqlite.rows import fact_rows, log_rows, safe, safe_or_none
from holdfast.store.sqlite.search import describe
from holdfast.store.sqlite.send import send, topics_text, wanted
from holdfast.store.sqlite.sql import statements
from holdfast.store.sqlite.successors import follow_on
from holdfast.store.sqlite.tx import Row, Tx

_SQL = statements("commit")
_APPLIED = Committed(Verdict.APPLIED)
_LOST = Committed(Verdict.LOST)
_PAUSING = Committed(Verdict.PAUSING)
_PAUSED = Committed(Verdict.PAUSED)
_PAUSE_ASKED = int(Signal.PAUSE)
_PUT_OUT = statements("outbox")["put"]
_WRITES = ("fact", "deliver", "log", "outbox", "started", "keep", "finish", "drop_task", "release", "wait")


class _Hold(NamedTuple):
    """What a task says of its holder."""

    owner: str | None
    epoch: int
    losses: int
    signal: int


_Holds = dict[tuple[int, int], _Hold]


def commit(tx: Tx, commits: Sequence[Commit]) -> list[Committed]:
    answers: list[Committed] = []
    together: dict[int, Commit] = {}
    for one in commits:
        alone = reaches_out(one)
        if alone or one.task.run in together:
            answers += _apply_together(tx, together)
            together = {}
        if alone:
            answers.append(_apply_alone(tx, one))
        else:
            together[one.task.run] = one
    answers += _apply_together(tx, together)
    return answers


def reaches_out(one: Commit) -> bool:
    """It may change, or be refused for, more than its own run."""
    observed = one.observed
    return bool(observed.statements or observed.starts or observed.sends or one.follows.acts)


def _apply_together(tx: Tx, commits: dict[int, Commit]) -> list[Committed]:
    if not commits:
        return []
    holds = _holds(tx, [one.task for one in commits.values()])
    batch = _Batch(tx)
    answers = [batch.add(one, holds) for one in commits.values()]
    batch.write()
    touched = batch.settle()
    if not touched:
        return answers
    return [_with_touched(answer, touched.get(run)) for run, answer in zip(commits, answers, strict=True)]


def _apply_alone(tx: Tx, one: Commit) -> Committed:
    if not _holds_task(_holds(tx, [one.task]), one.task):
        return _LOST
    rejected = _unreachable(tx, one.observed) or _run_statements(tx, one)
    if rejected is not None:
        return rejected
    started = create(tx, one.observed.starts)
    sent = send(tx, one.observed.sends)
    if started and not _holds_task(_holds(tx, [one.task]), one.task):
        # It made room for one of those, itself or by its parent. What it has observed is true nevertheless.
        return _with_answers(_write_observed(tx, one), started, sent)
    return _with_answers(_apply_together(tx, {one.task.run: one})[0], started, sent)


def _write_observed(tx: Tx, one: Commit) -> Committed:
    batch = _Batch(tx)
    batch.observe(one)
    batch.write()
    return _APPLIED


def _with_touched(answer: Committed, touched: Touched | None) -> Committed:
    if touched is None:
        return answer
    both = Touched()
    ends.add(both, answer.touched)
    ends.add(both, touched)
    return replace(answer, touched=both)


def _unreachable(tx: Tx, observed: Observed) -> Committed | None:
    """An event can be sent to a run that has not ended, or that starts with this very commit."""
    starting = {(new.workflow, new.instance_id) for new in observed.starts}
    for event in observed.sends:
        if (event.workflow, event.instance_id) not in starting:
            run = find_current(tx, event.workflow, event.instance_id)
            if run is None or run.status.terminal:
                pid = f"{event.workflow}/{event.instance_id}"
                return Committed(Verdict.REJECTED, unreachable=True, message=f"there is no run {pid} to send to")
    return None


def _with_answers(answer: Committed, started: list[Created], sent: list[Sent]) -> Committed:
    return replace(answer, started=started, sent=sent) if started or sent else answer


def _run_statements(tx: Tx, one: Commit) -> Committed | None:
    """The users' statements, of which all or none are done. Their failure is an answer, not an error."""
    if not one.observed.statements:
        return None
    if id(one) in tx.refused:
        return tx.refused[id(one)]
    tx.connection.execute("SAVEPOINT holdfast_statements")
    rejected = tx.guard.run(tx.connection, one.observed.statements)
    if not tx.connection.in_transaction:
        tx.refused[id(one)] = rejected or Committed(Verdict.REJECTED, message="it rolled the transaction back")
        raise TransactionGone
    if rejected is not None:
        tx.connection.execute("ROLLBACK TO holdfast_statements")
    tx.connection.execute("RELEASE holdfast_statements")
    return rejected


def _holds(tx: Tx, tasks: list[TaskRef]) -> _Holds:
    holds: _Holds = {}
    for unit in {task.unit for task in tasks}:  # almost always 0
        runs = json.dumps([task.run for task in tasks if task.unit == unit])
        found = tx.connection.execute(_SQL["fence"], (runs, unit)).get
        holds |= {(run, unit): _Hold(*hold) for run, unit, *hold in json.loads(found)}
    return holds


def _holds_task(holds: _Holds, task: TaskRef) -> _Hold | None:
    """The fence: only the owner of this very claim may write."""
    hold = holds.get(task[:2])
    if hold is None or hold.owner != task.owner or hold.epoch != task.epoch:
        return None
    return hold


def _progress(one: Commit) -> bool:
    """Whether the run got further. Writing down that attempts were lost, or that one runs, is not progress."""
    return any(fact.state == FactState.RESULT for fact in one.observed.facts)


def deliver(tx: Tx, rows: Sequence[Row]) -> None:
    for row in rows:
        tx.connection.execute(_SQL["deliver"], row)
        if tx.connection.changes() != 1:
            raise StateError(f"event {row[1]} of run {row[0]} cannot be consumed: it is not there, or was before")


class _Batch:
    """Rows of many commits, gathered by statement."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx
        self._rows: dict[str, list[Row]] = {}
        self._paused: list[tuple[int, str | None]] = []
        self._said: list[tuple[int, Attributes]] = []
        self._ends: list[tuple[int, NextRun | None]] = []

    def add(self, one: Commit, holds: _Holds) -> Committed:
        hold = _holds_task(holds, one.task)
        if hold is None:
            return _LOST
        self.observe(one)
        if hold.signal & _PAUSE_ASKED:
            return self._pause(one, hold)
        return self._follow(one, hold)

    def write(self) -> None:
        connection = self._tx.connection
        for name in _WRITES:
            rows = self._rows.get(name)
            if rows is None:
                continue
            if name == "deliver":
                deliver(self._tx, rows)
            else:
                connection.executemany(_PUT_OUT if name == "outbox" else _SQL[name], rows)
        self._rows = {}
        for run, said in self._said:
            describe(self._tx, run, said)
        self._said = []
        for run, note in self._paused:
            connection.execute(_SQL["forget_losses"], (run,))
            set_paused(self._tx, run, note)
        self._paused = []

    def settle(self) -> dict[int, Touched]:
        """What follows from the ends. All successors first: a parent that ends too is to find them."""
        followed = [ends.End(run) if heir is None else follow_on(self._tx, run, heir) for run, heir in self._ends]
        touched = ends.settle(self._tx, followed)
        for end in followed:
            if end.successor is not None:
                touched.setdefault(end.run, Touched()).work = True
        return touched

    def _put(self, name: str, *rows: Row) -> None:
        self._rows.setdefault(name, []).extend(rows)

    def observe(self, one: Commit) -> None:
        run, observed = one.task.run, one.observed
        if observed.facts:
            self._put("fact", *fact_rows(run, observed.facts))
        if observed.deliveries:
            self._put("deliver", *((run, event, at, safe(key)) for event, key, at in observed.deliveries))
        if observed.logs:
            self._put("log", *log_rows(run, observed.logs))
        if observed.outbox:
            self._put("outbox", *outbox_rows(run, observed.outbox, self._tx.now))
        if one.started_at is not None:
            self._put("started", (run, one.started_at, self._tx.now))

    def _pause(self, one: Commit, hold: _Hold) -> Committed:
        if one.in_flight == 0:
            self._paused.append((one.task.run, None))
            return _PAUSED
        if hold.losses and _progress(one):
            self._put("keep", (*one.task[:2], hold.signal, 0))
        return _PAUSING

    def _follow(self, one: Commit, hold: _Hold) -> Committed:
        run, follows = one.task.run, one.follows
        if follows.facts:
            self._put("fact", *fact_rows(run, follows.facts))
        if follows.logs:
            self._put("log", *log_rows(run, follows.logs))
        if follows.attributes is not None:
            self._said.append((run, follows.attributes))
        return self._act(one) if follows.acts else self._go_on(one, hold)

    def _act(self, one: Commit) -> Committed:
        """After all else is written, and before what is next: an act may signal this very run, or end it."""
        self.write()
        run, acts = one.task.run, one.follows.acts
        acted = perform(self._tx, run, acts)
        self._put("fact", *fact_rows(run, facts_of(acts, acted.answers)))
        hold = _holds_task(_holds(self._tx, [one.task]), one.task)
        answer = _APPLIED if hold is None else self._go_on(one, hold)
        touched = acted.touched if acted.touched != Touched() else None
        return replace(answer, acted=acted.answers, births=acted.births, touched=touched)

    def _go_on(self, one: Commit, hold: _Hold) -> Committed:
        run = one.task.run
        match one.follows.next:
            case None:
                return self._keep(one, hold)
            case Finish() as finish:
                return self._finish(run, finish)
            case Park(note):
                self._paused.append((run, note))
                return _APPLIED
            case Release() as given_back:
                return self._release(one, given_back)

    def _finish(self, run: int, end: Finish) -> Committed:
        note = safe_or_none(end.note)
        self._put("finish", (run, end.status, end.output, end.error, note, self._tx.now))
        if end.next is None:
            self._put("drop_task", (run,))
        self._ends.append((run, end.next))
        return _APPLIED

    def _keep(self, one: Commit, hold: _Hold) -> Committed:
        # The common commit of a turn that goes on: its task row is left alone.
        losses = 0 if hold.losses and (one.follows.acts or _progress(one)) else hold.losses
        if losses == hold.losses and not hold.signal:
            return _APPLIED
        self._put("keep", (*one.task[:2], hold.signal & ~Signal.MAIL, losses))
        return Committed(Verdict.APPLIED, Signal(hold.signal))

    def _release(self, one: Commit, release: Release) -> Committed:
        task, topics = one.task, topics_text(release.topics)
        unseen = self._tx.connection.execute(_SQL["unseen"], (task.run, one.seen))
        mail = any(wanted(type_, release.topics) for (type_,) in unseen)
        run_at, kind = (self._tx.now, TaskKind.WAKE) if mail else (release.run_at, release.kind)
        self._put("release", (*task[:2], run_at, kind, kind.bucket, topics))
        self._put("wait", (task.run, release.status, self._tx.now))
        return Committed(Verdict.APPLIED, due_now=True) if mail else _APPLIED
