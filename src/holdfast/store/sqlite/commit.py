"""Applies commits: the fence first, then the observed part, then the following part.

Commits that affect only their own run are written together, with one statement for each kind of row. A commit that
starts runs, sends events, has operations or carries users' statements may change what other commits read, and is
applied alone. The consequences of the ends of runs are applied last, after all rows are written.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from holdfast.core.model import TaskKind
from holdfast.store.protocol import (
    NOTHING_FOLLOWS,
    PLAINLY_APPLIED,
    AffectedRuns,
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
    Verdict,
)
from holdfast.store.sqlite import ends
from holdfast.store.sqlite.create import create
from holdfast.store.sqlite.guard import TransactionRolledBack
from holdfast.store.sqlite.mailbox import deliver
from holdfast.store.sqlite.operations import perform, result_facts
from holdfast.store.sqlite.outbox import outbox_rows
from holdfast.store.sqlite.pausing import set_paused
from holdfast.store.sqlite.reads import find_current
from holdfast.store.sqlite.rows import encode_text, encode_text_or_none, fact_rows, log_rows
from holdfast.store.sqlite.search import set_attributes
from holdfast.store.sqlite.send import matches_topics, send, topics_text
from holdfast.store.sqlite.sql import statements
from holdfast.store.sqlite.streams import append
from holdfast.store.sqlite.successors import create_next
from holdfast.store.sqlite.tx import Row, Tx

_SQL = statements("commit")
_LOST = Committed(Verdict.LOST)
_PAUSING = Committed(Verdict.PAUSING)
_PAUSED = Committed(Verdict.PAUSED)
_PAUSE_REQUESTED = int(Signal.PAUSE)
_INSERT_OUTBOX = statements("outbox")["insert"]
_WRITES = (
    "insert_fact",
    "deliver",
    "insert_log",
    "outbox",
    "set_started",
    "update_task",
    "finish",
    "delete_task",
    "release",
    "set_status",
)


class _Ownership(NamedTuple):
    """The columns of a task that the fence and the commit read; all are None if there is no task."""

    owner: str | None
    epoch: int | None
    losses: int
    signal: int


_OWNED = _Ownership(None, None, 0, 0)
"""Stands for a task whose owner and epoch are those of the commit, without losses and signals."""
_Exceptions = dict[tuple[int, int], _Ownership]
"""Tasks of a batch that need attention, by run and unit; the others are ``_OWNED``."""


def commit(tx: Tx, commits: Sequence[Commit]) -> list[Committed]:
    results: list[Committed] = []
    together: dict[int, Commit] = {}
    for one in commits:
        alone = affects_others(one)
        if alone or one.task.run in together:
            results += _apply_together(tx, together)
            together = {}
        if alone:
            results.append(_apply_alone(tx, one))
        else:
            together[one.task.run] = one
    results += _apply_together(tx, together)
    return results


def affects_others(one: Commit) -> bool:
    """True if the commit may change other runs, or may be rejected because of them."""
    observed = one.observed
    return bool(observed.statements or observed.starts or observed.sends or one.following.operations)


def _apply_together(tx: Tx, commits: dict[int, Commit]) -> list[Committed]:
    if not commits:
        return []
    exceptions = _read_exceptions(tx, [one.task for one in commits.values()])
    batch = _Batch(tx)
    if releasing := [one for one in commits.values() if type(one.following.next) is Release]:
        batch.read_unseen(releasing)
    results = [batch.add(one, exceptions) for one in commits.values()]
    batch.write()
    affected = batch.propagate_ends()
    if not affected:
        return results
    return [_with_affected(result, affected.get(run)) for run, result in zip(commits, results, strict=True)]


def _apply_alone(tx: Tx, one: Commit) -> Committed:
    if _check_fence(_read_exceptions(tx, [one.task]), one.task) is None:
        return _LOST
    rejected = _unreachable(tx, one.observed) or _run_statements(tx, one)
    if rejected is not None:
        return rejected
    started = create(tx, one.observed.starts)
    sent = send(tx, one.observed.sends)
    if started and _check_fence(_read_exceptions(tx, [one.task]), one.task) is None:
        # One of the starts terminated this run or its parent (TERMINATE_EXISTING). The observed part is still written.
        return _with_results(_write_observed(tx, one), started, sent)
    return _with_results(_apply_together(tx, {one.task.run: one})[0], started, sent)


def _write_observed(tx: Tx, one: Commit) -> Committed:
    batch = _Batch(tx)
    batch.observe(one)
    batch.note_start(one)
    batch.write()
    return PLAINLY_APPLIED


def _with_affected(result: Committed, affected: AffectedRuns | None) -> Committed:
    if affected is None:
        return result
    both = AffectedRuns()
    ends.merge(both, result.affected)
    ends.merge(both, affected)
    return replace(result, affected=both)


def _unreachable(tx: Tx, observed: Observed) -> Committed | None:
    """The rejection of a commit that sends to a run that has ended or does not exist.

    A run that the same commit starts can be sent to.
    """
    starting = {(new.workflow, new.instance_id) for new in observed.starts}
    for event in observed.sends:
        if (event.workflow, event.instance_id) not in starting:
            run = find_current(tx, event.workflow, event.instance_id)
            if run is None or run.status.terminal:
                pid = f"{event.workflow}/{event.instance_id}"
                return Committed(Verdict.REJECTED, unreachable=True, message=f"there is no run {pid} to send to")
    return None


def _with_results(result: Committed, started: list[Created], sent: list[Sent]) -> Committed:
    return replace(result, started=started, sent=sent) if started or sent else result


def _run_statements(tx: Tx, one: Commit) -> Committed | None:
    """Execute the users' statements, all or none. A failure is returned as a rejection and not raised."""
    if not one.observed.statements:
        return None
    if id(one) in tx.rejections:
        return tx.rejections[id(one)]
    tx.connection.execute("SAVEPOINT holdfast_statements")
    rejected = tx.guard.run(tx.connection, one.observed.statements)
    if not tx.connection.in_transaction:
        tx.rejections[id(one)] = rejected or Committed(Verdict.REJECTED, message="a statement ended the transaction")
        raise TransactionRolledBack
    if rejected is not None:
        tx.connection.execute("ROLLBACK TO holdfast_statements")
    tx.connection.execute("RELEASE holdfast_statements")
    return rejected


