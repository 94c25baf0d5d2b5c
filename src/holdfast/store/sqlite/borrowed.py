"""Writes on a connection of the caller, in the caller's transaction and thread. The caller commits."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import apsw

from holdfast.errors import InvalidOptionError
from holdfast.store.callers import driver_connection
from holdfast.store.protocol import Committed
from holdfast.store.sqlite.errors import translate
from holdfast.store.sqlite.guard import Guard
from holdfast.store.sqlite.opening import MEMORY, FileIdentity, SqliteDriver, identity
from holdfast.store.sqlite.stdlib import StdlibConnection
from holdfast.store.sqlite.tx import Work, write_transaction

A = TypeVar("A")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Borrowed:
    """A ``Tx`` on the caller's connection."""

    connection: apsw.Connection
    now: int
    guard: Guard = field(default_factory=Guard)
    rejections: dict[int, Committed] = field(default_factory=dict)
    inline: bool = False


def check(connection: Any, path: str, file: FileIdentity | None, driver: SqliteDriver) -> apsw.Connection:
    """Check that the connection is open on this store's file; otherwise the rows would be written elsewhere."""
    if path == MEMORY:
        raise InvalidOptionError(
            "connection= needs a database file, but this store is in memory: no other connection can reach it"
        )
    found = _driver_connection(connection, path, driver)
    try:
        name = found.filename
    except apsw.Error as error:
        raise InvalidOptionError(
            f"connection= must be an open connection to {path}; this one is closed, or of another thread ({error})"
        ) from error
    if identity(name) != file:
        raise InvalidOptionError(f"connection= must be a connection to {path}, not to {name or MEMORY}")
    return found


def _driver_connection(connection: Any, path: str, driver: SqliteDriver) -> apsw.Connection:
    found = driver_connection(connection)
    if isinstance(found, apsw.Connection) and driver is SqliteDriver.APSW:
        return found
    if isinstance(found, sqlite3.Connection) and driver is SqliteDriver.SQLITE3:
        return cast("apsw.Connection", CallersConnection(found))
    if not isinstance(found, apsw.Connection | sqlite3.Connection):
        wanted = (
            "apsw.Connection" if driver is SqliteDriver.APSW else "sqlite3.Connection, or a SQLAlchemy session on one,"
        )
        raise InvalidOptionError(f"connection= must be an {wanted} to {path}, not {type(connection).__name__}")
    other = SqliteDriver.SQLITE3 if driver is SqliteDriver.APSW else SqliteDriver.APSW
    raise InvalidOptionError(
        f"connection= is a connection of {other}, but this store opened {path} with {driver}. Two copies of SQLite in "
        f"one process do not see each other's locks, and damage the file: open the app with ?driver={other} in its URL"
    )


class CallersConnection(StdlibConnection):
    """A caller's connection of ``sqlite3``. Its transaction begins as the module's own statements begin one."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        super().__init__(connection)
        self._callers = connection

    def begin_implicitly(self) -> bool:
        """Begin the transaction that the module would begin before an INSERT; False in autocommit mode."""
        if not self._callers.in_transaction and self._callers.isolation_level is not None:
            self.execute("BEGIN IMMEDIATE")
        return self._callers.in_transaction

    @contextmanager
    def plain_text(self) -> Iterator[None]:
        factory = self._callers.text_factory
        self._callers.text_factory = str
        try:
            yield
        finally:
            self._callers.text_factory = factory


def write(connection: apsw.Connection, path: str, now: int, work: Work[A, R], argument: A) -> R:
    """Do the work atomically, in the caller's open transaction or else in a transaction of its own."""
    try:
        with (
            _plain_rows(connection),
            _savepoint(connection) if _in_transaction(connection) else write_transaction(connection),
        ):
            return work(Borrowed(connection, now), argument)
    except apsw.Error as error:
        raise translate(error, path, connection.pragma("busy_timeout") / 1000) from error


def _in_transaction(connection: apsw.Connection) -> bool:
    if isinstance(connection, CallersConnection):
        return connection.begin_implicitly()
    return connection.in_transaction


_LOCK = "UPDATE holdfast_meta SET value = value WHERE false"
"""Takes the write lock, and waits for it.

A call reads before it writes. In a transaction that the caller began without IMMEDIATE, a write after a read fails at
once if another process wrote in between (``SQLITE_BUSY_SNAPSHOT``).
"""


@contextmanager
def _savepoint(connection: apsw.Connection) -> Iterator[None]:
    connection.execute("SAVEPOINT holdfast_call")
    try:
        connection.execute(_LOCK)
        yield
    except BaseException:
        if connection.in_transaction:  # some errors, such as a full disk, roll the caller's transaction back
            connection.execute("ROLLBACK TO holdfast_call")
            connection.execute("RELEASE holdfast_call")
        raise
    connection.execute("RELEASE holdfast_call")


@contextmanager
def _plain_rows(connection: apsw.Connection) -> Iterator[None]:
    """Disable the caller's row tracer and cursor factory."""
    if isinstance(connection, CallersConnection):
        with connection.plain_text():
            yield
        return
    trace, factory = connection.row_trace, connection.cursor_factory
    connection.row_trace, connection.cursor_factory = None, apsw.Cursor
    try:
        yield
    finally:
        connection.row_trace, connection.cursor_factory = trace, factory
