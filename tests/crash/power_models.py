"""The workload of the power cuts: that of the other crash tests, and chains, graphs and live transactions."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

from holdfast import ChainTask, Completed, Context, Holdfast, Outbound, OutboundEvent, Transaction, Waiting

from .graph_program import PATIENT as PATIENT_NODES
from .workload import PATIENT, Planned, SideFile, Work, plan, register

ITEMS = 3
SOLD = ("asked", "shipped")


def models_plan(copies: int) -> list[Planned]:
    return [planned for n in range(copies) for planned in _copy(n)]


def whole_plan(copies: int, seed: int) -> list[Planned]:
    """The runs of all models, in an order that the seed gives."""
    planned = [*plan(copies), *models_plan(copies)]
    Random(seed).shuffle(planned)
    return planned


def _copy(n: int) -> list[Planned]:
    items = [n + i for i in range(ITEMS)]
    fan = {"items": items, "double": [2 * item for item in items], "total": 2 * sum(items)}
    return [
        Planned("sale", f"sale-{n}", n, [n, n + 1], (("paid", n + 1),)),
        Planned("fan", f"fan-{n}", n, fan),
        Planned("booking", f"booking-{n}", n, [0, 1], ledger=("live", "later")),
    ]


def register_all(app: Holdfast, side: SideFile) -> None:
    register(app, side)
    _register_chain(app, side)
    _register_graph(app)
    _register_transactions(app, Work(side))


def _register_chain(app: Holdfast, side: SideFile) -> None:
    chain = app.chain("sale")

    @chain.step("RESERVE", max_attempts=10_000)
    async def reserve(task: ChainTask) -> Any:
        return task.params

    @chain.step("PAY", max_attempts=10_000)
    async def pay(task: ChainTask) -> Any:
        if task.event is None:
            return Waiting("paid", "1 hour", outbound=[Outbound("asked", task.params)])
        return Completed(task.event.payload)

    @chain.step("SHIP", max_attempts=10_000)
    async def ship(task: ChainTask) -> Any:
        side.write({"run": task.instance_id, "key": "SHIP", "attempt": 1, "needs": ("RESERVE", "PAY")})
        return Completed([task.outputs["RESERVE"], task.outputs["PAY"]], outbound=[Outbound("shipped", task.params)])

    @app.outbox(timeout="200 ms")
    async def deliver(event: OutboundEvent) -> None:
        side.write({"delivered": event.type, "id": event.instance_id})


def _register_graph(app: Holdfast) -> None:
    graph = app.graph("fan")

    @graph.node(retry=PATIENT_NODES)
    async def items(params: int) -> list[int]:
        return [params + i for i in range(ITEMS)]

    @graph.node(map=items, retry=PATIENT_NODES)
    async def double(items: int) -> int:
        await asyncio.sleep(0)
        return 2 * items

    @graph.node(after=[double], retry=PATIENT_NODES)
    async def total(double: list[int]) -> int:
        return sum(double)


def _register_transactions(app: Holdfast, work: Work) -> None:
    async def move(run: str, tx: Transaction) -> int:
        """Insert a row; returns the number of earlier inserts of this run, which must be 0."""
        work.side.ran(())
        [before] = await tx.fetch("SELECT count(*) AS times FROM ledger WHERE run = ?", run)
        await tx.execute("INSERT INTO ledger VALUES (?, 'live')", run)
        return int(before["times"])

    async def later(run: str, tx: Transaction) -> int:
        work.side.ran(("move",))
        await tx.execute("INSERT INTO ledger VALUES (?, 'later')", run)
        [row] = await tx.fetch("SELECT count(*) AS times FROM ledger WHERE run = ? AND entry = 'later'", run)
        return int(row["times"])

    @app.workflow
    async def booking(ctx: Context, n: int) -> list[int]:
        before = await ctx.do("move", move, ctx.info.instance_id, retry=PATIENT)
        return [before, await ctx.do("later", later, ctx.info.instance_id, retry=PATIENT)]
