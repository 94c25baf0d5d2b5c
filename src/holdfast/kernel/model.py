"""The interface between an authoring model and the rest of the engine: display of runs, units of successors.

``kind`` in a run's row names the model of the run. The registry holds the models of an app by kind; no other module
tests a kind. A *definition* of a model holds the parts that execute its runs: a driver, a blueprint, decoders
(``kernel/definition.py``). A **model** interprets stored runs, even without their definition.

A new model is a package with a subclass of ``Model`` and its definitions, and one entry in ``holdfast.models``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.core import history
from holdfast.core.facts import Fact, FactState
from holdfast.core.model import Status
from holdfast.core.records import PlannedStep, StepRecord
from holdfast.kernel.repair import RepairRules, Resolution

if TYPE_CHECKING:
    from holdfast.kernel.definition import Definition
    from holdfast.store.protocol import Advance, NewUnit, RunRecord, Store


@dataclass(slots=True, eq=False)
class RecordedRun:
    """A run as the store keeps it."""

    row: RunRecord
    facts: Sequence[Fact]
    payloads: Mapping[int, Any] = field(default_factory=dict)
    """The consumed events by number, as plain JSON."""
    positions: history.Positions = field(default_factory=dict)
    """The place in the code at which the run waits; empty if this process does not have the code."""
    results: bool = True
    """False: the results of successful steps are not needed, and may be left out."""


class Model(Protocol):
    """An authoring model. The defaults show every key of the facts as one step."""

    kind: str
    native_statuses: type[StrEnum] | None = None
    """The values of ``native_status``; None: the model has no statuses of its own."""
    step_states: type[StrEnum] | None = None
    """The values of ``StepRecord.state``; None: the model has no states of its own."""
    units: UnitModel | None = None
    """Set if runs of this model consist of units."""
    repair: RepairRules | None = None
    """The history with which a retried, resolved or forked run continues; None: runs of this model are not repaired."""
    replays_code: bool = False
    """True if the facts of a run are replayed by running its code, which a debugger can stop."""
    writes_outbox: bool = False
    """True if runs of this model write outbound events."""

    def native_status(self, status: Status) -> str | None:
        """The status of a run in the terms of the model."""
        return None

    def steps(self, run: RecordedRun) -> list[StepRecord]:
        """The steps of a run's history; for a model with a plan, including steps that have not started."""
        return history.steps_of(run.row.number, run.facts, run.payloads, results=run.results)

    def current_step(self, steps: Sequence[StepRecord]) -> StepRecord | None:
        """The position of a run, given its steps."""
        return history.current_step(list(steps))

    def open_steps(self, steps: Sequence[StepRecord]) -> Sequence[StepRecord]:
        """The steps that may explain what a run does or waits for. Steps that have ended may be among them."""
        return steps

    def why(self, run: RecordedRun, steps: Sequence[StepRecord], now_ms: int) -> str | None:
        """The state of a run that is neither ended nor paused, in one sentence.

        None: the sentence is built from the open steps, the awaited events and the task.
        """
        return None

    def planned(self, facts: Sequence[Fact]) -> Sequence[PlannedStep]:
        """The steps in the PLAN facts of a run, or of a definition; empty: the model has no plan."""
        return ()

    def started_at(self, run: RecordedRun) -> int | None:
        return run.row.started_at

    def killed(self, run: RecordedRun) -> bool:
        """True if no unit of the run starts any more because the run was killed, terminated or cancelled."""
        return False


class UnitModel(Protocol):
    """The additional part of a model whose runs consist of units. It reads facts, and writes nothing."""

    async def successor_units(self, store: Store, run: RunRecord) -> Sequence[NewUnit]:
        """The units of a run that repeats ``run`` from the beginning."""
        ...

    async def facts(self, store: Store, run: RunRecord, prefix: str) -> dict[str, Any]:
        """The stored facts whose keys begin with a prefix, by key."""
        ...

    async def results(self, store: Store, run: RunRecord) -> dict[str, Any]:
        """The results of the units that succeeded, by the name of the unit."""
        ...

    async def draw_run(self, store: Store, run: RunRecord) -> str:
        """A Mermaid flowchart of a run, coloured by the states of its units."""
        ...

    def resolve(self, run: RecordedRun, resolution: Resolution) -> Advance:
        """The outcome of a unit of an open run that was decided by hand."""
        ...

    def draw_definition(self, definition: Definition) -> str:
        """A Mermaid flowchart of a run that would start now."""
        ...


class UnknownModel(Model):
    """The model of runs whose kind no model of this process has: another program wrote them.

    Only RESULT facts are shown as steps, because the meaning of the other facts is not known.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def steps(self, run: RecordedRun) -> list[StepRecord]:
        results = [fact for fact in run.facts if fact.state == FactState.RESULT]
        return history.steps_of(run.row.number, results, run.payloads)


class Models:
    """Authoring models by kind, in the order of registration."""

    def __init__(self, *models: Model) -> None:
        self._by_kind = {model.kind: model for model in models}

    def __iter__(self) -> Iterator[Model]:
        return iter(self._by_kind.values())

    def add(self, model: Model) -> None:
        self._by_kind[model.kind] = model

    def of_kind(self, kind: str) -> Model:
        return self._by_kind.get(kind) or UnknownModel(kind)
