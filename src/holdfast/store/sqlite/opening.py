"""Opens connections: checks of the file, settings for durability, and the identity of the file."""

from __future__ import annotations

import os
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple, cast

import apsw

from holdfast.errors import StoreCorruptError, StoreReadOnlyError, StoreUnavailableError
from holdfast.store.protocol import Migrated
from holdfast.store.sqlite import migrate
from holdfast.store.sqlite.guard import Guard
from holdfast.store.sqlite.sql import statements
from holdfast.store.sqlite.stdlib import StdlibConnection
from holdfast.store.sqlite.tx import Connection

BUSY_S = 30
MEMORY = ":memory:"
_OLDEST_SQLITE = (3, 51, 3)
_QUICK_CHECK_MAX_BYTES = 32 * 1024 * 1024
_CACHED_STATEMENTS = 256
_WAL_SIZE_LIMIT = 64 * 1024 * 1024
_WAL_ATTEMPTS = 200
_WAL_PREALLOCATED_BYTES = 8 * 1024 * 1024
_WAL_PIECE_BYTES = 16 * 1024
"""Size of one write of zeros. Linux caches a file in pieces as large as the writes that made them, and may write the
whole piece at each sync: after one write of 8 MiB, a sync of 8 KiB wrote 1.3 MiB."""


_FENCE_REASON = statements("schema")["fence_reason"]


class FileIdentity(NamedTuple):
    device: int
    inode: int


class SqliteDriver(StrEnum):
    """The module that opens connections. A process must not use two copies of SQLite on one file (``stdlib``)."""

    APSW = "apsw"
    SQLITE3 = "sqlite3"


def writer(path: str, guard: Guard, driver: SqliteDriver = SqliteDriver.APSW) -> apsw.Connection:
    """The connection that writes and checkpoints."""

    def configure(connection: apsw.Connection) -> None:
        if path != MEMORY:
            if connection.pragma("page_count") == 0:  # with tables, the pragma would only write a page at each start
                connection.pragma("auto_vacuum", "incremental")
            _use_wal(connection, path)
        connection.authorizer = guard

    return _connect(path, configure, driver)


def reader(path: str, driver: SqliteDriver = SqliteDriver.APSW) -> apsw.Connection:
    def configure(connection: apsw.Connection) -> None:
        _set_query_only(connection)
        disable_checkpoint_on_close(connection)

    return _connect(path, configure, driver)


def disable_checkpoint_on_close(connection: apsw.Connection) -> None:
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)


def overwrite_failed_commit(path: str, guard: Guard, driver: SqliteDriver = SqliteDriver.APSW) -> None:
    """Commit a transaction that changes nothing, over the frames of a failed commit in the WAL.

    Until then, a process that reads the whole WAL again would take the failed commit for a valid one, because its
    frames are in the cache of the kernel. They are missing on the disk if their sync failed, and a power cut would lose
    every commit after them.
    """
    connection = writer(path, guard, driver)
    try:
        connection.execute("BEGIN IMMEDIATE")
        connection.pragma("user_version", connection.pragma("user_version"))  # writes a page also without a change
        connection.execute("COMMIT")
    finally:
        disable_checkpoint_on_close(connection)
        connection.close(force=True)


def prepare(path: str, *, create: bool) -> None:
    """Check the library, the directory and the file before SQLite opens it; create the file if requested."""
    check_library(apsw.sqlite_lib_version())
    if path == MEMORY:
        return
    file = Path(path)
    if not file.parent.is_dir():
        raise StoreUnavailableError(f"{path} cannot be opened: its directory {file.parent} does not exist. Create it")
    if file.is_dir():
        raise StoreUnavailableError(f"{path} cannot be opened: it is a directory. Name a file in it")
    if create:
        _create_private(path)
    elif not file.exists():
        raise StoreUnavailableError(f"{path} does not exist. Check the path, or run the migrations to create it")


def check_library(version: str) -> None:
    if tuple(int(part) for part in version.split(".")[:3]) < _OLDEST_SQLITE:
        raise StoreUnavailableError(
            f"SQLite {version} can corrupt a WAL file that is reset while another process writes. "
            "Upgrade the apsw package to 3.51.3 or newer"
        )


