"""What people do to runs: pause, resume, cancel, terminate, restart. Terminal runs are never changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.core.model import Status, TaskKind
from holdfast.store.protocol import CANCEL, GRAPH, Expiry, NewUnit, RunRecord, Steered, Touched, reason_of
from holdfast.store.sqlite import ends, successors
from holdfast.store.sqlite.reads import find_current
from holdfast.store.sqlite.rows import safe_or_none
from holdfast.store.sqlite.send import Parcel, note_effect, post
from holdfast.store.sqlite.sql import statements
from holdfast.store.sqlite.tx import Tx

_SQL = statements("control")
_PAUSE = statements("pause")
RESTARTED = "restarted"


class Target(NamedTuple):
    workflow: str
    instance_id: str


class Ending(NamedTuple):
    target: Target
    reason: str | None


class Cancelling(NamedTuple):
    target: Target
    payload: bytes
    deadline_ms: int | None


class Restarting(NamedTuple):
    target: Target
    expires_ms: int | None
    expiry: Expiry | None
    options: bytes | None = None
    units: Sequence[NewUnit] = ()


def set_paused(tx: Tx, run: int, note: str | None = None) -> None:
    """The run is paused; its task stays, for the sake of its epoch, held by nobody and never due.

    Its units are not due either.
    """
    tx.connection.execute(_PAUSE["run"], (run, safe_or_none(note), tx.now))
    tx.connection.execute(_PAUSE["task"], (run,))


def pause(tx: Tx, target: Target) -> RunRecord | None:
    run = find_current(tx, target.workflow, target.instance_id)
    if run is None or run.status.terminal or run.status is Status.PAUSED:
        return run
    if run.owner is None:
        set_paused(tx, run.run)
    else:
        tx.connection.execute(_SQL["signal_pause"], (run.run,))
    return run


def resume(tx: Tx, target: Target) -> RunRecord | None:
    run = find_current(tx, target.workflow, target.instance_id)
    if run is None:
        return None
    if run.status is Status.PAUSED:
        kind = TaskKind.RESUME
        tx.connection.execute(_SQL["resume_run"], (run.run, tx.now))
        tx.connection.execute(_SQL["resume_task"], (run.run, tx.now, kind, kind.bucket))
    elif run.pausing:
        tx.connection.execute(_SQL["withdraw_pause"], (run.run,))
    return run


def terminate(tx: Tx, ending: Ending) -> Steered:
    run = find_current(tx, *ending.target)
    if run is None or run.status.terminal:
        return Steered(run, Touched())
    return Steered(run, ends.terminate(tx, run.run, ending.reason))


def cancel(tx: Tx, cancelling: Cancelling) -> Steered:
    run = find_current(tx, *cancelling.target)
    touched = Touched()
    if run is not None and not run.status.terminal:
        ask_to_cancel(tx, run, Parcel(CANCEL, cancelling.payload), cancelling.deadline_ms, touched)
    return Steered(run, touched)


def ask_to_cancel(tx: Tx, run: RunRecord, letter: Parcel, deadline_ms: int | None, touched: Touched) -> None:
    """Of a living run. A graph has no code that could react, and ends at once."""
    if run.kind == GRAPH:
        ends.add(touched, ends.cancel(tx, run.run, reason_of(letter.payload)))
        return
    note_effect(touched, run.run, post(tx, run, letter))
    if deadline_ms is not None:
        tx.connection.execute(_SQL["hurry"], (run.run, tx.now + deadline_ms))
        touched.work = True  # somebody has to end it then: claims are to ask for the next due time again


def restart(tx: Tx, restarting: Restarting) -> Steered:
    old = find_current(tx, *restarting.target)
    if old is None:
        return Steered(None, Touched())
    lived = not old.status.terminal
    if lived:
        ends.close(tx, old.run, RESTARTED)
    expires = successors.expires_in(restarting.expires_ms, restarting.expiry, tx.now)
    heir = successors.Heir(old.params, tx.now, 1, expires, restarting.options, restarting.units, in_line=False)
    new = successors.succeed(tx, old, heir)
    touched = Touched(work=True)
    if lived:
        touched.ended.append(old.run)
        ends.add(touched, ends.settle(tx, [ends.End(old.run, new)]).get(old.run))
    return Steered(find_current(tx, *restarting.target), touched)
