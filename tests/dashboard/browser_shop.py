"""The app that the browser tests look at: a workflow, a chain, a graph, and values that try to break a page."""

from __future__ import annotations

import asyncio
from typing import Any

from pydantic import BaseModel

from holdfast import ChainTask, Completed, Context, Holdfast, Outbound, OutboundEvent, Outcome, Retry, Waiting


class Order(BaseModel):
    id: str
    total: int = 10
    express: bool = False


class Approval(BaseModel):
    by: str
    ok: bool = True


HOSTILE: dict[str, Any] = {
    "markup": "<img src=x onerror=\"document.title='broken'\"><script>document.title='broken'</script>",
    "bidi": "safe\u202egnp.exe",
    "long": "x" * 850_000,
    "keys": {f"key {number}": number for number in range(10_000)},
    "</script>": "key",
}


def define_shop(app: Holdfast) -> None:
    """Register the definitions of the shop."""
    _define_workflows(app)
    _define_chain(app)
    _define_graph(app)


def _define_workflows(app: Holdfast) -> None:
    calls: dict[str, int] = {}

    @app.step(retry=Retry(limit=3, delay=0.05))
    async def charge(order: Order) -> dict[str, Any]:
        calls[order.id] = calls.get(order.id, 0) + 1
        if calls[order.id] == 1:
            raise ConnectionError("bank.example does not answer")
        return {"payment": "pay_1", "password": "hidden"}

    @app.step(retry=Retry(limit=0))
    async def invoice(order: Order) -> str:
        raise KeyError("vat_id")

    @app.workflow
    async def check(ctx: Context, order: Order) -> float:
        return 0.5

    @app.workflow(events={"approval": Approval})
    async def fulfil(ctx: Context, order: Order) -> dict[str, Any]:
        """Charge, then wait for a person."""
        ctx.set_search(order=order.id, total=order.total)
        payment = await charge(order)
        ctx.log.info("charged", payment)
        await asyncio.gather(ctx.sleep("one", 0.01), ctx.sleep("two", 0.01))
        await ctx.run(check, order, id=f"{order.id}-check")
        if order.total < 0:
            await invoice(order)
        approval = await ctx.wait_for_event("approval", type="approval", timeout="24 hours")
        return {"by": approval.payload.by}

    @app.workflow
    async def hostile(ctx: Context, params: Any) -> Any:
        ctx.log.info(str(params.get("markup")), {"bidi": params.get("bidi")})
        await ctx.wait_for_event("go", type="go")
        return params


def _define_chain(app: Holdfast) -> None:
    parcels = app.chain("parcels", version=2)

    @parcels.step("PACK", max_attempts=3)
    async def pack(task: ChainTask) -> Outcome:
        return Completed({"boxes": 1}, outbound=[Outbound("parcel.packed", {"order": task.params})])

    @parcels.step("HAND_OVER")
    async def hand_over(task: ChainTask) -> Outcome:
        return Completed("gone") if task.event else Waiting("courier.came", timeout="24 hours")

    @app.outbox
    async def tell(event: OutboundEvent) -> None: ...


def _define_graph(app: Holdfast) -> None:
    etl = app.graph("etl")

    @etl.node
    async def extract(params: int) -> list[int]:
        return list(range(params))

    @etl.node(after=[extract])
    async def total(extract: list[int]) -> int:
        return sum(extract)
