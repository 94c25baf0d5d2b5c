"""Creates runs with their tasks, and applies the request's policies if an id is in use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.core.model import Status, TaskKind
from holdfast.store.protocol import (
    EXIT,
    FIRST_EPOCH,
    AffectedRuns,
    Attributes,
    Created,
    NewRun,
    OnConflict,
    OnReuse,
    RequestResult,
    RunRecord,
    StoredEvent,
)
from holdfast.store.sqlite import ends, fair_keys
from holdfast.store.sqlite.queues import leave_paused_unclaimed
from holdfast.store.sqlite.reads import find_current
from holdfast.store.sqlite.rows import encode_text_or_none
from holdfast.store.sqlite.search import delete_terms, insert_terms
from holdfast.store.sqlite.send import QueuedEvent, add_effect, add_event
from holdfast.store.sqlite.sql import statements
from holdfast.store.sqlite.start_policies import start
from holdfast.store.sqlite.successors import expires_in, supersede
from holdfast.store.sqlite.tx import Row, Tx
from holdfast.store.sqlite.unit_tasks import OwnerLease, UnitInserts, UnitQueue
from holdfast.store.sqlite.watching import watch

_SQL = statements("create")
_NO_ATTRIBUTES = Attributes()
REPLACED = "terminated: another run was started with the same id"


class _Key(NamedTuple):
    run: int
    instance: int
    number: int


def row_count(runs: Sequence[NewRun]) -> int:
    """Approximate number of rows to insert."""
    return len(runs) + sum(len(new.units) + len(new.plan) for new in runs)


def create(tx: Tx, runs: Sequence[NewRun]) -> list[Created]:
    if any(new.policy is not None for new in runs):  # a writer may have merged several calls
        return [start(tx, new, _create_one) for new in runs]
    return _create(tx, runs)


def _create_one(tx: Tx, new: NewRun) -> Created:
    [created] = _create(tx, [new])
    return created


def _create(tx: Tx, runs: Sequence[NewRun]) -> list[Created]:
    leave_paused_unclaimed(tx, runs)
    connection = tx.connection
    last: int = connection.execute(_SQL["last_id"]).get
    numbered = [(_Key(run, run, 0), new) for run, new in enumerate(runs, last + 1)]
    before = connection.total_changes()
    connection.executemany(_SQL["insert_run"], [_run_row(key, new, tx.now) for key, new in numbered])
    if connection.total_changes() - before == len(runs):
        made = {key.run for key, _ in numbered}
    else:
        made = {run for (run,) in connection.execute(_SQL["created_since"], (last,))}
    connection.executemany(
        _SQL["insert_task"], [_task_row(key.run, new, tx.now) for key, new in numbered if key.run in made]
    )
    _insert_plans_and_units(
        tx, [(key.run, new) for key, new in numbered if (new.units or new.plan) and key.run in made]
    )
    return [_created(tx, key, new) if key.run in made else _resolve_conflict(tx, new) for key, new in numbered]


def _insert_plans_and_units(tx: Tx, made: Sequence[tuple[int, NewRun]]) -> None:
    """Insert the PLAN facts and the units of new runs."""
    if not made:
        return
    units = UnitInserts(tx)
    for run, new in made:
        units.plan(run, new.plan)
        queue = UnitQueue(run, new.workflow, new.queue, new.priority, tx.now + new.delay_ms, new.pin)
        claimed = new.claimed_units()
        if claimed and new.owner is not None:
            numbers = {unit.unit for unit in claimed}
            units.add_claimed(queue, claimed, OwnerLease(new.owner, tx.now + new.lease_ms))
            units.add(queue, [unit for unit in new.units if unit.unit not in numbers])
        else:
            units.add(queue, new.units)
    units.write()


def _run_row(key: _Key, new: NewRun, now: int) -> Row:
    attributes = new.attributes or _NO_ATTRIBUTES
    return (
        *key,
        new.workflow,
        new.instance_id,
        new.kind,
        new.status,
        new.params,
        new.queue,
        new.priority,
        new.seed,
        now,
        new.parent,
        new.parent_run,
        None if new.parent_run is None else new.parent_close,
        new.options,
        attributes.memo,
        attributes.search,
        new.version,
        new.pin != "",
    )


def _task_row(run: int, new: NewRun, now: int) -> Row:
    owner = new.run_owner
    lease_until, epoch = (None, 0) if owner is None else (now + new.lease_ms, FIRST_EPOCH)
    kind = TaskKind.RUN
    return (
        run,
        new.workflow,
        new.queue,
        kind.bucket,
        kind,
        new.priority,
        None if new.units else now + new.delay_ms,
        owner,
        lease_until,
        epoch,
        *expires_in(new.expires_ms, new.expiry, now),
        len(new.units),
        new.pin,
    )


def _created(tx: Tx, key: _Key, new: NewRun, affected: AffectedRuns | None = None) -> Created:
    """Insert the search terms, the parent's watch and the start events of a new run, and return the result."""
    attributes = new.attributes or _NO_ATTRIBUTES
    fair_keys.join(tx, key.run, new)
    if attributes.search is not None:
        insert_terms(tx, key.run, attributes.terms)
    if new.parent_run is not None:
        if key.number > 0:  # an unread EXIT event of an earlier run would be taken for this run's
            pid = f"{new.workflow}/{new.instance_id}"
            tx.connection.execute(_SQL["delete_exit_event"], (new.parent_run, EXIT, pid))
        if tx.connection.execute(_SQL["is_open"], (new.parent_run,)).fetchone():  # a worker may start a child too late
            watch(tx, new.parent_run, key.run, new.watch)
    record = new.record(key.run, key.number, key.instance, tx.now)
    epoch = 0 if record.owner is None else FIRST_EPOCH
    claimed = [unit.unit for unit in new.claimed_units()]
    return Created(RequestResult.DONE, record, epoch, _insert_start_events(tx, key.run, new), claimed, affected)


