"""Checks of a PostgreSQL server and a schema for ``holdfast doctor``."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NamedTuple

import asyncpg

from holdfast.ports import Clock
from holdfast.store.postgres.errors import DRIVER_ERRORS, translate
from holdfast.store.postgres.settings import parse
from holdfast.store.postgres.sql import migrations, statements
from holdfast.store.protocol.diagnosis import WAITING_MS, Counts, Finding, Severity, Waiting, examine_space

_OLDEST = 140_000
_MAX_SKEW_MS = 5_000
_ROUND_TRIPS = 5
_CONNECTIONS_PER_WORKER = 3
"""Connections of a worker besides its pool: for heartbeats, notifications and live transactions."""
_WRAPAROUND, _NEAR_WRAPAROUND = 1_500_000_000, 1_000_000_000
_MANY_DEAD_ROWS = 100_000
_LONG_TRANSACTION_S = 600
_KEPT_WAL = 1024**3
"""Bytes of WAL that an unused replication slot may keep."""
_FULL_QUEUE = 0.5
"""Filled part of the queue of notifications."""


class _Server(NamedTuple):
    version: str
    number: int
    standby: bool
    fsync: bool
    full_page_writes: bool
    synchronous_commit: bool
    autovacuum: bool
    max_connections: int
    connections: int
    now: int
    notifications: float


class PostgresDoctor:
    def __init__(self, url: str, schema: str, now: Callable[[], int], clock: Clock) -> None:
        self._settings = parse(url)
        self._schema = schema
        self._now = now
        self._clock = clock
        self._sql = statements("doctor", schema)
        self._connection: Any = None

    async def open(self) -> Finding | None:
        """Connect; returns why that is not possible."""
        try:
            timeout = round(self._settings.connect_timeout)
            self._connection = await asyncpg.connect(self._settings.dsn, timeout=timeout)
            exists = await self._connection.fetchval(self._sql["has_schema"])
            found = await self._connection.fetchval(self._sql["schema_version"]) if exists else 0
        except DRIVER_ERRORS as error:
            return Finding(Severity.ERROR, "connection", str(translate(error, self._settings.where)))
        latest = migrations(self._schema)[-1].version
        if found != latest:
            text = f"the schema {self._schema} has version {found}, and this release of Holdfast needs {latest}"
            return Finding(Severity.ERROR, "schema", text, "holdfast migrate URL, or upgrade Holdfast")
        return None

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()

    async def settings(self, lease_ms: int) -> list[Finding]:
        rights = [one async for one in self._rights()]
        if rights:
            return rights
        parts = (self._server(), self._latency(lease_ms), self._disk(), self._maintenance())
        return [finding for part in parts for finding in [one async for one in part]]

    async def _server(self) -> AsyncIterator[Finding]:
        before = self._now()
        server = _Server(*await self._connection.fetchrow(self._sql["settings"]))
        yield Finding(
            Severity.OK, "versions", f"PostgreSQL {server.version}, schema {migrations(self._schema)[-1].version}"
        )
        if server.number < _OLDEST:
            yield Finding(
                Severity.ERROR, "version", f"PostgreSQL {server.version} is too old", "upgrade to 14 or newer"
            )
        if server.standby:
            yield Finding(Severity.ERROR, "standby", "the server is a standby", "name the primary server in the URL")
        for name, on in (("fsync", server.fsync), ("full_page_writes", server.full_page_writes)):
            if not on:
                fix = f"ALTER SYSTEM SET {name} = on; SELECT pg_reload_conf()"
                yield Finding(Severity.ERROR, name, f"{name} is off: a power cut loses acknowledged data", fix)
        if not server.synchronous_commit:
            text = "synchronous_commit is off; Holdfast turns it on for its own transactions, others may be lost"
            yield Finding(Severity.WARNING, "synchronous_commit", text, "ALTER SYSTEM SET synchronous_commit = on")
        if not server.autovacuum:
            yield Finding(Severity.ERROR, "autovacuum", "autovacuum is off", "ALTER SYSTEM SET autovacuum = on")
        skew = server.now - (before + self._now()) // 2
        if abs(skew) > _MAX_SKEW_MS:
            text = f"the clock of the server differs from that of this host by {skew / 1000:.1f} s"
            yield Finding(Severity.WARNING, "clock", text, "synchronise both clocks (NTP)")
        workers = len(await self.workers())
        needed = server.connections + self._settings.pool_size + _CONNECTIONS_PER_WORKER
        if needed > server.max_connections:
            text = (
                f"{server.connections} of {server.max_connections} connections are in use, and another worker needs up "
                f"to {self._settings.pool_size + _CONNECTIONS_PER_WORKER} ({workers} are alive)"
            )
            fix = "raise max_connections, set ?pool_size= in the URL, or use a pooler"
            yield Finding(Severity.WARNING, "connections", text, fix)
        if server.notifications > _FULL_QUEUE:
            text = f"the queue of notifications is {server.notifications:.0%} full: a session listens and does not read"
            yield Finding(Severity.WARNING, "notifications", text, "end idle sessions with an open transaction")

    async def _latency(self, lease_ms: int) -> AsyncIterator[Finding]:
        times = []
        for _ in range(_ROUND_TRIPS):
            started = self._clock.monotonic()
            await self._connection.fetchval("SELECT 1")
            times.append((self._clock.monotonic() - started) * 1000)
        latency = sorted(times)[_ROUND_TRIPS // 2]
        if latency * 30 > lease_ms:
            text = f"a round trip takes {latency:.0f} ms, too long for a lease of {lease_ms} ms"
            yield Finding(Severity.WARNING, "latency", text, "raise WorkerConfig(lease=), or move closer to the server")
        else:
            yield Finding(Severity.OK, "latency", f"a round trip takes {latency:.1f} ms")

    async def _rights(self) -> AsyncIterator[Finding]:
        missing = await self._connection.fetchval(self._sql["missing_rights"], self._schema)
        if missing:
            fix = f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {self._schema} TO CURRENT_USER"
            yield Finding(Severity.ERROR, "rights", f"this role lacks rights on {missing}", fix)

    async def _disk(self) -> AsyncIterator[Finding]:
        """The free space, if the server runs on this host and this role may know where its files are."""
        size, local, directory = await self._connection.fetchrow(self._sql["disk"])
        free = _free_space(directory) if local and directory is not None else None
        if free is None:
            text = f"the database has {size // 1024**2} MB; the free space on the disk of the server is not known here"
            yield Finding(Severity.OK, "disk", text, "watch the free space on the server")
            return
        yield Finding(Severity.OK, "disk", f"the database has {size // 1024**2} MB, {free // 1024**2} MB are free")
        for one in examine_space(free, f"the disk of {directory}"):
            yield one

    async def _maintenance(self) -> AsyncIterator[Finding]:
        for table, dead, live in await self._connection.fetch(self._sql["dead_rows"], self._schema, _MANY_DEAD_ROWS):
            text = f"{table} has {dead} dead rows and {live} live ones"
            yield Finding(Severity.WARNING, "bloat", text, f"VACUUM {self._schema}.{table}")
        if count := await self._connection.fetchval(self._sql["long_transactions"], _LONG_TRANSACTION_S):
            text = f"{count} transactions are open for more than 10 minutes: dead rows cannot be removed"
            yield Finding(
                Severity.WARNING, "transactions", text, "see pg_stat_activity; SELECT pg_terminate_backend(pid)"
            )
        for slot, behind in await self._connection.fetch(self._sql["unused_slots"], _KEPT_WAL):
            text = f"the replication slot {slot} is not used and keeps {behind // 1024**2} MB of WAL"
            yield Finding(Severity.WARNING, "wal", text, f"SELECT pg_drop_replication_slot('{slot}')")
        age = await self._connection.fetchval(self._sql["transaction_age"])
        if age > _NEAR_WRAPAROUND:
            severity = Severity.ERROR if age > _WRAPAROUND else Severity.WARNING
            text = f"the oldest transaction id is {age} transactions old; at 2,000,000,000 the server stops"
            yield Finding(severity, "wraparound", text, "VACUUM (FREEZE)")

    async def counts(self) -> Counts:
        row: Any = await self._connection.fetchrow(self._sql["counts"])
        waiting = [Waiting(*one) for one in await self._connection.fetch(self._sql["waiting"], WAITING_MS)]
        fence, open_runs, stored, parked_runs, suspects, parked_outbox, last_id = row
        return Counts(fence, open_runs, stored, parked_runs, suspects, parked_outbox, last_id, waiting)

    async def workers(self) -> list[tuple[tuple[str, ...], str | None]]:
        """Queues and version of each living worker."""
        rows = await self._connection.fetch(self._sql["living_workers"])
        return [(tuple(queues), version) for queues, version in rows]


def _free_space(directory: str) -> int | None:
    """Free bytes on the disk of a folder of this host; None: there is no such folder."""
    try:
        return shutil.disk_usage(Path(directory)).free
    except OSError:
        return None
