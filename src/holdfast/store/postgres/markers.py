"""Markers of transactions: rows that tell after a lost connection whether a transaction was committed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from holdfast.store.postgres.sql import statements
from holdfast.store.postgres.tx import Connection, Tx

R = TypeVar("R")


@dataclass(slots=True)
class MarkedTransaction(Generic[R]):
    """A transaction whose outcome may be unknown: its marker, and the result to return if it was committed."""

    marker: str | None = None
    result: R | None = None


class Markers:
    """Inserts markers, and deletes those that are no longer needed."""

    def __init__(self, schema: str) -> None:
        self._schema = schema
        self._used: list[str] = []

    async def insert(self, connection: Connection) -> str:
        """Insert a marker by which ``is_committed`` can tell the outcome of this transaction."""
        used, self._used = self._used, []
        marker: str = await connection.fetchval(statements("commit", self._schema)["insert_marker"], used)
        return marker

    def discard(self, marker: str) -> None:
        """Discard a marker whose outcome is known. The next transaction deletes its row."""
        self._used.append(marker)


async def is_committed(tx: Tx, marker: str) -> bool:
    """True if the transaction with this marker was committed."""
    committed: bool = await tx.connection.fetchval(statements("commit", tx.schema)["was_committed"], marker)
    return committed
