"""A failover without a second server: the database loses its last commits, and says that it has another timeline.

For the engine this is the same as the promotion of a standby that lagged behind: all connections break, rows and values
of sequences are those of an earlier moment, and the timeline is another one.
"""

from __future__ import annotations

from urllib.parse import urlsplit

import asyncpg

from store.postgres.fault_tools import Proxy

_TABLES = "SELECT tablename FROM pg_tables WHERE schemaname = 'holdfast' AND tablename <> 'holdfast_meta'"
_COLUMNS = """
SELECT string_agg(quote_ident(attname), ', ') FROM pg_attribute
 WHERE attrelid = $1::text::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = ''
"""
_NEW_TIMELINE = """
CREATE OR REPLACE FUNCTION holdfast.holdfast_timeline() RETURNS BIGINT LANGUAGE sql AS 'SELECT {timeline}::bigint'
"""
_BREAK = """
SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
 WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name = 'holdfast'
"""


class Failover:
    """The moment to which a database is set back. ``other`` is a connection that survives.

    ``proxy``: leads to the server, and accepts no connections while the database is set back. Without it, connections
    stay open, as through a pooler.
    """

    def __init__(self, other: asyncpg.Connection, proxy: Proxy | None = None) -> None:
        self._other = other
        self._proxy = proxy
        self._timeline = 1_000_000
        self._tables: list[str] = []
        self._last_id = 1

    async def save(self) -> None:
        """Remember the present rows: later commits will be lost."""
        self._tables = [row[0] for row in await self._other.fetch(_TABLES)]
        await self._other.execute("DROP SCHEMA IF EXISTS saved CASCADE; CREATE SCHEMA saved")
        async with self._other.transaction(isolation="repeatable_read"):
            for table in self._tables:
                await self._other.execute(f"CREATE TABLE saved.{table} AS TABLE holdfast.{table}")
        self._last_id = await self._other.fetchval("SELECT last_value FROM holdfast.holdfast_run_id")

    async def fail_over(self) -> None:
        """Set the database back to the saved rows."""
        self._timeline += 1
        if self._proxy is not None:
            self._proxy.go_down()
            await self._other.execute(_BREAK)
        async with self._other.transaction():
            if self._tables:
                await self._other.execute(f"LOCK TABLE {', '.join(f'holdfast.{table}' for table in self._tables)}")
            for table in self._tables:
                columns = await self._other.fetchval(_COLUMNS, f"holdfast.{table}")
                await self._other.execute(f"DELETE FROM holdfast.{table}")
                await self._other.execute(
                    f"INSERT INTO holdfast.{table} ({columns}) OVERRIDING SYSTEM VALUE"
                    f" SELECT {columns} FROM saved.{table}"
                )
            if self._tables:
                await self._other.execute(f"SELECT setval('holdfast.holdfast_run_id', {self._last_id})")
            await self._other.execute(_NEW_TIMELINE.format(timeline=self._timeline))
        if self._proxy is not None:
            self._proxy.restore()


def through(proxy: Proxy, url: str) -> str:
    """The URL of a database through a proxy."""
    return f"postgresql://postgres@/{urlsplit(url).path[1:]}?host={proxy.folder}"
