"""Absurd on PostgreSQL, through its public Python API (`absurd-sdk`; the schema is that of `absurdctl`).

A step is one call of a function in the database, in a transaction of its own; a client learns of a result by polling,
at first after 50 ms and then at doubled intervals. The worker is not in its default configuration, which runs one task
at a time and polls four times a second: here it runs up to 100 tasks and polls every 10 ms. Client and worker have a
connection each.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import asyncpg
from absurd_sdk import AsyncAbsurd, AsyncTaskContext
from absurdctl import BUNDLED_SCHEMA_SQL

from bench.contract import Contender, Job, Pending

CONCURRENCY = 100
POLL_SECONDS = 0.01
CLAIM_SECONDS = 120


async def steps(params: dict[str, Any], ctx: AsyncTaskContext) -> int:
    total = 0

    async def add_one() -> int:
        return total + 1

    for n in range(params["count"]):
        total = await ctx.step(f"add_one {n}", add_one)
    return total


async def waiter(params: dict[str, Any], ctx: AsyncTaskContext) -> object:
    return await ctx.await_event(params["event"])


@dataclass(frozen=True, slots=True)
class _Run:
    app: AsyncAbsurd
    task: str
    event: str = ""

    async def result(self) -> object:
        snapshot = await self.app.await_task_result(self.task)
        assert snapshot.state == "completed", snapshot
        return snapshot.result

    async def send(self) -> None:
        await self.app.emit_event(self.event, "payload")


class AbsurdContender:
    """W3c and W6 are left out: a task cannot await a task of its own queue, and W6 measures leases on SQLite."""

    def __init__(self, app: AsyncAbsurd) -> None:
        self._app = app

    async def steps(self, count: int) -> Pending:
        return _Run(self._app, (await self._app.spawn("steps", {"count": count}))["task_id"])

    async def waiter(self) -> Pending:
        event = uuid.uuid4().hex
        return _Run(self._app, (await self._app.spawn("waiter", {"event": event}))["task_id"], event)

    async def parent(self, children: int) -> Pending:
        raise NotImplementedError

    async def naps(self, index: int) -> Pending:
        raise NotImplementedError

    async def all_naps_done(self, runs: int) -> None:
        raise NotImplementedError


@asynccontextmanager
async def opened(job: Job) -> AsyncIterator[Contender]:
    connection = await asyncpg.connect(job.db)
    await connection.execute(BUNDLED_SCHEMA_SQL)
    await connection.close()
    client, worker = AsyncAbsurd(job.db), AsyncAbsurd(job.db)
    await client.create_queue()
    for app in (client, worker):
        app.register_task("steps")(steps)
        app.register_task("waiter")(waiter)
    working = asyncio.create_task(
        worker.start_worker(concurrency=CONCURRENCY, claim_timeout=CLAIM_SECONDS, poll_interval=POLL_SECONDS)
    )
    try:
        yield AbsurdContender(client)
    finally:
        working.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await working
        await client.close()
        await worker.close()
