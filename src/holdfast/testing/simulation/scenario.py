"""A scenario of a user's workflow, and the result of executing it once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.app import Holdfast
from holdfast.testing.simulation.report import SentEvent, SimulatedRun
from holdfast.testing.simulation.step_calls import AttemptNeeds, Step, StepCall

BASELINE_SEED = 0
"""The seed of the baseline, the run without faults."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """The arguments of ``simulate`` that are the same for all seeds."""

    app: Holdfast
    workflow: str
    params: Any
    id: str
    options: Mapping[str, Any]
    events: Sequence[SentEvent]
    world: Callable[[], Any] | None
    view: Callable[[Any], Any] | None
    tables: Sequence[str]

    @property
    def pid(self) -> str:
        """The pid of the simulated run."""
        return f"{self.workflow}/{self.id}"


@dataclass(frozen=True, slots=True)
class SeedResult:
    """The result of one execution of the scenario."""

    run: SimulatedRun
    plain: Any
    """The run's output as stored."""
    view: Any
    """Copy of the fakes' state and of the user's tables at the end."""
    stuck: str | None
    """Reason why the run waits forever; None if it does not."""
    endless: str | None
    """Message about a run that did not end within the allowed callbacks."""
    replay: str | None
    """Difference between the run and a replay of it; None if there is none."""
    calls: Sequence[StepCall]
    needs: Mapping[Step, AttemptNeeds]
    faults: Sequence[str]
    fault_counts: Counter[str]
    story: Sequence[str]
    digest: str
    callbacks: int

    @property
    def end(self) -> tuple[Any, ...]:
        return self.run.status, self.plain, self.run.error
