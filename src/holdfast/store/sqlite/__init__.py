"""The embedded store: one SQLite file, no server."""

from holdfast.store.sqlite.opening import Driver
from holdfast.store.sqlite.store import SqliteStore

__all__ = ["Driver", "SqliteStore"]
