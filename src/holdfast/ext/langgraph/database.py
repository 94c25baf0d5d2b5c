"""The two tables of checkpoints, in the app's database but beside the tables of the engine.

One statement text serves both databases: ``$1``, ``$2`` appear for the first time in this order, as SQLite numbers
them. This module handles connections and statements, and does not depend on LangGraph.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import apsw

from holdfast.errors import InvalidOptionError
from holdfast.extras import extra
from holdfast.store_url import DEFAULT_SCHEMA, migrate, sqlite_path

Statement = tuple[str, Sequence[Any]]
Row = Sequence[Any]

_BUSY_MS = 30_000
_POOL_SIZE = 4

_TABLES = (
    """CREATE TABLE IF NOT EXISTS {checkpoint} (
        thread_id TEXT NOT NULL,
        namespace TEXT NOT NULL,
        checkpoint_id TEXT NOT NULL,
        parent_id TEXT,
        run_id TEXT,
        checkpoint_type TEXT NOT NULL,
        checkpoint {blob} NOT NULL,
        metadata_type TEXT NOT NULL,
        metadata {blob} NOT NULL,
        PRIMARY KEY (thread_id, namespace, checkpoint_id)
    )""",
    """CREATE TABLE IF NOT EXISTS {write} (
        thread_id TEXT NOT NULL,
        namespace TEXT NOT NULL,
        checkpoint_id TEXT NOT NULL,
        task_path TEXT NOT NULL,
        task_id TEXT NOT NULL,
        idx INTEGER NOT NULL,
        channel TEXT NOT NULL,
        value_type TEXT NOT NULL,
        value {blob} NOT NULL,
        PRIMARY KEY (thread_id, namespace, checkpoint_id, task_id, idx)
    )""",
    "CREATE INDEX IF NOT EXISTS langgraph_checkpoint_run ON {checkpoint} (run_id)",
)


class Database(Protocol):
    """Connections to the tables. Statements name the tables as ``{checkpoint}`` and ``{write}``."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def fetch(self, sql: str, *args: Any) -> list[Row]: ...

    async def execute(self, *statements: Statement) -> None:
        """Execute statements in one transaction."""


def database(url: str, schema: str | None) -> Database:
    """The tables in the database of a URL."""
    if url.startswith("sqlite:"):
        if "?driver=sqlite3" in url:
            raise InvalidOptionError(
                "the checkpointer opens the app's file with apsw, which damages a file that this process also opens "
                "with sqlite3. Give the checkpointer a file of its own, or PostgreSQL"
            )
        return SqliteDatabase(url, sqlite_path(url) or ":memory:")
    return PostgresDatabase(url, schema or DEFAULT_SCHEMA)


class SqliteDatabase:
    """A connection of its own to the app's file. It leaves the checkpoints of the WAL to the app's connections.

    For an app in memory the tables are in memory too, and are lost with the connection.
    """

    def __init__(self, url: str, path: str) -> None:
        self._url = url
        self._path = path
        self._lock = threading.Lock()
        self._connection: apsw.Connection | None = None

    async def open(self) -> None:
        if self._path != ":memory:" and not await asyncio.to_thread(Path(self._path).exists):
            await migrate(self._url)  # the app's settings of a new file, such as the WAL
        await asyncio.to_thread(self._open)

    def _open(self) -> None:
        connection = apsw.Connection(self._path)
        connection.set_busy_timeout(_BUSY_MS)
        connection.pragma("wal_autocheckpoint", 0)
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        for sql in _TABLES:
            connection.execute(self._named(sql))
        self._connection = connection

    async def close(self) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            with self._lock:
                connection.close()

    async def fetch(self, sql: str, *args: Any) -> list[Row]:
        return await asyncio.to_thread(self._fetch, self._named(sql), args)

    def _fetch(self, sql: str, args: Sequence[Any]) -> list[Row]:
        with self._lock:
            return list(self._opened().execute(sql, args))

    async def execute(self, *statements: Statement) -> None:
        await asyncio.to_thread(self._execute, statements)

    def _execute(self, statements: Sequence[Statement]) -> None:
        with self._lock:
            connection = self._opened()
            connection.execute("BEGIN IMMEDIATE")
            try:
                for sql, args in statements:
                    connection.execute(self._named(sql), args)
                connection.execute("COMMIT")
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    def _opened(self) -> apsw.Connection:
        if self._connection is None:
            raise _closed()
        return self._connection

    @staticmethod
    def _named(sql: str) -> str:
        return sql.format(checkpoint="langgraph_checkpoint", write="langgraph_write", blob="BLOB")


class PostgresDatabase:
    """A small pool of connections of its own. The tables are in the app's schema."""

    def __init__(self, url: str, schema: str) -> None:
        self._url = url
        self._schema = schema
        self._pool: Any = None

    async def open(self) -> None:
        with extra("postgres", "HoldfastSaver on PostgreSQL"):
            import asyncpg
        await migrate(self._url, schema=self._schema)
        self._pool = await asyncpg.create_pool(self._url, min_size=0, max_size=_POOL_SIZE)
        async with self._pool.acquire() as connection, connection.transaction():
            # CREATE ... IF NOT EXISTS fails if two processes execute it at the same time.
            await connection.execute("SELECT pg_advisory_xact_lock(hashtext('holdfast.ext.langgraph'))")
            for sql in _TABLES:
                await connection.execute(self._named(sql))

    async def close(self) -> None:
        if self._pool is not None:
            pool, self._pool = self._pool, None
            await pool.close()

    async def fetch(self, sql: str, *args: Any) -> list[Row]:
        rows: list[Row] = await self._opened().fetch(self._named(sql), *args)
        return rows

    async def execute(self, *statements: Statement) -> None:
        async with self._opened().acquire() as connection, connection.transaction():
            for sql, args in statements:
                await connection.execute(self._named(sql), *args)

    def _opened(self) -> Any:
        if self._pool is None:
            raise _closed()
        return self._pool

    def _quoted(self) -> str:
        return '"' + self._schema.replace('"', '""') + '"'

    def _named(self, sql: str) -> str:
        schema = self._quoted()
        return sql.format(checkpoint=f"{schema}.langgraph_checkpoint", write=f"{schema}.langgraph_write", blob="BYTEA")


def _closed() -> RuntimeError:
    return RuntimeError("the saver is not open; use it inside `async with HoldfastSaver(app) as saver:`")
