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
from postgres_server import in_a_thread_of_its_own, new_database

_POOL = 3
_DELETES = 20
_emptied = count(1)


class CleanSchemas:
    """Empty schemas of one database, up to date, and used again: much quicker than new ones."""

    _url: str | None = None
    _free: ClassVar[list[str]] = []
    _made = count(1)

    @classmethod
    @contextmanager
    def one(cls) -> Iterator[tuple[str, str]]:
        schema = cls.take()
        try:
            yield cls.url(), schema
        finally:
            cls.give_back(schema)

    @classmethod
    def url(cls) -> str:
        if cls._url is None:
            cls._url = new_database(keep=True)
            postgres_connections.share(cls._url)
        return cls._url

    @classmethod
    def take(cls) -> str:
        schema = cls.any()
        in_a_thread_of_its_own(_empty_there(cls.url(), schema))
        return schema

    @classmethod
    def any(cls) -> str:
        """One that may not be empty."""
        return cls._free.pop() if cls._free else f"clean_{next(cls._made)}"

    @classmethod
    def give_back(cls, schema: str) -> None:
        cls._free.append(schema)


async def _empty_there(url: str, schema: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await _empty(connection, schema)
    finally:
        await connection.close()


async def _empty(connection: asyncpg.Connection, schema: str) -> None:
    """Deleting is much quicker than TRUNCATE, which makes new files, but leaves dead rows: now and then they go."""
    tables = await connection.fetch(
        "SELECT tablename FROM pg_tables WHERE schemaname = $1 AND tablename <> 'holdfast_meta'", schema
    )
    if not tables:
        return
    names = [f'"{schema}"."{row["tablename"]}"' for row in tables]
    if next(_emptied) % _DELETES == 0:
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
        # All connections are there from the start: a harness takes a new socket for a step that is at work.
        await self.heartbeat("nobody", 1)
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
            CleanSchemas.give_back(self._schema)
