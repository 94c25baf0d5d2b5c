"""The workload of the power cuts: that of the other crash tests, chains, graphs, live transactions, streams.

The values of the workflow with a stream are compressed and encrypted, and the large ones are blobs.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

from holdfast import ChainTask, Completed, Context, Holdfast, Outbound, OutboundEvent, Transaction, Waiting, step_info
from holdfast.payloads import Aes, Zstd

from .graph_program import PATIENT as PATIENT_NODES
from .workload import PATIENT, Planned, SideFile, Work, plan, register

ITEMS = 3
SOLD = ("asked", "shipped")
BLOB_THRESHOLD = 2000
LARGE = Random(1).randbytes(3000).hex()
"""A value above the threshold, also after compression."""
CODECS = (Zstd(), Aes({"k1": b"k" * 32}))


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
        Planned("talk", f"talk-{n}", n, n + len(LARGE)),
    ]


def spoken(n: int) -> list[str]:
    """The output of the stream of a talk. One of its items is a blob."""
    return ["begin", *(f"word {n}.{i}" for i in range(4)), LARGE + str(n), f"last word of {n}", "end"]


def register_all(app: Holdfast, side: SideFile) -> None:
    register(app, side)
    _register_chain(app, side)
    _register_graph(app)
    _register_transactions(app, Work(side))
    _register_streams(app)


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


def _register_streams(app: Holdfast) -> None:
    @app.step(retry=PATIENT)
    async def speak(n: int) -> str:
        out = step_info().stream("out")
        for value in spoken(n)[1:-1]:
            await out.write(value)
        return LARGE

    @app.workflow(codec=CODECS)
    async def talk(ctx: Context, n: int) -> int:
        await ctx.stream("out").write("begin")
        said = await speak(n)
        await ctx.stream("out").write("end")
        return n + len(said)
