"""Random limits, keys and start policies on simulated workers that crash, checked against a small reference.

One seed is one execution: a client starts runs with random policies, and pauses, cancels and restarts runs, pauses a
queue and raises limits, while workers are killed at random. Workflows with children, transactions, a chain and a graph
share the limits. ``FlowWatch`` checks the database after every operation. At the end the reference checks the replies
that the client received: every run has ended, each item of a batch is in one run, and a debounced run has the params of
the last start that it stands for.
"""

from __future__ import annotations

import asyncio
import gc
import json
from contextlib import suppress
from itertools import pairwise
from random import Random
from typing import Any

from holdfast import (
    Batch,
    ChainTask,
    Completed,
    Context,
    Debounce,
    Handle,
    Holdfast,
    Limit,
    Rate,
    Retry,
    Transaction,
    WorkerConfig,
)
from holdfast.errors import HoldfastError, LimitReachedError
from holdfast.testing import Harness
from holdfast.testing.simulation.app_process import AppProcess
from holdfast.testing.simulation.database import SimulatedDatabase
from holdfast.testing.simulation.engine_log import capture_errors
from holdfast.testing.simulation.fault_plan import FaultPlan
from holdfast.testing.simulation.scenario import BASELINE_SEED
from holdfast.testing.simulation.scenario_loop import ScenarioLoop
from holdfast.testing.simulation.streams import stream
from holdfast.testing.simulation.trace import Trace

_STARTS = 14
_BATCH = 3
_WAIT_MS = 1000
_WORKERS = 2
_END_SECONDS = 60
_MAX_DEATHS = 30
_POLICIES: list[dict[str, Any]] = [
    {}, {}, {"singleton": "queue"}, {"singleton": "queue"}, {"singleton": "skip"}, {"singleton": "replace_waiting"},
    {"singleton": "cancel_running"}, {"debounce": Debounce("1 second", max_wait="3 seconds", key="d")},
    {"debounce": Debounce("1 second", key="d")}, {"debounce": Debounce("1 second", key="d")},
    {"on_limit": "drop"}, {"on_limit": "reject"},
]  # fmt: skip


def _make_app(random: Random) -> Holdfast:
    app = Holdfast("sqlite://", worker=WorkerConfig(lease="2 seconds", poll="500 ms", concurrency=20, max_losses=1000))
    bank = app.limit("bank", concurrency=random.randint(1, 3))
    fast = app.limit("fast", rate=Rate(20, per="1 second", burst=random.randint(1, 4)))
    tenants = app.limit("tenants", key="tenant", concurrency=random.randint(1, 2), fair=True)
    runs = app.limit("runs", concurrency=random.randint(1, 2), fair=True)

    @app.step(limits=[bank, fast, tenants], retry=Retry(limit=1000, delay="50 ms", backoff="constant"))
    async def visit(tenant: str, n: int) -> int:
        await asyncio.sleep(0.02 * (n % 4))
        return n

    @app.workflow(limits=[runs.by(lambda params: params[0])], retry=Retry(limit=2, delay="100 ms"))
    async def flow(ctx: Context, params: tuple[str, int]) -> int:
        tenant, n = params
        await asyncio.gather(visit(tenant, n), visit(tenant, n + 1))
        await ctx.sleep("nap", 0.05 * (n % 3))
        return await visit(tenant, n + 2)

    _add_models(app, bank, tenants)

    @app.workflow(batch=Batch(size=_BATCH, wait=_WAIT_MS / 1000, key=lambda item: item % 2))
    async def collect(ctx: Context, items: list[int]) -> int:
        return sum([await visit("batch", item) for item in items])

    return app


