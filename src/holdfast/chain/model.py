"""The authoring model of chains: the display of their runs, which ``chain/progress.py`` derives from the facts."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.chain import progress
from holdfast.chain.progress import CHAIN, ChainStatus, StepState, TaskState
from holdfast.chain.repair import ChainRepairRules
from holdfast.core import history
from holdfast.core.facts import Fact, FactState
from holdfast.core.model import Status, optional_from_ms
from holdfast.core.records import PlannedStep, StepRecord
from holdfast.kernel.model import Model, RecordedRun


class ChainModel(Model):
    kind = CHAIN
    native_statuses = ChainStatus
    step_states = StepState
    repair = ChainRepairRules()
    writes_outbox = True

    def native_status(self, status: Status) -> str:
        return progress.native_status(status).value

    def steps(self, run: RecordedRun) -> list[StepRecord]:
        row = run.row
        return progress.records(row.number, run.facts, TaskState(row.owner is not None, row.run_at))

    def current_step(self, steps: Sequence[StepRecord]) -> StepRecord | None:
        return progress.current_record(steps)

    def planned(self, facts: Sequence[Fact]) -> Sequence[PlannedStep]:
        plan = sorted((fact for fact in facts if fact.state == FactState.PLAN), key=lambda fact: fact.n)
        before = [(), *((fact.key,) for fact in plan)]
        return [
            PlannedStep(fact.key, after, max_attempts=fact.max_attempts)
            for fact, after in zip(plan, before, strict=False)
        ]

    def open_steps(self, steps: Sequence[StepRecord]) -> Sequence[StepRecord]:
        return [step for step in steps if progress.is_open(step)]

    def why(self, run: RecordedRun, steps: Sequence[StepRecord], now_ms: int) -> str | None:
        """The sentence for a run that was released because the worker had no handler for its current step."""
        row = run.row
        if row.status is not Status.WAITING or row.started_at is None or row.owner is not None:
            return None
        step = progress.step_without_handler(run.facts, row.run_at)
        if step is None or row.run_at is None or row.run_at <= now_ms:
            return None
        retry = history.until(optional_from_ms(row.run_at), now_ms).strip()
        return f"the last worker had no handler for step {step!r} of chain {row.workflow!r}; the run waits {retry}"
