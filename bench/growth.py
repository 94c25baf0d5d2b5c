"""PostgreSQL with a past: what claims and commits cost beside a million finished runs, and what a million steps leave.

`python -m bench growth` fills one database, measures the same calls in it and in an empty one, and then runs a
million steps to see the tables grow.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg

from bench.contract import Job
from bench.holdfast_contender import build
from bench.postgres import Server, serving
from bench.report import table
from holdfast.core.model import Status
from holdfast.ports import SystemRandomness
from holdfast.store.postgres import PostgresStore
from holdfast.store.protocol import ClaimRequest, Commit, Fact, FactState, Finish, Follows, ListQuery, NewRun, Observed

FINISHED_RUNS = 1_000_000
ROUNDS = 60
BATCH = 100
STEPS = 1_000_000
AT_A_TIME = 500
WORKFLOW = "steps"


@dataclass(frozen=True, slots=True)
class Costs:
    """Milliseconds, medians over the rounds, of calls with a hundred runs each."""

    create: float
    claim: float
    commit: float
    finish: float
    load: float
    list_page: float


async def fill(url: str, runs: int) -> None:
    """Finished runs of five steps each, written by the server itself."""
    await _opened(url)
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(
            "INSERT INTO holdfast.holdfast_run (id, instance, workflow, instance_id, number, current, kind, status,"
            " params, output, queue, priority, created_at, updated_at, started_at, completed_at, seed)"
            " SELECT n, n, $1, 'old-' || n, 0, true, 'workflow', 'complete', '5', '5', 'default', 0, n, n, n, n, n"
            " FROM generate_series(1, $2::bigint) AS n",
            WORKFLOW,
            runs,
            timeout=600,
        )
        await connection.execute(
            "INSERT INTO holdfast.holdfast_fact (run, state, key, n, kind, at, started_at, seq, ok, value, attempts)"
            " SELECT n, 0, convert_to('add_one#' || s, 'UTF8'), 0, 'do', n, n, s, true, '1', 1"
            " FROM generate_series(1, $1::bigint) AS n, generate_series(1, 5) AS s",
            runs,
            timeout=1200,
        )
        await connection.execute("SELECT setval('holdfast.holdfast_run_id', $1)", runs + 1)
        await connection.execute("VACUUM ANALYZE", timeout=600)
        await connection.execute("CHECKPOINT", timeout=600)
    finally:
        await connection.close()


async def _opened(url: str) -> None:
    store = _store(url)
    await store.open()
    await store.close()


def _store(url: str) -> PostgresStore:
    return PostgresStore(url, random=SystemRandomness())


async def costs(url: str, rounds: int) -> Costs:
    store, found = _store(url), dict[str, list[float]]()
    await store.open()
    try:
        for _ in range(rounds + 5):
            runs = [NewRun(WORKFLOW, f"new-{time.time_ns()}-{n}", b"5") for n in range(BATCH)]
            await _timed(found, "create", store.create(runs))
            request = ClaimRequest("bench", 30_000, BATCH, ["default"], frozenset({WORKFLOW}))
            claimed = await _timed(found, "claim", store.claim(request))
            assert len(claimed.claims) == BATCH
            for step in range(3):
                await _timed(found, "commit", store.commit([_step(claim.task, step) for claim in claimed.claims]))
            await _timed(found, "load", store.load(claimed.claims[0].task.run))
            await _timed(found, "list_page", store.list(ListQuery(WORKFLOW, Status.COMPLETE, None, 25)))
            ends = Follows(next=Finish(Status.COMPLETE, output=b"5"))
            await _timed(found, "finish", store.commit([Commit(c.task, follows=ends) for c in claimed.claims]))
    finally:
        await store.close()
    return Costs(**{name: statistics.median(values[5:]) for name, values in found.items()})


async def _timed(found: dict[str, list[float]], name: str, call: Any) -> Any:
    began = time.perf_counter()
    answer = await call
    found.setdefault(name, []).append((time.perf_counter() - began) * 1000)
    return answer


def _step(task: Any, step: int) -> Commit:
    now = int(time.time() * 1000)
    fact = Fact(FactState.RESULT, f"add_one#{step}", 0, "do", now, now, seq=step + 1, value=b"1", attempts=1)
    return Commit(task, Observed(facts=[fact]), in_flight=1)


async def a_million_steps(url: str, steps: int) -> list[str]:
    """Run them for real, and look at what is left in the tables afterwards."""
    app, workflows = build(Job("holdfast", "growth", url))
    runs = iter(range(steps // 5))

    async def client() -> None:
        for _ in runs:
            await (await app.start(workflows.steps, 5)).result()

    async with app:
        began = time.perf_counter()
        await asyncio.gather(*(client() for _ in range(AT_A_TIME)))
        seconds = time.perf_counter() - began
    return [
        f"{steps:,} steps of {steps // 5:,} runs in {seconds:.0f} s ({steps / seconds:,.0f} steps/s).",
        await sizes(url),
    ]


async def sizes(url: str) -> str:
    connection = await asyncpg.connect(url)
    try:
        rows = await connection.fetch(
            "SELECT relname, n_live_tup, n_dead_tup, pg_table_size(relid) AS heap, pg_indexes_size(relid) AS indexes"
            " FROM pg_stat_user_tables WHERE schemaname = 'holdfast' ORDER BY pg_total_relation_size(relid) DESC"
        )
        runs = await connection.fetchval("SELECT count(*) FROM holdfast.holdfast_run")
    finally:
        await connection.close()
    total = sum(row["heap"] + row["indexes"] for row in rows)
    lines = [["table", "rows", "dead rows", "table MB", "indexes MB"]]
    lines += [
        [r["relname"], f"{r['n_live_tup']:,}", f"{r['n_dead_tup']:,}", _mb(r["heap"]), _mb(r["indexes"])] for r in rows
    ]
    return table(lines) + f"\n\n{total / max(runs, 1):,.0f} bytes for each run of five steps, all indexes included."


def _mb(size: int) -> str:
    return f"{size / 1e6:,.1f}"


def run(where: Path, *, quick: bool) -> str:
    scale = 100 if quick else 1
    with serving(where) as server:
        return asyncio.run(_measured(server, scale))


async def _measured(server: Server, scale: int) -> str:
    empty, full = server.database("empty"), server.database("full")
    await _opened(empty)
    await fill(full, FINISHED_RUNS // scale)
    rounds = max(5, ROUNDS // scale)
    measured = [(await costs(empty, rounds), await costs(full, rounds)) for _ in range(3)]
    lines = [["100 runs each, ms", "empty", "full", "full / empty"]]
    for name in Costs.__dataclass_fields__:
        before = statistics.median(getattr(pair[0], name) for pair in measured)
        after = statistics.median(getattr(pair[1], name) for pair in measured)
        lines.append([name, f"{before:.2f}", f"{after:.2f}", f"{after / before:.2f}"])
    grown = await a_million_steps(server.database("grown"), STEPS // scale)
    head = f"PostgreSQL {server.version}, with {FINISHED_RUNS // scale:,} finished runs of five steps"
    return "\n".join([head, "", table(lines), "", *grown])
