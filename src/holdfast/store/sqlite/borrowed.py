"""Writes on a connection of the caller, in the caller's transaction and thread. The caller commits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import apsw

from holdfast.errors import InvalidOptionError
from holdfast.store.protocol import Committed
from holdfast.store.sqlite.errors import translate
from holdfast.store.sqlite.guard import Guard
from holdfast.store.sqlite.opening import MEMORY, FileIdentity, identity
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


def check(connection: Any, path: str, file: FileIdentity | None) -> apsw.Connection:
    """Check that the connection is open on this store's file; otherwise the rows would be written elsewhere."""
    if path == MEMORY:
        raise InvalidOptionError(
            "connection= needs a database file, but this store is in memory: no other connection can reach it"
        )
    if not isinstance(connection, apsw.Connection):
        raise InvalidOptionError(f"connection= must be an apsw.Connection to {path}, not {type(connection).__name__}")
    try:
        found = connection.filename
    except apsw.ConnectionClosedError as error:
        raise InvalidOptionError(
            f"connection= must be an open apsw.Connection to {path}; this one is closed"
        ) from error
    if identity(found) != file:
        raise InvalidOptionError(f"connection= must be an apsw.Connection to {path}, not to {found or MEMORY}")
    return connection


def write(connection: apsw.Connection, path: str, now: int, work: Work[A, R], argument: A) -> R:
    """Do the work atomically, in the caller's open transaction or else in a transaction of its own."""
    try:
        with (
            _plain_rows(connection),
            _savepoint(connection) if connection.in_transaction else write_transaction(connection),
        ):
            return work(Borrowed(connection, now), argument)
    except apsw.Error as error:
        raise translate(error, path, connection.pragma("busy_timeout") / 1000) from error


@contextmanager
def _savepoint(connection: apsw.Connection) -> Iterator[None]:
    connection.execute("SAVEPOINT holdfast_call")
    try:
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
    trace, factory = connection.row_trace, connection.cursor_factory
    connection.row_trace, connection.cursor_factory = None, apsw.Cursor
    try:
        yield
    finally:
        connection.row_trace, connection.cursor_factory = trace, factory
