"""Inspection of chains: a chain has no code to replay, so a position is the state that a number of facts gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from holdfast.chain.progress import ChainStep, Progress
from holdfast.core import codec
from holdfast.core.facts import Fact
from holdfast.core.frames import function_info, position_of_function
from holdfast.core.model import StepType, optional_from_ms
from holdfast.core.redaction import Redaction
from holdfast.core.views import PendingRequest, TaskStack
from holdfast.errors import ParamsInvalidError
from holdfast.kernel.fact_inspection import FactInspection
from holdfast.kernel.fact_order import in_order
from holdfast.kernel.inspection import Difference, DifferenceKind, Subject

if TYPE_CHECKING:
    from holdfast.chain.chain import ChainProgram


class ChainInspection(FactInspection):
    """A run of a chain at a position in its history."""

    def __init__(self, program: ChainProgram, subject: Subject, redaction: Redaction) -> None:
        super().__init__(subject, redaction)
        self._program = program
        numbers = {fact.key: fact.n for fact in self._plan}
        self.facts: Sequence[Fact] = in_order(subject.snapshot.facts, lambda key: numbers.get(key, 0))

    def _progress(self) -> Progress:
        return Progress.of(self._replayed())

    def _current(self) -> ChainStep | None:
        """The step that runs, waits or is due; None if all steps are done or one is dead."""
        step = self._progress().current
        return None if step is None or step.result is not None else step

    # --- where it is

    def tasks(self, *, all: bool = False) -> list[TaskStack]:
        step = self._current()
        if step is None:
            return []
        handler = self._program.handler(step.type)
        frames = [] if handler is None else [function_info(handler.function, self._locals(step), self._redaction)]
        return [TaskStack(step.type, frames, str(self._request(step)))]

    def _locals(self, step: ChainStep) -> dict[str, Any]:
        outputs = {s.type: codec.plain(s.result.value) for s in self._progress().steps[: step.seq]}
        variables = {
            "params": codec.plain(self._subject.run.params),
            "attempt": step.failed_attempts + 1,
            "outputs": outputs,
        }
        if step.woken is not None and step.woken.event is not None and not step.waiting:
            variables["event"] = codec.plain(self._subject.snapshot.events[step.woken.event].payload)
        return variables

    def pending(self) -> list[PendingRequest]:
        step = self._current()
        return [] if step is None else [self._request(step)]

    def _request(self, step: ChainStep) -> PendingRequest:
        handler = self._program.handler(step.type)
        waiting = step.waiting
        return PendingRequest(
            step_key=step.type,
            type=(StepType.WAIT if waiting else StepType.DO).value,
            name=step.type,
            wake_at=optional_from_ms(step.wait.wake_at if waiting else step.not_before or None),
            wait_event_type=step.wait.event_type if waiting else None,
            attempts=step.failed_attempts,
            recorded=True,
            position=None if handler is None else position_of_function(handler.function),
        )

    # --- differences

    def differences(self) -> list[Difference]:
        progress = Progress.of(self._subject.snapshot.facts)
        if not progress.steps:
            return [Difference(DifferenceKind.PARKED, "the run was started without a plan")]
        missing = [step.type for step in progress.steps if step.result is None and not self._program.handler(step.type)]
        found = [
            Difference(
                DifferenceKind.PARKED,
                f"the plan of the run has step {step!r}, and chain {self._program.name!r} has no handler for it",
            )
            for step in missing
        ]
        try:
            self._program.decode_params(codec.plain(self._subject.run.params))
        except ParamsInvalidError as error:
            text = f"the recorded params do not fit the chain's type any more: {error}"
            found.append(Difference(DifferenceKind.VALUE, text))
        return found if progress.current is not None else []
