"""Connections of psycopg 3, blocking and async, in the form of ``asyncpg``: for writes in a caller's transaction.

Arguments are sent as text without a type, so that the server infers their types from the statement, as it does for
asyncpg. Results are read with psycopg's own loaders; those that the caller registered are ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg import AsyncRawCursor, RawCursor
from psycopg.rows import tuple_row
from psycopg.types.string import StrDumperUnknown

from holdfast.errors import InvalidOptionError, StoreError, StoreUnavailableError
from holdfast.store.callers import RunInThread
from holdfast.store.postgres.errors import sqlstate, translate

_TYPES = ("int2", "int4", "int8", "bool", "text", "varchar", "bytea", "float8")
"""Types of the columns that the store's functions return, as values or as arrays."""


class Row(tuple[Any, ...]):
    """A row as asyncpg returns one: a sequence with ``values()``."""

    __slots__ = ()

    def values(self) -> Row:
        return self


class PsycopgConnection:
    """The part of ``asyncpg.Connection`` that ``create`` and ``send`` use."""

    def __init__(self, connection: Any, where: str, run: RunInThread | None) -> None:
        """``run``: calls the driver in the thread that owns a blocking connection."""
        if connection.closed:
            raise InvalidOptionError("connection= is closed; give an open connection")
        self._connection = connection
        self._where = where
        self._run = run

    async def fetch(self, query: str, *args: Any, timeout: float | None = None) -> list[Row]:
        del timeout
        arguments = [text(value) for value in args]
        try:
            if isinstance(self._connection, psycopg.AsyncConnection):
                return await self._fetch_async(query, arguments)
            connection = self._connection
            if self._run is None:
                return _fetch(connection, query, arguments)
            return await self._run(lambda: _fetch(connection, query, arguments))
        except psycopg.Error as error:
            raise _translated(error, self._where) from error

    async def _fetch_async(self, query: str, arguments: Sequence[str | None]) -> list[Row]:
        cursor = AsyncRawCursor(self._connection, row_factory=tuple_row)
        _use_plain_loaders(cursor.adapters)
        async with cursor:
            await cursor.execute(query.encode(), arguments)
            return [Row(row) for row in await cursor.fetchall()]

    async def fetchrow(self, query: str, *args: Any) -> Row | None:
        rows = await self.fetch(query, *args)
        return rows[0] if rows else None

    async def fetchval(self, query: str, *args: Any) -> Any:
        row = await self.fetchrow(query, *args)
        return None if row is None else row[0]


def _fetch(connection: Any, query: str, arguments: Sequence[str | None]) -> list[Row]:
    cursor = RawCursor(connection, row_factory=tuple_row)
    _use_plain_loaders(cursor.adapters)
    with cursor:
        cursor.execute(query.encode(), arguments)
        return [Row(row) for row in cursor.fetchall()]


def _use_plain_loaders(adapters: Any) -> None:
    for name in _TYPES:
        oid = psycopg.adapters.types[name].oid
        loader = psycopg.adapters.get_loader(oid, psycopg.pq.Format.TEXT)
        if loader is not None:
            adapters.register_loader(oid, loader)
    adapters.register_dumper(str, StrDumperUnknown)


def text(value: Any) -> str | None:
    """A value in PostgreSQL's text format."""
    match value:
        case None:
            return None
        case bool():
            return "t" if value else "f"
        case str():
            return str(value)
        case bytes() | bytearray() | memoryview():
            return f"\\x{bytes(value).hex()}"
        case list() | tuple():
            return f"{{{','.join(_element(one) for one in value)}}}"
        case int():
            return str(int(value))
    return str(value)


def _element(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, list | tuple):
        return str(text(value))
    escaped = str(text(value)).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _translated(error: psycopg.Error, where: str) -> Exception:
    if isinstance(error, psycopg.OperationalError) and not sqlstate(error):
        return StoreUnavailableError(f"the connection to {where} broke ({error}). Check the network and the server")
    if isinstance(error, psycopg.InterfaceError) or not sqlstate(error):
        return StoreError(f"psycopg refused a statement for {where} ({error}); nothing of this call was done")
    return translate(error, where)
