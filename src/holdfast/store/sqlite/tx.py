"""What an intent sees of the database: a connection in a transaction, and the time at which it happens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from holdfast.store.protocol import Committed, Statement

Row = tuple[Any, ...]
A = TypeVar("A")
R = TypeVar("R")


class Rows(Protocol):
    """The part of ``apsw.Cursor`` in use."""

    @property
    def get(self) -> Any:
        """The first column of the first row, where there is only one of each."""

    def fetchone(self) -> Row | None: ...

    def fetchall(self) -> list[Row]: ...

    def __iter__(self) -> Iterator[Row]: ...


class Connection(Protocol):
    """The part of ``apsw.Connection`` in use."""

    @property
    def in_transaction(self) -> bool: ...

    def execute(self, sql: str, bindings: Sequence[Any] = ..., /, *, can_cache: bool = ...) -> Rows: ...

    def executemany(self, sql: str, bindings: Iterable[Sequence[Any]], /) -> Rows: ...

    def changes(self) -> int: ...

    def total_changes(self) -> int: ...

    def last_insert_rowid(self) -> int: ...

    def pragma(self, name: str, value: Any = ..., /) -> Any: ...


class Runner(Protocol):
    """Runs users' statements."""

    def run(self, connection: Connection, statements: Iterable[Statement]) -> Committed | None: ...


class Tx(Protocol):
    @property
    def connection(self) -> Connection: ...

    @property
    def now(self) -> int: ...

    @property
    def guard(self) -> Runner: ...

    @property
    def refused(self) -> dict[int, Committed]:
        """Commits that undid a transaction, by their ``id``: not tried when the others of it run again."""
        ...


Work = Callable[[Tx, A], R]
"""An intent: it runs on the connection's thread, and may run again if the transaction did not hold."""
