"""The workflows of the example app that show one thing each: an order, a chain with an outbox, a graph, limits.

The engine treats this file as code of a user, so that the dashboard shows its lines (``holdfast.core.tracebacks``).
"""

# ruff: noqa: ARG001  (the engine passes every argument)

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, TypedDict

from holdfast import (
    ChainTask,
    Completed,
    Context,
    Holdfast,
    Outbound,
    OutboundEvent,
    Outcome,
    Rate,
    Retry,
    Waiting,
)

PACKING_SECONDS = 30
"""Duration of the step in which the worker can be killed."""


@dataclass
class Order:
    id: str
    item: str = "teapot"
    total: int = 125


@dataclass
class Payments:
    tenant: str


class Approval(TypedDict):
    by: str


def define_shop(app: Holdfast) -> None:
    """Register the workflows, limits and schedules of the shop."""
    _add_order(app)
    _add_fulfil(app)
    _add_chain(app)
    _add_graph(app)
    _add_settlement(app)


def _add_order(app: Holdfast) -> None:
    @app.step
    async def price(order: Order) -> int:
        await asyncio.sleep(0.3)
        return order.total

    @app.step(retry=Retry(limit=5, delay="2 seconds", backoff="constant"))
    async def charge(order: Order) -> str:
        await asyncio.sleep(1)
        return f"paid {order.total}"

    @app.step(name="pack parcel", retry=Retry(limit=5, delay="1 second", backoff="constant"))
    async def pack(order: Order) -> str:
        await asyncio.sleep(PACKING_SECONDS)  # time to kill the worker
        return f"parcel with {order.item}"

    @app.step(name="print label")
    async def label(order: Order) -> str:
        await asyncio.sleep(2)
        return f"label for {order.id}"

    @app.workflow(events={"approval": Approval})
    async def order(ctx: Context, order: Order) -> dict[str, Any]:
        """Charge, pack and ship an order. Kill the worker while it packs: another one continues."""
        ctx.set_search(item=order.item, total=order.total)
        ctx.log.info("order received", data={"id": order.id})
        await price(order)
        payment = await charge(order)
        parcel, text = await asyncio.gather(pack(order), label(order))
        approval = await ctx.wait_for_event("approval", type="approval", timeout="24 hours")
        return {"payment": payment, "parcel": parcel, "label": text, "approved": approval.payload["by"]}


def _add_fulfil(app: Holdfast) -> None:
    calls: dict[str, int] = {}

    @app.step(name="charge card", retry=Retry(limit=5, delay="10 seconds", backoff="constant"))
    async def charge(order: Order) -> dict[str, Any]:
        await asyncio.sleep(0.2)
        calls[order.id] = calls.get(order.id, 0) + 1
        if calls[order.id] < 3:
            raise ConnectionError("bank.example does not answer")
        return {"id": "pay_91x4", "amount": order.total, "card_token": "tok_123"}

    @app.step
    async def reserve(sku: str) -> str:
        await asyncio.sleep(len(sku) * 0.05)
        return f"r-{sku}"

    @app.step
    async def score(order: Order) -> float:
        await asyncio.sleep(0.1)
        return 0.31

    @app.workflow
    async def fraud_check(ctx: Context, order: Order) -> str:
        """Score an order, and ask an analyst."""
        risk = await score(order)
        answer = await ctx.wait_for_event("analyst", type="analyst", timeout="3 days")
        return f"{answer.payload} at {risk}"

    @app.workflow(events={"approval": Approval})
    async def fulfil(ctx: Context, order: Order) -> dict[str, Any]:
        """Charge, reserve, let two people look, then ship."""
        ctx.set_search(item=order.item, total=order.total)
        payment = await charge(order)
        ctx.log.info("charged", data={"payment": payment["id"]})
        reserved = await asyncio.gather(reserve("teapot"), reserve("cups"), reserve("tray"))
        await ctx.sleep("cool off", "30 minutes")
        verdict = await ctx.run(fraud_check, order, id=f"{order.id}-fraud")
        ctx.log.warning("a person decides", data={"verdict": verdict})
        approval = await ctx.wait_for_event("approval", type="approval", timeout="24 hours")
        return {"payment": payment["id"], "reserved": reserved, "approved": approval.payload["by"]}


