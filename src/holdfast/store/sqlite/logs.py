"""Log lines that come after the end of their run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.store.protocol import Log
from holdfast.store.sqlite.rows import log_rows
from holdfast.store.sqlite.sql import statements
from holdfast.store.sqlite.tx import Tx

_SQL = statements("logs")
_NEW_LOG = statements("commit")["log"]


class Late(NamedTuple):
    run: int
    lines: Sequence[Log]


def add_late(tx: Tx, late: Late) -> bool:
    ended = bool(tx.connection.execute(_SQL["ended"], (late.run,)).get)
    if ended:
        tx.connection.executemany(_NEW_LOG, log_rows(late.run, late.lines))
    return ended
