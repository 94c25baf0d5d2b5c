"""Typed usage that the type checkers must accept, with the types users see. It is checked, never run."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from datetime import datetime
from random import Random
from typing import Any, assert_type
from uuid import UUID

from holdfast import (
    Chain,
    ChainTask,
    ChainTaskKind,
    Completed,
    Context,
    Dead,
    Event,
    Failed,
    Finished,
    Handle,
    History,
    Holdfast,
    InstanceDescription,
    InstanceStatus,
    InstanceSummary,
    Killed,
    LogLine,
    Ok,
    Outbound,
    OutboundEvent,
    OutboxRecord,
    Outcome,
    Page,
    Retry,
    RetryStep,
    Start,
    Started,
    Step,
    StepTx,
    Waiting,
    Webhook,
    Workflow,
)
from holdfast.testing import Harness, SentEvent, SimulatedRun, SimulationReport, simulate

app = Holdfast("sqlite://")


@dataclass
class Order:
    id: str
    total: int


@app.step
async def charge(order: Order, *, currency: str = "eur") -> str:
    return f"{order.id} {currency}"


@app.step
def count(text: str) -> int:
    return len(text)


@app.step(retry=Retry(limit=5, delay="10 seconds", backoff="exponential"), timeout="10 minutes", raises=(ValueError,))
async def configured(n: int) -> bytes:
    return bytes(n)


@app.step(name="sync")
def configured_sync(n: int) -> list[int]:
    return [n]


@app.step
async def stored(tx: StepTx, name: str) -> None:
    tx.execute("INSERT INTO item (name) VALUES (?)", name)
    assert_type(tx.start(simple, 5, id="x"), str)
    tx.send("simple/x", "topic", {"n": 1})


@app.workflow
async def bare(ctx: Context) -> int:
    return 1


@app.workflow
async def simple(ctx: Context, n: int) -> str:
    return str(n)


@app.workflow(name="named", persist="task")
async def fulfil(ctx: Context, order: Order) -> dict[str, str]:
    payment = await charge(order, currency="usd")
    assert_type(payment, str)
    assert_type(await count("four"), int)
    assert_type(await configured(3), bytes)
    assert_type(await configured_sync(3), list[int])
    assert_type(await stored("book"), None)

    assert_type(await ctx.do("charge", charge, order), str)
    assert_type(await ctx.do("again", charge, order, retry=Retry(limit=0), timeout="5s"), str)
    assert_type(await ctx.do("length", len, "text"), int)
    both = await asyncio.gather(charge(order), count("x"))
    assert_type(both, tuple[str, int])

    await ctx.sleep("nap", "1 hour")
    await ctx.sleep_until("then", ctx.now())
    assert_type(await ctx.wait_for_event("a", type="a", payload=Order, timeout="1 hour"), Event[Order])
    approval = await ctx.wait_for_event("b", type="b")
    assert_type(approval, Event[Any])
    assert_type(approval.timestamp, datetime)

    assert_type(ctx.uuid4(), UUID)
    assert_type(ctx.random_bytes(4), bytes)
    assert_type(ctx.random, Random)
    assert_type(ctx.info.run_number, int)
    ctx.log.info("paid", {"payment": payment}, category="payments")
    return {"payment": payment}


remote = app.remote("elsewhere", params=int, result=str)

assert_type(charge.name, str)
assert_type(bare, Workflow[int])
assert_type(simple, Workflow[str])
assert_type(fulfil, Workflow[dict[str, str]])


def takes_step(step: Step[[str], int]) -> None: ...


takes_step(count)


def outside() -> Coroutine[Any, Any, str]:
    return charge(Order("o", 1))


async def use() -> None:
    async with app:
        run = await app.start(fulfil, Order("o-1", 125), id="order-o-1", priority=1)
        assert_type(run, Handle[dict[str, str]])
        assert_type(await run.result(timeout="5s"), dict[str, str])
        assert_type(await (await app.start(bare)).result(), int)
        assert_type(await app.start("named"), Handle[Any])
        assert_type(await app.get(simple, "x"), Handle[str])
        assert_type(await app.start_many(simple, [Start("a", 1), Start("b", 2)]), list[Handle[str]])
        assert_type(await app.list(simple, status="waiting"), Page[InstanceSummary])
        assert_type(await app.tick(max_instances=5), int)
        assert_type(await run.status(), InstanceStatus)
        assert_type(await run.describe(), InstanceDescription)
        assert_type((await run.describe()).why, str)
        assert_type(await run.history(), History)
        assert_type(await run.logs(level="warn"), list[LogLine])
        async for line in run.follow_logs():
            assert_type(line, LogLine)
        await run.send_event("approval", {"by": "ann"}, id="once")
        await run.pause()
        await run.resume()
        await run.terminate("not needed")
        await run.restart()
    async with app.connect() as opened:
        assert_type(opened, Holdfast)


async def tested() -> None:
    async with Harness(app, seed=7) as h:
        run = await h.start(simple, 5)
        assert_type(run, Handle[str])
        await h.advance("1 hour", run=False)
        await h.run_until_idle()
        assert_type(await h.crash_everywhere(simple, 5), str)
        assert_type(h.now(), datetime)
        assert_type(await h.tick(), int)


async def simulated() -> None:
    def check(run: SimulatedRun) -> None: ...

    report = await simulate(app, simple, 5, events=["go", ("approval", 1), SentEvent("x", id="1")], check=check)
    assert_type(report, SimulationReport)
    await simulate(app, "simple", 5, allow=["a"], world=list, view=sorted, seed=3, fail=False)
    await simulate(app, simple, 5, allow=lambda run: run.status == "complete")


# --- chains

orders = app.chain("order.process", version=2, params=Order)
assert_type(orders, Chain)


@orders.step("VALIDATE", max_attempts=5, lease="60 seconds", timeout="10 minutes")
async def validate(task: ChainTask) -> Outcome:
    assert_type(task.kind, ChainTaskKind)
    assert_type(task.event, Event[Any] | None)
    assert_type(task.outputs, Mapping[str, Any])
    if task.attempt > 3:
        return Dead("no", outbound=[Outbound("refused")])
    if task.attempt > 2:
        return RetryStep("30 seconds", "busy")
    if task.kind is ChainTaskKind.RUN:
        return Waiting("paid", timeout="1 hour", outbound=[Outbound("asked", {"total": 5})])
    return Completed({"ok": True})


@orders.step("SHIP")
def ship_order(task: ChainTask) -> dict[str, int]:
    return {"seq": task.step_seq}


@app.outbox
async def deliver(event: OutboundEvent) -> None:
    assert_type(event.id, str)


app.outbox(Webhook("https://example.com", "secret"), max_attempts=3)


@app.outbox(concurrency=4)
def deliver_plainly(event: OutboundEvent) -> None: ...


async def with_chains(ctx: Context) -> None:
    assert_type(await app.start(orders, Order("o-1", 5), id="o-1"), Handle[Any])
    assert_type(await app.get(orders, "o-1"), Handle[Any])
    run = await app.get(orders, "o-1")
    assert_type(await run.outbox(), list[OutboxRecord])
    assert_type(await run.redeliver(), int)
    assert_type((await run.history()).steps[0].state, str | None)
    assert_type(await ctx.run(orders, Order("o-1", 5)), Any)


# --- graphs

etl = app.graph("etl", version=1)
again = app.graph("again", 2)


@etl.node
async def extract(params: Order) -> list[int]:
    return [params.total]


@etl.node(map=extract, retry=Retry(limit=2), timeout="1 minute")
def double(extract: int) -> int:
    return extract * 2


@etl.node(after=[extract, "double"], when=lambda double: bool(double))
async def add_up(double: list[int]) -> int:
    return sum(double)


@etl.node(map=extract, map_errors="collect")
def halve(extract: int) -> float:
    return extract / 2


@etl.node(after=[halve])
async def add_halves(halve: list[Ok[float] | Failed]) -> float:
    for item in halve:
        if isinstance(item, Failed):
            assert_type(item.error.message, str)
    return sum(item.value for item in halve if isinstance(item, Ok))


report = etl.node(run=orders, name="report", after=[add_up], input=lambda add_up: Order("o-1", add_up))


async def with_graphs() -> None:
    assert_type(double(4), int)
    assert_type(await add_up([1]), int)
    run = await app.start(etl, Order("o-1", 3))
    assert_type(await run.results(), dict[str, Any])
    assert_type(await run.facts(prefix="result/"), dict[str, Any])
    assert_type(await run.to_mermaid(), str)
    await run.kill("enough")
    said = await app.advance(run)
    assert_type(said, Started | Finished | Killed)
    if isinstance(said, Started):
        assert_type(said.nodes, tuple[str, ...])
