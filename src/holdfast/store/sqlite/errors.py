"""What SQLite's errors mean here. Told apart by class and result code, never by their text."""

from __future__ import annotations

import apsw

from holdfast.errors import (
    NotADatabaseError,
    StoreBusyError,
    StoreCorruptError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
    StoreUnavailableError,
)

_UNIQUE = {
    apsw.SQLITE_CONSTRAINT_UNIQUE,
    apsw.SQLITE_CONSTRAINT_PRIMARYKEY,
    apsw.SQLITE_CONSTRAINT_ROWID,
}

_MEANING: tuple[tuple[type[apsw.Error], type[StoreError], str], ...] = (
    (
        apsw.BusyError,
        StoreBusyError,
        "{path} stayed locked by another connection for {busy} s; nothing was written. "
        "Look for a long transaction on this file, then try again",
    ),
    (
        apsw.ReadOnlyError,
        StoreReadOnlyError,
        "{path} cannot be written. Give this user write permission on the file and its directory",
    ),
    (
        apsw.FullError,
        StoreFullError,
        "there is no room left to write {path}; nothing was written. Free disk space, then try again",
    ),
    (
        apsw.CorruptError,
        StoreCorruptError,
        "{path} is damaged. Stop all workers, keep a copy, and restore a backup or run sqlite3's .recover",
    ),
    (
        apsw.NotADBError,
        NotADatabaseError,
        "{path} is not a SQLite database. Check the path; the file was left as it is",
    ),
    (
        apsw.CantOpenError,
        StoreUnavailableError,
        "{path} cannot be opened. Check that the path is a file and that this user may use it",
    ),
    (
        apsw.PermissionsError,
        StoreUnavailableError,
        "{path} cannot be opened: permission denied. Check the owner and mode of the file and its directory",
    ),
    (
        apsw.IOError,
        StoreUnavailableError,
        "reading or writing {path} failed in the operating system, so the last write may or may not be stored. "
        "Check the disk; the file is opened anew for the next call",
    ),
    (
        apsw.ProtocolError,
        StoreBusyError,
        "{path} could not be locked because of too many others; nothing was written. Try again",
    ),
)

ENVIRONMENT = tuple(source for source, _, _ in _MEANING)
"""Not the fault of the statement: it would fail in any other transaction as well."""

BROKEN = (apsw.IOError, apsw.CorruptError, apsw.NotADBError, apsw.CantOpenError)
"""The connection must not be used again: after a failed fsync nobody knows what the disk has."""


def is_unique_violation(error: apsw.Error) -> bool:
    return isinstance(error, apsw.ConstraintError) and error.extendedresult in _UNIQUE


def translate(error: Exception, path: str, busy_s: int) -> Exception:
    """The store's own error for one of SQLite; anything else stays what it is."""
    if not isinstance(error, apsw.Error):
        return error
    meaning = _meaning(error, path, busy_s)
    meaning.__cause__ = error
    return meaning


def _meaning(error: apsw.Error, path: str, busy_s: int) -> StoreError:
    for source, target, text in _MEANING:
        if isinstance(error, source):
            return target(f"{text.format(path=path, busy=busy_s)} (SQLite: {error})")
    if is_unique_violation(error):
        return StoreError(
            f"already stored, and stored once only; nothing of this call was written (SQLite: {error})"
        )
    return StoreError(
        f"SQLite refused a statement on {path}; nothing of this call was written (SQLite: {error})"
    )
