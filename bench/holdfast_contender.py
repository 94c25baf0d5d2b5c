"""Holdfast on SQLite or PostgreSQL, through its public API, in its default configuration (always durable).

Only W6 changes a setting, the lease, and says so in the report.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from bench.contract import NAP_SECONDS, STEPS_PER_RUN, Contender, Job, NapLog, Pending
from holdfast import Context, Handle, Holdfast, WorkerConfig, Workflow

TOPIC = "go"


@dataclass(frozen=True, slots=True)
class Workflows:
    """The workflows of the bench, registered with one app."""

    steps: Workflow[int]
    parent: Workflow[int]
    waiter: Workflow[object]
    naps: Workflow[int]


def build(job: Job) -> tuple[Holdfast, Workflows]:
    app = Holdfast(job.url, worker=WorkerConfig(lease=job.lease))
    steps = _steps(app)
    return app, Workflows(steps=steps, parent=_parent(app, steps), waiter=_waiter(app), naps=_naps(app, job))


def _steps(app: Holdfast) -> Workflow[int]:
    @app.step
    async def add_one(value: int) -> int:
        return value + 1

    @app.workflow
    async def steps(_ctx: Context, count: int) -> int:
        total = 0
        for _ in range(count):
            total = await add_one(total)
        return total

    return steps


def _parent(app: Holdfast, child: Workflow[int]) -> Workflow[int]:
    @app.workflow
    async def parent(ctx: Context, children: int) -> int:
        return sum(await asyncio.gather(*(ctx.run(child, 1) for _ in range(children))))

    return parent


def _waiter(app: Holdfast) -> Workflow[object]:
    @app.workflow
    async def waiter(ctx: Context) -> object:
        return (await ctx.wait_for_event("go", type=TOPIC, timeout="1 minute")).payload

    return waiter


def _naps(app: Holdfast, job: Job) -> Workflow[int]:
    log = NapLog(job.naps) if job.naps else None

    @app.step
    async def nap(run: int, step: int) -> int:
        assert log is not None
        log.begin(run, step)
        await asyncio.sleep(NAP_SECONDS)
        log.end(run, step)
        return step

    @app.workflow
    async def naps(_ctx: Context, run: int) -> int:
        for step in range(STEPS_PER_RUN):
            await nap(run, step)
        return run

    return naps


@dataclass(frozen=True, slots=True)
class _Run:
    handle: Handle[object]

    async def result(self) -> object:
        return await self.handle.result()

    async def send(self) -> None:
        await self.handle.send_event(TOPIC, "payload")


class HoldfastContender:
    def __init__(self, app: Holdfast, workflows: Workflows) -> None:
        self._app = app
        self._workflows = workflows

    async def steps(self, count: int) -> Pending:
        return _Run(await self._app.start(self._workflows.steps, count))

    async def parent(self, children: int) -> Pending:
        return _Run(await self._app.start(self._workflows.parent, children))

    async def waiter(self) -> Pending:
        return _Run(await self._app.start(self._workflows.waiter))

    async def naps(self, index: int) -> Pending:
        return _Run(await self._app.start(self._workflows.naps, index, id=f"naps-{index}"))

    async def all_naps_done(self, runs: int) -> None:
        await asyncio.gather(*(self._nap_done(index) for index in range(runs)))

    async def _nap_done(self, index: int) -> None:
        await (await self._app.get(self._workflows.naps, f"naps-{index}")).result()


@asynccontextmanager
async def opened(job: Job) -> AsyncIterator[Contender]:
    app, workflows = build(job)
    async with app:
        yield HoldfastContender(app, workflows)
