"""Makes runs with their tasks, or what a request's policies say if an id is taken."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.core.model import Status, TaskKind
from holdfast.store.protocol import (
    EXIT,
    FIRST_EPOCH,
    Answer,
    Attributes,
    Created,
    Mail,
    NewRun,
    NewUnit,
    OnConflict,
    OnReuse,
    RunRecord,
    Touched,
)
from holdfast.store.sqlite import ends
from holdfast.store.sqlite.reads import find_current
from holdfast.store.sqlite.rows import safe_or_none
from holdfast.store.sqlite.search import drop_terms, put_terms
from holdfast.store.sqlite.send import Parcel, note_effect, post
from holdfast.store.sqlite.sql import statements
from holdfast.store.sqlite.successors import Expires, expires_in, supersede
from holdfast.store.sqlite.tx import Row, Tx
from holdfast.store.sqlite.units import Holder, Place, Units
from holdfast.store.sqlite.watching import watch

_SQL = statements("create")
_NOTHING_SAID = Attributes()
MADE_ROOM = "terminated: another run was started with its id"


class _Key(NamedTuple):
    run: int
    instance: int
    number: int


def create(tx: Tx, runs: Sequence[NewRun]) -> list[Created]:
    connection = tx.connection
    last: int = connection.execute(_SQL["last_id"]).get
    numbered = [(_Key(run, run, 0), new) for run, new in enumerate(runs, last + 1)]
    before = connection.total_changes()
    connection.executemany(_SQL["run"], [_run_row(key, new, tx.now) for key, new in numbered])
    if connection.total_changes() - before == len(runs):
        made = {key.run for key, _ in numbered}
    else:
        made = {run for (run,) in connection.execute(_SQL["made"], (last,))}
    connection.executemany(_SQL["task"], [_task_row(key.run, new, tx.now) for key, new in numbered if key.run in made])
    _furnish(tx, [(key.run, new) for key, new in numbered if (new.units or new.plan) and key.run in made])
    return [_created(tx, key, new) if key.run in made else _meet(tx, new) for key, new in numbered]


def _furnish(tx: Tx, made: Sequence[tuple[int, NewRun]]) -> None:
    """With plans and units."""
    if not made:
        return
    units = Units(tx)
    for run, new in made:
        units.plan(run, new.plan)
        place, born = Place(run, new.workflow, new.queue, new.priority, tx.now + new.delay_ms), _born(new)
        if born and new.owner is not None:
            claimed = {unit.unit for unit in born}
            units.add_claimed(place, born, Holder(new.owner, tx.now + new.lease_ms))
            units.add(place, [unit for unit in new.units if unit.unit not in claimed])
        else:
            units.add(place, new.units)
    units.write()


def _born(new: NewRun) -> list[NewUnit]:
    """The units that are claimed from the start."""
    if new.owner is None or new.delay_ms > 0:
        return []
    return sorted(unit for unit in new.units if not unit.missing)[: new.room]


def _run_row(key: _Key, new: NewRun, now: int) -> Row:
    said = new.attributes or _NOTHING_SAID
    return (
        *key,
        new.workflow,
        new.instance_id,
        new.kind,
        _status(new),
        new.params,
        new.queue,
        new.priority,
        new.seed,
        now,
        new.parent,
        new.parent_run,
        None if new.parent_run is None else new.parent_close,
        new.options,
        said.memo,
        said.search,
    )


def _task_row(run: int, new: NewRun, now: int) -> Row:
    owner = _owner(new)
    lease_until, epoch = (None, 0) if owner is None else (now + new.lease_ms, FIRST_EPOCH)
    kind = TaskKind.RUN
    return (
        run,
        new.workflow,
        new.queue,
        kind.bucket,
        kind,
        new.priority,
        _run_at(new, now),
        owner,
        lease_until,
        epoch,
        *_expires(new, now),
        len(new.units),
    )


def _status(new: NewRun) -> Status:
    return Status.WAITING if new.delay_ms > 0 else Status.ACTIVE


def _run_at(new: NewRun, now: int) -> int | None:
    """One with units is due when all of them are done."""
    return None if new.units else now + new.delay_ms


def _owner(new: NewRun) -> str | None:
    """There is nothing to hold before its time has come."""
    return None if new.units or new.delay_ms > 0 else new.owner


def _expires(new: NewRun, now: int) -> Expires:
    return expires_in(new.expires_ms, new.expiry, now)


def _created(tx: Tx, key: _Key, new: NewRun, touched: Touched | None = None) -> Created:
    """What goes with a run that was made, and the answer."""
    said = new.attributes or _NOTHING_SAID
    if said.search is not None:
        put_terms(tx, key.run, said.terms)
    if new.parent_run is not None:
        if key.number > 0:  # news of an earlier one's end, not read yet, would be taken for its own
            pid = f"{new.workflow}/{new.instance_id}"
            tx.connection.execute(_SQL["forget_exit"], (new.parent_run, EXIT, pid))
        watch(tx, new.parent_run, key.run, new.watch)
    owner, expires = _owner(new), _expires(new, tx.now)
    made = RunRecord(
        run=key.run,
        workflow=new.workflow,
        instance_id=new.instance_id,
        number=key.number,
        kind=new.kind,
        status=_status(new),
        params=new.params,
        output=None,
        error=None,
        queue=new.queue,
        priority=new.priority,
        created_at=tx.now,
        updated_at=tx.now,
        started_at=None,
        completed_at=None,
        instance=key.instance,
        seed=new.seed,
        parent=new.parent,
        options=new.options,
        memo=said.memo,
        search=said.search,
        run_at=_run_at(new, tx.now),
        owner=owner,
        expires_at=expires.at,
        expiry=expires.expiry,
    )
    epoch, born = 0 if owner is None else FIRST_EPOCH, [unit.unit for unit in _born(new)] if new.units else ()
    return Created(Answer.DONE, made, epoch, _letters(tx, key.run, new), born, touched)


def _letters(tx: Tx, run: int, new: NewRun) -> Sequence[Mail]:
    if not new.letters:
        return ()
    sender = safe_or_none(new.sender)
    tx.connection.executemany(
        _SQL["letter"],
        [(run, n, letter.type, letter.payload, tx.now, sender) for n, letter in enumerate(new.letters, 1)],
    )
    return [Mail(n, letter.type, letter.payload, tx.now, new.sender) for n, letter in enumerate(new.letters, 1)]


# --- somebody has the id


def _meet(tx: Tx, new: NewRun) -> Created:
    run = find_current(tx, new.workflow, new.instance_id)
    if run is None:
        raise AssertionError(f"{new.workflow}/{new.instance_id} exists and cannot be found")
    return _meet_ended(tx, new, run) if run.status.terminal else _meet_living(tx, new, run)


def _meet_ended(tx: Tx, new: NewRun, old: RunRecord) -> Created:
    match new.on_reuse:
        case OnReuse.USE_EXISTING:
            return Created(Answer.ENDED if new.letters else Answer.EXISTING, old)
        case OnReuse.REJECT:
            return Created(Answer.EXISTS, old)
        case OnReuse.ALLOW_IF_FAILED if old.status is Status.COMPLETE:
            return Created(Answer.EXISTS, old)
    return _created(tx, _take_place(tx, new, old), new)


def _meet_living(tx: Tx, new: NewRun, old: RunRecord) -> Created:
    match new.on_conflict:
        case OnConflict.USE_EXISTING:
            return _use(tx, new, old)
        case OnConflict.FAIL:
            return Created(Answer.EXISTS, old)
        case OnConflict.TERMINATE_EXISTING:
            ends.close(tx, old.run, MADE_ROOM)
            key, touched = _take_place(tx, new, old), Touched(ended=[old.run])
            ends.add(touched, ends.settle(tx, [ends.End(old.run, key.run)]).get(old.run))
            return _created(tx, key, new, touched)


def _use(tx: Tx, new: NewRun, run: RunRecord) -> Created:
    if not new.letters:
        return Created(Answer.EXISTING, run)
    touched = Touched()
    for letter in new.letters:
        note_effect(touched, run.run, post(tx, run, Parcel(letter.type, letter.payload, new.sender)))
    return Created(Answer.EXISTING, run, touched=touched)


def _take_place(tx: Tx, new: NewRun, old: RunRecord) -> _Key:
    """A run with the next number, that has nothing of the one before."""
    supersede(tx, old.run)
    drop_terms(tx, old.run)
    last: int = tx.connection.execute(_SQL["last_id"]).get
    key = _Key(last + 1, old.instance, old.number + 1)
    tx.connection.execute(_SQL["run"], _run_row(key, new, tx.now))
    tx.connection.execute(_SQL["task"], _task_row(key.run, new, tx.now))
    _furnish(tx, [(key.run, new)] if new.units or new.plan else [])
    return key