def check(connection: Connection, path: str, *, migrating: bool) -> Migrated:
    """Check that the file is intact and writable, and migrate or verify its schema."""
    if path != MEMORY and Path(path).stat().st_size < _QUICK_CHECK_MAX_BYTES:
        found = connection.execute("PRAGMA quick_check(1)").get
        if found != "ok":
            raise StoreCorruptError(
                f"{path} is damaged ({found}). Stop all workers, keep a copy, and restore a backup "
                "or run sqlite3's .recover"
            )
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("ROLLBACK")
    migrated = (migrate.migrate if migrating else migrate.verify)(connection, path)
    reason = connection.execute(_FENCE_REASON).get
    if reason is not None:
        raise StoreReadOnlyError(f"{path} is fenced: {reason}")
    return migrated


def identity(path: str) -> FileIdentity | None:
    """The file that the path names now; None if there is none, and for a database in memory."""
    try:
        found = os.stat(path)  # noqa: PTH116  (called in each transaction: a Path costs more than the call)
    except OSError:
        return None
    return FileIdentity(found.st_dev, found.st_ino)


def _create_private(path: str) -> None:
    # SQLite would create the file with the umask's mode, and it gives the -wal and -shm files the mode of this file.
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        pass
    except PermissionError as error:
        raise StoreReadOnlyError(
            f"{path} cannot be created. Give this user write permission on {Path(path).parent}"
        ) from error
    except OSError as error:
        raise StoreUnavailableError(
            f"{path} cannot be created: {error.strerror}. Check the path and the disk"
        ) from error


def _connect(path: str, configure: Callable[[apsw.Connection], None], driver: SqliteDriver) -> apsw.Connection:
    connection = _open(path, driver)
    try:
        if connection.readonly("main"):  # SQLite falls back to read-only silently
            raise apsw.ReadOnlyError("attempt to write a readonly database")
        connection.set_busy_timeout(BUSY_S * 1000)
        # Without QPSG, plans depend on bound values, and a statement that may use a partial index is prepared anew.
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        _set_durable(connection)
        configure(connection)
    except BaseException:
        disable_checkpoint_on_close(connection)
        connection.close(force=True)
        raise
    return connection


def _open(path: str, driver: SqliteDriver) -> apsw.Connection:
    if driver is SqliteDriver.SQLITE3:
        opened = StdlibConnection.open(path, cached_statements=_CACHED_STATEMENTS)
        return cast("apsw.Connection", opened)  # it has the methods that the store uses
    return apsw.Connection(path, apsw.SQLITE_OPEN_READWRITE, statementcachesize=_CACHED_STATEMENTS)


def _set_durable(connection: Connection) -> None:
    connection.pragma("synchronous", "FULL")
    connection.pragma("fullfsync", True)
    connection.pragma("checkpoint_fullfsync", True)


def _set_query_only(connection: Connection) -> None:
    connection.pragma("query_only", True)


def _use_wal(connection: Connection, path: str) -> None:
    mode = connection.pragma("journal_mode")
    for _ in range(_WAL_ATTEMPTS):
        if mode == "wal":
            connection.pragma("journal_size_limit", _WAL_SIZE_LIMIT)
            _preallocate_wal(connection, path)
            return
        try:
            mode = connection.pragma("journal_mode", "wal")
        except apsw.BusyError:
            # Changing the mode does not wait for locks, but BEGIN IMMEDIATE does: several processes may start at once.
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
    raise StoreUnavailableError(
        f"{path} cannot be used with a write-ahead log (its journal mode stays {mode!r}). Put it on a local file system"
    )


def _preallocate_wal(connection: Connection, path: str) -> None:
    """Fill the WAL file with zeros once: a commit into allocated blocks takes half the time.

    SQLite starts again at the beginning of the WAL after a checkpoint, and reads zeros as the end of the log. No other
    connection touches the file while this one has the write lock.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        with open(f"{path}-wal", "r+b", buffering=0) as log:  # noqa: PTH123
            missing = _WAL_PREALLOCATED_BYTES - log.seek(0, os.SEEK_END)
            log.writelines(bytes(_WAL_PIECE_BYTES) for _ in range(0, missing, _WAL_PIECE_BYTES))
            if missing > 0:
                os.fsync(log.fileno())
    except OSError:
        pass  # a full disk, for example; without preallocation commits are only slower
    finally:
        connection.execute("ROLLBACK")
