"""Database URLs: their checks, and the store that a URL names."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from holdfast.errors import InvalidOptionError, InvalidUrlError
from holdfast.extras import extra
from holdfast.ports import Runtime, milliseconds

if TYPE_CHECKING:
    from holdfast.store.protocol import Migrated, Store
    from holdfast.store.protocol.diagnosis import Doctor
    from holdfast.store.protocol.transfer import TransferDatabase

DEFAULT_URL = "sqlite:///holdfast.db"
DEFAULT_SCHEMA = "holdfast"
_POSTGRES = ("postgresql://", "postgres://")
_DRIVER = "?driver="
_SQLITE_DRIVERS = ("apsw", "sqlite3")
"""``sqlite3`` is for programs that open the same file with Python's own module: one process must not use two copies of
SQLite on one file."""


async def migrate(url: str, *, schema: str | None = None) -> Migrated:
    """Migrate a database's schema to the current version, and do nothing else."""
    return await _opened_once(url, schema, migrate=True)


async def verify(url: str, *, schema: str | None = None) -> Migrated:
    """Raise ``SchemaVersionError`` unless a database's schema has the current version."""
    return await _opened_once(url, schema, migrate=False)


async def _opened_once(url: str, schema: str | None, *, migrate: bool) -> Migrated:
    check_url(url, schema)
    store = make_store(url, schema, Runtime())
    try:
        return await store.open(migrate=migrate)
    finally:
        await store.close()


def make_store(url: str, schema: str | None, runtime: Runtime) -> Store:
    """The store for a URL. The database driver is imported here, so that only the one in use is loaded."""
    if url.startswith(_POSTGRES):
        with extra("postgres", "A postgresql:// database"):
            from holdfast.store.postgres import PostgresStore
        return PostgresStore(url, schema=schema or DEFAULT_SCHEMA, random=runtime.random)
    from holdfast.store.sqlite import SqliteDriver, SqliteStore

    return SqliteStore(sqlite_path(url), clock=runtime.time, driver=SqliteDriver(_sqlite_driver(url)))


def make_transfer(url: str, schema: str | None, runtime: Runtime) -> TransferDatabase:
    """The database of a URL as the source or the target of a transfer."""
    if url.startswith(_POSTGRES):
        with extra("postgres", "A postgresql:// database"):
            from holdfast.store.postgres.transfer import PostgresTransfer
        return PostgresTransfer(url, schema or DEFAULT_SCHEMA)
    from holdfast.store.sqlite import SqliteDriver
    from holdfast.store.sqlite.transfer import SqliteTransfer

    path = sqlite_path(url)
    if path is None:
        raise InvalidUrlError("a database in memory cannot be transferred; name a file")
    return SqliteTransfer(path, milliseconds(runtime.time), SqliteDriver(_sqlite_driver(url)))


def make_doctor(url: str, schema: str | None, runtime: Runtime) -> Doctor:
    """The checks of the database of a URL."""
    now = milliseconds(runtime.time)
    if url.startswith(_POSTGRES):
        with extra("postgres", "A postgresql:// database"):
            from holdfast.store.postgres.doctor import PostgresDoctor
        return PostgresDoctor(url, schema or DEFAULT_SCHEMA, now, runtime.time)
    from holdfast.store.sqlite import SqliteDriver
    from holdfast.store.sqlite.doctor import SqliteDoctor

    path = sqlite_path(url)
    if path is None:
        raise InvalidUrlError("a database in memory cannot be checked; name a file")
    return SqliteDoctor(path, now, SqliteDriver(_sqlite_driver(url)))


def check_url(url: str, schema: str | None = None) -> None:
    if not isinstance(url, str) or not (url == "sqlite://" or url.startswith(("sqlite:///", *_POSTGRES))):
        raise InvalidUrlError(
            f"{shown_url(url)!r} is not a database URL; use sqlite:///relative.db, sqlite:////absolute/path.db, "
            "sqlite:// (in memory) or postgresql://user@host/database"
        )
    if url.startswith("sqlite:") and _sqlite_driver(url) not in _SQLITE_DRIVERS:
        raise InvalidUrlError(f"{shown_url(url)!r}: driver= is one of {', '.join(_SQLITE_DRIVERS)}")
    if schema is not None and not (url.startswith(_POSTGRES) and isinstance(schema, str) and schema):
        raise InvalidOptionError(f"schema={schema!r}: give a name, and only with a PostgreSQL URL")


def shown_url(url: Any) -> str:
    """The URL with its password removed, for messages."""
    text = re.sub(r"(?i)(pass\w*=)[^&\s]*", r"\1…", str(url))
    scheme, separator, rest = text.rpartition("://")
    return f"{scheme}{separator}…@{rest.rpartition('@')[2]}" if "@" in rest else text


def sqlite_path(url: str) -> str | None:
    """The path in a SQLite URL; None for a database in memory."""
    path = url.removeprefix("sqlite://").removeprefix("/").partition(_DRIVER)[0]
    return None if path in ("", ":memory:") else path


def _sqlite_driver(url: str) -> str:
    _, given, driver = url.partition(_DRIVER)
    return driver if given else _SQLITE_DRIVERS[0]
