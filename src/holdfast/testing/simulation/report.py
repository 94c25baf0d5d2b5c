"""The report of a simulation: findings, each with advice and the events of a minimal failing run."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

SEED = "{seed}"


class SimulationError(RuntimeError):
    """Raised if a workflow does something that cannot be simulated. The message names the remedy."""


class SimulationFailed(AssertionError):
    """A simulation has findings. ``report`` holds all of them."""

    def __init__(self, report: SimulationReport) -> None:
        super().__init__(str(report))
        self.report = report


class FindingKind(StrEnum):
    STEP = "a step that is not safe to run twice"
    TIMING = "a result that depends on timing"
    WAIT = "a wait that can never end"
    REPLAY = "a replay that differs from the first execution"
    FAILURE = "a run that fails"
    ENDLESS = "a run that does not end"
    CHECK = "a check that fails"
    UNSTEADY = "a run that is different each time"


_ADVICE = {
    FindingKind.STEP: (
        "A step runs at least once: its worker may die, or its reply may be lost, after it has done its work. Make the "
        "step safe to repeat: pass an idempotency key to the service (step_info().idempotency_key, or one made in the "
        "workflow), insert with ON CONFLICT DO NOTHING, or write with StepTx, which commits with the result. If the "
        "difference does not matter, exclude it with view=."
    ),
    FindingKind.TIMING: (
        "Make the result independent of the order in which steps end and events arrive: gather() keeps the order of "
        "its arguments, and an event sent with an id= counts once. If several results are correct, list them with "
        "allow=."
    ),
    FindingKind.WAIT: (
        "Give the wait a timeout (wait_for_event(timeout=...), asyncio.timeout(...)), or list the events that are sent "
        "from outside with events=."
    ),
    FindingKind.REPLAY: (
        "Workflow code runs again after a crash and must make the same calls: everything that changes (the time, "
        "random numbers, files, globals) must come from ctx or from a step."
    ),
    FindingKind.FAILURE: (
        "Give the step retries, or catch its error in the workflow. If the run may fail, permit it with allow=."
    ),
    FindingKind.ENDLESS: "Send the events that end the run with events=, or simulate a part of it that ends.",
    FindingKind.CHECK: "An assertion of check= does not hold; the events before it are listed above.",
    FindingKind.UNSTEADY: (
        "Two runs without faults, or with the same faults, end differently, so the effect of faults cannot be "
        "determined. Create new fakes in world=, and remove random numbers and the time from steps, or from the values "
        "that are compared (view=, allow=)."
    ),
}


@dataclass(frozen=True, slots=True)
class SentEvent:
    """An event that is sent from outside. ``to`` is the pid of the receiver, by default the simulated run.

    An event with an ``id`` counts once, even if it is sent twice.
    """

    type: str
    payload: Any = None
    id: str | None = field(default=None, kw_only=True)
    to: str | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """A run that has ended: the argument of ``check`` and ``allow``."""

    seed: int | None
    """None for the run without faults."""
    status: str
    result: Any
    error: str | None
    world: Any

    @property
    def ending(self) -> str:
        """The end of the run as text, for example ``returned 5``."""
        if self.status == "complete":
            return f"returned {self.result!r}"
        return f"{self.status}: {self.error}" if self.error else self.status


@dataclass(frozen=True, slots=True)
class Finding:
    kind: FindingKind
    seed: int | None
    """None for a finding that needs no fault."""
    step: str | None
    """The steps that cause the problem, where they are known."""
    message: str
    story: Sequence[str]
    """The events of the run with the fewest faults that show the problem."""
    faults: Sequence[str]
    """Names of the faults in that run."""

    @property
    def advice(self) -> str:
        return _ADVICE[self.kind]

    def __str__(self) -> str:
        title = str(self.kind)[0].upper() + str(self.kind)[1:]
        subject = f": {self.step}" if self.step else ""
        where = "without any fault" if self.seed is None else f"seed {self.seed}"
        lines = [f"{title}{subject} ({where})", textwrap.indent(self.message, "  ")]
        if self.story:
            lines += ["  What happened:", *(f"    {line}" for line in self.story)]
        lines.append(textwrap.fill(f"What to do: {self.advice}", 110, initial_indent="  ", subsequent_indent="    "))
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class SimulationReport:
    """The findings and the statistics of a simulation."""

    workflow: str
    seeds: int
    """Number of seeds that were run."""
    findings: Sequence[Finding]
    endings: Counter[str]
    """Number of runs by how they ended."""
    faults: Counter[str]
    """Number of injected faults by kind."""
    digest: str
    """Hash of all events of all runs: equal for the same seeds, workflow and fakes."""
    again: str
    """Call that runs a seed again; ``SEED`` stands for the seed."""

    @property
    def ok(self) -> bool:
        """True if nothing was found."""
        return not self.findings

    @property
    def kinds(self) -> list[FindingKind]:
        return [finding.kind for finding in self.findings]

    def __str__(self) -> str:
        seeds = f"{self.seeds} seed{'' if self.seeds == 1 else 's'}"
        if self.ok:
            faults = ", ".join(f"{times} {kind}" for kind, times in sorted(self.faults.items())) or "no faults"
            ends = "; ".join(f"{times} {ending}" for ending, times in self.endings.most_common())
            return f"{self.workflow}: {seeds}, nothing found\n  faults: {faults}\n  runs: {ends}"
        number = len(self.findings)
        parts = [f"{self.workflow}: {number} finding{'' if number == 1 else 's'} in {seeds}"]
        parts += [f"{n}. {finding}\n  Again: {self._again(finding)}" for n, finding in enumerate(self.findings, 1)]
        return "\n\n".join(parts)

    def _again(self, finding: Finding) -> str:
        return self.again.replace(SEED, str(finding.seed or 1))
