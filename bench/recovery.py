"""W6: a worker is killed with SIGKILL while many runs are in flight, and a new process takes over.

The parent watches the nap log, kills the first process, starts the second, and compares the log with the steps that
were left at the kill. Time counts from the kill, so it includes process start, imports and the wait for leases.
"""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from bench.contract import NAP_SECONDS, STEPS_PER_RUN, Contender, Job, Measurement
from bench.processes import MeasurementError, last_line, measure, spawn, stop

CONCURRENCY = 1000  # Holdfast's default; DBOS has no limit, but its ideal is computed with the same value
KILL_AT_SHARE = 0.3  # of all steps begun, and every start acknowledged
KILL_AFTER_SECONDS = 60.0
WATCH_SECONDS = 0.002
ALL_STARTED = ".started"  # suffix of the empty file that the victim creates when every start is acknowledged

Step = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Progress:
    """The content of the nap log at one moment."""

    begun: Counter[Step]
    ended: Counter[Step]


async def start_naps(contender: Contender, job: Job) -> Measurement:
    """The victim: starts the runs, creates the ALL_STARTED file, and runs a worker until it is killed."""
    runs = await asyncio.gather(*(contender.naps(index) for index in range(job.count("runs"))))
    Path(job.naps).with_suffix(ALL_STARTED).touch()
    await asyncio.gather(*(run.result() for run in runs))
    return {}


async def finish_naps(contender: Contender, job: Job) -> Measurement:
    """The survivor: opens the same database and waits until all runs are complete."""
    await contender.all_naps_done(job.count("runs"))
    return {"finished_at": time.time()}


def kill_and_recover(contender: str, log: Path, db: str, runs: int, lease: float) -> Measurement:
    """Run one round of W6 from the parent process. ``log``: the nap log, which is created."""
    log.touch()
    args = {"runs": float(runs)}
    job = Job(contender, "naps_start", db, naps=str(log), lease=lease, args=args)
    killed_at = _kill_in_flight(job, log, runs)
    at_kill = read(log)
    survivor = Job(contender, "naps_finish", job.db, naps=str(log), lease=lease, args=args)
    finished_at = measure(survivor)["finished_at"]
    return _outcome(at_kill, read(log), runs, seconds=finished_at - killed_at)


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
    """Return when enough steps have begun and every start is acknowledged. Raises if the time is up before."""
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


def _outcome(at_kill: Progress, at_end: Progress, runs: int, *, seconds: float) -> Measurement:
    total = runs * STEPS_PER_RUN
    if len(at_end.ended) < total:
        raise MeasurementError(f"{total - len(at_end.ended)} steps never ended, although their runs are complete")
    repeated = {step for step, times in at_end.begun.items() if times > 1}
    committed = at_kill.ended.keys() - repeated  # a step that was committed is not run again
    ideal = ideal_seconds(committed, runs)
    return {
        "value": seconds,
        "ideal": ideal,
        "times_ideal": seconds / ideal,
        "left": float(total - len(committed)),
        "repeated": float(len(repeated)),
        "in_flight": float(len(at_kill.begun.keys() - at_kill.ended.keys())),
    }


def ideal_seconds(committed: set[Step], runs: int) -> float:
    """The time that the remaining steps need at the concurrency limit if recovery takes no time."""
    done = Counter(run for run, _ in committed)
    left = [STEPS_PER_RUN - done[run] for run in range(runs)]
    return NAP_SECONDS * max(*left, sum(left) / CONCURRENCY)
