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
    Channel,
    Child,
    Completed,
    Context,
    Dead,
    Event,
    Failed,
    Finished,
    Graph,
    Handle,
    History,
    Holdfast,
    InstanceDescription,
    InstanceStatus,
    InstanceSummary,
    Killed,
    LogLine,
    Message,
    Ok,
    Outbound,
    OutboundEvent,
    OutboxRecord,
    Outcome,
    Page,
    Retry,
    RetryStep,
    Selected,
    Start,
    Started,
    Step,
    StepTx,
    SyncClient,
    SyncHandle,
    Transaction,
    Waiting,
    Webhook,
    Workflow,
    select,
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


@app.workflow
async def optional(ctx: Context, order: Order | None) -> int:
    return 1


@app.workflow
async def with_default(ctx: Context, n: int = 3) -> int:
    return n


@app.workflow(name="named without input", retry=Retry(limit=2))
async def named_without_input(ctx: Context) -> int:
    return 1


@app.workflow
async def anything(ctx: Context, params: Any) -> int:
    return 1


async def keyword_only(n: int, *, unit: str) -> str:
    return f"{n} {unit}"


def two(n: int, text: str = "") -> bytes:
    return text.encode() * n


async def in_transaction(tx: Transaction, item: str) -> int:
    return await tx.execute("DELETE FROM item WHERE name = ?", item)


def in_sync_transaction(tx: StepTx, item: str) -> None:
    tx.execute("DELETE FROM item WHERE name = ?", item)


@app.step
def sync_with_tx(tx: StepTx, item: str) -> bool:
    return True


@app.step
async def takes_anything(value: Any) -> int:
    return 1


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
    assert_type(await ctx.do("length with options", len, "text", timeout="5s", raises=(ValueError,)), int)
    assert_type(await ctx.do("by keyword", charge, order=order, currency="usd"), str)
    assert_type(await ctx.do("keyword and option", charge, order, currency="usd", retry=Retry(limit=0)), str)
    assert_type(await ctx.do("required keyword", keyword_only, 3, unit="kg"), str)
    assert_type(await ctx.do("default", two, 3), bytes)
    assert_type(await ctx.do("default with option", two, 3, timeout="1 minute"), bytes)
    assert_type(await ctx.do("both with option", two, 3, "x", timeout="1 minute"), bytes)
    assert_type(await ctx.do("lambda", lambda: 5), int)
    assert_type(await ctx.do("transaction", in_transaction, "book"), int)
    assert_type(await ctx.do("transaction with option", in_transaction, "book", retry=Retry()), int)
    assert_type(await ctx.do("sync transaction", in_sync_transaction, "book"), None)
    assert_type(await sync_with_tx("book"), bool)
    await takes_anything(5)

    assert_type(await ctx.run(simple, 5), str)
    assert_type(await ctx.run(bare), int)
    assert_type(await ctx.run(optional), int)
    assert_type(await ctx.run(with_default, 4, parent_close="abandon"), int)
    assert_type(await ctx.run("named", 5), Any)
    assert_type(await ctx.run(remote, 5), str)
    assert_type(await ctx.spawn(simple, 5, link=True), Child[str])
    assert_type(await (await ctx.spawn(bare)).result(), int)
    assert_type(await ctx.spawn("named"), Child[Any])
    async with ctx.saga() as saga:
        saga.add(charge, order, currency="usd")
        saga.add(in_transaction, "book")

    orders_sent = ctx.listen("order", payload=Order)
    assert_type(orders_sent, Channel[Order])
    assert_type(ctx.listen("plain"), Channel[Any])
    assert_type(ctx.listen("whole", messages=True), Channel[Message])
    numbers: Channel[int] = Channel(capacity=3)
    assert_type(await select(numbers), Selected[int])
    assert_type(await select(orders_sent, numbers, default=True), Selected[Order | int])
    assert_type(await select(orders_sent, numbers, ctx.after("1 hour")), Selected[Order | int | datetime])
    assert_type((await select(numbers.sending(3), orders_sent)).value, Order | None)
    assert_type(await select(numbers, numbers, numbers, numbers, ctx.inbox), Selected[Any])
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
assert_type(bare, Workflow[None, int])
assert_type(simple, Workflow[int, str])
assert_type(fulfil, Workflow[Order, dict[str, str]])
assert_type(optional, Workflow[Order | None, int])
assert_type(with_default, Workflow[int | None, int])
assert_type(named_without_input, Workflow[None, int])
assert_type(anything, Workflow[Any, int])
assert_type(remote, Workflow[int, str])
assert_type(app.remote("takes int", params=int), Workflow[int, Any])
assert_type(app.remote("returns text", result=str), Workflow[Any, str])
assert_type(app.remote("unknown"), Workflow[Any, Any])
assert_type(app.remote("union", params=int | None, result=list[str]), Workflow[Any, list[str]])


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
        assert_type(await app.start(simple, params=5, on_conflict="fail", on_reuse="allow_if_failed"), Handle[str])
        assert_type(await app.start(optional), Handle[int])
        assert_type(await app.start(optional, Order("o-1", 1)), Handle[int])
        assert_type(await app.start(with_default), Handle[int])
        assert_type(await app.start(with_default, 5), Handle[int])
        assert_type(await app.start(anything), Handle[int])
        assert_type(await app.start(anything, {"a": 1}), Handle[int])
        assert_type(await app.start(remote, 5, cron="0 3 * * *"), Handle[str])
        assert_type(await app.start_many(bare, [Start("a"), Start("b")]), list[Handle[int]])
        assert_type(await app.start_many(optional, [Start("a"), Start("b", Order("o", 1))]), list[Handle[int]])
        assert_type(await app.start_many("named", [Start("a", 1), Start("b", "x")]), list[Handle[Any]])
        either: Workflow[int, str] | str = simple if run.id else "simple"
        await app.start(either, 5)
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
        assert_type(await h.run(simple, 5, id="x"), str)
        assert_type(await h.run(bare), int)
        assert_type(await h.run("simple", 5), Any)
        assert_type(h.now(), datetime)
        assert_type(await h.tick(), int)


