"""Puts events into runs' mailboxes, and wakes who waits for them."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from holdfast.core.model import Status, TaskKind
from holdfast.store.protocol import (
    ANY_TOPIC,
    SUSPECT_LOSSES,
    Claim,
    Claimant,
    NewEvent,
    RunRecord,
    Sent,
    Signal,
    Touched,
)
from holdfast.store.sqlite.claim import take
from holdfast.store.sqlite.mailbox import ENGINE
from holdfast.store.sqlite.reads import find_current, record_of
from holdfast.store.sqlite.rows import safe_or_none
from holdfast.store.sqlite.sql import statements
from holdfast.store.sqlite.tx import Tx

_SQL = statements("send")


class Parcel(NamedTuple):
    """An event without the address."""

    type: str
    payload: bytes | None
    sender: str | None = None
    dedup: str | None = None
    ask: str | None = None
    at: int | None = None
    """When it comes; None: now."""


class Effect(Enum):
    """What an event did to the run it came to."""

    NOTHING = 0
    """It is kept, and nobody waits for it."""
    DUPLICATE = 1
    """It was there before."""
    SIGNALLED = 2
    """Who holds the run is told."""
    DUE = 3
    """Nobody holds the run, and it is due."""

    @property
    def woken(self) -> bool:
        return self in (Effect.SIGNALLED, Effect.DUE)


def send(tx: Tx, events: Sequence[NewEvent]) -> list[Sent]:
    return [_send(tx, event) for event in events]


def post(tx: Tx, run: RunRecord, letter: Parcel) -> Effect:
    """Put an event into the mailbox of a living run."""
    sender, dedup, ask = safe_or_none(letter.sender), safe_or_none(letter.dedup), safe_or_none(letter.ask)
    at = tx.now if letter.at is None else letter.at
    tx.connection.execute(_SQL["event"], (run.run, letter.type, letter.payload, at, sender, dedup, ask))
    if tx.connection.changes() == 0:
        return Effect.DUPLICATE
    if run.owner is not None:
        tx.connection.execute(_SQL["signal"], (run.run, Signal.MAIL))
        return Effect.SIGNALLED
    if run.status is Status.PAUSED or not wanted(letter.type, run.topics):
        return Effect.NOTHING
    if run.run_at is None or run.run_at > tx.now:
        tx.connection.execute(_SQL["wake"], (run.run, tx.now, TaskKind.WAKE, TaskKind.WAKE.bucket))
    return Effect.DUE


def mail_to(tx: Tx, run: int, letter: Parcel, touched: Touched) -> None:
    """The engine's own mail to a run, if it lives."""
    found = record_of(tx, run)
    if not found.status.terminal:
        note_effect(touched, run, post(tx, found, letter))


def note_effect(touched: Touched, run: int, effect: Effect) -> None:
    if effect.woken:
        touched.woken.append(run)
    if effect is Effect.DUE:
        touched.work = True


def topics_text(topics: frozenset[str]) -> str:
    return f" {' '.join(sorted(topics))} " if topics else ""


def wanted(type: str, topics: frozenset[str]) -> bool:
    return type in topics or ANY_TOPIC in topics or type.startswith(ENGINE)


def _send(tx: Tx, event: NewEvent) -> Sent:
    run = find_current(tx, event.workflow, event.instance_id)
    if run is None or run.status.terminal:
        return Sent(run, accepted=False)
    at = None if event.foreseen is None else event.foreseen.time(tx.now, run)
    effect = post(tx, run, Parcel(event.type, event.payload, event.sender, event.dedup, event.ask, at))
    claim = _claim(tx, run, event.claimant) if effect is Effect.DUE else None
    duplicate = effect is Effect.DUPLICATE
    return Sent(run, accepted=True, duplicate=duplicate, woken=effect.woken, claim=claim)


def _claim(tx: Tx, run: RunRecord, claimant: Claimant | None) -> Claim | None:
    """A suspect is left to a claim, which takes care that nobody holds two of them."""
    if claimant is None or run.queue not in claimant.queues or run.losses >= SUSPECT_LOSSES:
        return None
    return take(tx, run.run, claimant)
