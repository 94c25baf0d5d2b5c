"""Writes what comes after the end of a run: results and log lines that its worker had not written yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.core.model import Status
from holdfast.store.protocol import Fact, Log
from holdfast.store.sqlite.rows import fact_rows, log_rows
from holdfast.store.sqlite.sql import statements
from holdfast.store.sqlite.tx import Tx

_SQL = statements("late")
_NEW_LOG = statements("commit")["log"]


class Late(NamedTuple):
    run: int
    facts: Sequence[Fact]
    lines: Sequence[Log]


def add(tx: Tx, late: Late) -> bool:
    end = tx.connection.execute(_SQL["end"], (late.run,)).get
    if end is None:
        return False
    if end == Status.TERMINATED:
        tx.connection.executemany(_SQL["fact"], fact_rows(late.run, late.facts))
    tx.connection.executemany(_NEW_LOG, log_rows(late.run, late.lines))
    return True
