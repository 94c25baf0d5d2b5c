"""What a simulation of a user's workflow has to say."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

SEED = "{seed}"


class SimulationError(RuntimeError):
    """What was asked for cannot be simulated; the message says what to do."""


class SimulationFailed(AssertionError):  # noqa: N818  (reads like the assertion it is)
    """A simulation found something. ``report`` has all of it."""

    def __init__(self, report: SimulationReport) -> None:
        super().__init__(str(report))
        self.report = report


class FindingKind(StrEnum):
    STEP = "a step that is not safe to run twice"
    TIMING = "a result that depends on timing"
    WAIT = "a wait that can never end"
    REPLAY = "a replay that does something else"
    FAILURE = "a run that fails"
    ENDLESS = "a run that goes on and on"
    CHECK = "a check that fails"
    UNSTEADY = "a run that is different each time"


_ADVICE = {
    FindingKind.STEP: (
        "A step runs at least once: its worker may die, or its answer get lost, after it has done its work. Let the "
        "second call find what the first one did: hand an idempotency key to the service (made in the workflow, from "
        "ctx.info.instance_id or ctx.uuid4()), insert with ON CONFLICT DO NOTHING, or write with StepTx, which commits "
        "with the result. If what differs does not matter, leave it out by view=."
    ),
    FindingKind.TIMING: (
        "Do not let what ends first, or what comes first, decide; gather() keeps the order of its arguments, an event "
        "sent with an id= counts once. If more than one result is right, say which by allow=."
    ),
    FindingKind.WAIT: (
        "Give the wait a timeout (wait_for_event(timeout=...), asyncio.timeout(...)), or name what the outside sends "
        "by events=."
    ),
    FindingKind.REPLAY: (
        "Workflow code runs again after a crash and must ask for the same things: what changes (the time, chance, "
        "files, globals) comes from ctx or from a step."
    ),
    FindingKind.FAILURE: (
        "Give the step retries, or catch its error in the workflow. If the run may fail so, say it by allow=."
    ),
    FindingKind.ENDLESS: "Send what makes it stop by events=, or simulate a part of it that ends.",
    FindingKind.CHECK: "What check= promises does not hold: the story says what came before.",
    FindingKind.UNSTEADY: (
        "Without a fault, or with the same ones, it ends differently, so faults cannot be judged. Make the fakes anew "
        "in world=, and take chance and time out of steps, or out of what is compared (view=, allow=)."
    ),
}


@dataclass(frozen=True, slots=True)
class SentEvent:
    """An event that the outside sends. ``to``: the pid of another run than the one that is simulated.

    With an ``id`` it counts once, however often it comes.
    """

    type: str
    payload: Any = None
    id: str | None = field(default=None, kw_only=True)
    to: str | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """One run to its end: what ``check`` and ``allow`` are called with."""

    seed: int | None
    """None: without faults."""
    status: str
    result: Any
    error: str | None
    world: Any

    @property
    def ending(self) -> str:
        """As people would say it."""
        if self.status == "complete":
            return f"returned {self.result!r}"
        return f"{self.status}: {self.error}" if self.error else self.status


@dataclass(frozen=True, slots=True)
class Finding:
    kind: FindingKind
    seed: int | None
    """None: it needs no fault."""
    step: str | None
    """The steps that are to blame, where that is known."""
    message: str
    story: Sequence[str]
    """What happened, with no fault more than needed."""
    faults: Sequence[str]
    """Their names."""

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
    """``ok``: nothing was found."""

    workflow: str
    seeds: int
    """How many were run."""
    findings: Sequence[Finding]
    endings: Counter[str]
    """How the runs ended, and how many of them so."""
    faults: Counter[str]
    """What was done to them, and how often."""
    digest: str
    """Of all that happened: the same for the same seeds, workflow and fakes."""
    again: str
    """How to run a seed again, which goes in the place of ``SEED``."""

    @property
    def ok(self) -> bool:
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
