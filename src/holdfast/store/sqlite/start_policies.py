"""Start policies, decided in the transaction of the start (``store/protocol/start_policies.py``)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

from holdfast.store.protocol import (
    CANCEL,
    REPLACED,
    SUPERSEDED,
    AffectedRuns,
    BatchedStart,
    Created,
    DebouncedStart,
    LimitedStart,
    NewRun,
    OnSingleton,
    RequestResult,
    SingletonStart,
    dropped_reason,
    gather_key,
)
from holdfast.store.sqlite import ends, singletons
from holdfast.store.sqlite.control import request_cancel
from holdfast.store.sqlite.permits import take_for_start
from holdfast.store.sqlite.reads import find_current, record_of
from holdfast.store.sqlite.send import QueuedEvent
from holdfast.store.sqlite.sql import statements
from holdfast.store.sqlite.tx import Tx

_SQL = statements("start_policies")
_CANCELLATION = json.dumps({"reason": SUPERSEDED, "deadlineMs": None}).encode()

Insert = Callable[[Tx, NewRun], Created]
"""Creates the run, or applies the policies of its id if the instance exists."""


def start(tx: Tx, new: NewRun, insert: Insert) -> Created:
    """Create a run with a start policy, or find the run that stands for it."""
    match new.policy:
        case SingletonStart() as policy:
            return _singleton(tx, new, policy, insert)
        case DebouncedStart() as policy:
            return _debounce(tx, new, policy) or _gathering(tx, new, policy, insert, None)
        case BatchedStart() as policy:
            return _append(tx, new, policy) or _gathering(tx, new, policy, insert, 1)
        case LimitedStart() as policy:
            return _limited(tx, new, policy, insert)
        case None:
            return insert(tx, new)


# --- singletons


def _singleton(tx: Tx, new: NewRun, policy: SingletonStart, insert: Insert) -> Created:
    if find_current(tx, new.workflow, new.instance_id) is not None:  # the policies of the id come first
        return insert(tx, new)
    affected = AffectedRuns()
    if policy.on_open is OnSingleton.SKIP:
        standing = singletons.executed(tx, new.workflow, policy.key)
        if standing is not None:
            return Created(RequestResult.EXISTING, record_of(tx, standing))
    elif policy.on_open is not OnSingleton.QUEUE:
        _make_room(tx, new.workflow, policy, affected)
    created = insert(tx, new)
    if not created.created:
        return created
    singletons.join(tx, created.run.run, new.workflow, policy.key, tx.now + new.delay_ms)
    ends.merge(affected, created.affected)
    return replace(created, run=record_of(tx, created.run.run), affected=affected)


def _make_room(tx: Tx, workflow: str, policy: SingletonStart, affected: AffectedRuns) -> None:
    """Replace the runs of a group that have not begun, and cancel the others if the policy says so."""
    group = tx.connection.execute(_SQL["group"], (workflow, policy.key)).fetchall()
    for run, begun in reversed(group):  # the last one first: the end of a run must not release one that is replaced too
        if not begun:
            ends.merge(affected, ends.cancel(tx, run, REPLACED))
        elif policy.on_open is OnSingleton.CANCEL_RUNNING:
            _cancel_once(tx, run, affected)


def _cancel_once(tx: Tx, run: int, affected: AffectedRuns) -> None:
    """Cancel a run, unless that was requested already: a second request would interrupt its cleanup."""
    if not tx.connection.execute(_SQL["is_cancelled"], (run,)).get:
        request_cancel(tx, record_of(tx, run), QueuedEvent(CANCEL, _CANCELLATION), None, affected)


# --- pending runs


def _debounce(tx: Tx, new: NewRun, policy: DebouncedStart) -> Created | None:
    pending = tx.connection.execute(_SQL["pending"], (new.workflow, gather_key(policy))).fetchone()
    if pending is None:
        return None
    run, _, created_at, _, _ = pending
    due = tx.now + new.delay_ms
    if policy.max_wait_ms is not None:
        due = max(tx.now, min(due, created_at + policy.max_wait_ms))
    tx.connection.execute(_SQL["replace_params"], (run, new.params, new.options, tx.now))
    expires_at = None if new.expires_ms is None else due - new.delay_ms + new.expires_ms
    tx.connection.execute(_SQL["move_expiry"], (run, expires_at, None if expires_at is None else new.expiry))
    tx.connection.execute(_SQL["move_due"], (run, due))
    return Created(RequestResult.EXISTING, record_of(tx, run))


def _append(tx: Tx, new: NewRun, policy: BatchedStart) -> Created | None:
    pending = tx.connection.execute(_SQL["pending"], (new.workflow, gather_key(policy))).fetchone()
    if pending is None or new.params is None:
        return None
    run, items, _, size, _ = pending
    if items >= policy.size:
        return None
    if size + len(new.params) > policy.max_bytes:
        tx.connection.execute(_SQL["move_due"], (run, tx.now))
        return None
    tx.connection.execute(_SQL["append_item"], (run, new.params, tx.now))
    tx.connection.execute(_SQL["count_item"], (run,))
    if items + 1 >= policy.size:
        tx.connection.execute(_SQL["move_due"], (run, tx.now))
    return Created(RequestResult.EXISTING, record_of(tx, run))


def _gathering(
    tx: Tx, new: NewRun, policy: DebouncedStart | BatchedStart, insert: Insert, items: int | None
) -> Created:
    """Create the run that later starts find."""
    created = insert(tx, new)
    if created.created:
        run = created.run.run
        tx.connection.execute(_SQL["gather"], (run, gather_key(policy), items))
        if isinstance(policy, BatchedStart) and policy.size == 1:
            tx.connection.execute(_SQL["move_due"], (run, tx.now))
    return created


# --- limits


def _limited(tx: Tx, new: NewRun, policy: LimitedStart, insert: Insert) -> Created:
    if find_current(tx, new.workflow, new.instance_id) is not None:
        return insert(tx, new)
    created = insert(tx, new)
    run = created.run.run
    blocking = take_for_start(tx, run, policy, new.priority)
    if blocking is None:
        return created
    if policy.reject:
        singletons.forget(tx, run)
        note = f"limit {blocking.name!r} has no room"
        return Created(RequestResult.LIMITED, replace(created.run, note=note))
    affected = ends.cancel(tx, run, dropped_reason(blocking.name))
    return Created(RequestResult.EXISTING, record_of(tx, run), affected=affected)
