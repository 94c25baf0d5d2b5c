"""The transaction in which an intent runs: its connection and its time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from holdfast.store.protocol import Committed, Statement

Row = tuple[Any, ...]
A = TypeVar("A")
R = TypeVar("R")


class Rows(Protocol):
    """The part of ``apsw.Cursor`` that the store uses."""

    @property
    def get(self) -> Any:
        """The value of a result with one row and one column."""

    def fetchone(self) -> Row | None: ...

    def fetchall(self) -> list[Row]: ...

    def __iter__(self) -> Iterator[Row]: ...


class Connection(Protocol):
    """The part of ``apsw.Connection`` that the store uses."""

    @property
    def in_transaction(self) -> bool: ...

    def execute(self, sql: str, bindings: Sequence[Any] = ..., /, *, can_cache: bool = ...) -> Rows: ...

    def executemany(self, sql: str, bindings: Iterable[Sequence[Any]], /) -> Rows: ...

    def changes(self) -> int: ...

    def total_changes(self) -> int: ...

    def last_insert_rowid(self) -> int: ...

    def pragma(self, name: str, value: Any = ..., /) -> Any: ...


class StatementRunner(Protocol):
    """Executes users' statements."""

    def run(self, connection: Connection, statements: Iterable[Statement]) -> Committed | None: ...


class Tx(Protocol):
    @property
    def connection(self) -> Connection: ...

    @property
    def now(self) -> int: ...

    @property
    def inline(self) -> bool:
        """True if the work runs on the event loop's thread. It may raise ``TooLongInlineError``."""
        ...

    @property
    def guard(self) -> StatementRunner: ...

    @property
    def rejections(self) -> dict[int, Committed]:
        """Results of commits whose statements rolled back the transaction, by ``id``; these are not applied again."""
        ...


class TooLongInlineError(Exception):
    """Raised by work that turns out to be too long for the event loop's thread. It runs again on the other thread."""


Work = Callable[[Tx, A], R]
"""The work of an intent. It may run again if its transaction was rolled back."""


@contextmanager
def write_transaction(connection: Connection) -> Iterator[None]:
    """A transaction that is committed at the end of the block, or rolled back if the block raises."""
    # A transaction that begins as a reader fails at its first write if another connection wrote in between.
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