async def faked() -> None:
    async with Harness(app, steps={charge: lambda order: "paid", validate: ship_order, extract: list}, real_timeout=5):
        pass


async def simulated() -> None:
    def check(run: SimulatedRun) -> None: ...

    report = await simulate(app, simple, 5, events=["go", ("approval", 1), SentEvent("x", id="1")], check=check)
    assert_type(report, SimulationReport)
    await simulate(app, "simple", 5, allow=["a"], world=list, view=sorted, seed=3, fail=False)
    await simulate(app, simple, 5, allow=lambda run: run.status == "complete")


# --- chains

orders = app.chain("order.process", version=2, params=Order)
assert_type(orders, Chain[Order])
assert_type(app.chain("untyped"), Chain[Any])


def takes_any_definition(workflow: Workflow, chain: Chain, graph: Graph, starts: list[Start]) -> None: ...


takes_any_definition(simple, orders, app.graph("untyped graph"), [Start("a"), Start("b", 5)])


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
    await app.start(app.chain("untyped too"))
    await app.start(app.chain("untyped three"), {"any": "thing"})


# --- graphs

etl = app.graph("etl", version=1)
assert_type(etl, Graph[Any])
assert_type(app.graph("typed", params=Order), Graph[Order])
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


def blocking_calls() -> None:
    with app.sync(worker=True) as client:
        assert_type(client, SyncClient)
        assert_type(client.start(fulfil, Order("o-1", 1)).result(), dict[str, str])
        assert_type(client.start("fulfil"), SyncHandle[Any])
        assert_type(client.start("fulfil").status(), InstanceStatus)
        assert_type(client.list("fulfil", limit=5), Page[InstanceSummary])


def schedules() -> None:
    app.schedule("bare", bare, cron="0 3 * * *", timezone="Europe/Berlin")
    app.schedule("order", fulfil, params=Order("o-1", 1), every="1 hour", overlap="queue_one")
    app.schedule("chain", orders, params=Order("o-1", 1), cron=["0 3 * * *"])
    app.schedule("by name", "fulfil", params={"id": "o-1"}, cron="0 3 * * *", queue="night")
