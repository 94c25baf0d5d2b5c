"""The run that takes the place of one of its instance that has ended: by a restart, or by the run's own wish.

What it is found by is kept with the instance, so it has that of the one before without a word.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.core.model import Status, TaskKind
from holdfast.store.protocol import Expiry, NewUnit, NextRun, RunRecord
from holdfast.store.sqlite import mailbox
from holdfast.store.sqlite.ends import End, drop_task
from holdfast.store.sqlite.reads import record_of
from holdfast.store.sqlite.sql import statements
from holdfast.store.sqlite.tx import Tx
from holdfast.store.sqlite.units import Place, Units

_SQL = statements("successors")
_NEW_TASK = statements("create")["task"]


class Expires(NamedTuple):
    at: int | None
    expiry: str | None


NEVER = Expires(None, None)


class Heir(NamedTuple):
    params: bytes | None
    run_at: int
    attempt: int
    expires: Expires
    options: bytes | None = None
    units: Sequence[NewUnit] = ()
    in_line: bool = True
    """The run before has asked for it: the keys of events that were sent to that one are known to it."""


def supersede(tx: Tx, run: int) -> None:
    tx.connection.execute(_SQL["supersede"], (run,))


def succeed(tx: Tx, old: RunRecord, heir: Heir) -> int:
    """Make the successor of a run that has ended."""
    supersede(tx, old.run)
    status = Status.WAITING if heir.run_at > tx.now else Status.ACTIVE
    row = (old.run, tx.now, status, heir.params, heir.attempt, heir.options, heir.in_line)
    tx.connection.execute(_SQL["again"], row)
    new, kind = tx.connection.last_insert_rowid(), TaskKind.RUN
    run_at = None if heir.units else heir.run_at
    place = (new, old.workflow, old.queue, kind.bucket, kind, old.priority, run_at)
    tx.connection.execute(_NEW_TASK, (*place, None, None, 0, *heir.expires, len(heir.units)))
    tx.connection.execute(_SQL["plan"], (old.run, new))
    if heir.units:
        units = Units(tx)
        units.add(Place(new, old.workflow, old.queue, old.priority, heir.run_at), heir.units)
        units.write()
    return new


def follow_on(tx: Tx, run: int, next: NextRun) -> End:
    """Make the successor that a run has asked for at its end; its row is terminal already, its task still there."""
    old = record_of(tx, run)
    run_at = tx.now if next.run_at is None else next.run_at
    expires = _expires(old, next, run_at)
    new = succeed(tx, old, Heir(next.params, run_at, next.attempt, expires, next.options, next.units))
    drop_task(tx, run)
    mailbox.move(tx, run, new, engines=next.continues)
    return End(run, new, next.continues)


def expires_in(ms: int | None, expiry: Expiry | None, start: int) -> Expires:
    return NEVER if ms is None else Expires(start + ms, expiry)


def _expires(old: RunRecord, next: NextRun, run_at: int) -> Expires:
    """Who was asked to cancel does not get more time by beginning again."""
    own = expires_in(next.expires_ms, next.expiry, run_at)
    if old.expiry != Expiry.CANCEL or old.expires_at is None:
        return own
    if own.at is not None and own.at <= old.expires_at:
        return own
    return Expires(old.expires_at, Expiry.CANCEL)
