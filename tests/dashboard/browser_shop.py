"""The app of the browser tests: a workflow, a chain, a graph, and values that would break a page as markup."""

from __future__ import annotations

import asyncio
from typing import Any

from pydantic import BaseModel

from driving import until
from holdfast import ChainTask, Completed, Context, Handle, Holdfast, Outbound, OutboundEvent, Outcome, Retry, Waiting


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


CORPUS = (
    HOSTILE["markup"],
    "safe\u202egnp.exe\u2066\u200b\ufeff",
    "'\"><svg/onload=alert(1)>{{7*7}}${7*7}<!--",
    "javascript:document.title='broken'",
    "\u0000\u001b[31mred\u001b[0m\r\n\x7f",
    "\U0001f600\u0301" * 200,
    "</td></tr></table></script></style><script>document.title='broken'</script>",
)
"""Texts of names, errors, log lines, attributes and reasons. As markup or unescaped text, they would break a page."""


def define_shop(app: Holdfast) -> None:
    """Register the definitions of the shop."""
    _define_workflows(app)
    _define_chain(app)
    _define_graph(app)


async def until_it_waits_for_approval(order: Handle[Any]) -> None:
    async def waits() -> bool:
        return any(step.wait_event_type == "approval" for step in (await order.history()).steps)

    await until(waits, seconds=60)


WORKFLOWS = ("fulfil", "check", "unsafe", "hostile", "parcels", "etl", "letters", "chat", "curious")
_calls: dict[str, int] = {}


def forget_calls() -> None:
    """Let the first call of the bank for each order, and the first delivery of a letter, fail again."""
    _calls.clear()


def _define_workflows(app: Holdfast) -> None:
    @app.step(retry=Retry(limit=3, delay=0.05))
    async def charge(order: Order) -> dict[str, Any]:
        _calls[order.id] = _calls.get(order.id, 0) + 1
        if _calls[order.id] == 1:
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
    async def chat(ctx: Context, question: str) -> str:
        thoughts = ctx.stream("thoughts")
        await thoughts.write({"status": "thinking"})
        await ctx.wait_for_event("go", type="go")
        await thoughts.write({"status": "done"})
        return "It depends."

    @app.workflow
    async def curious(ctx: Context, pid: str) -> int:
        return int(await ctx.ask(pid, "how_many", {"item": "tea"}))

    @app.workflow
    async def unsafe(ctx: Context, number: int) -> None:
        text = CORPUS[number]
        ctx.set_search(text=text[:60].replace("\0", ""))
        ctx.log.warning(text, {text: text})

        async def fail() -> None:
            raise ValueError(text)

        await ctx.do(f"step {text[:100]}", fail, retry=Retry(limit=0))

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

    letters = app.chain("letters")

    @letters.step("WRITE")
    async def write(task: ChainTask) -> Outcome:
        return Completed("written", outbound=[Outbound("letter.sent", {})])

    @app.outbox(max_attempts=1)
    async def tell(event: OutboundEvent) -> None:
        _calls[event.type] = _calls.get(event.type, 0) + 1
        if event.type == "letter.sent" and _calls[event.type] == 1:
            raise ConnectionError("the letter box is full")


def _define_graph(app: Holdfast) -> None:
    etl = app.graph("etl")

    @etl.node
    async def extract(params: int) -> list[int]:
        return list(range(params))

    @etl.node(after=[extract])
    async def total(extract: list[int]) -> int:
        return sum(extract)
