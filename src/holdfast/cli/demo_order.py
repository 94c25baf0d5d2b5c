"""The workflow of the demo: five steps, a sleep and an approval. The demo and its workers build their app from it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypedDict

from holdfast import Context, Holdfast, Retry, WorkerConfig, Workflow

LEASE_SECONDS = 2
STEPS = ("reserve", "charge", "print label", "pack", "cool off", "approval", "ship")

ReportKind = Literal["begins", "fails"]
Report = Callable[[str, ReportKind], None]
"""Called by the function of a step, so once for each execution; a replayed step does not call it."""


@dataclass(frozen=True, slots=True)
class Order:
    id: str
    item: str
    total: int


class Shipped(TypedDict):
    payment: str
    label: str
    parcel: str
    approved_by: str


def order_app(url: str | None, report: Report) -> tuple[Holdfast, Workflow[Order, Shipped]]:
    """An app with the order workflow, on the database at ``url``."""
    # A short lease, so that the takeover from a killed worker is quick. The default is 30 seconds.
    app = Holdfast(url, worker=WorkerConfig(lease=LEASE_SECONDS, poll="200 ms"))
    bank_calls = 0

    async def work(step: str, seconds: float) -> None:
        report(step, "begins")
        await asyncio.sleep(seconds)

    @app.step
    async def reserve(order: Order) -> str:
        await work("reserve", 0.5)
        return f"1 x {order.item}"

    @app.step(retry=Retry(limit=5, delay="1 second", backoff="constant"))
    async def charge(order: Order) -> str:
        nonlocal bank_calls
        bank_calls += 1
        await work("charge", 0.5)
        if bank_calls == 1:
            report("charge", "fails")
            raise ConnectionError("the bank did not answer")
        return f"paid {order.total}"

    @app.step(name="print label")
    async def print_label(order: Order) -> str:
        await work("print label", 0.5)
        return f"label for {order.id}"

    @app.step
    async def pack(order: Order) -> str:
        await work("pack", 2.5)
        return f"parcel with {order.item}"

    @app.step
    async def ship(parcel: str) -> str:
        await work("ship", 0.5)
        return parcel

    @app.workflow(name="demo.order")
    async def fulfil(ctx: Context, order: Order) -> Shipped:
        await reserve(order)
        payment = await charge(order)
        label, parcel = await asyncio.gather(print_label(order), pack(order))
        await ctx.sleep("cool off", "1 second")
        approval = await ctx.wait_for_event("approval", type="approval")
        parcel = await ship(parcel)
        return Shipped(payment=payment, label=label, parcel=parcel, approved_by=approval.payload["by"])

    return app, fulfil
