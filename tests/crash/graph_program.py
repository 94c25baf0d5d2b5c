"""The programs of the tests of graphs and chains. Each call of a node or handler adds a line to a side file."""

from __future__ import annotations

import asyncio
import inspect
import os
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

from holdfast import (
    Chain,
    ChainTask,
    Completed,
    Finished,
    Graph,
    Holdfast,
    InstanceTerminalError,
    Retry,
    Started,
    Waiting,
    WorkerConfig,
)
from holdfast.core import codec

LEASE = "1 second"
PATIENT = Retry(limit=10_000, delay=0)


def make_app(url: str, schema: str | None, side: str, nodes: int) -> Holdfast:
    worker = WorkerConfig(lease=LEASE, poll=0.2, max_losses=1_000_000, concurrency=20)
    app = Holdfast(url, **({} if schema is None else {"schema": schema}), worker=worker)
    make_graph(app, side, nodes)
    make_chain(app, side)
    return app


def write(side: str, **line: Any) -> None:
    """Append a line in one unbuffered write, which is kept if the process is killed right after it."""
    with Path(side).open("ab", buffering=0) as file:
        file.write(codec.encode(line | {"pid": os.getpid()}, what="line") + b"\n")


# --- a wide graph


def parents_of(n: int) -> list[int]:
    random = Random(n)
    return sorted(random.sample(range(max(0, n - 60), n), min(n, random.randint(0, 3)))) if n >= 20 else []


def make_graph(app: Holdfast, side: str, nodes: int) -> Graph:
    graph = app.graph("wide")
    for n in range(nodes):
        node = _node(n, side, waits=n > nodes // 2)
        graph.node(name=f"n{n}", after=[f"n{p}" for p in parents_of(n)], retry=PATIENT)(node)
    return graph


def killed_marker(side: str) -> Path:
    """A file that exists once a process has been killed."""
    return Path(f"{side}.killed")


def _node(n: int, side: str, *, waits: bool) -> Any:
    """``waits``: the node does not end before a process was killed, so that the graph does not either."""

    async def work(**before: int) -> int:
        write(side, node=f"n{n}")
        await asyncio.sleep(0.002)
        while waits and not killed_marker(side).exists():
            await asyncio.sleep(0.005)
        return value_of(n, [before[f"n{p}"] for p in parents_of(n)])

    parameters = [inspect.Parameter(f"n{p}", inspect.Parameter.KEYWORD_ONLY) for p in parents_of(n)]
    work.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return work


def value_of(n: int, before: list[int]) -> int:
    """The result of node n, which depends on the results of all its predecessors."""
    return (n + 7 * sum(before)) % 1_000_003


def values(nodes: int) -> dict[str, int]:
    found: dict[str, int] = {}
    for n in range(nodes):
        found[f"n{n}"] = value_of(n, [found[f"n{p}"] for p in parents_of(n)])
    return found


def process(url: str, schema: str | None, side: str, nodes: int) -> None:
    """A process that calls ``app.advance`` until the graph has finished."""

    async def main() -> None:
        app = make_app(url, schema, side, nodes)
        async with app.connect():
            run = await app.get("wide", "it")
            while not isinstance(said := await app.advance(run), Finished):
                assert isinstance(said, Started), said
                await asyncio.sleep(0.001 if said.nodes else 0.02)

    asyncio.run(main())


# --- chains that wait for events


def make_chain(app: Holdfast, side: str) -> Chain:
    chain = app.chain("order")

    def ran(task: ChainTask, step: str) -> None:
        write(side, chain=task.instance_id, step=step, kind=task.kind.value)

    @chain.step("RESERVE", max_attempts=10_000)
    async def reserve(task: ChainTask) -> Any:
        ran(task, "RESERVE")
        return task.params

    @chain.step("PAY", max_attempts=10_000)
    async def pay(task: ChainTask) -> Any:
        ran(task, "PAY")
        if task.event is None:
            return Waiting("paid", "1 hour")
        return Completed(task.event.payload)

    @chain.step("SHIP", max_attempts=10_000)
    async def ship(task: ChainTask) -> Any:
        ran(task, "SHIP")
        return [task.outputs["RESERVE"], task.outputs["PAY"]]

    return chain


def work(url: str, schema: str | None, side: str, nodes: int) -> None:
    """A worker that runs until it is killed."""

    async def main() -> None:
        async with make_app(url, schema, side, nodes):
            await asyncio.Event().wait()

    asyncio.run(main())


async def pay(app: Holdfast, n: int) -> None:
    with suppress(InstanceTerminalError):  # the chain has received its event and ended
        await (await app.get("order", f"c{n}")).send_event("paid", n, id=f"payment-{n}")


def pay_all(url: str, schema: str | None, side: str, nodes: int, chains: int, seed: int) -> None:
    """Send every chain its event, some chains twice with the same id, in the order that the seed gives."""

    async def main() -> None:
        app = make_app(url, schema, side, nodes)
        random = Random(seed)
        async with app.connect():
            order = [n for n in range(chains) for _ in range(random.randint(1, 2))]
            random.shuffle(order)
            for start in range(0, len(order), 50):
                await asyncio.gather(*(pay(app, n) for n in order[start : start + 50]))

    asyncio.run(main())
