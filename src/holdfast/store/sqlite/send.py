"""Adds events to the mailboxes of runs, and wakes the runs that wait for them."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from holdfast.core.model import Status, TaskKind
from holdfast.store.protocol import (
    ANY_TOPIC,
    SUSPECT_LOSSES,
    AffectedRuns,
    Claimant,
    NewEvent,
    RunRecord,
    Sent,
    Signal,
)
from holdfast.store.sqlite.claim import claim_runs
from holdfast.store.sqlite.mailbox import ENGINE_PREFIX
from holdfast.store.sqlite.queues import paused_queues
from holdfast.store.sqlite.reads import find_current, record_of
from holdfast.store.sqlite.rows import encode_text_or_none
from holdfast.store.sqlite.sql import statements
from holdfast.store.sqlite.tx import Tx

_SQL = statements("send")


class QueuedEvent(NamedTuple):
    """An event without its recipient."""

    type: str
    payload: bytes | None
    sender: str | None = None
    dedup: str | None = None
    ask: str | None = None
    at: int | None = None
    """The creation time; None: now."""
    trace: str | None = None


class Effect(Enum):
    """The effect of an event on its recipient."""

    NOTHING = 0
    """The event is stored, and the run does not wait for it."""
    DUPLICATE = 1
    """An event with the same dedup key exists; nothing is stored."""
    SIGNALLED = 2
    """The owner of the run is signalled."""
    DUE = 3
    """The run has no owner, and it is due."""

    @property
    def woken(self) -> bool:
        return self in (Effect.SIGNALLED, Effect.DUE)


def send(tx: Tx, events: Sequence[NewEvent]) -> list[Sent]:
    """Send the events in their order. The runs that they wake are claimed together, with one statement of each kind."""
    woken = _WokenRuns(tx)
    all_sent: list[Sent] = []
    for event in events:
        run = find_current(tx, event.workflow, event.instance_id)
        if run is not None and run.run in woken:  # another event to this run: it signals the new owner
            woken.claim()
            run = find_current(tx, event.workflow, event.instance_id)
        sent, effect = _send(tx, event, run)
        if run is not None and effect is Effect.DUE and event.claimant is not None and _may_claim(run, event.claimant):
            woken.add(run, sent, event.claimant)
        all_sent.append(sent)
    woken.claim()
    return all_sent


def add_event(tx: Tx, run: RunRecord, event: QueuedEvent) -> Effect:
    """Add an event to the mailbox of a run that has not ended."""
    sender, dedup, ask = (
        encode_text_or_none(event.sender),
        encode_text_or_none(event.dedup),
        encode_text_or_none(event.ask),
    )
    at = tx.now if event.at is None else event.at
    tx.connection.execute(
        _SQL["insert_event"], (run.run, event.type, event.payload, at, sender, dedup, ask, event.trace)
    )
    if tx.connection.changes() == 0:
        return Effect.DUPLICATE
    if run.owner is not None:
        tx.connection.execute(_SQL["signal"], (run.run, Signal.EVENTS))
        return Effect.SIGNALLED
    if run.status is Status.PAUSED or not matches_topics(event.type, run.topics):
        return Effect.NOTHING
    if run.run_at is None or run.run_at > tx.now:
        tx.connection.execute(_SQL["wake"], (run.run, tx.now, TaskKind.WAKE, TaskKind.WAKE.bucket))
        if tx.connection.changes() == 0:  # the run is held
            return Effect.NOTHING
    return Effect.DUE


def send_engine_event(tx: Tx, run: int, event: QueuedEvent, affected: AffectedRuns) -> None:
    """Send one of the engine's own events to a run, unless it has ended."""
    recipient = record_of(tx, run)
    if not recipient.status.terminal:
        add_effect(affected, run, add_event(tx, recipient, event))


def add_effect(affected: AffectedRuns, run: int, effect: Effect) -> None:
    if effect.woken:
        affected.woken.append(run)
    if effect is Effect.DUE:
        affected.work = True


def topics_text(topics: frozenset[str]) -> str:
    return f" {' '.join(sorted(topics))} " if topics else ""


def matches_topics(type: str, topics: frozenset[str]) -> bool:
    return type in topics or ANY_TOPIC in topics or type.startswith(ENGINE_PREFIX)


def _send(tx: Tx, event: NewEvent, run: RunRecord | None) -> tuple[Sent, Effect]:
    if run is None or run.status.terminal:
        return Sent(run, accepted=False), Effect.NOTHING
    at = None if event.prediction is None else event.prediction.event_time(tx.now, run)
    queued = QueuedEvent(event.type, event.payload, event.sender, event.dedup, event.ask, at, event.trace)
    effect = add_event(tx, run, queued)
    return Sent(run, accepted=True, duplicate=effect is Effect.DUPLICATE, woken=effect.woken), effect


def _may_claim(run: RunRecord, claimant: Claimant) -> bool:
    """True if the claimant may have the woken run, unless its queue is paused.

    Suspects are left to ``claim``, which gives a worker one at a time.
    """
    if run.queue not in claimant.queues or run.losses >= SUSPECT_LOSSES:
        return False
    return not run.pinned or run.version == claimant.version


class _WokenRuns:
    """Runs that events have woken, to be claimed together by one claimant."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx
        self._claimant: Claimant | None = None
        self._sent: dict[int, Sent] = {}

    def __contains__(self, run: int) -> bool:
        return run in self._sent

    def add(self, run: RunRecord, sent: Sent, claimant: Claimant) -> None:
        if claimant != self._claimant:
            self.claim()
            self._claimant = claimant
        self._sent[run.run] = sent

    def claim(self) -> None:
        """Claim the runs that were added since the last call."""
        if self._claimant is None or not self._sent:
            return
        by_run, self._sent = self._sent, {}
        paused = paused_queues(self._tx)
        runs = [run for run, sent in by_run.items() if sent.run is not None and sent.run.queue not in paused]
        for claim in claim_runs(self._tx, runs, self._claimant):
            by_run[claim.task.run].claim = claim
