"""The workload of the soak: that of the storm, and children, links, chains, graphs and a run that continues as new.

The expected end of a run is computed from its workflow and the number in its id, so that no list of runs is kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chaos.workload import copy_of
from chaos.workload import make_app as make_storm_app
from crash.workload import PATIENT
from holdfast import (
    ChainTask,
    Completed,
    Context,
    Holdfast,
    LinkDown,
    NonRetryableError,
    Outbound,
    OutboundEvent,
    Waiting,
    select,
)

COUNTER = "counter"
"""The workflow that repeatedly continues as new."""
_TURNS = 20
"""The number of its receives before it continues as new."""
_PATCHES = 4_000
"""Characters of a long result."""

# The workflows that the client starts, in turn. These start the others.
STARTED = (
    "sequence",
    "retries",
    "timers",
    "events",
    "deadline",
    "buffered",
    "book",
    "transfer",
    "parallel",
    "family",
    "guardian",
    "versioned",
    "steered",
    "order",
    "layered",
)
_STEERED = {"go": "complete", "cancel": "cancelled", "terminate": "terminated", "restart": "complete"}


@dataclass(frozen=True, slots=True)
class Expected:
    """The expected end of a run."""

    status: str = "complete"
    output: Any = None
    """None: the output is not checked."""
    events: tuple[tuple[str, Any], ...] = ()
    """The events that the run has received from clients and other runs, and consumed."""
    ledger: tuple[str, ...] = ()
    outbox: int = 0


def id_of(workflow: str, n: int) -> str:
    return f"{workflow}-{n:04}"


def number_of(instance_id: str) -> int:
    return int(instance_id.rpartition("-")[2])


def steering_of(n: int) -> str:
    return list(_STEERED)[n // len(STARTED) % len(_STEERED)]


def expected_of(workflow: str, n: int) -> Expected:
    for planned in copy_of(n):
        if planned.workflow == workflow:
            return Expected(output=planned.expected, events=planned.events, ledger=planned.ledger)
    go = steering_of(n)
    return {
        "family": Expected(output=[2 * n, 2 * n + 1, f"{n}?"]),
        "leaf": Expected(output=n),
        "oracle": Expected(output=n, events=(("question", n), ("stop", None))),
        "guardian": Expected(output=f"fragile/{id_of('fragile', n)} fell"),
        "fragile": Expected("errored"),
        "versioned": Expected(output=[1, _PATCHES]),
        "steered": Expected(_STEERED[go], *((n, (("go", n),)) if _STEERED[go] == "complete" else ())),
        "order": Expected(output=[n, n], events=(("paid", n),), outbox=1),
        "layered": Expected(),
        COUNTER: Expected(),
    }[workflow]


def graph_results(n: int) -> dict[str, Any]:
    """The results of the graph; its node ``odd`` is skipped for even numbers."""
    squares = [1, 4, n * n]
    return {"first": [1, 2, n], "square": squares, "total": sum(squares)} | ({"odd": n} if n % 2 else {})


def make_app(url: str, keep: Callable[[Any], None] = lambda _value: None, **worker: Any) -> Holdfast:
    """``keep`` is called with every long result, so that a leak can be planted."""
    app = make_storm_app(url, Path("/dev/null"), **worker)
    _register_processes(app)
    _register_long(app, keep)
    _register_chain(app)
    _register_graph(app)
    return app


async def _give(value: Any) -> Any:
    return value


def _register_processes(app: Holdfast) -> None:
    @app.workflow
    async def leaf(ctx: Context, n: int) -> int:
        return await ctx.do("value", _give, n, retry=PATIENT)

    @app.workflow
    async def oracle(ctx: Context, n: int) -> int:
        questions, stop = ctx.listen("question", messages=True), ctx.listen("stop")
        while (chosen := await select(questions, stop)).channel is questions:
            await chosen.value.reply(f"{chosen.value.payload}?")
        return n

    @app.workflow
    async def family(ctx: Context, n: int) -> list[Any]:
        asked = await ctx.spawn(oracle, n, id=id_of("oracle", n), link=True)
        leaves = await asyncio.gather(*(ctx.run(leaf, m, id=id_of("leaf", m)) for m in (2 * n, 2 * n + 1)))
        answer = await ctx.ask(asked.pid, "question", n, timeout="1 hour")
        await ctx.send(asked.pid, "stop")
        await asked.result()
        return [*leaves, answer]

    @app.workflow
    async def fragile(ctx: Context, n: int) -> None:
        await ctx.do("hold", _give, n, retry=PATIENT)
        raise NonRetryableError("fell")

    @app.workflow(trap_links=True)
    async def guardian(ctx: Context, n: int) -> str:
        await ctx.spawn(fragile, n, id=id_of("fragile", n), link=True)
        while True:
            match await ctx.events.receive():
                case LinkDown(pid):
                    return f"{pid} fell"

    @app.workflow
    async def steered(ctx: Context, n: int) -> int:
        return (await ctx.wait_for_event("go", type="go", timeout="1 hour", payload=int)).payload


def _register_long(app: Holdfast, keep: Callable[[Any], None]) -> None:
    async def patch(n: int) -> str:
        made = f"{n % 10}" * _PATCHES
        keep(made)
        return made

    @app.workflow
    async def versioned(ctx: Context, n: int) -> list[int]:
        ctx.set_search(n=n, lot=f"lot {n % 10}")
        version = ctx.version("patches are long", 0, 1)
        return [version, len(await ctx.do("patch", patch, n, retry=PATIENT))]

    @app.workflow(name=COUNTER)
    async def counter(ctx: Context, state: list[int]) -> list[int]:
        """Add up ascending numbers. A number that is not higher than the last one is a repeated send and is ignored."""
        last, total = state
        add, stop = ctx.listen("add"), ctx.listen("stop")
        for _ in range(_TURNS):
            chosen = await select(add, stop)
            if chosen.channel is stop:
                return [last, total]
            if chosen.value > last:
                last = chosen.value
                total += await ctx.do(f"add {last}", _give, last, retry=PATIENT)
        raise ctx.continue_as_new([last, total])


def _register_chain(app: Holdfast) -> None:
    chain = app.chain("order")

    @chain.step("RESERVE", max_attempts=10_000)
    async def reserve(task: ChainTask) -> Any:
        return task.params

    @chain.step("PAY", max_attempts=10_000)
    async def pay(task: ChainTask) -> Any:
        if task.event is None:
            return Waiting("paid", "1 hour", outbound=[Outbound("payment.requested", task.params)])
        return Completed(task.event.payload)

    @chain.step("SHIP", max_attempts=10_000)
    async def ship(task: ChainTask) -> Any:
        return [task.outputs["RESERVE"], task.outputs["PAY"]]

    @app.outbox
    async def deliver(event: OutboundEvent) -> None:
        await asyncio.sleep(0)


def _register_graph(app: Holdfast) -> None:
    graph = app.graph("layered")

    @graph.node(retry=PATIENT)
    async def first(params: int) -> list[int]:
        return [1, 2, params]

    @graph.node(map=first, retry=PATIENT)
    async def square(first: int) -> int:
        return first * first

    @graph.node(after=[first], when=lambda first: first[-1] % 2 == 1, retry=PATIENT)
    def odd(first: list[int]) -> int:
        return first[-1]

    @graph.node(after=[square], retry=PATIENT)
    async def total(square: list[int]) -> int:
        return sum(square)
