"""Opens connections: checks of the file, settings for durability, and whether it is still the same file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import apsw

from holdfast.errors import StoreCorruptError, StoreReadOnlyError, StoreUnavailableError
from holdfast.store.protocol import Migrated
from holdfast.store.sqlite import migrate
from holdfast.store.sqlite.guard import Guard
from holdfast.store.sqlite.tx import Connection

BUSY_S = 30
MEMORY = ":memory:"
_OLDEST_SQLITE = (3, 51, 3)
_CHECKED_UP_TO = 32 * 1024 * 1024
_CACHED_STATEMENTS = 256
_WAL_KEPT = 64 * 1024 * 1024
_WAL_TRIES = 200
_WAL_RESERVED = 8 * 1024 * 1024


class FileIdentity(NamedTuple):
    device: int
    inode: int


def writer(path: str, guard: Guard) -> apsw.Connection:
    """The connection that writes and checkpoints."""
    connection = _connect(path)
    if path != MEMORY:
        _use_wal(connection, path)
    connection.authorizer = guard
    return connection


def reader(path: str) -> apsw.Connection:
    connection = _connect(path)
    _only_read(connection)
    return connection


def prepare(path: str, *, create: bool) -> None:
    """What must hold of the library, the directory and the file before SQLite opens it."""
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
    """At open: the file is whole, can be written, and has the right schema."""
    if path != MEMORY and Path(path).stat().st_size < _CHECKED_UP_TO:
        found = connection.execute("PRAGMA quick_check(1)").get
        if found != "ok":
            raise StoreCorruptError(
                f"{path} is damaged ({found}). Stop all workers, keep a copy, and restore a backup "
                "or run sqlite3's .recover"
            )
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("ROLLBACK")
    return (migrate.migrate if migrating else migrate.verify)(connection, path)


def identity(path: str) -> FileIdentity | None:
    """Which file the path names now; None if it names none, and for a database in memory."""
    try:
        found = os.stat(path)  # noqa: PTH116  (in each transaction: a Path costs more than the call)
    except OSError:
        return None
    return FileIdentity(found.st_dev, found.st_ino)


def _create_private(path: str) -> None:
    # SQLite would go by the umask. Its -wal and -shm files take over the mode of this one.
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


def _connect(path: str) -> apsw.Connection:
    connection = apsw.Connection(path, apsw.SQLITE_OPEN_READWRITE, statementcachesize=_CACHED_STATEMENTS)
    if connection.readonly("main"):  # SQLite falls back to reading without a word
        raise apsw.ReadOnlyError("attempt to write a readonly database")
    connection.set_busy_timeout(BUSY_S * 1000)
    # Plans must not look at bound values, or what may use a partial index is prepared anew each time.
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    _be_durable(connection)
    return connection


def _be_durable(connection: Connection) -> None:
    connection.pragma("synchronous", "FULL")
    connection.pragma("fullfsync", True)
    connection.pragma("checkpoint_fullfsync", True)


def _only_read(connection: Connection) -> None:
    connection.pragma("query_only", True)


def _use_wal(connection: Connection, path: str) -> None:
    mode = connection.pragma("journal_mode")
    for _ in range(_WAL_TRIES):
        if mode == "wal":
            connection.pragma("journal_size_limit", _WAL_KEPT)
            _reserve_wal(connection, path)
            return
        try:
            mode = connection.pragma("journal_mode", "wal")
        except apsw.BusyError:
            # To change the mode does not wait for locks, but to begin a write does: many may start at once.
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
    raise StoreUnavailableError(
        f"{path} cannot be used with a write-ahead log (its journal mode stays {mode!r}). Put it on a local file system"
    )


def _reserve_wal(connection: Connection, path: str) -> None:
    """Fill the log's file with zeros, once: to write where a file has blocks already takes half the time of a commit.

    SQLite begins at its start again after a checkpoint, and takes zeros for the end of what was written. While this
    connection has the write lock nobody else touches the file.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        with open(f"{path}-wal", "r+b") as log:  # noqa: PTH123
            missing = _WAL_RESERVED - log.seek(0, os.SEEK_END)
            if missing > 0:
                log.write(bytes(missing))
                os.fsync(log.fileno())
    except OSError:
        pass  # a full disk or none of our business: it only costs time
    finally:
        connection.execute("ROLLBACK")