def _add_chain(app: Holdfast) -> None:
    shipping = app.chain("shipping", version=2)

    @shipping.step("VALIDATE", max_attempts=3)
    async def validate(task: ChainTask) -> Outcome:
        return Completed({"ok": True}, outbound=[Outbound("order.accepted", {"order": task.params["id"]})])

    @shipping.step("RESERVE", max_attempts=5)
    async def reserve(task: ChainTask) -> Outcome:
        return Completed(["r-71aa", "r-71ab"], outbound=[Outbound("stock.reserved", {"items": 2})])

    @shipping.step("PAY", max_attempts=5)
    async def pay(task: ChainTask) -> Outcome:
        if task.event is not None:
            return Completed(task.event.payload)
        return Waiting("payment.received", timeout="4 hours", outbound=[Outbound("payment.requested", {"total": 48})])

    @shipping.step("PACK", max_attempts=3)
    async def pack(task: ChainTask) -> Outcome:
        return Completed({"boxes": 1})

    @shipping.step("SHIP", max_attempts=5)
    async def ship(task: ChainTask) -> Outcome:
        return Waiting("courier.came", timeout="2 days") if task.event is None else Completed("shipped")

    @app.outbox(max_attempts=1)
    async def deliver(event: OutboundEvent) -> None:
        if event.type == "payment.requested":
            raise ConnectionError("HTTP 503 from hooks.acme.example")


def _add_graph(app: Holdfast) -> None:
    catalogue = app.graph("catalogue")

    @catalogue.node
    async def shops(params: int) -> list[int]:
        return list(range(params))

    @catalogue.node(map=shops, retry=Retry(limit=5, delay="6 hours", backoff="constant"))
    async def fetch(shops: int) -> str:
        if shops % 40 == 7:
            raise ConnectionError("HTTP 429")
        return f"shop {shops}"

    @catalogue.node
    async def rates(params: int) -> dict[str, float]:
        return {"EUR": 1.0, "SEK": 11.2}

    @catalogue.node(after=[rates])
    async def price_bands(rates: dict[str, float]) -> int:
        return len(rates)

    @catalogue.node(after=[rates], when=lambda rates: len(rates) > 5)
    async def audit(rates: dict[str, float]) -> str:
        return "audited"

    @catalogue.node(after=[rates], retry=Retry(limit=0))
    async def geo(rates: dict[str, float]) -> str:
        raise KeyError("region")

    @catalogue.node(after=[fetch, price_bands])
    async def match(fetch: list[str], price_bands: int) -> int:
        return len(fetch) * price_bands

    @catalogue.node(after=[match])
    async def load(match: int) -> int:
        return match

    @catalogue.node(after=[load])
    async def report(load: int) -> str:
        return f"{load} prices"


def _add_settlement(app: Holdfast) -> None:
    bank = app.limit("bank", concurrency=3, rate=Rate(600, "1 minute"))
    tenants = app.limit("tenants", concurrency=2, key="tenant", fair=True)

    @app.step(name="call bank", limits=[bank], retry=Retry(limit=3, delay="5 minutes"))
    async def call_bank(payments: Payments) -> str:
        await asyncio.sleep(3600)
        return payments.tenant

    @app.workflow(limits=[tenants])
    async def settlement(ctx: Context, payments: Payments) -> str:
        """Settle the payments of a tenant. At most three calls of the bank at a time."""
        ctx.set_search(tenant=payments.tenant)
        return await call_bank(payments)

    @app.workflow
    async def nightly(ctx: Context, area: str) -> str:
        """A scheduled report."""
        return f"report on {area}"

    schedules: dict[str, dict[str, Any]] = {
        "nightly-report": {"cron": "0 3 * * *", "timezone": "Europe/Berlin"},
        "stock-sync": {"every": "30 minutes"},
        "fx-rates": {"cron": "*/15 * * * MON-FRI"},
        "catalogue-eu": {"cron": "0 */4 * * *", "overlap": "allow"},
        "dunning": {"cron": "0 9 * * MON-FRI", "timezone": "Europe/Berlin"},
        "cleanup": {"every": "6 hours", "paused": True},
        "weekly-digest": {"cron": "0 7 * * MON", "timezone": "America/New_York"},
    }
    for name, options in schedules.items():
        app.schedule(name, nightly, params=name, **options)
