"""The embedded store: one SQLite file, no server."""

from holdfast.store.sqlite.opening import SqliteDriver
from holdfast.store.sqlite.store import SqliteStore

__all__ = ["SqliteDriver", "SqliteStore"]
