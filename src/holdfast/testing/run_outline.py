"""The part of a run that a crash of its worker must not change."""

from __future__ import annotations

from typing import Any, NamedTuple

from holdfast.client import Handle
from holdfast.core.model import StepType
from holdfast.core.records import StepRecord
from holdfast.errors import ErrorInfo


class RunOutline(NamedTuple):
    """The outcome and the steps of a run, without times and attempts."""

    status: str
    output: Any
    error: ErrorInfo | None
    steps: list[tuple[Any, ...]]
    """Sorted by key: threads and sockets decide which of several parallel steps ends first."""

    @classmethod
    async def of(cls, run: Handle[Any]) -> RunOutline:
        status = await run.status()
        steps = sorted((await run.history()).steps, key=lambda step: step.step_key)
        return cls(status.status, status.output, status.error, [_outline(step) for step in steps])


def _outline(step: StepRecord) -> tuple[Any, ...]:
    result = step.result
    if step.type == StepType.WAIT and result is not None:
        result = result["payload"]
    return step.step_key, step.type, step.status, result, step.error
