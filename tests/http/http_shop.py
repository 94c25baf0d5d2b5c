"""The app that most tests of the HTTP API serve: small workflows, each for one kind of test."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict

from holdfast import (
    Cancel,
    ChainTask,
    Completed,
    Context,
    Dead,
    Holdfast,
    NonRetryableError,
    Outbound,
    OutboundEvent,
    Outcome,
    Retry,
    RetryStep,
    Waiting,
)


@dataclass
class Order:
    id: str
    total: int


@dataclass
class Approval:
    by: str
    at: datetime


class Strict(BaseModel):
    """A model that accepts only what its schema describes."""

    model_config = ConfigDict(strict=True, extra="forbid")

    name: str
    count: int = 0
    tags: list[str] = []


@dataclass
class Gates:
    """Events that steps wait for and tests set (doors), and the names of the steps that have begun."""

    entered: list[str] = field(default_factory=list)
    doors: dict[str, asyncio.Event] = field(default_factory=dict)

    def door(self, name: str) -> asyncio.Event:
        return self.doors.setdefault(name, asyncio.Event())


def make_shop(url: str = "sqlite://", **options: Any) -> tuple[Holdfast, Gates]:
    app = Holdfast(url, **options)
    gates = Gates()

    @app.step
    async def charge(order: Order) -> str:
        return f"paid {order.total}"

    @app.workflow
    async def order(ctx: Context, order: Order) -> dict[str, Any]:
        payment = await charge(order)
        ctx.log.info("charged", {"payment": payment})
        approval = await ctx.wait_for_event("approval", type="approval", timeout="24 hours")
        return {"payment": payment, "approval": approval.payload}

    @app.workflow
    async def echo(_ctx: Context, value: Any) -> Any:
        return value

    @app.workflow
    async def nothing(_ctx: Context) -> None:
        return None

    @app.workflow
    async def strict(_ctx: Context, value: Strict) -> str:
        return value.name

    @app.workflow
    async def failing(_ctx: Context, message: str = "no") -> None:
        raise NonRetryableError(message, "CardDeclined")

    @app.workflow
    async def sleepy(ctx: Context) -> str:
        await ctx.sleep("nap", "1 hour")
        return "awake"

    @app.workflow
    async def waiter(ctx: Context) -> Any:
        return (await ctx.wait_for_event("go", type="go", timeout="1 hour")).payload

    @app.workflow(events={"nod": Approval, "hint": str | None})
    async def approved(ctx: Context) -> str:
        approval: Approval = (await ctx.wait_for_event("nod", type="nod")).payload
        return f"{approval.by} in {approval.at.year}"

    async def behind_door(key: str) -> str:
        gates.entered.append(key)
        await gates.door(key).wait()
        return f"through {key}"

    @app.workflow
    async def doors(ctx: Context, count: int = 2) -> list[str]:
        return [
            await ctx.do(f"door-{n}", behind_door, f"{ctx.info.instance_id}-{ctx.info.run_number}-{n}", timeout=60)
            for n in range(count)
        ]

    attempts: dict[str, int] = {}

    async def flaky(id: str) -> str:
        attempts[id] = attempts.get(id, 0) + 1
        raise ValueError(f"attempt {attempts[id]}")

    @app.workflow
    async def retrying(ctx: Context) -> str:
        return await ctx.do("flaky", flaky, ctx.info.instance_id, retry=Retry(limit=3, delay="1 hour"))

    @app.workflow
    async def chatty(ctx: Context, lines: int) -> int:
        for n in range(lines):
            (ctx.log.info if n % 2 else ctx.log.warning)(f"line {n}", category="even" if n % 2 == 0 else "odd")
        for n in range(lines):
            await ctx.do(f"step {n}", str, n)
        await ctx.wait_for_event("end", type="end", timeout="1 hour")
        return lines

    @app.workflow
    async def tagged(ctx: Context, attributes: dict[str, Any]) -> None:
        ctx.set_search(**attributes)
        await ctx.wait_for_event("go", type="go", timeout="1 hour")

    add_processes(app)
    add_chain(app, gates)
    add_graph(app, gates)
    return app, gates


def add_processes(app: Holdfast) -> None:
    """Add workflows that handle cancellation, and workflows that operate on other runs."""

    @app.workflow
    async def tidy(ctx: Context) -> None:
        try:
            await ctx.wait_for_event("go", type="go", timeout="1 hour")
        except asyncio.CancelledError:
            event = await ctx.events.receive()
            assert isinstance(event, Cancel)
            await ctx.do("tidy up", list, [event.reason])
            raise

    @app.workflow
    async def stubborn(ctx: Context) -> None:
        try:
            await ctx.sleep("sit", "1 day")
        finally:
            await ctx.sleep("sit on", "1 day")

    @app.workflow(cancel="event")
    async def cancel_event(ctx: Context) -> list[Any]:
        event = await ctx.events.receive()
        assert isinstance(event, Cancel)
        return [event.reason, event.deadline and event.deadline.isoformat()]

    @app.workflow(retry=Retry(limit=1, delay=0))
    async def second(ctx: Context) -> None:
        if ctx.info.attempt == 1:
            raise ValueError("not the first time")
        await ctx.wait_for_event("go", type="go", timeout="1 hour")

    @app.workflow
    async def helper(ctx: Context) -> Any:
        question = await ctx.listen("question", messages=True).receive()
        await question.reply(f"yes, {question.payload}")
        return await ctx.listen("leave").receive()

    @app.workflow
    async def boss(ctx: Context, friend: str) -> list[Any]:
        child = await ctx.spawn(helper, id="h", link=True)
        await ctx.monitor(friend)
        await ctx.send(friend, "hello", {"from": "boss"})
        reply = await ctx.ask(child.pid, "question", "boss", timeout="1 minute")
        await ctx.wait_for_event("go", type="go", timeout="1 hour")
        await ctx.send(child.pid, "leave", "bye")
        result = await child.result()
        await ctx.unmonitor(friend)
        await ctx.cancel(friend, "enough")
        return [reply, result]


def add_chain(app: Holdfast, gates: Gates) -> None:
    """Add a chain whose input selects its outcome; its outbound events fail until the door "outbox" is open."""
    orders = app.chain("order.process", version=2, params=str | None)

    @orders.step("VALIDATE", max_attempts=3, lease="30 seconds", timeout="60 seconds")
    async def validate(task: ChainTask) -> Outcome:
        if task.params == "busy":
            return RetryStep("1 hour", "gateway busy")
        if task.params == "stolen":
            return Dead("card stolen")
        return Completed({"ok": True}, outbound=[Outbound("order.validated", {"\ud800": "\x00"})])

    @orders.step("PAY")
    async def pay(task: ChainTask) -> Outcome:
        if task.event is None:
            return Waiting("paid", timeout="1 hour", outbound=[Outbound("payment.requested")])
        return Completed(task.event.payload)

    @orders.step("SHIP")
    async def ship(task: ChainTask) -> Any:
        return {"shipped": task.outputs["PAY"]}

    @app.outbox(max_attempts=2)
    async def deliver(event: OutboundEvent) -> None:
        if not gates.door("outbox").is_set():
            raise ConnectionError("no route to host")
        gates.entered.append(event.id)


def add_graph(app: Holdfast, gates: Gates) -> None:
    """Add a graph over the numbers below its input; with fewer than three numbers it skips nodes."""
    pipeline = app.graph("pipeline", version=3)

    @pipeline.node
    async def extract(params: int = 3) -> list[int]:
        gates.entered.append("extract")
        return [*range(params)]

    @pipeline.node(map=extract)
    async def double(extract: int) -> int:
        return extract * 2

    @pipeline.node(after=[double], when=lambda double: len(double) > 2)
    async def total(double: list[int]) -> int:
        return sum(double)

    @pipeline.node(after=[total])
    async def report(total: int) -> str:
        return f"total {total}"

    @pipeline.node(after=[extract], retry=Retry(limit=1, delay="1 hour"))
    async def audit(extract: list[int]) -> None:
        if extract == [0]:
            raise ValueError("one is too few")
