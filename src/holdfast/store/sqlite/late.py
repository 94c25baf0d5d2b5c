"""Adds late results: results and log lines that a worker had not written when its run ended."""

from __future__ import annotations

from holdfast.core.model import Status
from holdfast.store.protocol import LateResults
from holdfast.store.sqlite.rows import fact_rows, log_rows
from holdfast.store.sqlite.sql import statements
from holdfast.store.sqlite.tx import Tx

_SQL = statements("late")
_NEW_LOG = statements("commit")["insert_log"]


def add(tx: Tx, late: LateResults) -> bool:
    end = tx.connection.execute(_SQL["end_status"], (late.run,)).get
    if end is None:
        return False
    if end == Status.TERMINATED:
        tx.connection.executemany(_SQL["insert_missing_fact"], fact_rows(late.run, late.facts))
    tx.connection.executemany(_NEW_LOG, log_rows(late.run, late.logs))
    return True
