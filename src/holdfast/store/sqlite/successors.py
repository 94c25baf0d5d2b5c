"""Creates the successor of a run: after a restart, or at the request of the run itself (``Finish.next``).

Search terms are stored per instance, so the successor has those of its predecessor without a write. A successor has no
version: the worker that claims it first sets it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.core.model import Status, TaskKind
from holdfast.store.protocol import Expiry, NewUnit, NextRun, RunRecord
from holdfast.store.sqlite import mailbox, singletons
from holdfast.store.sqlite.ends import End, drop_task
from holdfast.store.sqlite.reads import record_of
from holdfast.store.sqlite.sql import statements
from holdfast.store.sqlite.tx import Tx
from holdfast.store.sqlite.unit_tasks import UnitInserts, UnitQueue

_SQL = statements("successors")
_NEW_TASK = statements("create")["insert_task"]


class Expires(NamedTuple):
    at: int | None
    expiry: str | None


NEVER = Expires(None, None)


class Successor(NamedTuple):
    params: bytes | None
    run_at: int
    attempt: int
    expires: Expires
    options: bytes | None = None
    units: Sequence[NewUnit] = ()
    in_line: bool = True
    """True if the predecessor requested this run: both belong to one line, in which ``dedup`` keys are unique."""


def supersede(tx: Tx, run: int) -> None:
    tx.connection.execute(_SQL["supersede"], (run,))


def is_in_line(tx: Tx, run: int, other: int) -> bool:
    """True if a run is in the line of another one."""
    return bool(tx.connection.execute(_SQL["is_in_line"], (run, other)).get)


def create_successor(tx: Tx, old: RunRecord, successor: Successor) -> int:
    """Insert the successor of a run that has ended."""
    supersede(tx, old.run)
    status = Status.WAITING if successor.run_at > tx.now else Status.ACTIVE
    row = (old.run, tx.now, status, successor.params, successor.attempt, successor.options, successor.in_line)
    tx.connection.execute(_SQL["insert_successor"], row)
    new, kind = tx.connection.last_insert_rowid(), TaskKind.RUN
    run_at = None if successor.units else successor.run_at
    queue_columns = (new, old.workflow, old.queue, kind.bucket, kind, old.priority, run_at)
    tx.connection.execute(_NEW_TASK, (*queue_columns, None, None, 0, *successor.expires, len(successor.units), ""))
    tx.connection.execute(_SQL["copy_plan"], (old.run, new))
    if successor.units:
        units = UnitInserts(tx)
        units.add(UnitQueue(new, old.workflow, old.queue, old.priority, successor.run_at), successor.units)
        units.write()
    singletons.inherit(tx, old, new, successor.run_at)
    return new


def create_next(tx: Tx, run: int, next: NextRun) -> End:
    """Insert the successor that a run requested at its end. The run's row is terminal; its task still exists."""
    old = record_of(tx, run)
    run_at = tx.now if next.run_at is None else next.run_at
    expires = _expires(old, next, run_at)
    new = create_successor(tx, old, Successor(next.params, run_at, next.attempt, expires, next.options, next.units))
    drop_task(tx, run)
    mailbox.move(tx, run, new, include_engine=next.continues)
    return End(run, new, next.continues)


def expires_in(ms: int | None, expiry: Expiry | None, start: int) -> Expires:
    return NEVER if ms is None else Expires(start + ms, expiry)


def _expires(old: RunRecord, next: NextRun, run_at: int) -> Expires:
    """The expiry of the successor. A successor does not extend the deadline of a cancellation."""
    own = expires_in(next.expires_ms, next.expiry, run_at)
    if old.expiry != Expiry.CANCEL or old.expires_at is None:
        return own
    if own.at is not None and own.at <= old.expires_at:
        return own
    return Expires(old.expires_at, Expiry.CANCEL)
