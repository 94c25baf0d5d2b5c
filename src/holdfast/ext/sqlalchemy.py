"""SQLAlchemy: a session on the transaction of a step.

``session(tx)`` opens an ``AsyncSession`` whose statements are executed by the step's ``Transaction``, so what the
session writes is committed with the result of the step, or not at all. The module contains the dialects of SQLAlchemy
for this connection; it opens no connection itself. Sessions in your own transactions need no adapter: see
``connection=``.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cache
from typing import Any, Literal

from holdfast.errors import InputError
from holdfast.extras import extra
from holdfast.kernel.attempt import Transaction
from holdfast.store.protocol import LiveTransaction

with extra("sqlalchemy", "holdfast.ext.sqlalchemy"):
    from sqlalchemy.dialects.postgresql.asyncpg import PGDialect_asyncpg
    from sqlalchemy.dialects.sqlite.base import SQLiteDialect
    from sqlalchemy.engine import URL, Engine
    from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
    from sqlalchemy.pool import StaticPool
    from sqlalchemy.util import await_only

__all__ = ["session"]

_READS = re.compile(r"\s*(select|with|values|show|pragma|explain)\b", re.IGNORECASE)
_RETURNING = re.compile(r"\breturning\b", re.IGNORECASE)
_INSERT = re.compile(r"\s*insert\b", re.IGNORECASE)


@asynccontextmanager
async def session(tx: Transaction, **options: Any) -> AsyncIterator[AsyncSession]:
    """A session on the transaction of a step. Changes are written at the end of the block, and committed by the step.

    ``options`` are those of ``AsyncSession``; objects stay loaded after the block. The session cannot be rolled back by
    itself: raise an error, and the attempt fails with all that it has written.

    Example::

        @app.step
        async def reserve(tx: Transaction, item: str) -> int:
            async with session(tx) as orm:
                stock = await orm.get_one(Stock, item)
                stock.left -= 1
            return stock.left
    """
    if not isinstance(tx, Transaction):
        raise InputError(f"session(tx) takes the Transaction of a step, not {type(tx).__name__}")
    live = tx._live  # noqa: SLF001  (the adapter executes statements as the transaction does)
    connection = _Connection(live)
    dialect = await _dialect_of(live)
    connect: Any = lambda: connection  # noqa: E731  (not a connection of a driver that SQLAlchemy has types for)
    engine = AsyncEngine(Engine(StaticPool(connect, dialect=dialect), dialect, URL.create(dialect.name)))
    made = AsyncSession(engine, **{"expire_on_commit": False, **options})
    try:
        yield made
        connection.check()
        await made.commit()
    finally:
        await made.close()


class _Connection:
    """A connection with the interface that SQLAlchemy requires. The step commits, so ``commit`` does nothing."""

    def __init__(self, live: LiveTransaction) -> None:
        self.live = live
        self._rolled_back = False

    def cursor(self) -> _Cursor:
        self.check()
        return _Cursor(self.live)

    def check(self) -> None:
        """Raise if the session was rolled back: what it had written before is still in the transaction."""
        if self._rolled_back:
            raise InputError(
                "a session on the transaction of a step cannot be rolled back; let the error fail the attempt"
            )

    def commit(self) -> None: ...

    def rollback(self) -> None:
        """Called also by a session whose flush has failed; this error must reach the step."""
        self._rolled_back = True

    def close(self) -> None: ...


class _Cursor:
    """A cursor over one statement. SQLAlchemy calls it in a greenlet, in which ``await_only`` waits."""

    arraysize = 1
    server_side = False

    def __init__(self, live: LiveTransaction) -> None:
        self._live = live
        self._rows: list[tuple[Any, ...]] = []
        self.names: Sequence[str] = ()
        """Names of the columns, for a result without rows."""
        self.description: list[tuple[Any, ...]] | None = None
        self.rowcount = -1
        self.lastrowid: int | None = None

    def execute(self, sql: str, args: Sequence[Any] = ()) -> None:
        await_only(self._execute(sql, tuple(args)))

    def executemany(self, sql: str, many: Sequence[Sequence[Any]]) -> None:
        changed = 0
        for args in many:
            self.execute(sql, args)
            changed += max(self.rowcount, 0)
        self.rowcount = changed

    async def _execute(self, sql: str, args: tuple[Any, ...]) -> None:
        if _READS.match(sql) or _RETURNING.search(sql):
            rows: Sequence[Mapping[str, Any]] = await self._live.fetch(sql, args)
            names = [*rows[0]] if rows else self.names
            self.description = [(name, None, None, None, None, None, None) for name in names]
            self._rows = [tuple(row.values()) for row in rows]
            self.rowcount = len(rows)
            return
        self.description = None
        self.rowcount = await self._live.execute(sql, args)
        if self._live.dialect == "sqlite" and _INSERT.match(sql):
            [row] = await self._live.fetch("SELECT last_insert_rowid() AS id", ())
            self.lastrowid = row["id"]

    def fetchone(self) -> tuple[Any, ...] | None:
        return self._rows.pop(0) if self._rows else None

    def fetchmany(self, size: int | None = None) -> list[tuple[Any, ...]]:
        count = self.arraysize if size is None else size
        taken, self._rows = self._rows[:count], self._rows[count:]
        return taken

    def fetchall(self) -> list[tuple[Any, ...]]:
        taken, self._rows = self._rows, []
        return taken

    def close(self) -> None: ...

    async def _async_soft_close(self) -> None: ...


def _note_columns(cursor: Any, context: Any) -> None:
    compiled = getattr(context, "compiled", None)
    columns = getattr(compiled, "_result_columns", None) or ()
    cursor.names = [column[0] for column in columns]


class _Executes:
    """The hooks of a dialect that are the same for both databases."""

    is_async = True
    supports_sane_multi_rowcount = False

    def do_execute(self, cursor: Any, statement: str, parameters: Any, context: Any = None) -> None:
        _note_columns(cursor, context)
        cursor.execute(statement, parameters or ())

    def do_executemany(self, cursor: Any, statement: str, parameters: Any, context: Any = None) -> None:
        _note_columns(cursor, context)
        cursor.executemany(statement, parameters)

    def do_ping(self, dbapi_connection: Any) -> Literal[True]:
        return True


class _SqliteApi:
    """The attributes of a driver that the dialect of SQLAlchemy reads. Errors of statements are those of Holdfast."""

    paramstyle = "qmark"

    class Error(Exception):
        """Never raised."""

    def __init__(self, version: str) -> None:
        self.sqlite_version_info = tuple(map(int, version.split(".")))


class _SqliteDialect(_Executes, SQLiteDialect):
    driver = "holdfast"
    supports_statement_cache = True
    default_paramstyle = "qmark"


class _PostgresDialect(_Executes, PGDialect_asyncpg):
    driver = "holdfast"
    supports_statement_cache = True
    # The codecs for JSON that the dialect sets on its own connections are missing here: values are text.
    supports_native_json_deserialization = False


async def _dialect_of(live: LiveTransaction) -> Any:
    if live.dialect == "postgresql":
        return _postgres_dialect()
    # The store uses the SQLite of apsw or that of Python, as its URL says; only a statement knows which one.
    [row] = await live.fetch("SELECT sqlite_version() AS version", ())
    return _sqlite_dialect(row["version"])


# One dialect for each database: it caches compiled statements.
@cache
def _postgres_dialect() -> Any:
    postgres: Any = _PostgresDialect  # SQLAlchemy has no types for it
    return postgres(dbapi=postgres.import_dbapi())


@cache
def _sqlite_dialect(version: str) -> Any:
    sqlite: Any = _SqliteDialect
    return sqlite(dbapi=_SqliteApi(version), paramstyle="qmark")
