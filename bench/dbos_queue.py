"""DBOS under a queue with a global concurrency: `python -m bench.dbos_queue URL RUNS POLL`, prints steps per second.

A process of its own, because DBOS is global in a process. SQLite has a WAL journal, as in `bench/dbos_contender.py`.
POLL is the polling interval of the queue in seconds; the default of DBOS is 1.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
import time
from contextlib import closing

from dbos import DBOS, DBOSConfig

STEPS, CONCURRENCY = 5, 100
QUEUE = "limited"


@DBOS.step()
async def add_one(value: int) -> int:
    return value + 1


@DBOS.workflow()
async def steps(count: int) -> int:
    total = 0
    for _ in range(count):
        total = await add_one(total)
    return total


async def measure(runs: int) -> float:
    began = time.perf_counter()
    handles = await asyncio.gather(*(DBOS.enqueue_workflow_async(QUEUE, steps, STEPS) for _ in range(runs)))
    for handle in handles:
        await handle.get_result()
    return runs * STEPS / (time.perf_counter() - began)


def main(url: str, runs: int, poll: float) -> None:
    if url.startswith("sqlite:///"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
            connection.execute("pragma journal_mode = wal")  # kept in the file
    DBOS(config=DBOSConfig(name="bench", system_database_url=url, log_level="CRITICAL", enable_otlp=False))
    DBOS.launch()
    DBOS.register_queue(QUEUE, global_concurrency=CONCURRENCY, polling_interval_sec=poll)
    print(asyncio.run(measure(runs)), flush=True)
    os._exit(0)  # background threads must not delay the end of the process


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
