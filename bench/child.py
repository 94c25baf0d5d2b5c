"""The child process: opens one contender, makes one measurement, prints one JSON line."""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import os
import sys
from collections.abc import Awaitable, Callable

from bench import ceiling, latency, recovery, throughput
from bench.contract import Contender, Job, Measurement, Opener
from holdfast import tune_collector

Measure = Callable[[Contender, Job], Awaitable[Measurement]]

MEASURES: dict[str, Measure] = {
    "throughput": throughput.many_runs,
    "ceiling_throughput": ceiling.many_runs,
    "fan_out": throughput.fan_out,
    "children": throughput.children,
    "sequential": latency.sequential_steps,
    "round_trip": latency.start_to_result,
    "event": latency.event_to_result,
    "naps_start": recovery.start_naps,
    "naps_finish": recovery.finish_naps,
}

CONTENDERS = {
    "holdfast": "bench.holdfast_contender",
    "compiled": "bench.holdfast_contender",
    "dbos": "bench.dbos_contender",
    "dbos_default": "bench.dbos_contender",
    "absurd": "bench.absurd_contender",
    "restate": "bench.restate_contender",
    "ceiling": "bench.ceiling",
}


def opener(contender: str) -> Opener:
    """The function that opens a contender. Its module is imported only here: others may be missing."""
    module = importlib.import_module(CONTENDERS[contender])
    open_contender: Opener = module.opened
    return open_contender


async def run(job: Job) -> Measurement:
    if job.measure.startswith("scale_"):
        scale = importlib.import_module("bench.scale_measures")
        measured: Measurement = await scale.MEASURES[job.measure](job)
        return measured
    if job.measure.startswith("curve_"):
        curves = importlib.import_module("bench.curve_measures")
        point: Measurement = await curves.MEASURES[job.measure](job)
        return point
    async with opener(job.contender)(job) as contender:
        tune_collector()  # for every contender: a collection in the middle of a measurement belongs to none of them
        return await MEASURES[job.measure](contender, job)


def main() -> None:
    logging.basicConfig(level=logging.WARNING)
    measured = asyncio.run(run(Job.from_json(sys.argv[1])))
    print(json.dumps(measured), flush=True)
    os._exit(0)  # a contender's background threads must not delay the end of the process


if __name__ == "__main__":
    main()
