"""``simulate``: a user's workflow under crashes, retries, slow and failing steps and reordered events.

Runs the workflow without faults (the baseline), then once for each seed, and compares the results. A difference is
minimized: the seed is run again with as few of its faults as still show the difference. ``comparison`` then classifies
the difference.
"""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from holdfast.app import Holdfast
from holdfast.kernel.startable import Startable
from holdfast.ports import Threads
from holdfast.testing.simulation.comparison import Comparison, Problem
from holdfast.testing.simulation.minimize import minimize
from holdfast.testing.simulation.report import (
    SEED,
    Finding,
    SentEvent,
    SimulatedRun,
    SimulationFailed,
    SimulationReport,
)
from holdfast.testing.simulation.scenario import BASELINE_SEED, Scenario, SeedResult
from holdfast.testing.simulation.seed_run import run_seed
from holdfast.testing.simulation.step_calls import Step

R = TypeVar("R")

Allow = Callable[[SimulatedRun], bool] | Collection[Any]
Check = Callable[[SimulatedRun], object]

_MAX_FINDINGS = 5
_MIN_SEEDS_AFTER_FINDING = 20
"""Minimum number of seeds run after a finding, to find others."""
_MAX_MINIMIZED = 5
_MAX_MINIMIZING_RUNS = 60
"""Maximum number of runs to minimize one finding."""


async def simulate(
    app: Holdfast,
    workflow: Startable[Any, Any] | str,
    params: Any = None,
    *,
    seeds: int = 200,
    first: int = 1,
    seed: int | None = None,
    events: Iterable[SentEvent | tuple[str, Any] | str] = (),
    world: Callable[[], Any] | None = None,
    view: Callable[[Any], Any] | None = None,
    check: Check | None = None,
    allow: Allow = (),
    tables: str | Sequence[str] = (),
    id: str = "simulated",
    fail: bool = True,
    **options: Any,
) -> SimulationReport:
    """Run a workflow, a chain or a graph under faults, and report where faults change its result.

    ``seeds`` is the number of runs, with seeds from ``first`` on; with ``seed`` only that seed is run. ``events`` are
    the events that are sent from outside. ``world`` is called before each run and creates the fakes that the steps use;
    ``view`` returns the part of the fakes' state that must be the same as without faults. ``check`` is called with
    each run at its end and asserts what must hold. ``allow`` holds further correct results, besides that of the run
    without faults, or is a function that returns True for a correct run. ``tables`` are SQL statements that create the
    tables of steps with a ``StepTx`` or a ``Transaction``. ``options`` are those of ``app.start``.

    Raises ``SimulationFailed`` if anything was found, unless ``fail`` is False.

    Example::

        async def test_an_order_survives() -> None:
            await simulate(app, fulfil, Order("o-1", 125), events=[("approval", {"by": "ann"})], world=fresh_bank)
    """
    name = workflow if isinstance(workflow, str) else workflow.name
    app.registry.get(name)
    statements = [tables] if isinstance(tables, str) else [*tables]
    scenario = Scenario(app, name, params, id, options, [_event(event) for event in events], world, view, statements)
    chosen_seeds = range(first, first + seeds) if seed is None else range(seed, seed + 1)
    thread = _SimulationThread()
    try:
        report = await _Exploration(scenario, thread, allow, check).explore(chosen_seeds)
    finally:
        thread.close()
    if fail and not report.ok:
        raise SimulationFailed(report)
    return report


def _event(event: SentEvent | tuple[str, Any] | str) -> SentEvent:
    if isinstance(event, SentEvent):
        return event
    return SentEvent(event) if isinstance(event, str) else SentEvent(*event)


class _SimulationThread:
    """The thread of the simulated loop, separate from the caller's. A cancelled caller waits until the call ends."""

    def __init__(self) -> None:
        self._threads = Threads(1)

    async def do(self, call: Callable[[], R]) -> R:
        context = contextvars.copy_context()
        done = self._threads.submit(lambda: context.run(call))
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            await asyncio.wait([done])  # otherwise the simulation would still run while the caller continues
            raise

    def close(self) -> None:
        self._threads.close()


