"""Checks of requests that repair runs, and the errors of requests that are refused."""

from __future__ import annotations

from holdfast.core.model import StepType
from holdfast.errors import StateError
from holdfast.kernel.model import RecordedRun
from holdfast.kernel.repair import Resolution
from holdfast.store.protocol import Fact, FactState, RunRecord


def check_open(run: RecordedRun, step_key: str) -> None:
    """Raise ``StateError`` if a step of an open run cannot be resolved."""
    own = [fact for fact in run.facts if fact.key == step_key and fact.kind == StepType.DO]
    if not own or any(fact.state == FactState.RESULT for fact in own):
        what = "has a result already" if own else "is not known, or has not been tried yet"
        raise StateError(f"step {step_key!r} of {run.row.pid} {what}, so it cannot be resolved")


def resolved(run: RecordedRun, resolution: Resolution) -> list[Fact]:
    """The facts of an open run that receives the outcome of a step after everything that is recorded."""
    last = max((fact.seq for fact in run.facts if fact.seq is not None), default=0)
    old = next(fact for fact in run.facts if fact.key == resolution.step)
    return [*run.facts, resolution.result(old)._replace(seq=last + 1)]


def wrong_state(row: RunRecord, what: str, needed: str) -> StateError:
    return StateError(
        f"instance {row.instance_id!r} of {row.workflow!r} is {row.status.value} and cannot be {what}; "
        f"only a run that is {needed} can"
    )


def replaced(row: RunRecord, what: str) -> StateError:
    return StateError(
        f"instance {row.instance_id!r} of {row.workflow!r} was not {what}: "
        f"run {row.number} has taken the place of the run that was found"
    )
