"""The write that pauses a run."""

from __future__ import annotations

from holdfast.store.sqlite.rows import encode_text_or_none
from holdfast.store.sqlite.sql import statements
from holdfast.store.sqlite.tx import Tx

_SQL = statements("pause")


def set_paused(tx: Tx, run: int, note: str | None = None) -> None:
    """Pause the run. Its task is kept for its epoch, without an owner and never due. Its units are not due either."""
    tx.connection.execute(_SQL["run"], (run, encode_text_or_none(note), tx.now))
    tx.connection.execute(_SQL["task"], (run,))
