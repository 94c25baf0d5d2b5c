"""Compares the results of runs with faults with the baseline, and classifies the differences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from holdfast.core.show import shown
from holdfast.testing.simulation.report import Finding, FindingKind, SimulatedRun
from holdfast.testing.simulation.scenario import SeedResult
from holdfast.testing.simulation.step_calls import Step, StepCall

_WIDTH = 300


class Problem(NamedTuple):
    """A difference, or an error of a single run. Problems with the same ``tag`` count as the same problem."""

    tag: str
    message: str


class Comparison:
    """Compares results with ``baseline``, the result of the run without faults."""

    def __init__(
        self,
        baseline: SeedResult,
        allow: Callable[[SimulatedRun], bool] | Collection[Any],
        check: Callable[[SimulatedRun], object] | None,
    ) -> None:
        self.baseline = baseline
        self._allow = allow
        self._check = check

    # --- detection

    def baseline_problem(self) -> Problem | None:
        """Return the problem of the baseline itself, if any."""
        problem, run = self._own_problem(self.baseline), self.baseline.run
        if problem is None and run.status != "complete" and not self._allowed(run):
            return Problem("failure", f"The run {run.ending}, without any fault.")
        return problem

    def repeated_baseline_problem(self, again: SeedResult) -> Problem | None:
        """Return a problem if a second run without faults differs from the baseline."""
        if self.baseline.end == again.end and self.baseline.view == again.view:
            return None
        return Problem("unsteady", "Two runs without faults ended differently.\n" + _difference(self.baseline, again))

    def problem_of(self, result: SeedResult) -> Problem | None:
        own_problem = self._own_problem(result)
        if own_problem is not None:
            return own_problem
        if result.end != self.baseline.end:
            if self._allowed(result.run):
                return None
            return Problem(
                "end", "The run ended differently from the run without faults.\n" + _difference(self.baseline, result)
            )
        if result.view != self.baseline.view:
            return Problem(
                "view", "The world differs from that of the run without faults.\n" + _difference(self.baseline, result)
            )
        return None

    def _own_problem(self, result: SeedResult) -> Problem | None:
        """Return a problem of the run alone, found without a comparison with the baseline."""
        if result.stuck is not None and "NON_DETERMINISTIC" in result.stuck:
            return Problem("replay", f"The run stays paused: {result.stuck}.")
        if result.stuck is not None:
            return Problem("wait", f"Nothing is due, no more events will be sent, and {result.stuck}.")
        if result.endless is not None:
            return Problem("endless", f"The run does not end: {result.endless}.")
        if result.replay is not None:
            return Problem("replay", f"{result.replay}.")
        if self._check is not None:
            try:
                self._check(result.run)
            except AssertionError as error:
                return Problem("check", f"check: {error or 'an assertion failed'}")
        return None

    def _allowed(self, run: SimulatedRun) -> bool:
        if callable(self._allow):
            return bool(self._allow(run))
        return run.status == "complete" and run.result in [*self._allow]

    # --- classification

    def is_known(self, problem: Problem, result: SeedResult, findings: Sequence[Finding]) -> bool:
        """Return True if the findings so far probably explain the problem."""
        steps = self._repeated(result)
        kinds = [self._kind(problem, result, []), *([FindingKind.STEP] if steps else [])]
        same = [finding for finding in findings if finding.kind in kinds]
        return bool(same) and all(any(repr(key) in (finding.step or "") for finding in same) for _, key in steps)

    def suspects(self, result: SeedResult) -> list[tuple[Step, int | None]]:
        """Return steps that were called more often than in the baseline, each with the progress of an earlier call.

        The progress is the number of suspensions (0: the call ended), or None if the step cannot be called twice in a
        row.
        """
        suspects = [
            (step, None if call.in_transaction else 0 if call.outcome is not None else call.waits)
            for step in self._repeated(result)
            for call in _calls(result, step)[:-1]
        ]
        return list(dict.fromkeys(suspects))

    def finding(self, problem: Problem, result: SeedResult, unsafe: Sequence[Step] = ()) -> Finding:
        """Create the finding for a minimized result.

        ``unsafe``: steps that cause the problem without any fault, when they are called twice.
        """
        kind = self._kind(problem, result, unsafe)
        keys = list(dict.fromkeys(key for _, key in unsafe)) if kind is FindingKind.STEP else []
        repeated = [f"{key!r} was called more than once: {_outcomes(result, key)}" for key in keys]
        named = ", ".join(repr(key) for key in keys) or None
        return Finding(
            kind, result.run.seed, named, "\n".join([problem.message, *repeated]), result.story, result.faults
        )

    def unsteady_finding(self, result: SeedResult) -> Finding:
        message = (
            f"A second run of the same seed with the same faults had another result; the first run {result.run.ending}."
        )
        return Finding(FindingKind.UNSTEADY, result.run.seed, None, message, result.story, result.faults)

    def _kind(self, problem: Problem, result: SeedResult, unsafe: Sequence[Step]) -> FindingKind:
        match problem.tag:
            case "replay":
                return FindingKind.REPLAY
            case "endless":
                return FindingKind.ENDLESS
            case "failure":
                return FindingKind.FAILURE
            case "unsteady":
                return FindingKind.UNSTEADY
            case _ if unsafe:
                return FindingKind.STEP
            case "wait":
                return FindingKind.WAIT
            case "check":
                return FindingKind.CHECK
            case _ if result.run.status != self.baseline.run.status:
                return FindingKind.FAILURE
            case _:
                return FindingKind.TIMING

    def _repeated(self, result: SeedResult) -> list[Step]:
        before = Counter(call.step for call in self.baseline.calls)
        now = Counter(call.step for call in result.calls)
        return [step for step, times in now.items() if times > max(1, before[step])]


def _calls(result: SeedResult, step: Step) -> list[StepCall]:
    return [call for call in result.calls if call.step == step]


def _outcomes(result: SeedResult, key: str) -> str:
    return ", then ".join(call.outcome or "interrupted" for call in result.calls if call.step[1] == key)


def _difference(baseline: SeedResult, result: SeedResult) -> str:
    """Return the ends or views of two runs as text, one below the other."""
    if baseline.end != result.end:
        return f"  without faults: {baseline.run.ending}\n  now:            {result.run.ending}"
    before, after = _changed(baseline.view, result.view)
    return f"  without faults: {before}\n  now:            {after}"


def _changed(before: Any, after: Any) -> tuple[str, str]:
    """Return the differing part of two views as text."""
    one, other = next(pair for pair in zip(before, after, strict=True) if pair[0] != pair[1])
    if isinstance(one, dict) and isinstance(other, dict):
        keys = [key for key in {**one, **other} if one.get(key, ...) != other.get(key, ...)]
        one, other = ({key: part[key] for key in keys if key in part} for part in (one, other))
    return shown(one, _WIDTH), shown(other, _WIDTH)
