"""Limits of steps, runs, chain steps and graph nodes, from the code to the database."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from holdfast import ChainTask, Completed, Context, Holdfast, InvalidOptionError, Rate, Retry, Transaction, WorkerConfig
from holdfast.store.protocol import ChangeLimit, LimitValues, Pace
from holdfast.testing import Harness


class InProgress:
    """The number of attempts in progress by key, and its maximum."""

    def __init__(self) -> None:
        self.inside: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.entered = 0
        self._lock = threading.Lock()

    @contextmanager
    def enter(self, key: str = "") -> Iterator[None]:
        with self._lock:
            self.entered += 1
            self.inside[key] += 1
            self.most[key] = max(self.most[key], self.inside[key])
        try:
            yield
        finally:
            with self._lock:
                self.inside[key] -= 1


@dataclass
class Order:
    tenant: str
    n: int = 0


@pytest.fixture
def app(tmp_path: Path) -> Holdfast:
    return Holdfast(f"sqlite:///{tmp_path}/flow.db", worker=WorkerConfig(poll="100 ms"))


async def _used(app: Holdfast) -> int:
    return sum(limit.used for limit in await app.list_limits())


async def _all_returned(app: Holdfast) -> None:
    """Wait until no permit is in use: the last return is written after the result of the step."""
    async with asyncio.timeout(60):
        while await _used(app):
            await asyncio.sleep(0.005)


async def _finish_all(app: Holdfast, workflow: Any, params: list[Any]) -> list[Any]:
    runs = [await app.start(workflow, one) for one in params]
    async with asyncio.timeout(60):
        return [await run.result() for run in runs]


async def test_a_limit_of_a_step_holds_over_all_runs(app: Holdfast) -> None:
    bank, room = app.limit("bank", concurrency=3), InProgress()

    @app.step(limits=[bank])
    async def charge(n: int) -> int:
        with room.enter():
            await asyncio.sleep(0.002)
        return n

    @app.workflow
    async def pay(ctx: Context, n: int) -> int:
        return sum(await asyncio.gather(*(charge(n) for _ in range(3))))

    async with app:
        assert await _finish_all(app, pay, list(range(20))) == [3 * n for n in range(20)]
        await _all_returned(app)

    assert room.most[""] == 3
    assert room.entered == 60


async def test_plain_functions_and_transactions_take_limits(app: Holdfast) -> None:
    bank, room = app.limit("bank", concurrency=2), InProgress()
    pair = threading.Barrier(2, timeout=300)  # both permits are in use at the same time

    @app.step(limits=[bank])
    def blocking(n: int) -> int:
        with room.enter():
            pair.wait()
        return n

    @app.step(limits=[bank])
    async def write(tx: Transaction, n: int) -> int:
        with room.enter():
            await asyncio.sleep(0.001)
        return n

    @app.workflow
    async def both(ctx: Context, n: int) -> int:
        return await blocking(n) + await write(n)

    async with app:
        assert await _finish_all(app, both, list(range(8))) == [2 * n for n in range(8)]
        await _all_returned(app)

    assert room.most[""] == 2


async def test_a_limit_with_keys_holds_for_each_key(app: Holdfast) -> None:
    tenants, room = app.limit("tenants", key="tenant", concurrency=1), InProgress()

    @app.step(limits=[tenants])
    async def work(order: Order) -> None:
        with room.enter(order.tenant):
            await asyncio.sleep(0.002)

    @app.workflow
    async def one(ctx: Context, order: Order) -> None:
        await work(order)

    async with app:
        await _finish_all(app, one, [Order("ab"[n % 2], n) for n in range(12)])

    assert dict(room.most) == {"a": 1, "b": 1}


async def test_a_limit_of_a_workflow_counts_runs_and_a_sleeping_run_holds_no_permit(app: Holdfast) -> None:
    runs, room = app.limit("runs", concurrency=2), InProgress()

    @app.step
    async def work(n: int) -> None:
        with room.enter():
            await asyncio.sleep(0.002)

    @app.workflow(limits=[runs])
    async def one(ctx: Context, nap: int) -> int:
        await work(nap)
        await ctx.sleep("nap", nap)
        await work(nap)
        return nap

    async with app, asyncio.timeout(60):
        asleep = [await app.start(one, 3600) for _ in range(18)]
        assert await _finish_all(app, one, [0, 0]) == [0, 0]
        for run in asleep:
            while (await run.status()).status != "waiting":
                await asyncio.sleep(0.005)
            await run.terminate()
        await _all_returned(app)

    assert room.most[""] <= 2
    assert room.entered == 18 + 2 * 2


async def test_a_run_that_holds_until_its_end_keeps_its_permit_while_it_waits(app: Holdfast) -> None:
    runs = app.limit("runs", concurrency=1)

    @app.workflow(limits=[runs], hold="until_end")
    async def one(ctx: Context, n: int) -> int:
        await ctx.wait_for_event("go", type="go")
        return n

    async with Harness(app) as h:
        first = await h.start(one, 1)
        await h.run_until_idle()
        second = await h.start(one, 2)
        await second.send_event("go")
        await h.run_until_idle()
        assert (await second.status()).status != "complete"

        await first.send_event("go")
        await h.run_until_idle()

        assert [(await run.status()).status for run in (first, second)] == ["complete", "complete"]


async def test_the_start_option_key_is_the_key_of_the_run(app: Holdfast) -> None:
    tenants = app.limit("tenants", key="tenant", concurrency=1)

    @app.workflow(limits=[tenants], hold="until_end")
    async def one(ctx: Context, order: Order) -> None:
        await ctx.wait_for_event("go", type="go")

    async with Harness(app) as h:
        await h.start(one, Order("a"), key="shared")
        second = await h.start(one, Order("b"), key="shared")
        third = await h.start(one, Order("c"))
        await h.run_until_idle()

        [limit] = await h.app.list_limits()
        assert (limit.used, limit.waiting) == (2, 1)
        why = (await second.describe()).why
        assert "limit 'tenants'" in why
        assert "limit 'tenants'" not in (await third.describe()).why


async def test_the_keys_of_a_fair_limit_share_the_capacity_of_a_worker(tmp_path: Path) -> None:
    app = Holdfast(f"sqlite:///{tmp_path}/turns.db", worker=WorkerConfig(concurrency=1, poll="100 ms"))
    tenants = app.limit("tenants", key="tenant", fair=True)
    served: list[str] = []

    @app.workflow(limits=[tenants])
    async def flow(ctx: Context, params: dict[str, str]) -> None:
        served.append(params["tenant"])

    async with app.connect():
        ids = [(await app.start(flow, {"tenant": tenant})).id for tenant in "aaaaaaaabac"]
    async with app:
        for name in ids:
            await (await app.get(flow, name)).result(timeout=60)

    assert served.index("b") <= 2
    assert served.index("c") <= 2


async def test_a_failed_attempt_returns_its_permit_and_its_retry_needs_another(app: Holdfast) -> None:
    bank, attempts = app.limit("bank", concurrency=1), 0

    @app.step(limits=[bank], retry=Retry(limit=3, delay="1 ms"))
    async def flaky() -> str:
        nonlocal attempts
        attempts += 1
        if attempts < 3:
            raise ValueError("again")
        return "done"

    @app.workflow
    async def one(ctx: Context) -> str:
        return await flaky()

    async with app:
        assert await (await app.start(one)).result() == "done"
        await _all_returned(app)


async def test_a_timeout_does_not_run_while_the_attempt_waits_for_its_permit(app: Holdfast) -> None:
    bank, release = app.limit("bank", concurrency=1), asyncio.Event()

    @app.step(limits=[bank])
    async def hold() -> None:
        await release.wait()

    @app.step(limits=[bank], timeout="1 second", retry=Retry(limit=0))
    async def quick() -> str:
        return "in time"

    @app.workflow
    async def first(ctx: Context) -> None:
        await hold()

    @app.workflow
    async def second(ctx: Context) -> str:
        return await quick()

    async with app:
        holder = await app.start(first)
        run = await app.start(second)
        await asyncio.sleep(1.5)
        release.set()
        assert await run.result() == "in time"
        await holder.result()


async def test_a_cancelled_wait_for_a_permit_is_withdrawn(app: Holdfast) -> None:
    bank, release, called = app.limit("bank", concurrency=1), asyncio.Event(), []

    @app.step(limits=[bank])
    async def hold() -> None:
        await release.wait()

    @app.step(limits=[bank])
    async def never() -> None:
        called.append("never")

    @app.workflow
    async def first(ctx: Context) -> None:
        await hold()

    @app.workflow
    async def second(ctx: Context) -> str:
        try:
            await asyncio.wait_for(never(), 0.05)
        except TimeoutError:
            return "gave up"
        return "called"

    async with app:
        holder = await app.start(first)
        assert await (await app.start(second)).result() == "gave up"
        release.set()
        await holder.result()
        await _all_returned(app)

    assert called == []


async def test_a_rate_delays_starts_and_the_harness_advances_to_them(app: Holdfast) -> None:
    slow, times = app.limit("slow", rate=Rate(1, per="10 seconds")), []

    @app.step(limits=[slow])
    async def call() -> None:
        times.append(h.now())

    @app.workflow
    async def one(ctx: Context) -> None:
        await call()

    async with Harness(app) as h:
        begin = h.now()
        for _ in range(3):
            await h.start(one)
        await h.run_until_idle()
        await h.advance("1 minute")

        assert [round((at - begin).total_seconds()) for at in times] == [0, 10, 20]


async def test_chain_steps_take_limits(app: Holdfast) -> None:
    bank, room = app.limit("bank", concurrency=1), InProgress()
    chain = app.chain("orders")

    @chain.step("CHARGE", limits=[bank])
    async def charge(task: ChainTask) -> Completed:
        with room.enter():
            await asyncio.sleep(0.002)
        return Completed(1)

    async with app:
        assert await _finish_all(app, chain, [None] * 6) == [1] * 6
        await _all_returned(app)

    assert room.most[""] == 1


async def test_graph_nodes_take_limits(app: Holdfast) -> None:
    bank, room = app.limit("bank", concurrency=2), InProgress()
    graph = app.graph("etl")

    def node(name: str) -> Callable[..., Any]:
        async def work() -> str:
            with room.enter():
                await asyncio.sleep(0.002)
            return name

        return graph.node(name=name, limits=[bank])(work)

    for name in "abcde":
        node(name)

    async with app:
        run = await app.start(graph)
        await run.result()
        assert (await run.results()) == {name: name for name in "abcde"}
        await _all_returned(app)

    assert room.most[""] == 2


async def test_a_limit_is_changed_at_run_time(app: Holdfast) -> None:
    bank, room, release = app.limit("bank", concurrency=1), InProgress(), asyncio.Event()

    @app.step(limits=[bank])
    async def hold() -> None:
        with room.enter():
            await release.wait()

    @app.workflow
    async def one(ctx: Context, n: int) -> None:
        await hold()

    async with app:
        runs = [await app.start(one, n) for n in range(3)]
        async with asyncio.timeout(60):
            while room.inside[""] != 1:
                await asyncio.sleep(0.005)
            await app.set_limit("bank", concurrency=3)
            while room.inside[""] != 3:
                await asyncio.sleep(0.005)
        release.set()
        for run in runs:
            await run.result()
        [record] = (await app.audit()).items
        assert (record.action, record.target) == ("limit_change", "limit bank")


async def test_a_limit_that_is_raised_wakes_waiting_attempts_without_a_poll(tmp_path: Path) -> None:
    app = Holdfast(f"sqlite:///{tmp_path}/flow.db", worker=WorkerConfig(poll="1 hour"))
    bank = app.limit("bank", concurrency=0)

    @app.step(limits=[bank])
    async def charge() -> int:
        return 7

    @app.workflow
    async def flow(ctx: Context) -> int:
        return await charge()

    async with app, asyncio.timeout(60):
        run = await app.start(flow)
        while not [limit for limit in await app.list_limits() if limit.waiting]:
            await asyncio.sleep(0.005)
        await app.set_limit("bank", concurrency=1)

        assert await run.result() == 7


async def test_turns_that_wait_for_permits_leave_their_slots_to_others(tmp_path: Path) -> None:
    app = Holdfast(f"sqlite:///{tmp_path}/flow.db", worker=WorkerConfig(concurrency=2, poll="50 ms"))
    bank, release = app.limit("bank", concurrency=1), asyncio.Event()

    @app.step(limits=[bank])
    async def hold() -> None:
        await release.wait()

    @app.workflow
    async def limited(ctx: Context, n: int) -> None:
        await hold()

    @app.workflow
    async def free(ctx: Context) -> str:
        return "ran"

    async with app:
        runs = [await app.start(limited, n) for n in range(6)]
        async with asyncio.timeout(60):
            assert await (await app.start(free)).result() == "ran"
        release.set()
        for run in runs:
            await run.result()


async def test_a_worker_that_stops_leaves_waiting_attempts_to_the_next(app: Holdfast) -> None:
    bank, called = app.limit("bank", concurrency=0), []

    @app.step(limits=[bank])
    async def call() -> str:
        called.append(1)
        return "called"

    @app.workflow
    async def one(ctx: Context) -> str:
        return await call()

    async with app:
        run = await app.start(one, id="one")
        async with asyncio.timeout(60):
            while not any(limit.waiting for limit in await app.list_limits()):
                await asyncio.sleep(0.005)
    assert called == []

    async with app:
        await app.set_limit("bank", concurrency=1)
        assert await (await app.get(one, run.id)).result() == "called"


async def test_a_cancelled_run_does_not_wait_for_its_permit(app: Holdfast) -> None:
    runs = app.limit("runs", concurrency=0)

    @app.workflow(limits=[runs])
    async def one(ctx: Context) -> None:
        await ctx.wait_for_event("go", type="go")

    async with Harness(app) as h:
        run = await h.start(one)
        await h.run_until_idle()
        await run.cancel()
        await h.run_until_idle()

        assert (await run.status()).status == "cancelled"


@pytest.mark.parametrize(
    "declare",
    [
        lambda app: app.limit("x", concurrency=-1),
        lambda app: app.limit("x", rate=5),
        lambda app: app.limit(""),
        lambda app: app.limit("x", weights={"a": 0}),
        lambda app: app.step(limits=app.limit("x")),
        lambda app: app.workflow(limits=["x"]),
        lambda app: app.workflow(hold="forever"),
        lambda _: Rate(0, per="1 second"),
        lambda _: Rate(1_000_001, per="1 second"),
        lambda _: Rate(1, per="1 day", burst=1_000_000_000),
    ],
)
def test_a_wrong_declaration_is_refused(app: Holdfast, declare: Callable[[Holdfast], object]) -> None:
    with pytest.raises(InvalidOptionError):
        declare(app)


async def test_a_stored_rate_that_would_be_refused_now_is_listed_and_can_be_changed(app: Holdfast) -> None:
    app.limit("bank", concurrency=1)
    async with Harness(app) as h:
        stored = LimitValues(rate=Pace(1, 86_400_000, 1_000_000_000))
        await h._opened().store.limits(ChangeLimit("bank", stored))

        [limit] = await h.app.list_limits()
        assert limit.rate is not None
        assert limit.rate.burst == 1_000_000_000
        changed = await h.app.set_limit("bank", rate=Rate(1, per="1 day"))
        assert changed.rate == Rate(1, "1 day", 1)


async def test_metrics_have_the_use_of_each_limit(app: Holdfast) -> None:
    app.collect_metrics()
    bank, began, go = app.limit("bank", concurrency=1), asyncio.Event(), asyncio.Event()

    @app.step(limits=[bank])
    async def call() -> None:
        began.set()
        await go.wait()

    @app.workflow
    async def one(ctx: Context) -> None:
        await call()

    async with app:
        runs = [await app.start(one) for _ in range(3)]
        await began.wait()
        async with asyncio.timeout(60):
            while 'holdfast_limit_waiting{limit="bank"} 2' not in await app.metrics_text():
                await asyncio.sleep(0.005)
        assert 'holdfast_limit_in_use{limit="bank"} 1' in await app.metrics_text()
        go.set()
        for run in runs:
            await run.result()
