"""Wrong usage: every line marked ``# rejected`` must be an error for mypy and for pyright. It is checked, never run.

``test_typing.py`` compares the marked lines with what the type checkers report, so a mistake that they no longer see
fails there.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast import Context, Holdfast, Retry, Start, StepTx, Transaction, Workflow, select
from holdfast.testing import Harness

app = Holdfast("sqlite://")


@dataclass
class Order:
    id: str
    total: int


@app.step
async def charge(order: Order, *, currency: str = "eur") -> str:
    return f"{order.id} {currency}"


@app.workflow
async def bare(ctx: Context) -> int:
    return 1


@app.workflow
async def other(ctx: Context, n: int) -> str:
    return str(n)


@app.workflow(name="optional input")
async def optional(ctx: Context, n: int = 3) -> str:
    return str(n)


@app.workflow(name="named", persist="task")
async def fulfil(ctx: Context, order: Order) -> str:
    return order.id


remote = app.remote("elsewhere", params=int, result=str)
chain = app.chain("chain", params=Order)
graph = app.graph("graph", params=Order)

app.workflow(persist="never")  # rejected
app.workflow(cancel="perhaps")  # rejected
app.remote("elsewhere", parameters=int)  # rejected
number: Workflow[str, str] = other  # rejected
Retry(backoff="quadratic")  # rejected


async def fn(n: int, text: str = "") -> bytes:
    return text.encode() * n


def plain(n: int, text: str) -> bytes:
    return text.encode() * n


async def with_tx(tx: StepTx, n: int) -> int:
    tx.start(other, "x")  # rejected
    tx.start(other)  # rejected
    tx.start(bare, 5)  # rejected
    return n


async def with_transaction(tx: Transaction, n: int) -> int:
    tx.start(other, "x")  # rejected
    return n


async def starts() -> None:
    await app.start(fulfil, "wrong")  # rejected
    await app.start(fulfil)  # rejected
    await app.start(fulfil, None)  # rejected
    await app.start(fulfil, {"id": "o-1", "total": 5})  # rejected
    await app.start(bare, 5)  # rejected
    await app.start(optional, "x")  # rejected
    await app.start(remote, "x")  # rejected
    await app.start(remote)  # rejected
    await app.start(chain, "x")  # rejected
    await app.start(chain)  # rejected
    await app.start(graph, "x")  # rejected
    await app.start(5)  # rejected
    await app.start(other, 5, on_conflict="ignore")  # rejected
    await app.start(other, 5, on_reuse="always")  # rejected
    await app.start(other, 5, prio=3)  # rejected
    await app.start_many(other, [Start("a", "x")])  # rejected
    await app.start_many(other, [Start("a")])  # rejected
    await app.start_many(bare, [Start("a", 5)])  # rejected
    await app.list(status="running")  # rejected
    run = await app.start(other, 5)
    await run.logs(level="trace")  # rejected
    number: int = await run.result()  # rejected


async def steps(ctx: Context, order: Order) -> None:
    await charge("x")  # rejected
    await charge()  # rejected
    await ctx.do("a", charge, "x")  # rejected
    await ctx.do("a", charge)  # rejected
    await ctx.do("b", fn, "x")  # rejected
    await ctx.do("b", fn)  # rejected
    await ctx.do("b", fn, 1, 2)  # rejected
    await ctx.do("b", fn, 1, "a", 3)  # rejected
    await ctx.do("b", fn, "x", retry=Retry())  # rejected
    await ctx.do("b", fn, timeout="1s")  # rejected
    await ctx.do("b", plain, 1)  # rejected
    await ctx.do("b", plain, 1, 2, raises=(ValueError,))  # rejected
    await ctx.do("b", plain, 1, timeout="1s")  # rejected
    await ctx.do("b", plain, 1, "x", retry=5)  # rejected
    await ctx.do("b", with_tx, "x")  # rejected
    await ctx.do("b", with_tx)  # rejected
    await ctx.do("b", with_transaction, "x", timeout="1s")  # rejected
    text: str = await ctx.do("b", fn, 1)  # rejected
    async with ctx.saga() as saga:
        saga.add(charge, "x")  # rejected
        saga.add(fn)  # rejected


async def children(ctx: Context) -> None:
    await ctx.run(other, "x")  # rejected
    await ctx.run(other)  # rejected
    await ctx.run(bare, 5)  # rejected
    await ctx.run(other, 5, parent_close="ignore")  # rejected
    await ctx.spawn(other, "x")  # rejected
    await ctx.spawn(fulfil)  # rejected
    child = await ctx.spawn(other, 5)
    number: int = await child.result()  # rejected


async def messages(ctx: Context) -> None:
    orders = ctx.listen("order", payload=Order)
    text: str = await orders.receive()  # rejected
    ctx.listen("order", messages="yes")  # rejected
    chosen = await select(orders, ctx.after("1 hour"))
    number: int = chosen.value  # rejected
    await select("x")  # rejected
    event = await ctx.wait_for_event("a", type="a", payload=Order)
    total: str = event.payload.total  # rejected


def schedules() -> None:
    app.schedule("a", other, params="x", cron="0 3 * * *")  # rejected
    app.schedule("b", other, cron="0 3 * * *")  # rejected
    app.schedule("c", bare, params=5, every="1 hour")  # rejected
    app.schedule("d", other, params=5, every="1 hour", overlap="both")  # rejected


async def tests() -> None:
    async with Harness(app) as h:
        await h.start(other, "x")  # rejected
        await h.start(other)  # rejected
        await h.start(other, 5, on_reuse="always")  # rejected
        await h.run(other, "x")  # rejected
        await h.run(other)  # rejected
        number: int = await h.run(other, 5)  # rejected
        await h.crash_everywhere(other, "x")  # rejected
        await h.crash_everywhere(other)  # rejected
