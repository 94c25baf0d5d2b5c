"""Clean PostgreSQL schemas for tests of the engine, and stores on them for the harness."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import ClassVar

import asyncpg

from holdfast.ports import Clock, SystemRandomness
from holdfast.store.postgres import PostgresStore
from holdfast.store.postgres.pool import Pool
from holdfast.store.protocol import Migrated, Store
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


class HarnessStores:
    """Makes PostgreSQL stores for the harnesses of one test, each on an empty schema.

    What a store that is closed leaves behind, its schema and its connections, the next one takes over: a test that
    loses its worker after each commit opens dozens, and connecting takes longer than the rest of it. ``close`` ends it.
    """

    def __init__(self) -> None:
        self._left: list[PostgresStore] = []

    async def __aenter__(self) -> HarnessStores:
        return self

    async def __aexit__(self, *_error: object) -> None:
        while self._left:
            store = self._left.pop()
            await store.close()
            CleanSchemas.give_back(store._schema)

    def __call__(self, clock: Clock) -> Store:
        return _CleanStore(self._left, clock)


class _CleanStore(PostgresStore):
    def __init__(self, left: list[PostgresStore], clock: Clock) -> None:
        super().__init__(f"{CleanSchemas.url()}&pool_size={_POOL}", clock=clock, random=SystemRandomness())
        self._left = left

    async def open(self, *, migrate: bool = True) -> Migrated:
        if self._left:
            left = self._left.pop()
            _hand_over(left, self)
            left._database = None
        else:
            self._schema = CleanSchemas.any()
        migrated = await super().open(migrate=migrate)
        if self._database is not None and self._database._reserved is None:
            # All connections are there from the start: a harness takes a new socket for a step that is at work.
            await self.heartbeat("nobody", 1)
            pool = self._the_pool()
            connections = await asyncio.gather(*(pool.acquire() for _ in range(_POOL)))
            for connection in connections:
                pool.release(connection)
        pool = self._the_pool()
        connection = await pool.acquire()
        await _empty(connection, self._schema)
        pool.release(connection)
        return migrated

    async def close(self) -> None:
        if self._database is None:
            return
        await self._creates.drain()
        await self._sends.drain()
        if self._is_at_rest():
            rest = PostgresStore(f"{CleanSchemas.url()}&pool_size={_POOL}", random=SystemRandomness())
            _hand_over(self, rest)
            self._database = None
            self._left.append(rest)
        else:
            await super().close()
            CleanSchemas.give_back(self._schema)

    def _the_pool(self) -> Pool:
        assert self._database is not None
        assert self._database._pool is not None
        return self._database._pool

    def _is_at_rest(self) -> bool:
        """All connections are there, and nobody has one or waits for one."""
        database, pool = self._database, self._the_pool()
        assert database is not None
        reserved = database._reserved
        return (
            not (database._lent or pool._lent or pool._waiting or pool._connecting or database._reserving.locked())
            and len(pool._idle) == _POOL
            and not any(connection.is_closed() or connection.is_in_transaction() for connection, _ in pool._idle)
            and reserved is not None
            and not reserved.is_closed()
            and self._listener._hears
        )


def _hand_over(old: PostgresStore, new: PostgresStore) -> None:
    assert old._database is not None
    new._schema, new._database, new._process = old._schema, old._database, old._process
    new._guard, new._listener = old._guard, old._listener
    new._commits, new._advances = old._commits, old._advances
    new._database._now = new._now
