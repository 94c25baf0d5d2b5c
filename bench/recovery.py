"""W6: a worker is killed with SIGKILL while many runs are in flight, and a new process takes over.

The parent watches the nap log, kills the first process, starts the second, and compares what happened with
what was left to do. Time counts from the kill, so process start, imports and expiring leases are all in it.
"""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from bench.contract import NAP_SECONDS, STEPS_PER_RUN, Contender, Job, Measurement, database
from bench.processes import MeasurementError, last_line, measure, spawn, stop

CONCURRENCY = 1000  # Holdfast's default; DBOS has no limit, but its ideal is computed with the same one
KILL_AT_SHARE = 0.3  # of all steps begun, and every start acknowledged
KILL_AFTER_SECONDS = 60.0
WATCH_SECONDS = 0.002
ALL_STARTED = ".started"  # the ending of the empty file by which the victim says that every start is acknowledged

Step = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Progress:
    """What the nap log says at one moment."""

    begun: Counter[Step]
    ended: Counter[Step]


async def start_naps(contender: Contender, job: Job) -> Measurement:
    """The victim: starts the runs, says so, and works until it is killed."""
    runs = await asyncio.gather(*(contender.naps(index) for index in range(job.count("runs"))))
    Path(job.naps).with_suffix(ALL_STARTED).touch()
    await asyncio.gather(*(run.result() for run in runs))
    return {}


async def finish_naps(contender: Contender, job: Job) -> Measurement:
    """The survivor: opens the same file and waits until nothing is left to do."""
    await contender.all_naps_done(job.count("runs"))
    return {"finished_at": time.time()}


def kill_and_recover(contender: str, where: Path, runs: int, lease: float) -> Measurement:
    """One round of W6, seen from the parent."""
    name = f"{contender}-w6"
    log = where / f"{name}.log"
    log.touch()
    args = {"runs": float(runs)}
    job = Job(contender, "naps_start", database(where, name), naps=str(log), lease=lease, args=args)
    killed_at = _kill_in_flight(job, log, runs)
    before = read(log)
    survivor = Job(contender, "naps_finish", job.db, naps=str(log), lease=lease, args=args)
    finished_at = measure(survivor)["finished_at"]
    return _outcome(before, read(log), runs, seconds=finished_at - killed_at)


def _kill_in_flight(job: Job, log: Path, runs: int) -> float:
    errors = log.with_suffix(".errors")
    with errors.open("w") as file:
        victim = spawn(job, errors=file)
        try:
            _watch(victim, log, runs)
        except MeasurementError as error:
            raise MeasurementError(f"{job.contender} {error}; {last_line(errors.read_text())}") from None
        finally:
            killed_at = time.time()
            stop(victim)
    return killed_at


def _watch(victim: subprocess.Popen[str], log: Path, runs: int) -> None:
    """Return when enough steps were begun and every start was acknowledged, or time is up."""
    enough = runs * STEPS_PER_RUN * KILL_AT_SHARE
    started = log.with_suffix(ALL_STARTED)
    deadline = time.monotonic() + KILL_AFTER_SECONDS
    begun = 0
    with log.open("rb") as lines:
        while begun < enough or not started.exists():
            if victim.poll() is not None:
                raise MeasurementError("the worker ended before it could be killed")
            if time.monotonic() > deadline:
                raise MeasurementError(f"only {begun} steps were begun in {KILL_AFTER_SECONDS:.0f} s")
            time.sleep(WATCH_SECONDS)
            begun += lines.read().count(b"b")


def read(log: Path) -> Progress:
    progress = Progress(Counter(), Counter())
    for line in log.read_text().splitlines():
        kind, run, step = line.split()
        (progress.begun if kind == "b" else progress.ended)[int(run), int(step)] += 1
    return progress


def _outcome(before: Progress, after: Progress, runs: int, *, seconds: float) -> Measurement:
    total = runs * STEPS_PER_RUN
    if len(after.ended) < total:
        raise MeasurementError(f"{total - len(after.ended)} steps never ended, although their runs are complete")
    again = {step for step, times in after.begun.items() if times > 1}
    committed = before.ended.keys() - again  # a step that was committed is not run again
    ideal = ideal_seconds(committed, runs)
    return {
        "value": seconds,
        "ideal": ideal,
        "times_ideal": seconds / ideal,
        "left": float(total - len(committed)),
        "again": float(len(again)),
        "in_flight": float(len(before.begun.keys() - before.ended.keys())),
    }


def ideal_seconds(committed: set[Step], runs: int) -> float:
    """The time the other steps need at the concurrency limit, if recovery itself cost nothing."""
    done = Counter(run for run, _ in committed)
    left = [STEPS_PER_RUN - done[run] for run in range(runs)]
    return NAP_SECONDS * max(*left, sum(left) / CONCURRENCY)