def _add_models(app: Holdfast, bank: Limit, tenants: Limit) -> None:
    """A workflow with children and a transaction, a chain and a graph, under the limits of the other runs."""
    forever = Retry(limit=1000, delay="50 ms", backoff="constant")
    families = app.limit("families", concurrency=2)
    chain, graph = app.chain("orders"), app.graph("etl")

    @app.step(limits=[bank], retry=forever)
    async def book(tx: Transaction, n: int) -> int:
        return n

    @app.workflow(limits=[families], hold="until_end")
    async def family(ctx: Context, n: int) -> int:
        children = [ctx.run("flow", (tenant, n), key=tenant) for tenant in "ab"]
        total: int = sum(await asyncio.gather(*children))
        return total + await book(n)

    @chain.step("A", limits=[bank])
    async def a(task: ChainTask) -> Completed:
        return Completed(1)

    @chain.step("B", limits=[bank, tenants.by(lambda _: "a")])
    async def b(task: ChainTask) -> Completed:
        return Completed(task.outputs["A"] + 1)

    @graph.node(limits=[bank], retry=forever)
    async def left() -> int:
        return 1

    @graph.node(limits=[bank], retry=forever)
    async def right() -> int:
        return 2

    @graph.node(after=[left, right], limits=[bank], retry=forever)
    async def both(left: int, right: int) -> int:
        return left + right


class _Calls:
    """Permits the death of every worker, and calls the functions of steps unchanged."""

    def __init__(self) -> None:
        self.deaths = 0
        self.function = lambda call: call.function

    def spare_worker(self) -> bool:
        """True once enough workers have died: without a bound there would be no progress."""
        return self.deaths >= _MAX_DEATHS


