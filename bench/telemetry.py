"""Cost of metrics and of traces: `python -m bench telemetry`. SQLite, Holdfast alone.

Batches of new runs (many of five steps at once, as W1) are executed in turn without telemetry, with the metrics of
`GET /metrics`, and with OpenTelemetry whose provider records nothing. The processor time of the process (user and
system) is compared, because it varies less than the elapsed time: each batch is divided by the batch without telemetry
of the same round.
"""

from __future__ import annotations

import asyncio
import gc
import time
from pathlib import Path
from statistics import median

from opentelemetry.trace import NoOpTracerProvider

from bench.contract import database
from holdfast import Context, Holdfast, OpenTelemetry, Start, WorkerConfig

RUNS, STEPS, ROUNDS, WARM_UP = 1_000, 5, 25, 2
NONE, METRICS, TRACES = "without telemetry", "metrics", "OpenTelemetry, no-op provider"


def run(where: Path) -> str:
    return asyncio.run(_measure(where))


async def _measure(where: Path) -> str:
    costs: dict[str, list[float]] = {NONE: [], METRICS: [], TRACES: []}
    for number in range(WARM_UP + ROUNDS):
        first = number % len(costs)  # the order changes, so that no variant gains from its place
        for variant, measured in [*costs.items()][first:] + [*costs.items()][:first]:
            cost = await _one_batch(database(where, f"{variant.split()[0]}-{number}"), variant)
            if number >= WARM_UP:
                measured.append(cost)
    lines = [f"{RUNS:,} runs of {STEPS} steps, {ROUNDS} rounds in turn, processor time per step:"]
    for variant, measured in costs.items():
        ratios = [one / base for one, base in zip(measured, costs[NONE], strict=True)]
        compared = f"{median(measured) / median(costs[NONE]) - 1:+.1%}, paired {median(ratios) - 1:+.1%}"
        lines.append(f"  {variant:<30} {median(measured) * 1e6:6.1f} µs" + ("" if variant == NONE else f"  {compared}"))
    return "\n" + "\n".join(lines)


async def _one_batch(path: str, variant: str) -> float:
    """Processor time per step, in seconds."""
    telemetry = [OpenTelemetry(tracer_provider=NoOpTracerProvider())] if variant == TRACES else []
    app = Holdfast(f"sqlite:///{path}", worker=WorkerConfig(concurrency=RUNS), telemetry=telemetry)
    if variant == METRICS:
        app.collect_metrics()

    @app.step
    async def step() -> str:
        return "done"

    @app.workflow
    async def flow(_ctx: Context) -> None:
        for _ in range(STEPS):
            await step()

    async with app:
        gc.collect()
        began = time.process_time()
        handles = await app.start_many(flow, [Start(f"r{n}") for n in range(RUNS)])
        await asyncio.gather(*(handle.result() for handle in handles))
        return (time.process_time() - began) / (RUNS * STEPS)
