"""The groups of singletons: the executed run of a group, and the runs that are held until it has ended.

A trigger of the schema releases the next held run. This module holds runs, and passes the place of a run to its
successor.
"""

from __future__ import annotations

from holdfast.store.protocol import RunRecord, single_of
from holdfast.store.sqlite.sql import statements
from holdfast.store.sqlite.tx import Tx

_SQL = statements("start_policies")
_NO_RUN = 0


def executed(tx: Tx, workflow: str, key: str, besides: int = _NO_RUN) -> int | None:
    """The open run of a group that is not held, other than ``besides``."""
    row = tx.connection.execute(_SQL["open_single"], (workflow, key, besides)).fetchone()
    return None if row is None else int(row[0])


def join(tx: Tx, run: int, workflow: str, key: str, due: int, besides: int = _NO_RUN) -> None:
    """Add a new run to a group. The run is held if another one is executed.

    ``besides``: a run that ends in this transaction, whose place the new run takes.
    """
    held = executed(tx, workflow, key, besides) is not None
    if held:
        tx.connection.execute(_SQL["hold"], (run, due))
        tx.connection.execute(_SQL["clear_due"], (run,))
        tx.connection.execute(_SQL["set_waiting"], (run,))
    tx.connection.execute(_SQL["join"], (run, key))


def inherit(tx: Tx, old: RunRecord, new: int, due: int, *, forked: bool = False) -> None:
    """Add the successor of a singleton, which takes its place, or its fork to its group."""
    key = single_of(old.options)
    if key is not None:
        join(tx, new, old.workflow, key, due, besides=_NO_RUN if forked else old.run)