class StartsSimulation:
    """One execution."""

    def __init__(self, seed: int) -> None:
        self.random = stream(seed, "starts")
        self.trace = Trace()
        self.app = _make_app(self.random)
        self.loop = ScenarioLoop(stream(seed, "schedule"), 1_000_000)
        self.database = SimulatedDatabase(self.loop, self.trace)
        calls: Any = _Calls()
        faults = FaultPlan(seed, None)
        config = self.app.worker_config
        self.workers = [
            AppProcess(f"worker {n}", self.app, self.loop, self.database, faults, config=config, calls=calls,
                       died=self._boot_later)
            for n in range(_WORKERS)
        ]  # fmt: skip
        self.client = AppProcess("outside", self.app, self.loop, self.database, FaultPlan(BASELINE_SEED, ()))
        self.debounced: dict[str, int] = {}
        """The params of the last start that each debounced run stands for."""
        self.items: list[int] = []
        self.runs: list[Handle[Any]] = []
        """Runs that may be paused, cancelled and restarted."""
        self.failures: list[str] = []

    def execute(self) -> list[str]:
        """Run to the end; returns the violations of promises."""
        collecting = gc.isenabled()
        gc.disable()
        try:
            with capture_errors([]):
                self.loop.run_until_complete(self._run())
        finally:
            with capture_errors([]):
                self.loop.end()
            for process in (*self.workers, self.client):
                process.end()
            self.database.close()
            if collecting:
                gc.enable()
        return [*self.trace.violations, *self.failures]

    def _boot_later(self, worker: AppProcess, _how: str) -> None:
        self.loop.call_later(self.random.uniform(0.02, 1.0), worker.boot, context=self.loop.main.context())

    async def _run(self) -> None:
        await self.loop.spawn(self.database.process, self.database.open())
        self.client.boot()
        for worker in self.workers:
            worker.boot()
        await asyncio.sleep(0.1)
        for n in range(_STARTS):
            await self._start(n)
            await self._operate()
            await asyncio.sleep(self.random.choice((0, 0, 0.01, 0.2, 0.7)))
            if self.random.random() < 0.15:
                worker = self.random.choice(self.workers)
                if worker.process is not None and worker.process.alive:
                    worker.kill("at random")
        for run in self.runs:
            await self._try(run.resume())
        await self._try(self.client.client.flow.resume_queue("default"))
        await self._wait_for_ends()
        self._check_ends()

    async def _operate(self) -> None:
        """Make a control request, with some probability, on a random run, on the queue or on a limit."""
        flow = self.client.client.flow
        match self.random.randrange(16):
            case 0 | 1:
                await self._try(flow.pause_queue("default"))
            case 2 | 3:
                await self._try(flow.resume_queue("default"))
            case 4:
                await self._try(flow.set_limit("bank", concurrency=4))
            case n if n < 12 and self.runs:
                run = self.random.choice(self.runs)
                action = self.random.choice((run.pause, run.pause, run.resume, run.resume, run.cancel, run.restart))
                await self._try(action())
            case _:
                pass

    async def _try(self, request: Any) -> None:
        """Make a request that may be refused, for example because the run has ended."""
        with suppress(HoldfastError):
            await self.client.do(request)

    async def _start(self, n: int) -> None:
        start = self.client.client.start
        if self.random.random() < 0.3:
            await self.client.do(start("collect", n))
            self.items.append(n)
            return
        if self.random.random() < 0.3:
            workflow = self.random.choice(("family", "orders", "etl"))
            self.runs.append(await self.client.do(start(workflow, n if workflow == "family" else None)))
            return
        tenant = self.random.choice("abc")
        policy = self.random.choice(_POLICIES)
        try:
            run = await self.client.do(start("flow", (tenant, n), key=tenant, **policy))
        except LimitReachedError:
            return
        if "debounce" in policy:
            self.debounced[run.id] = n
        elif not policy:
            self.runs.append(run)

    async def _wait_for_ends(self) -> None:
        for _ in range(_END_SECONDS * 5):
            if not self.database.rows("SELECT 1 FROM holdfast_task LIMIT 1"):
                return
            await asyncio.sleep(0.2)
        self.failures += [f"{row} did not end" for row in self.database.rows(
            "SELECT r.instance_id, r.status, r.note, t.run_at, t.held_at, t.owner FROM holdfast_task AS t "
            "JOIN holdfast_run AS r ON r.id = t.run WHERE t.unit = 0"
        )]  # fmt: skip

    def _check_ends(self) -> None:
        batches = [json.loads(params) for (params,) in self.database.rows(
            "SELECT params FROM holdfast_run WHERE workflow = 'collect' AND number = 0"
        )]  # fmt: skip
        found = sorted(item for batch in batches for item in batch)
        if found != sorted(self.items):
            self.failures.append(f"items {self.items} were started, and batches have {batches}")
        if any(len(batch) > _BATCH or len({item % 2 for item in batch}) > 1 for batch in batches):
            self.failures.append(f"batches are too large or mixed: {batches}")
        self._check_splits()
        for instance, n in self.debounced.items():
            [(params,)] = self.database.rows(
                "SELECT params FROM holdfast_run WHERE instance_id = ? ORDER BY number LIMIT 1", instance
            )
            if json.loads(params)[1] != n:
                self.failures.append(f"debounced run {instance} has {params!r} instead of the params of start {n}")

    def _check_splits(self) -> None:
        """Check that a batch which is not full takes the next item: no worker claims the batch before its due time."""
        rows = self.database.rows(
            "SELECT created_at, params FROM holdfast_run WHERE workflow = 'collect' AND number = 0 ORDER BY id"
        )
        for parity in (0, 1):
            batches = [(at, json.loads(params)) for at, params in rows if json.loads(params)[0] % 2 == parity]
            for (first, batch), (second, _) in pairwise(batches):
                if len(batch) < _BATCH and second < first + _WAIT_MS:
                    self.failures.append(f"batch {batch} was split")


async def fairness() -> list[str]:
    """A key with one waiting run is served after at most one run of each other key."""
    app, served = Holdfast("sqlite://", worker=WorkerConfig(concurrency=100)), list[str]()
    one = app.limit("one", concurrency=1)
    fair = app.limit("fair", key="tenant", fair=True)

    @app.step(limits=[one, fair])
    async def visit(tenant: str) -> None:
        served.append(tenant)
        await asyncio.sleep(0)

    @app.workflow
    async def flow(ctx: Context, tenant: str) -> None:
        await visit(tenant)

    async with Harness(app) as h:
        for tenant in "aaaaaabc":
            await h.start(flow, tenant)
        await h.run_until_idle()
    late = [tenant for tenant in "bc" if served.index(tenant) > 3]
    return [f"key {tenant!r} was served after {served}" for tenant in late]


def run_seed(seed: int) -> list[str]:
    """The violations of one execution."""
    try:
        return StartsSimulation(seed).execute()
    except HoldfastError as error:
        return [f"{type(error).__name__}: {error}"]
