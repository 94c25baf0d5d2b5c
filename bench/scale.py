"""S: the cost of a full file. Holdfast only.

There are two files: a new one, and one with many finished and many sleeping runs, made through the public API.
Throughput, latency, idle CPU and memory are measured on both; timers on the full one.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

from bench.contract import Job, Measurement, database
from bench.processes import TIME_LIMIT_SECONDS, measure
from bench.report import number, table

POPULATE_SECONDS = 300.0
IDLE_SECONDS = 10.0
LEAD_SECONDS = 10.0  # between the first start and the first due time


def run(where: Path, *, quick: bool, window: float, rounds: int) -> str:
    finished, sleeping, timers = (10_000, 5_000, 1_000) if quick else (100_000, 50_000, 10_000)
    empty, full = database(where, "empty"), database(where, "full")
    filled = _measure("populate", full, finished=finished, sleeping=sleeping)
    turns = [(_busy(empty), _busy(full)) for _ in range(1 if quick else rounds)]
    idle_empty = _measure("idle", empty, seconds=IDLE_SECONDS)
    idle_full = _measure("idle", full, seconds=IDLE_SECONDS)
    lateness = _measure("timers", full, timers=timers, window=window, lead=LEAD_SECONDS)
    before, after = (_medians([turn[side] for turn in turns]) for side in (0, 1))
    return f"""
The full file has {finished:,} finished and {sleeping:,} sleeping runs and {filled["megabytes"]:,.0f} MB;
it was made in {filled["seconds"]:.0f} s.

{_compared({**before, **idle_empty}, {**after, **idle_full})}

{timers:,} timers due within {window:g} s, in the full file: late by {lateness["p50"]:.1f} ms p50,
{lateness["p99"]:.1f} ms p99, {lateness["max"]:.1f} ms at most."""


def _busy(db: str) -> Measurement:
    claims = _measure("claims", db, samples=200)
    return {"steps": _measure("throughput", db, runs=4000)["value"], **claims}


def _medians(turns: list[Measurement]) -> Measurement:
    return {name: statistics.median(turn[name] for turn in turns) for name in turns[0]}


def _measure(name: str, db: str, **args: float) -> Measurement:
    job = Job("holdfast", f"scale_{name}", db, args=args)
    print(f"{name} in the {Path(db).stem} file ...", file=sys.stderr, flush=True)
    return measure(job, time_limit=POPULATE_SECONDS if name == "populate" else TIME_LIMIT_SECONDS)


def _compared(empty: Measurement, full: Measurement) -> str:
    titles = {
        "steps": "W1, steps/s",
        "claim_p50": "start to first line of the step, ms p50",
        "claim_p99": "start to first line of the step, ms p99",
        "poll_p50": "the same for a start by a client without a worker, ms p50",
        "cpu_percent": f"CPU of an idle worker over {IDLE_SECONDS:g} s, %",
        "rss_megabytes": "memory of an idle worker, MB",
    }
    rows = [["", "empty file", "full file", "full / empty"]]
    for name, title in titles.items():
        ratio = f"{full[name] / empty[name]:.2f}" if empty[name] else "-"
        rows.append([title, number(empty[name]), number(full[name]), ratio])
    return table(rows)
