"""The plan of a comparison: the workloads, their sizes per contender, and the order of the measurements.

Contenders alternate within every round, and the order rotates from round to round, so that a slow minute of the
machine affects all of them. A slow contender gets fewer runs of the same kind.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench.contract import Job, Measurement, database
from bench.processes import MeasurementError, measure
from bench.recovery import kill_and_recover
from bench.report import Results, Workload, number

if TYPE_CHECKING:
    from bench.postgres import Server

CONTENDERS = ("holdfast", "compiled", "dbos", "dbos_default", "restate", "absurd", "ceiling")
ON_SQLITE = ("holdfast", "compiled", "dbos", "dbos_default", "restate", "ceiling")
"""Contenders with a file on this machine. Restate keeps its own files."""
ON_POSTGRES = ("holdfast", "compiled", "dbos_default", "absurd")

WORKLOADS = (
    Workload(
        "W1",
        "W1 many runs at once",
        "steps/s",
        "runs of 5 trivial async steps, all started together, from the first start to the last result",
        higher_is_better=True,
    ),
    Workload("W2a", "W2a one long run", "ms per step", "one run of 200 steps, one after the other"),
    Workload("W2b", "W2b round trip", "ms p50", "start of a run of one step to its result, one at a time"),
    Workload("W3", "W3 fan-out", "s", "500 runs of one step, started and awaited by one client"),
    Workload("W3c", "W3c children", "s", "a run that starts 500 children of one step and awaits them all"),
    Workload("W4", "W4 event", "ms p50", "an event is sent to a waiting run, until that run's result"),
    Workload("W6", "W6 recovery", "s", "SIGKILL with 2,000 runs in flight, until a new process has ended them all"),
)

MEASURES = {
    "W1": "throughput",
    "W2a": "sequential",
    "W2b": "round_trip",
    "W3": "fan_out",
    "W3c": "children",
    "W4": "event",
}


@dataclass(frozen=True, slots=True)
class Plan:
    workloads: list[Workload]
    contenders: list[str]
    rounds: int
    quick: bool = False
    lease: float = 5.0
    server: Server | None = None
    """The PostgreSQL server; None for SQLite files."""

    def args(self, workload: str, contender: str) -> dict[str, float]:
        full: dict[str, dict[str, float]] = {
            "W1": {"runs": 20000 if contender == "ceiling" else 1000},
            "W2a": {"steps": 200},
            "W2b": {"samples": 100},
            "W3": {"runs": 500},
            "W3c": {"runs": 500},
            "W4": {"samples": 10, "spread": 1.0} if self._polls(contender) else {"samples": 40, "spread": 0.02},
            "W6": {"runs": 2000},
        }
        return {name: value / 5 if self.quick else value for name, value in full[workload].items()}

    def _polls(self, contender: str) -> bool:
        """True for DBOS in its default configuration on SQLite, which polls for events once a second."""
        return contender == "dbos_default" and self.server is None

    def database(self, where: Path, name: str) -> str:
        return database(where, name) if self.server is None else self.server.database(name)

    def rounds_of(self, workload: str) -> int:
        """W6 measures thousands of steps in one round, and its slowest contender takes a minute."""
        return 1 if self.quick or workload == "W6" else self.rounds

    def takes_part(self, workload: str, contender: str) -> bool:
        if contender not in (ON_SQLITE if self.server is None else ON_POSTGRES):
            return False
        return not (workload in ("W3c", "W6") and contender in ("ceiling", "absurd", "restate"))


def run(plan: Plan, where: Path) -> tuple[Results, list[str]]:
    results, failures = Results(), list[str]()
    for workload in plan.workloads:
        for round_number in range(plan.rounds_of(workload.key)):
            for contender in _rotated(plan, workload.key, round_number):
                _progress(f"{workload.key} round {round_number + 1} {contender}")
                try:
                    results.add(workload.key, contender, _measure(plan, workload.key, contender, where, round_number))
                except MeasurementError as error:
                    failures.append(f"FAILED {workload.key} {error}")
    _progress("")
    legend = [f"{workload.key}: {workload.about}." for workload in plan.workloads]
    if plan.quick:
        legend.append("QUICK: one round with a fifth of these counts; not for comparison.")
    return results, [*failures, *legend, *_recovery_notes(plan, results)]


def _rotated(plan: Plan, workload: str, round_number: int) -> list[str]:
    names = [name for name in plan.contenders if plan.takes_part(workload, name)]
    by = round_number % max(1, len(names))
    return names[by:] + names[:by]


def _measure(plan: Plan, workload: str, contender: str, where: Path, round_number: int) -> Measurement:
    args = plan.args(workload, contender)
    db = plan.database(where, f"{workload}-{contender}-{round_number}")
    if workload == "W6":
        return kill_and_recover(contender, where / f"{contender}-w6.log", db, int(args["runs"]), plan.lease)
    name = "ceiling_throughput" if (workload, contender) == ("W1", "ceiling") else MEASURES[workload]
    return measure(Job(contender, name, db, args=args))


def _recovery_notes(plan: Plan, results: Results) -> list[str]:
    notes: list[str] = []
    for contender in plan.contenders:
        for measured in results.rounds["W6", contender]:
            lease = f", lease {plan.lease:g} s" if contender in ("holdfast", "compiled") else ""
            notes.append(
                f"W6 {contender}{lease}: {measured['left']:,.0f} steps were left, the ideal is "
                f"{measured['ideal']:.2f} s, this took {number(measured['value'])} s "
                f"({measured['times_ideal']:.0f} times); {measured['repeated']:,.0f} steps ran twice, "
                f"{measured['in_flight']:,.0f} of them because they were running at the kill."
            )
    return notes


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
