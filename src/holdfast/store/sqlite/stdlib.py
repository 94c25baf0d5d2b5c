"""Connections of Python's module ``sqlite3`` in the form of ``apsw``, for programs that use that module themselves.

A process must not open one file with two copies of SQLite. The locks of a file belong to the process, so the copies do
not exclude each other: both write at once, and a commit of one of them is lost. ``apsw`` brings its own copy. A program
whose own code opens the file with ``sqlite3`` (Django, SQLAlchemy) therefore gives the store this driver with the URL
``sqlite:///shop.db?driver=sqlite3``.

Errors are raised as those of ``apsw`` with the same result code. The module lacks the hook for the size of the WAL, so
checkpoints are SQLite's automatic ones.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, cast
from urllib.parse import quote

import apsw

from holdfast.store.sqlite.tx import Row

_MANY = ("INSERT", "UPDATE", "DELETE", "REPLACE")
"""First words of the statements that ``executemany`` of the module accepts."""
_UNCACHED = "/* not cached */ "
"""Begins users' statements. SQLite does not call the authorizer for a statement in the module's cache; with this
comment a user's statement never equals one of the engine."""


class StdlibRows:
    """The rows of a statement: the part of ``apsw.Cursor`` that the store uses."""

    def __init__(self, rows: Iterable[Row], description: Any = None) -> None:
        self._rows = iter(rows)
        self._description = description

    @property
    def get(self) -> Any:
        """The value of a result with one row and one column; None without a row."""
        row = self.fetchone()
        return None if row is None else row[0] if len(row) == 1 else row

    def fetchone(self) -> Row | None:
        return next(self._rows, None)

    def fetchall(self) -> list[Row]:
        return list(self._rows)

    def __iter__(self) -> Iterator[Row]:
        return self._rows

    def get_description(self) -> Any:
        return self._description


class StdlibConnection:
    """The part of ``apsw.Connection`` that the store uses, on a connection of ``sqlite3``."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._own = connection

    @classmethod
    def open(cls, path: str, *, cached_statements: int) -> StdlibConnection:
        name = path if path == ":memory:" else f"file:{quote(path)}?mode=rw"
        with _errors_of_apsw():
            return cls(
                sqlite3.connect(
                    name,
                    uri=True,
                    isolation_level=None,
                    check_same_thread=False,  # the store lets one thread at a time use a connection
                    cached_statements=cached_statements,
                )
            )

    @property
    def in_transaction(self) -> bool:
        return self._own.in_transaction

    @property
    def filename(self) -> str:
        # Not from the table pragma_database_list: reading it would begin a read of the caller's transaction.
        _number, _main, file = next(iter(self.execute("PRAGMA database_list")))
        return os.fsdecode(file or "")  # a caller may read text as bytes

    def execute(self, sql: str, bindings: Sequence[Any] = (), /, *, can_cache: bool = True) -> StdlibRows:
        statements = _split(sql)
        if len(statements) != 1 and bindings:
            raise apsw.SQLError("with the driver sqlite3, several statements in one text cannot have arguments")
        rows: list[Row] = []
        cursor = self._cursor()
        with _errors_of_apsw():
            for statement in statements:
                cursor.execute(statement if can_cache else _UNCACHED + statement, bindings)
                # Read at once: a statement with unread rows would keep its transaction open.
                rows += cursor.fetchall()
        return StdlibRows(rows, cursor.description)

    def executemany(self, sql: str, bindings: Iterable[Sequence[Any]], /) -> StdlibRows:
        cursor = self._cursor()
        with _errors_of_apsw():
            if sql.lstrip().upper().startswith(_MANY) and "RETURNING" not in sql.upper():
                cursor.executemany(sql, bindings)
                return StdlibRows(())
            return StdlibRows([row for one in bindings for row in cursor.execute(sql, one).fetchall()])

    def _cursor(self) -> sqlite3.Cursor:
        """A cursor with plain rows, also on a connection with another row factory."""
        cursor = sqlite3.Cursor(self._own)
        cursor.row_factory = None
        return cursor

    def changes(self) -> int:
        return int(self.execute("SELECT changes()").get)

    def total_changes(self) -> int:
        return self._own.total_changes

    def last_insert_rowid(self) -> int:
        return int(self.execute("SELECT last_insert_rowid()").get)

    def pragma(self, name: str, value: Any = None, /) -> Any:
        setting = "" if value is None else f" = {int(value) if isinstance(value, bool) else value}"
        return self.execute(f"PRAGMA {name}{setting}").get

    # --- settings

    def readonly(self, _name: str) -> bool:
        return False  # the module does not tell; the first BEGIN IMMEDIATE fails

    def set_busy_timeout(self, milliseconds: int) -> None:
        self.pragma("busy_timeout", milliseconds)

    def config(self, option: int, value: int) -> None:
        setconfig = getattr(self._own, "setconfig", None)
        if setconfig is not None:  # since Python 3.12
            setconfig(option, bool(value))

    def set_wal_hook(self, _hook: Callable[..., int]) -> None:
        """Do nothing: SQLite's automatic checkpoints stay enabled."""

    def wal_checkpoint(self, *, mode: int) -> None:
        self.pragma("wal_checkpoint(RESTART)" if mode == apsw.SQLITE_CHECKPOINT_RESTART else "wal_checkpoint(PASSIVE)")

    def set_progress_handler(self, handler: Callable[[], bool] | None, interval: int = 0) -> None:
        self._own.set_progress_handler(handler, interval)

    def _set_authorizer(self, guard: Callable[..., int]) -> None:
        self._own.set_authorizer(guard)

    authorizer = property(fset=_set_authorizer)

    def close(self, force: bool = False) -> None:
        del force
        self._own.close()


@lru_cache(maxsize=512)
def _split(sql: str) -> tuple[str, ...]:
    """The statements of a text. The module executes one at a time."""
    if ";" not in sql:
        return (sql,)
    statements: list[str] = []
    begun = ""
    for piece in sql.split(";"):
        begun += f"{piece};"
        if sqlite3.complete_statement(begun):
            statements.append(begun)
            begun = ""
    rest = begun.removesuffix(";")
    return (*statements, rest) if rest.strip() else tuple(statements)


@contextmanager
def _errors_of_apsw() -> Iterator[None]:
    """Raise errors of ``sqlite3`` as those of ``apsw`` with the same result code."""
    try:
        yield
    except (sqlite3.Error, sqlite3.Warning) as error:
        raise translated(error) from error


def translated(error: Exception) -> apsw.Error:
    code: int | None = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return apsw.MisuseError(str(error))  # wrong use of the module, such as a closed connection
    found = cast("apsw.Error", apsw.exception_for(code))  # it has the result codes
    found.args = (str(error),)
    return found