def _insert_start_events(tx: Tx, run: int, new: NewRun) -> Sequence[StoredEvent]:
    if not new.start_events:
        return ()
    sender = encode_text_or_none(new.sender)
    tx.connection.executemany(
        _SQL["insert_start_event"],
        [
            (run, n, start_event.type, start_event.payload, tx.now, sender)
            for n, start_event in enumerate(new.start_events, 1)
        ],
    )
    return [
        StoredEvent(n, start_event.type, start_event.payload, tx.now, new.sender)
        for n, start_event in enumerate(new.start_events, 1)
    ]


# --- the id is in use


def _resolve_conflict(tx: Tx, new: NewRun) -> Created:
    run = find_current(tx, new.workflow, new.instance_id)
    if run is None:
        raise AssertionError(f"{new.workflow}/{new.instance_id} exists and cannot be found")
    return _resolve_ended(tx, new, run) if run.status.terminal else _resolve_running(tx, new, run)


def _resolve_ended(tx: Tx, new: NewRun, old: RunRecord) -> Created:
    match new.on_reuse:
        case OnReuse.USE_EXISTING | OnReuse.RETRY_IF_FAILED:
            return Created(RequestResult.ENDED if new.start_events else RequestResult.EXISTING, old)
        case OnReuse.ALLOW if tx.now < old.created_at + new.reuse_after_ms:
            return Created(RequestResult.EXISTING, old)
        case OnReuse.REJECT:
            return Created(RequestResult.EXISTS, old)
        case OnReuse.ALLOW_IF_FAILED if old.status is Status.COMPLETE:
            return Created(RequestResult.EXISTS, old)
    return _created(tx, _replace(tx, new, old), new)


def _resolve_running(tx: Tx, new: NewRun, old: RunRecord) -> Created:
    match new.on_conflict:
        case OnConflict.USE_EXISTING:
            return _use_existing(tx, new, old)
        case OnConflict.FAIL:
            return Created(RequestResult.EXISTS, old)
        case OnConflict.TERMINATE_EXISTING:
            ends.close(tx, old.run, REPLACED)
            key, affected = _replace(tx, new, old), AffectedRuns(ended=[old.run])
            ends.merge(affected, ends.propagate(tx, [ends.End(old.run, key.run)]).get(old.run))
            return _created(tx, key, new, affected)


def _use_existing(tx: Tx, new: NewRun, run: RunRecord) -> Created:
    if not new.start_events:
        return Created(RequestResult.EXISTING, run)
    affected = AffectedRuns()
    for start_event in new.start_events:
        add_effect(
            affected, run.run, add_event(tx, run, QueuedEvent(start_event.type, start_event.payload, new.sender))
        )
    return Created(RequestResult.EXISTING, run, affected=affected)


def _replace(tx: Tx, new: NewRun, old: RunRecord) -> _Key:
    """Insert a run with the next number. It inherits nothing from the old run."""
    supersede(tx, old.run)
    delete_terms(tx, old.run)
    last: int = tx.connection.execute(_SQL["last_id"]).get
    key = _Key(last + 1, old.instance, old.number + 1)
    tx.connection.execute(_SQL["insert_run"], _run_row(key, new, tx.now))
    tx.connection.execute(_SQL["insert_task"], _task_row(key.run, new, tx.now))
    _insert_plans_and_units(tx, [(key.run, new)] if new.units or new.plan else [])
    return key
