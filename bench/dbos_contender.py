"""DBOS on SQLite, through its public API, in two configurations; on PostgreSQL only as in its quick start.

`dbos_default` is the configuration of its quick start. `dbos` is tuned by settings that DBOS documents or that SQLite
stores in the file, without loss of durability: a WAL journal (synchronous stays FULL, SQLite's default), one
executor thread instead of an unbounded number (SQLite has one writer), and in W4, where it matters, a poll
for notifications every millisecond instead of every second.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from typing import Any

import asyncpg
from dbos import DBOS, DBOSConfig, SetWorkflowID

from bench.contract import NAP_SECONDS, STEPS_PER_RUN, Contender, Job, NapLog, Pending

TOPIC = "go"
EVENT_TIMEOUT_SECONDS = 60
EXECUTOR_THREADS = 1
NOTIFICATION_POLL_SECONDS = 0.001
COMPLETION_POLL_SECONDS = 0.1

_nap_log: NapLog | None = None  # DBOS registers functions globally, so their log is global too


@DBOS.step()
async def add_one(value: int) -> int:
    return value + 1


@DBOS.workflow()
async def steps(count: int) -> int:
    total = 0
    for _ in range(count):
        total = await add_one(total)
    return total


@DBOS.workflow()
async def parent(children: int) -> int:
    handles = [await DBOS.start_workflow_async(steps, 1) for _ in range(children)]
    return sum([await handle.get_result() for handle in handles])


@DBOS.workflow()
async def waiter() -> object:
    return await DBOS.recv_async(TOPIC, EVENT_TIMEOUT_SECONDS)


@DBOS.step()
async def nap(run: int, step: int) -> int:
    assert _nap_log is not None
    _nap_log.begin(run, step)
    await asyncio.sleep(NAP_SECONDS)
    _nap_log.end(run, step)
    return step


@DBOS.workflow()
async def naps(run: int) -> int:
    for step in range(STEPS_PER_RUN):
        await nap(run, step)
    return run


@dataclass(frozen=True, slots=True)
class _Run:
    handle: Any

    async def result(self) -> object:
        return await self.handle.get_result()

    async def send(self) -> None:
        await DBOS.send_async(self.handle.workflow_id, "payload", TOPIC)


class DbosContender:
    def __init__(self, job: Job) -> None:
        self._db = job.db
        self._on_postgres = job.on_postgres

    async def steps(self, count: int) -> Pending:
        return _Run(await DBOS.start_workflow_async(steps, count))

    async def parent(self, children: int) -> Pending:
        return _Run(await DBOS.start_workflow_async(parent, children))

    async def waiter(self) -> Pending:
        return _Run(await DBOS.start_workflow_async(waiter))

    async def naps(self, index: int) -> Pending:
        with SetWorkflowID(f"naps-{index}"):
            return _Run(await DBOS.start_workflow_async(naps, index))

    async def all_naps_done(self, runs: int) -> None:
        """Poll the number of completed rows: handles of recovered runs poll too, and thousands would slow DBOS down."""
        if self._on_postgres:
            connection = await asyncpg.connect(self._db)
            query = "select count(*) from dbos.workflow_status where status = 'SUCCESS'"
            while await connection.fetchval(query) < runs:
                await asyncio.sleep(COMPLETION_POLL_SECONDS)
            await connection.close()
            return
        query = "select count(*) from workflow_status where status = 'SUCCESS'"
        with closing(sqlite3.connect(self._db, timeout=30)) as file:
            while file.execute(query).fetchone()[0] < runs:
                await asyncio.sleep(COMPLETION_POLL_SECONDS)


def _config(job: Job) -> DBOSConfig:
    config = DBOSConfig(name="bench", system_database_url=job.url, log_level="CRITICAL", enable_otlp=False)
    if job.contender == "dbos":
        config["max_executor_threads"] = EXECUTOR_THREADS
    if job.contender == "dbos" and job.measure == "event":
        config["notification_listener_polling_interval_sec"] = NOTIFICATION_POLL_SECONDS
    return config


@asynccontextmanager
async def opened(job: Job) -> AsyncIterator[Contender]:
    global _nap_log  # noqa: PLW0603 - see above
    if job.naps:
        _nap_log = NapLog(job.naps)
    if job.contender == "dbos":
        with closing(sqlite3.connect(job.db)) as connection:
            connection.execute("pragma journal_mode = wal")  # kept in the file
    DBOS(config=_config(job))
    DBOS.launch()
    yield DbosContender(job)
    with contextlib.suppress(Exception):
        DBOS.destroy(workflow_completion_timeout_sec=0)
