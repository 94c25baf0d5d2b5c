"""Clean PostgreSQL schemas for tests of the engine, and stores on them for the harness."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import ClassVar

import asyncpg

from holdfast.ports import Clock, SystemRandomness
from holdfast.store.postgres import PostgresStore
from holdfast.store.protocol import Migrated, Store
from postgres_server import in_a_thread_of_its_own, new_database

_POOL = 3


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
        return cls._url

    @classmethod
    def take(cls) -> str:
        schema = cls._free.pop() if cls._free else f"clean_{next(cls._made)}"
        in_a_thread_of_its_own(_empty(cls.url(), schema))
        return schema

    @classmethod
    def give_back(cls, schema: str) -> None:
        cls._free.append(schema)


async def _empty(url: str, schema: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        tables = await connection.fetch(
            "SELECT tablename FROM pg_tables WHERE schemaname = $1 AND tablename <> 'holdfast_meta'", schema
        )
        if tables:
            names = ", ".join(f'"{schema}"."{row["tablename"]}"' for row in tables)
            await connection.execute(f"TRUNCATE {names} RESTART IDENTITY")
    finally:
        await connection.close()


class HarnessStores:
    """Makes PostgreSQL stores for a harness, each on an empty schema that is given back when the store is closed."""

    def __call__(self, clock: Clock) -> Store:
        url = f"{CleanSchemas.url()}&pool_size={_POOL}"
        return _CleanStore(url, schema=CleanSchemas.take(), clock=clock, random=SystemRandomness())


class _CleanStore(PostgresStore):
    async def open(self, *, migrate: bool = True) -> Migrated:
        migrated = await super().open(migrate=migrate)
        # All connections are there from the start: a harness takes a new socket for a step that is at work.
        await self.heartbeat("nobody", 1)
        pool = self._database._pool  # type: ignore[union-attr]
        connections = [await pool.acquire() for _ in range(_POOL)]
        for connection in connections:
            await pool.release(connection)
        return migrated

    async def close(self) -> None:
        await super().close()
        CleanSchemas.give_back(self._schema)
