"""Clean PostgreSQL schemas for tests of the engine, and stores on them for the harness."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import ClassVar

import asyncpg

import postgres_connections
from holdfast.ports import Clock, SystemRandomness
from holdfast.store.postgres import PostgresStore
from holdfast.store.protocol import Migrated
from postgres_server import new_database, run_in_loop_thread

_POOL = 3
_TRUNCATE_EVERY = 20
_times_emptied = count(1)


class CleanSchemas:
    """Empty, migrated schemas of one database. They are reused, which is much faster than creating them."""

    _url: str | None = None
    _free: ClassVar[list[str]] = []
    _schema_numbers = count(1)

    @classmethod
    @contextmanager
    def one(cls) -> Iterator[tuple[str, str]]:
        schema = cls.take()
        try:
            yield cls.url(), schema
        finally:
            cls.release(schema)

    @classmethod
    def url(cls) -> str:
        if cls._url is None:
            cls._url = new_database(keep=True)
            postgres_connections.share(cls._url)
        return cls._url

    @classmethod
    def take(cls) -> str:
        schema = cls.any()
        run_in_loop_thread(_connect_and_empty(cls.url(), schema))
        return schema

    @classmethod
    def any(cls) -> str:
        """A schema that may not be empty."""
        return cls._free.pop() if cls._free else f"clean_{next(cls._schema_numbers)}"

    @classmethod
    def release(cls, schema: str) -> None:
        cls._free.append(schema)


async def _connect_and_empty(url: str, schema: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await _empty(connection, schema)
    finally:
        await connection.close()


async def _empty(connection: asyncpg.Connection, schema: str) -> None:
    """Empty a schema. DELETE is faster than TRUNCATE, which creates files, but leaves dead rows: TRUNCATE at times."""
    tables = await connection.fetch(
        "SELECT tablename FROM pg_tables WHERE schemaname = $1 AND tablename <> 'holdfast_meta' "
        "ORDER BY tablename LIKE 'holdfast_blob%'",  # last: triggers count the references of deleted rows
        schema,
    )
    if not tables:
        return
    names = [f'"{schema}"."{row["tablename"]}"' for row in tables]
    if next(_times_emptied) % _TRUNCATE_EVERY == 0:
        await connection.execute(f"TRUNCATE {', '.join(names)} RESTART IDENTITY")
    else:
        await connection.execute("; ".join(f"DELETE FROM {name}" for name in names))


class CleanStore(PostgresStore):
    """A store for a harness, on an empty schema: ``Harness(app, store=CleanStore)``."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(f"{CleanSchemas.url()}&pool_size={_POOL}", clock=clock, random=SystemRandomness())

    async def open(self, *, migrate: bool = True) -> Migrated:
        self._schema = CleanSchemas.any()
        migrated = await super().open(migrate=migrate)
        # Open all connections now: the harness takes a new socket for a running step.
        await self.heartbeat("none", 1)
        assert self._database is not None
        pool = self._database._pool
        assert pool is not None
        connections = await asyncio.gather(*(pool.acquire() for _ in range(_POOL)))
        await _empty(connections[0], self._schema)
        for connection in connections:
            pool.release(connection)
        return migrated

    async def close(self) -> None:
        if self._database is not None:
            await super().close()
            CleanSchemas.release(self._schema)