@dataclass(slots=True)
class _Exploration:
    scenario: Scenario
    thread: _SimulationThread
    allow: Allow
    check: Check | None
    findings: list[Finding] = field(default_factory=list)
    endings: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    minimized: int = 0
    """Number of problems that were minimized."""
    digests: Any = field(default_factory=hashlib.sha256)

    async def explore(self, seeds: range) -> SimulationReport:
        baseline = await self._run_seed(BASELINE_SEED)
        comparison = Comparison(baseline, self.allow, self.check)
        problem = comparison.baseline_problem() or comparison.repeated_baseline_problem(
            await self._run_seed(BASELINE_SEED)
        )
        if problem is not None:
            self.findings.append(comparison.finding(problem, baseline))
        else:
            await self._explore_seeds(seeds, comparison)
        return SimulationReport(
            self.scenario.workflow,
            self.endings.total(),
            self.findings,
            self.endings,
            self.faults,
            self.digests.hexdigest()[:16],
            f"await simulate(app, {self.scenario.workflow}, ..., seed={SEED})",
        )

    async def _explore_seeds(self, seeds: range, comparison: Comparison) -> None:
        """Run the seeds; after a finding only some more."""
        enough = len(seeds)
        for done, seed in enumerate(seeds, 1):
            await self._explore_seed(seed, comparison)
            if self.findings:
                enough = min(enough, _MIN_SEEDS_AFTER_FINDING + 2 * done)
            if done >= enough or len(self.findings) >= _MAX_FINDINGS or self.minimized >= _MAX_MINIMIZED:
                return

    async def _explore_seed(self, seed: int, comparison: Comparison) -> None:
        """Run a seed; minimize its problem if that is new."""
        result = await self._run_seed(seed, comparison)
        self.digests.update(result.digest.encode())
        self.endings[result.run.ending] += 1
        self.faults.update(result.fault_counts)
        problem = comparison.problem_of(result)
        if problem is None or comparison.is_known(problem, result, self.findings):
            return
        self.minimized += 1
        finding = await self._minimize(seed, result, problem, comparison)
        if not any((finding.kind, finding.step) == (other.kind, other.step) for other in self.findings):
            self.findings.append(finding)

    async def _minimize(self, seed: int, result: SeedResult, problem: Problem, comparison: Comparison) -> Finding:
        return await self.thread.do(lambda: self._minimal_finding(seed, result, problem, comparison))

    def _minimal_finding(self, seed: int, result: SeedResult, problem: Problem, comparison: Comparison) -> Finding:
        runs = 0

        def reproduce(faults: Sequence[str]) -> SeedResult | None:
            nonlocal runs
            runs += 1
            repeated = run_seed(self.scenario, seed, comparison.baseline, only=faults)
            same = comparison.problem_of(repeated)
            return repeated if same is not None and same.tag == problem.tag else None

        if reproduce(result.faults) is None:
            return comparison.unsteady_finding(result)
        kept = minimize(result.faults, lambda faults: runs < _MAX_MINIMIZING_RUNS and reproduce(faults) is not None)
        minimal = reproduce(kept) or result
        unsafe = self._unsafe_steps(minimal, problem, comparison)
        return comparison.finding(comparison.problem_of(minimal) or problem, minimal, unsafe)

    def _unsafe_steps(self, result: SeedResult, problem: Problem, comparison: Comparison) -> list[Step]:
        """Return the steps that cause the same problem without any fault, when they are called twice in a row."""
        unsafe = []
        for step, until in comparison.suspects(result):
            if until is None:
                unsafe.append(step)
                continue
            same = comparison.problem_of(
                run_seed(self.scenario, BASELINE_SEED, comparison.baseline, extra_calls={step: until})
            )
            if same is not None and same.tag == problem.tag:
                unsafe.append(step)
        return unsafe

    async def _run_seed(self, seed: int, comparison: Comparison | None = None) -> SeedResult:
        return await self.thread.do(
            lambda: run_seed(self.scenario, seed, None if comparison is None else comparison.baseline)
        )
