"""Consequences of the ends of runs: watchers are notified, and ``parent_close`` is applied to children.

One query finds the runs of a batch that have watchers, watches or children; the other runs cost nothing more. This
module does not write the end of a finished run, and does not create successors.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from holdfast.core.failure import Failure
from holdfast.store.protocol import CANCEL, EXIT, GRAPH, AffectedRuns, ParentClose, RunRecord, Watch
from holdfast.store.sqlite.reads import record_of
from holdfast.store.sqlite.rows import encode_text_or_none
from holdfast.store.sqlite.send import QueuedEvent, send_engine_event
from holdfast.store.sqlite.sql import statements
from holdfast.store.sqlite.tx import Tx

_SQL = statements("ends")


class End(NamedTuple):
    """A run that has ended, and its successor."""

    run: int
    successor: int | None = None
    continues: bool = False
    """The successor also inherits the children, and the run's watches on other runs."""


def close(tx: Tx, run: int, reason: str | None) -> None:
    """Make the row terminal and delete the task. ``propagate`` applies the consequences."""
    _write_tombstone(tx, run, reason)
    tx.connection.execute(_SQL["terminate"], (run, encode_text_or_none(reason), tx.now))
    drop_task(tx, run)


def close_cancelled(tx: Tx, run: int, reason: str | None) -> None:
    """As ``close``, for a run that is cancelled."""
    _write_tombstone(tx, run, reason)
    error = Failure("CancelledError", reason or "no reason given", kind="Cancelled", retryable=False)
    tx.connection.execute(_SQL["cancel"], (run, json.dumps(error.content()).encode(), tx.now))
    drop_task(tx, run)


def _write_tombstone(tx: Tx, run: int, reason: str | None) -> None:
    """Write the tombstone of a graph; other runs have none. ``codec.encode`` would reject surrogate pairs."""
    tx.connection.execute(_SQL["insert_tombstone"], (run, json.dumps(reason).encode(), tx.now))


def drop_task(tx: Tx, run: int) -> None:
    tx.connection.execute(_SQL["delete_task"], (run,))


def terminate(tx: Tx, run: int, reason: str | None) -> AffectedRuns:
    """End a run that has not ended, without a successor."""
    close(tx, run, reason)
    affected = AffectedRuns(ended=[run], work=True)  # a singleton that was held behind it may be due
    merge(affected, propagate(tx, [End(run)]).get(run))
    return affected


def cancel(tx: Tx, run: int, reason: str | None) -> AffectedRuns:
    """End a run that has not ended and has no code that could react, as cancelled."""
    close_cancelled(tx, run, reason)
    affected = AffectedRuns(ended=[run], work=True)  # a singleton that was held behind it may be due
    merge(affected, propagate(tx, [End(run)]).get(run))
    return affected


def propagate(tx: Tx, ends: Sequence[End]) -> dict[int, AffectedRuns]:
    """Apply the consequences of ends that are written already; the affected runs by the run that ended."""
    return {end.run: _propagate_one(tx, end) for end in _with_relations(tx, ends)}


def merge(affected: AffectedRuns, more: AffectedRuns | None) -> None:
    if more is not None:
        affected.ended += more.ended
        affected.woken += more.woken
        affected.work |= more.work


def exit_event(run: RunRecord, kind: Watch) -> QueuedEvent:
    """The EXIT event for a watcher of the run. Output and error are the stored bytes, not encoded again."""
    note = json.dumps(run.note).encode()
    head = b'{"watch":%d,"status":"%s","output":' % (kind, run.status.value.encode())
    payload = b"".join((head, run.output or b"null", b',"error":', run.error or b"null", b',"note":', note, b"}"))
    return QueuedEvent(EXIT, payload, sender=pid_of(run))


def pid_of(run: RunRecord) -> str:
    return f"{run.workflow}/{run.instance_id}"


def _with_relations(tx: Tx, ends: Sequence[End]) -> list[End]:
    if not ends:
        return []
    runs = json.dumps([end.run for end in ends])
    found = set(json.loads(tx.connection.execute(_SQL["with_relations"], (runs,)).get))
    return [end for end in ends if end.run in found] if found else []


def _propagate_one(tx: Tx, end: End) -> AffectedRuns:
    """Apply the consequences level by level, not recursively: the tree can be deeper than Python's stack."""
    affected = AffectedRuns()
    level = [end]
    while level:
        ended = [child for one in level for child in _propagate_to_relations(tx, one, affected)]
        affected.ended += ended
        level = _with_relations(tx, [End(child) for child in ended])
    return affected


def _propagate_to_relations(tx: Tx, end: End, affected: AffectedRuns) -> list[int]:
    """Notify watchers and close children of one ended run; returns the children that this ended."""
    # The run's own watches first: an ended run must not receive the EXIT events of its children.
    if end.successor is not None and end.continues:
        tx.connection.execute(_SQL["move_own_watches"], (end.run, end.successor))
    else:
        tx.connection.execute(_SQL["delete_own_watches"], (end.run,))
    if end.successor is not None:
        tx.connection.execute(_SQL["move_watchers"], (end.run, end.successor))
    else:
        _notify_watchers(tx, end.run, affected)
    if end.successor is not None and end.continues:
        tx.connection.execute(_SQL["move_children"], (end.run, end.successor))
        return []
    return _close_children(tx, end.run, affected)


def _notify_watchers(tx: Tx, run: int, affected: AffectedRuns) -> None:
    watchers = tx.connection.execute(_SQL["watchers"], (run,)).fetchall()
    if not watchers:
        return
    tx.connection.execute(_SQL["delete_watchers"], (run,))
    ended = record_of(tx, run)
    for watcher, kind in watchers:
        send_engine_event(tx, watcher, exit_event(ended, Watch(kind)), affected)


def _close_children(tx: Tx, run: int, affected: AffectedRuns) -> list[int]:
    children = tx.connection.execute(_SQL["living_children"], (run,)).fetchall()
    if not children:
        return []
    parent = pid_of(record_of(tx, run))
    reason = f"its parent {parent} has ended"
    cancel_event = QueuedEvent(CANCEL, json.dumps({"reason": reason, "deadlineMs": None}).encode(), sender=parent)
    ended: list[int] = []
    for child, parent_close, kind in children:
        if parent_close == ParentClose.TERMINATE:
            close(tx, child, reason)
            ended.append(child)
        elif parent_close == ParentClose.REQUEST_CANCEL and kind == GRAPH:
            close_cancelled(tx, child, reason)
            ended.append(child)
        elif parent_close == ParentClose.REQUEST_CANCEL:
            send_engine_event(tx, child, cancel_event, affected)
    return ended