def _read_exceptions(tx: Tx, tasks: list[TaskRef]) -> _Exceptions:
    exceptions: _Exceptions = {}
    for unit, owner in {task[1:3] for task in tasks}:  # almost always one
        epochs = {task.run: task.epoch for task in tasks if task.unit == unit and task.owner == owner}
        found = tx.connection.execute(_SQL["fence"], (json.dumps(epochs), unit, owner)).get
        if found != "[]":
            exceptions |= {(run, unit): _Ownership(*ownership) for run, *ownership in json.loads(found)}
    return exceptions


def _check_fence(exceptions: _Exceptions, task: TaskRef) -> _Ownership | None:
    """The fence: return the task's columns if owner and epoch match, else None."""
    ownership = exceptions.get(task[:2])
    if ownership is None:
        return _OWNED
    return ownership if ownership.owner == task.owner and ownership.epoch == task.epoch else None


def _is_progress(one: Commit) -> bool:
    """True if the commit has a RESULT. Recording lost or running attempts is not progress."""
    return any(fact.state == FactState.RESULT for fact in one.observed.facts)


class _Batch:
    """Rows of many commits, grouped by statement."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx
        self._rows: defaultdict[str, list[Row]] = defaultdict(list)
        self._paused: list[tuple[int, str | None]] = []
        self._attributes: list[tuple[int, Attributes]] = []
        self._ends: list[tuple[int, NextRun | None]] = []
        self._unseen: dict[int, list[str]] = {}
        """Types of the undelivered events that the turns have not seen, by run."""

    def add(self, one: Commit, exceptions: _Exceptions) -> Committed:
        ownership = _check_fence(exceptions, one.task)
        if ownership is None:
            return _LOST
        self.observe(one)
        if one.following is NOTHING_FOLLOWS and ownership is _OWNED:  # the most common commit
            if one.started_at is not None:
                self.note_start(one)
            return PLAINLY_APPLIED
        if ownership.signal & _PAUSE_REQUESTED:
            return self._pause(one, ownership)
        return self._apply_following(one, ownership)

    def write(self) -> None:
        connection = self._tx.connection
        for name in _WRITES:
            rows = self._rows.get(name)
            if rows is None:
                continue
            if name == "deliver":
                deliver(self._tx, rows)
            else:
                connection.executemany(_INSERT_OUTBOX if name == "outbox" else _SQL[name], rows)
        self._rows.clear()
        for run, attributes in self._attributes:
            set_attributes(self._tx, run, attributes)
        self._attributes = []
        for run, note in self._paused:
            connection.execute(_SQL["reset_losses"], (run,))
            set_paused(self._tx, run, note)
        self._paused = []

    def read_unseen(self, releasing: Sequence[Commit]) -> None:
        """Read the types of the events that arrived after the turns of these commits read their mailboxes."""
        seen = json.dumps({one.task.run: one.seen for one in releasing})
        for run, type_ in json.loads(self._tx.connection.execute(_SQL["unseen_types"], (seen,)).get):
            self._unseen.setdefault(run, []).append(type_)

    def propagate_ends(self) -> dict[int, AffectedRuns]:
        """Apply the consequences of ends. All successors are created first, so that a parent's end finds them."""
        followed = [
            ends.End(run) if next_run is None else create_next(self._tx, run, next_run) for run, next_run in self._ends
        ]
        affected = ends.propagate(self._tx, followed)
        for end in followed:
            if end.successor is not None:
                affected.setdefault(end.run, AffectedRuns()).work = True
        return affected

    def observe(self, one: Commit) -> None:
        run, observed = one.task.run, one.observed
        if observed.facts:
            self._rows["insert_fact"] += fact_rows(run, observed.facts)
        if observed.deliveries:
            self._rows["deliver"] += [(run, event, at, encode_text(key)) for event, key, at in observed.deliveries]
        if observed.logs:
            self._rows["insert_log"] += log_rows(run, observed.logs)
        if observed.outbox:
            self._rows["outbox"] += outbox_rows(run, observed.outbox, self._tx.now)

    def note_start(self, one: Commit) -> None:
        """Set ``started_at`` of the run, unless the commit writes the run's row anyway (``_finish``, ``_release``)."""
        if one.started_at is not None:
            self._rows["set_started"].append((one.task.run, one.started_at, self._tx.now))

    def _pause(self, one: Commit, ownership: _Ownership) -> Committed:
        self.note_start(one)
        if one.in_flight == 0:
            self._paused.append((one.task.run, None))
            return _PAUSED
        if ownership.losses and _is_progress(one):
            self._rows["update_task"].append((*one.task[:2], ownership.signal, 0))
        return _PAUSING

    def _apply_following(self, one: Commit, ownership: _Ownership) -> Committed:
        run, following = one.task.run, one.following
        if following.facts:
            self._rows["insert_fact"] += fact_rows(run, following.facts)
        if following.logs:
            self._rows["insert_log"] += log_rows(run, following.logs)
        if following.attributes is not None:
            self._attributes.append((run, following.attributes))
        for write in following.streams:
            append(self._tx, write)
        return self._apply_operations(one) if following.operations else self._apply_next(one, ownership)

    def _apply_operations(self, one: Commit) -> Committed:
        """Apply the operations after all other rows and before ``next``: an operation may signal or end this run."""
        self.note_start(one)
        self.write()
        run, operations = one.task.run, one.following.operations
        applied = perform(self._tx, run, operations)
        self._rows["insert_fact"] += fact_rows(run, result_facts(operations, applied.results))
        ownership = _check_fence(_read_exceptions(self._tx, [one.task]), one.task)
        result = PLAINLY_APPLIED if ownership is None else self._apply_next(one, ownership)
        affected = applied.affected if applied.affected != AffectedRuns() else None
        return replace(
            result, operation_results=applied.results, claimed_children=applied.claimed_children, affected=affected
        )

    def _apply_next(self, one: Commit, ownership: _Ownership) -> Committed:
        run = one.task.run
        match one.following.next:
            case None:
                return self._keep(one, ownership)
            case Finish() as finish:
                return self._finish(one, finish)
            case Park(note):
                self.note_start(one)
                self._paused.append((run, note))
                return PLAINLY_APPLIED
            case Release() as release:
                return self._release(one, release)

    def _finish(self, one: Commit, end: Finish) -> Committed:
        run, note = one.task.run, encode_text_or_none(end.note)
        self._rows["finish"].append((run, end.status, end.output, end.error, note, self._tx.now, one.started_at))
        if end.next is None:
            self._rows["delete_task"].append((run,))
        self._ends.append((run, end.next))
        return PLAINLY_APPLIED

    def _keep(self, one: Commit, ownership: _Ownership) -> Committed:
        # The common commit of a turn that continues does not write its task row.
        self.note_start(one)
        losses = 0 if ownership.losses and (one.following.operations or _is_progress(one)) else ownership.losses
        if losses == ownership.losses and not ownership.signal:
            return PLAINLY_APPLIED
        self._rows["update_task"].append((*one.task[:2], ownership.signal & ~Signal.EVENTS, losses))
        return Committed(Verdict.APPLIED, Signal(ownership.signal))

    def _release(self, one: Commit, release: Release) -> Committed:
        task, topics = one.task, topics_text(release.topics)
        has_events = any(matches_topics(type_, release.topics) for type_ in self._unseen.get(task.run, ()))
        run_at, kind = (self._tx.now, TaskKind.WAKE) if has_events else (release.run_at, release.kind)
        self._rows["release"].append((*task[:2], run_at, kind, kind.bucket, topics))
        self._rows["set_status"].append((task.run, release.status, self._tx.now, one.started_at))
        return Committed(Verdict.APPLIED, due_now=True) if has_events else PLAINLY_APPLIED
