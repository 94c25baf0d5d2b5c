"""The history with which a retried, resolved or forked run of a chain continues."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.chain.progress import Progress
from holdfast.core.facts import FactState
from holdfast.core.model import StepType
from holdfast.kernel.model import RecordedRun
from holdfast.kernel.repair import Continuation, RepairRules, Resolution, not_failed, replaced, unknown_step

_ATTEMPTS = (FactState.RESULT, FactState.FAILURE, FactState.HEARTBEAT)


class ChainRepairRules(RepairRules):
    def retry(self, run: RecordedRun, now: int, resolution: Resolution | None = None) -> Continuation:
        """The history without the attempts of the dead step. Its wait, if it waited, stays ended by the same event."""
        step = Progress.of(run.facts).current
        dead = None if step is None or step.result is None else step.type
        if resolution is not None and resolution.step != dead:
            raise not_failed(run, resolution.step, () if dead is None else (dead,))
        open_step = None if step is None else step.type
        facts = [
            fact
            for fact in run.facts
            if fact.state != FactState.PLAN and not (fact.key == open_step and fact.state in _ATTEMPTS)
        ]
        if resolution is not None and step is not None and step.result is not None:
            facts.append(resolution.result(step.result))
        return Continuation(facts)

    def fork(self, run: RecordedRun, before: str, outputs: Mapping[str, bytes]) -> Continuation:
        types = [step.type for step in Progress.of(run.facts).steps]
        if before not in types:
            raise unknown_step(run, before, types)
        kept = {*types[: types.index(before)]}
        facts = [fact for fact in run.facts if fact.state != FactState.PLAN and fact.key in kept]
        done = {fact.key for fact in facts if fact.state == FactState.RESULT}
        if kept - done:
            raise unknown_step(run, before, done)
        return Continuation(replaced(run, facts, outputs, StepType.DO))
