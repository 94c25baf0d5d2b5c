"""Explores the scenarios and prints the number of schedules and states of each."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from multiprocessing import get_context

from holdfast.ports import SystemClock
from simulation.explore.calls import FaultKind
from simulation.explore.scenarios import SCENARIOS, Scenario
from simulation.explore.search import Exploration, explore
from simulation.planted import planted

PROGRAM = "python -m tests.simulation.explore"


@dataclass(frozen=True, slots=True)
class ExploreOptions:
    """The options of the command line."""

    only: str = ""
    """Explore the scenarios whose names contain this text."""
    faults: tuple[FaultKind, ...] | None = None
    """Explore these kinds of faults; None: those of each scenario."""
    bug: str | None = None
    seconds: float = 600
    """Time for all scenarios."""
    processes: int = 1


@dataclass(frozen=True, slots=True)
class _Work:
    scenario: Scenario
    bug: str | None
    end: float
    """Time of the system's clock at which all scenarios are to be explored."""
    shares: float
    """The number of scenarios per process from this one on, which share the remaining time."""


def run(options: ExploreOptions) -> int:
    """Explore the scenarios and print the results; return the exit code: 1 if a promise was broken."""
    scenarios = [scenario for scenario in SCENARIOS if options.only in scenario.name]
    if options.faults is not None:
        scenarios = [replace(scenario, faults=options.faults) for scenario in scenarios]
    end, failed = SystemClock().monotonic() + options.seconds, False
    work = [
        _Work(scenario, options.bug, end, max(1.0, (len(scenarios) - n) / options.processes))
        for n, scenario in enumerate(scenarios)
    ]
    _print(f"{'scenario':<52} {'schedules':>9} {'states':>8}")
    for found in _explorations(work, options.processes):
        state = "FAILED" if found.failures else "complete" if found.complete else "stopped at the time limit"
        _print(f"{found.scenario:<52} {found.schedules:>9,} {found.states:>8,}  {state}")
        if found.failures:
            failed = True
            _print_failure(found)
    return int(failed)


def _explorations(work: list[_Work], processes: int) -> Iterator[Exploration]:
    if processes == 1:
        yield from map(_explore, work)
        return
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        yield from pool.map(_explore, work)


def _explore(work: _Work) -> Exploration:
    clock = SystemClock()
    now = clock.monotonic()
    end = now + (work.end - now) / work.shares
    with ExitStack() as bugs:
        if work.bug is not None:
            bugs.enter_context(planted(work.bug))
        return explore(work.scenario, lambda: clock.monotonic() < end)


def _print_failure(found: Exploration) -> None:
    _print(*(f"  {entry}" for entry in found.trace))
    _print("Schedule:", *(f"  {action}" for action in found.schedule))
    _print(*(f"BROKEN: {failure}" for failure in found.failures))
    _print(f"Again: {PROGRAM} --only {found.scenario!r}")


def _print(*lines: str) -> None:
    sys.stdout.writelines(f"{line}\n" for line in lines)
    sys.stdout.flush()
