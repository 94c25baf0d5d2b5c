"""Retention beside other work: `python -m bench retention [--quick]`. PostgreSQL, Holdfast alone.

A database is filled with old finished runs of five steps. Then batches of new runs (many of five steps at once, as W1)
are measured, alternately without and with the retention loop, until the old runs are deleted or the rounds are over.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from statistics import median

import asyncpg

from bench import postgres
from holdfast import Context, Holdfast, Retention, Start, WorkerConfig
from holdfast.runner import retention as loop

OLD, BATCH, ROUNDS, STEPS = 1_000_000, 4_000, 10, 5
_FILL = """
INSERT INTO holdfast.holdfast_run (id, instance, workflow, instance_id, number, current, kind, status, queue, priority,
                                   created_at, updated_at, completed_at, seed)
SELECT nextval('holdfast.holdfast_run_id'), n, 'flow', 'old-' || n, 0, true, 'workflow', 'complete', 'default', 0,
       1000, 1000, 1000 + n, 0 FROM generate_series(1, $1::bigint) AS n
"""
_FACTS = """
INSERT INTO holdfast.holdfast_fact (run, state, key, n, kind, at, started_at, ok, value, attempts)
SELECT r.id, 0, convert_to('step' || s, 'UTF8'), 0, 'do', 1000, 1000, true, '"done"'::bytea, 1
  FROM holdfast.holdfast_run AS r CROSS JOIN generate_series(1, 5) AS s
"""


def run(where: Path, *, quick: bool) -> str:
    with postgres.serving(where) as server:
        return asyncio.run(_measure(server.database("retention"), OLD // 50 if quick else OLD, BATCH))


async def _measure(url: str, old: int, batch: int) -> str:
    app = Holdfast(url, worker=WorkerConfig(concurrency=1_000))

    @app.step
    async def step() -> str:
        return "done"

    @app.workflow
    async def flow(_ctx: Context) -> None:
        for _ in range(STEPS):
            await step()

    async with app.connect():
        connection = await asyncpg.connect(url)
        await connection.execute(_FILL, old)
        await connection.execute(_FACTS)
        await connection.execute("VACUUM ANALYZE")
    loop._FIRST_PASS_SECONDS, loop.PAUSE_SECONDS = 0.0, 1.0
    rates: dict[bool, list[float]] = {False: [], True: []}
    for number in range(2 * ROUNDS):
        pruning = number % 2 == 1
        app.registry.retention = Retention(complete="1 day") if pruning else None
        async with app:
            rates[pruning].append(await _one_batch(app, f"{number}", batch))
    left = await connection.fetchval("SELECT count(*) FROM holdfast.holdfast_run WHERE completed_at < 1000000000")
    await connection.close()
    without, beside = median(rates[False]), median(rates[True])
    return (
        f"\n{old:,} old runs; batches of {batch:,} runs of {STEPS} steps, median of {ROUNDS}, alternately:\n"
        f"without retention {without:,.0f} steps/s, beside retention {beside:,.0f} steps/s "
        f"({(beside / without - 1):+.1%}); {old - left:,} old runs were deleted meanwhile"
    )


async def _one_batch(app: Holdfast, name: str, batch: int) -> float:
    """Steps per second of a batch of runs."""
    started = time.monotonic()
    handles = await app.start_many("flow", [Start(f"r{name}-{n}") for n in range(batch)])
    await asyncio.gather(*(handle.result() for handle in handles))
    return batch * STEPS / (time.monotonic() - started)
