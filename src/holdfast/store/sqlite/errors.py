"""Translation of SQLite's errors, by class and result code, never by message text."""

from __future__ import annotations

import apsw

from holdfast.errors import (
    HoldfastError,
    NotADatabaseError,
    StateError,
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

_TRANSLATIONS: tuple[tuple[type[apsw.Error], type[StoreError], str], ...] = (
    (
        apsw.BusyError,
        StoreBusyError,
        "{path} stayed locked by other processes for {busy:g} s; nothing was written. Look for a long transaction",
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
        "the system failed to read or write {path}; the last write may be lost. Check the disk, try again",
    ),
    (
        apsw.ProtocolError,
        StoreBusyError,
        "{path} could not be locked because too many other processes use it; nothing was written. Try again",
    ),
)

_INPUT_ERRORS = (apsw.ConstraintError, apsw.MismatchError, apsw.TooBigError)

ENVIRONMENT: tuple[type[apsw.Error], ...] = tuple(source for source, _, _ in _TRANSLATIONS)
"""Errors that the statement did not cause: the transaction would also fail without the statement."""

BROKEN = (apsw.IOError, apsw.CorruptError, apsw.NotADBError, apsw.CantOpenError)
"""Errors after which the connection must not be used: after a failed fsync the contents of the disk are unknown."""


def is_unique_violation(error: apsw.Error) -> bool:
    return isinstance(error, apsw.ConstraintError) and getattr(error, "extendedresult", None) in _UNIQUE


def translate(error: Exception, path: str, busy_s: float) -> Exception:
    """The store's error for an error of SQLite; other exceptions are returned unchanged."""
    if not isinstance(error, apsw.Error):
        return error
    meaning = _translated(error, path, busy_s)
    meaning.__cause__ = error
    return meaning


def _translated(error: apsw.Error, path: str, busy_s: float) -> HoldfastError:
    if getattr(error, "extendedresult", None) == apsw.SQLITE_BUSY_SNAPSHOT:
        return StoreBusyError(
            f"another process has written to {path} since this transaction read from it; nothing was written. Repeat "
            f"the transaction, and begin it with BEGIN IMMEDIATE (SQLite: {error})"
        )
    for source, target, text in _TRANSLATIONS:
        if isinstance(error, source):
            return target(f"{text.format(path=path, busy=busy_s)} (SQLite: {error})")
    if getattr(error, "extendedresult", None) == apsw.SQLITE_CONSTRAINT_TRIGGER:
        return StoreReadOnlyError(f"{path} cannot be written; nothing was written (SQLite: {error})")
    if is_unique_violation(error):
        return StateError(f"the row exists already and is written only once; nothing of this call was done ({error})")
    if isinstance(error, _INPUT_ERRORS):  # not a StoreError, because a retry would fail again
        return StateError(f"{path} cannot store a value of this call; nothing of this call was done ({error})")
    return StoreError(f"SQLite refused a statement on {path}; nothing of this call was done ({error})")
