"""Start policies, decided in the transaction of the start (``store/protocol/start_policies.py``)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

from holdfast.core.model import Status
from holdfast.store.protocol import (
    CANCEL,
    REPLACED,
    SUPERSEDED,
    AffectedRuns,
    Attributes,
    BatchedStart,
    Created,
    DebouncedStart,
    LimitedStart,
    NewRun,
    OnConflict,
    OnReuse,
    OnSingleton,
    RequestResult,
    RunRecord,
    SingletonStart,
    dropped_reason,
    gather_key,
)
from holdfast.store.sqlite import ends, singletons
from holdfast.store.sqlite.control import request_cancel
from holdfast.store.sqlite.permits import take_for_start
from holdfast.store.sqlite.reads import find_current, record_of
from holdfast.store.sqlite.search import delete_terms, insert_terms
from holdfast.store.sqlite.send import QueuedEvent
from holdfast.store.sqlite.sql import statements
from holdfast.store.sqlite.tx import Tx

_SQL = statements("start_policies")
_NO_RUN = 0
_CANCELLATION = json.dumps({"reason": SUPERSEDED, "deadlineMs": None}).encode()

Insert = Callable[[Tx, NewRun], Created]
"""Creates the run, or applies the policies of its id if the instance exists."""


def start(tx: Tx, new: NewRun, insert: Insert) -> Created:
    """Create a run with a start policy, or find the run that stands for it."""
    match new.policy:
        case SingletonStart() as policy:
            return _singleton(tx, new, policy, insert)
        case DebouncedStart() as policy:
            return _debounce(tx, new, policy) or _create_pending(tx, new, policy, insert, None)
        case BatchedStart() as policy:
            return _append(tx, new, policy) or _create_pending(tx, new, policy, insert, 1)
        case LimitedStart() as policy:
            return _limited(tx, new, policy, insert)
        case None:
            return insert(tx, new)


# --- singletons


def _singleton(tx: Tx, new: NewRun, policy: SingletonStart, insert: Insert) -> Created:
    old = find_current(tx, new.workflow, new.instance_id)
    if not _makes_run(tx, new, old):  # the policies of the id come first
        return insert(tx, new)
    affected, replaced = AffectedRuns(), _NO_RUN if old is None else old.run
    if policy.on_open is OnSingleton.SKIP:
        standing = singletons.executed(tx, new.workflow, policy.key, replaced)
        if standing is not None:
            return Created(RequestResult.EXISTING, record_of(tx, standing))
    elif policy.on_open is not OnSingleton.QUEUE:
        _make_room(tx, new.workflow, policy, replaced, affected)
    created = insert(tx, new)
    if not created.created:
        return created
    singletons.join(tx, created.run.run, new.workflow, policy.key, tx.now + new.delay_ms)
    ends.merge(affected, created.affected)
    return replace(created, run=record_of(tx, created.run.run), affected=affected)


def _makes_run(tx: Tx, new: NewRun, old: RunRecord | None) -> bool:
    """True if the policies of the id let a start make a run. ``old``: the current run of the instance."""
    if old is None:
        return True
    if not old.status.terminal:
        return new.on_conflict is OnConflict.TERMINATE_EXISTING
    if new.on_reuse is OnReuse.ALLOW:
        return tx.now >= old.created_at + new.reuse_after_ms
    return new.on_reuse is OnReuse.ALLOW_IF_FAILED and old.status is not Status.COMPLETE


def _make_room(tx: Tx, workflow: str, policy: SingletonStart, replaced: int, affected: AffectedRuns) -> None:
    """Replace the runs of a group that have not begun, and cancel the others if the policy says so.

    ``replaced``: the run with the id of the new one, which ends in any case.
    """
    group = tx.connection.execute(_SQL["group"], (workflow, policy.key)).fetchall()
    for run, begun in reversed(group):  # the last one first: the end of a run must not release one that is replaced too
        if run == replaced:
            continue
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
    _replace_start(tx, run, new)
    expires_at = None if new.expires_ms is None else due - new.delay_ms + new.expires_ms
    tx.connection.execute(_SQL["move_expiry"], (run, expires_at, None if expires_at is None else new.expiry))
    tx.connection.execute(_SQL["move_due"], (run, due))
    return Created(RequestResult.EXISTING, record_of(tx, run))


def _replace_start(tx: Tx, run: int, new: NewRun) -> None:
    """Give a pending run the params and the options of a later start."""
    attributes = new.attributes or Attributes()
    values = (new.params, new.options, attributes.memo, attributes.search, new.queue, new.priority, new.version)
    tx.connection.execute(_SQL["replace_start"], (run, *values, new.pin, tx.now))
    tx.connection.execute(_SQL["move_tasks"], (run, new.queue, new.priority, new.pin))
    delete_terms(tx, run)
    insert_terms(tx, run, attributes.terms)


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


def _create_pending(
    tx: Tx, new: NewRun, policy: DebouncedStart | BatchedStart, insert: Insert, items: int | None
) -> Created:
    """Create a pending run, which later starts with the key change."""
    created = insert(tx, new)
    if created.created:
        run = created.run.run
        tx.connection.execute(_SQL["gather"], (run, gather_key(policy), items))
        if isinstance(policy, BatchedStart) and policy.size == 1:
            tx.connection.execute(_SQL["move_due"], (run, tx.now))
    return created


# --- limits


def _limited(tx: Tx, new: NewRun, policy: LimitedStart, insert: Insert) -> Created:
    if not _makes_run(tx, new, find_current(tx, new.workflow, new.instance_id)):
        return insert(tx, new)
    tx.connection.execute("SAVEPOINT holdfast_start")
    created = insert(tx, new)
    run = created.run.run
    blocking = take_for_start(tx, run, policy, new.priority)
    if blocking is not None and policy.reject:
        tx.connection.execute("ROLLBACK TO holdfast_start")
    tx.connection.execute("RELEASE holdfast_start")
    if blocking is None:
        return created
    if policy.reject:
        note = f"limit {blocking.name!r} has no room"
        return Created(RequestResult.LIMITED, replace(created.run, note=note))
    affected = AffectedRuns()
    ends.merge(affected, created.affected)
    ends.merge(affected, ends.cancel(tx, run, dropped_reason(blocking.name)))
    return Created(RequestResult.EXISTING, record_of(tx, run), affected=affected)
