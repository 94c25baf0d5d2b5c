"""What happens when runs end: those who watch them are told, and their children are treated as was agreed.

A run that nobody has to do with costs one look, together with all that end in the same batch. How the end itself is
written, and what comes after a run, is not known here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from holdfast.core.failure import Failure
from holdfast.store.protocol import CANCEL, EXIT, GRAPH, ParentClose, RunRecord, Touched, Watch
from holdfast.store.sqlite.reads import record_of
from holdfast.store.sqlite.rows import safe_or_none
from holdfast.store.sqlite.send import Parcel, mail_to
from holdfast.store.sqlite.sql import statements
from holdfast.store.sqlite.tx import Tx

_SQL = statements("ends")


class End(NamedTuple):
    """A run that has ended, and the one that comes after it."""

    run: int
    successor: int | None = None
    continues: bool = False
    """The successor also has its children, and watches what it did."""


def close(tx: Tx, run: int, reason: str | None) -> None:
    """The row is terminal and the task is gone. What follows from it is for ``settle``."""
    _bury(tx, run, reason)
    tx.connection.execute(_SQL["close"], (run, safe_or_none(reason), tx.now))
    drop_task(tx, run)


def close_cancelled(tx: Tx, run: int, reason: str | None) -> None:
    """As ``close``, for a graph that is cancelled."""
    _bury(tx, run, reason)
    error = Failure("CancelledError", reason or "no reason given", kind="Cancelled", retryable=False)
    tx.connection.execute(_SQL["close_cancelled"], (run, json.dumps(error.content()).encode(), tx.now))
    drop_task(tx, run)


def _bury(tx: Tx, run: int, reason: str | None) -> None:
    """Write the tombstone of a graph; other runs have none. `codec.encode` would refuse surrogate pairs."""
    tx.connection.execute(_SQL["bury"], (run, json.dumps(reason).encode(), tx.now))


def drop_task(tx: Tx, run: int) -> None:
    tx.connection.execute(_SQL["drop_task"], (run,))


def terminate(tx: Tx, run: int, reason: str | None) -> Touched:
    """End a living run that nothing comes after."""
    close(tx, run, reason)
    touched = Touched(ended=[run])
    add(touched, settle(tx, [End(run)]).get(run))
    return touched


def cancel(tx: Tx, run: int, reason: str | None) -> Touched:
    """End a living graph as cancelled."""
    close_cancelled(tx, run, reason)
    touched = Touched(ended=[run])
    add(touched, settle(tx, [End(run)]).get(run))
    return touched


def settle(tx: Tx, ends: Sequence[End]) -> dict[int, Touched]:
    """All that follows from ends that are written already. Answers what each of those that mattered has touched."""
    return {end.run: _spread(tx, end) for end in _involved(tx, ends)}


def add(touched: Touched, more: Touched | None) -> None:
    if more is not None:
        touched.ended += more.ended
        touched.woken += more.woken
        touched.work |= more.work


def exit_of(run: RunRecord, kind: Watch) -> Parcel:
    """What somebody who watches a run is told of its end. The payload is made of the very bytes that are stored."""
    note = json.dumps(run.note).encode()
    head = b'{"watch":%d,"status":"%s","output":' % (kind, run.status.value.encode())
    payload = b"".join((head, run.output or b"null", b',"error":', run.error or b"null", b',"note":', note, b"}"))
    return Parcel(EXIT, payload, sender=pid_of(run))


def pid_of(run: RunRecord) -> str:
    return f"{run.workflow}/{run.instance_id}"


def _involved(tx: Tx, ends: Sequence[End]) -> list[End]:
    if not ends:
        return []
    asked = json.dumps([end.run for end in ends])
    found = set(json.loads(tx.connection.execute(_SQL["involved"], (asked,)).get))
    return [end for end in ends if end.run in found] if found else []


def _spread(tx: Tx, end: End) -> Touched:
    """Generation by generation: a family can be deeper than Python's stack."""
    touched = Touched()
    generation = [end]
    while generation:
        ended = [child for one in generation for child in _pass_on(tx, one, touched)]
        touched.ended += ended
        generation = _involved(tx, [End(child) for child in ended])
    return touched


def _pass_on(tx: Tx, end: End, touched: Touched) -> list[int]:
    """Answers the children that have ended by this."""
    # Its own watches first: what has ended is not to hear of its children's ends.
    if end.successor is not None and end.continues:
        tx.connection.execute(_SQL["pass_own"], (end.run, end.successor))
    else:
        tx.connection.execute(_SQL["drop_own"], (end.run,))
    if end.successor is not None:
        tx.connection.execute(_SQL["pass_watchers"], (end.run, end.successor))
    else:
        _tell_watchers(tx, end.run, touched)
    if end.successor is not None and end.continues:
        tx.connection.execute(_SQL["pass_children"], (end.run, end.successor))
        return []
    return _treat_children(tx, end.run, touched)


def _tell_watchers(tx: Tx, run: int, touched: Touched) -> None:
    watchers = tx.connection.execute(_SQL["watchers"], (run,)).fetchall()
    if not watchers:
        return
    tx.connection.execute(_SQL["drop_watchers"], (run,))
    ended = record_of(tx, run)
    for watcher, kind in watchers:
        mail_to(tx, watcher, exit_of(ended, Watch(kind)), touched)


def _treat_children(tx: Tx, run: int, touched: Touched) -> list[int]:
    children = tx.connection.execute(_SQL["children"], (run,)).fetchall()
    if not children:
        return []
    parent = pid_of(record_of(tx, run))
    why = f"its parent {parent} has ended"
    asking = Parcel(CANCEL, json.dumps({"reason": why, "deadlineMs": None}).encode(), sender=parent)
    ended: list[int] = []
    for child, parent_close, kind in children:
        if parent_close == ParentClose.TERMINATE:
            close(tx, child, why)
            ended.append(child)
        elif parent_close == ParentClose.REQUEST_CANCEL and kind == GRAPH:
            close_cancelled(tx, child, why)
            ended.append(child)
        elif parent_close == ParentClose.REQUEST_CANCEL:
            mail_to(tx, child, asking, touched)
    return ended
