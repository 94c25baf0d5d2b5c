"""Views of a stored run on the code of this process: its stack, and its state after a number of facts.

Nothing is written and no step is called. The views of a run in the database and of an exported run are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from holdfast.client.records import event_value, log_line
from holdfast.client.run_file import StoredRun
from holdfast.core.checks import is_whole_number
from holdfast.core.facts import Fact, FactState, StoredLog
from holdfast.core.history import fact_error, fact_result
from holdfast.core.model import Status, StepType, from_ms
from holdfast.core.records import LogLine
from holdfast.core.redaction import Redaction
from holdfast.core.views import FactPosition, FactRecord, ReplayView, Stack
from holdfast.errors import HoldfastError, InvalidOptionError, WorkflowNotFoundError
from holdfast.kernel.definition import Registry
from holdfast.kernel.inspection import Difference, DifferenceKind, Inspection, Subject
from holdfast.kernel.requests import Requests
from holdfast.store.protocol import RunRecord

MAX_POSITIONS = 300
"""Each fact costs a walk over the frames of all tasks."""


class Replayer:
    """Opens stored runs on the definitions of one app."""

    def __init__(
        self, registry: Registry, requests: Requests, now_ms: Callable[[], int], *, strict: bool = False
    ) -> None:
        """``strict``: replay is strict, whatever mode a workflow has."""
        self._strict = strict
        self._registry = registry
        self._requests = requests
        self._now_ms = now_ms

    def has_code(self, workflow: str, kind: str) -> bool:
        """True if runs of this workflow can be replayed in this process."""
        if workflow not in self._registry:
            return False
        definition = self._registry.get(workflow)
        return definition.inspect is not None and definition.kind == kind

    @contextmanager
    def open(self, stored: StoredRun) -> Iterator[Inspection]:
        """An inspection of the run, closed afterwards."""
        definition = self._registry.get(stored.row.workflow)
        if definition.inspect is None or definition.kind != stored.row.kind:
            raise WorkflowNotFoundError(
                f"this process has no code for {stored.row.kind} {stored.row.workflow!r}, so it cannot be replayed here"
            )
        subject = Subject(stored.row, stored.snapshot, self._now_ms(), self._strict)
        inspection = definition.inspect(subject, self._requests, Redaction(self._registry.redacted))
        try:
            yield inspection
        finally:
            inspection.close()

    def differences(self, stored: StoredRun) -> list[Difference]:
        """Differences between the recorded course of the run and its course on the code of this process."""
        row = stored.row
        if not self.has_code(row.workflow, row.kind):
            text = f"the run belongs to {row.kind} {row.workflow!r}, and none of this name is registered"
            return [Difference(DifferenceKind.UNKNOWN, text)]
        with self.open(stored) as inspection:
            return inspection.differences()

    def unfit_value(self, stored: StoredRun) -> str | None:
        """The first recorded value that does not fit its type, as text; None also if this process lacks the code."""
        if not self.has_code(stored.row.workflow, stored.row.kind):
            return None
        try:
            found = self.differences(stored)
        except (HoldfastError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            return None  # the worker reports such a run
        return next((one.message for one in found if one.kind is DifferenceKind.VALUE), None)

    def stack(self, stored: StoredRun, *, all: bool = False) -> Stack:
        if self._code_has_ended(stored.row):
            return Stack()
        with self.open(stored) as inspection:
            inspection.replay_to(len(inspection.facts))
            return Stack(inspection.tasks(all=all), inspection.difference)

    def view(self, stored: StoredRun, until: int | None = None, *, all: bool = False) -> ReplayView:
        if until is not None and not is_whole_number(until, 0):
            raise InvalidOptionError(f"until must be a whole number of at least 0, not {until!r}")
        with self.open(stored) as inspection:
            total = len(inspection.facts)
            inspection.replay_to(total if until is None else min(until, total))
            return self.view_of(stored, inspection, all=all)

    def view_of(self, stored: StoredRun, inspection: Inspection, *, all: bool = False) -> ReplayView:
        """The view at the position of an inspection."""
        position, total = inspection.position, len(inspection.facts)
        fact = inspection.facts[position - 1] if position else None
        ended = self._code_has_ended(stored.row) and position == total
        return ReplayView(
            position=position,
            total=total,
            fact=None if fact is None else fact_record(fact, stored),
            stack=Stack([] if ended else inspection.tasks(all=all), inspection.difference),
            pending=[] if ended else inspection.pending(),
            logs=_logs(stored, inspection, fact),
        )

    def fact_positions(self, stored: StoredRun) -> list[FactPosition]:
        """The lines of code that awaited the first ``MAX_POSITIONS`` facts, while history and code fit."""
        if not self.replays_code(stored.row):
            return []
        with self.open(stored) as inspection:
            found = []
            inspection.replay_to(0)
            for number, fact in enumerate(inspection.facts[:MAX_POSITIONS], 1):
                position = inspection.positions().get(fact.key)
                inspection.replay_to(number)
                if inspection.position < number:
                    break
                if position is not None:
                    found.append(FactPosition(number, fact.key, fact.ok, position))
            return found

    def replays_code(self, row: RunRecord) -> bool:
        """True if a replay of the run executes its code."""
        return self._registry.model(row.kind).replays_code

    def _code_has_ended(self, row: RunRecord) -> bool:
        """True if the run has no position in its code any more. Other ended runs show where their code waited.

        Code that is replayed shows by itself whether it has ended. A run that has failed without such code has ended.
        """
        has_failed = row.status is Status.ERRORED and not self.replays_code(row)
        return row.status is Status.COMPLETE or has_failed


def fact_record(fact: Fact, stored: StoredRun) -> FactRecord:
    payloads: Mapping[int, Any] = {}
    if fact.event is not None:
        payloads = {fact.event: event_value(stored.snapshot.events[fact.event])}
    name = fact.event_type if fact.kind == StepType.MESSAGE else fact.name
    return FactRecord(
        step_key=fact.key,
        type=fact.kind,
        name=name or fact.key,
        ok=fact.ok,
        result=fact_result(fact, payloads),
        error=fact_error(fact, payloads),
        at=from_ms(fact.at),
        state=FactState(fact.state).name.lower(),
    )


def _logs(stored: StoredRun, inspection: Inspection, fact: Fact | None) -> list[LogLine]:
    """Lines of the code until the position, and lines of steps until the time of its last fact.

    The lines of the code are those of this replay; they have the times of the stored lines.
    """
    at_end = inspection.position == len(inspection.facts)
    until = 0 if fact is None else fact.at
    of_steps = [line for line in stored.logs if line.log.step_key is not None and (at_end or line.log.at <= until)]
    of_code = [line for line in stored.logs if _is_first_of_code(line)]
    replayed = [
        StoredLog(
            of_code[i].n if i < len(of_code) else 0, line._replace(at=_time(of_code, i, line.at), is_replay=False)
        )
        for i, line in enumerate(inspection.logs())
    ]
    lines = sorted([*of_steps, *replayed], key=lambda line: (line.log.at, line.n))
    return [log_line(stored.row.number, line) for line in lines]


def _is_first_of_code(line: StoredLog) -> bool:
    """True for a line of the code itself that no replay repeated."""
    return line.log.step_key is None and line.log.category != "system" and not line.log.is_replay


def _time(stored: list[StoredLog], i: int, at: int) -> int:
    return stored[i].log.at if i < len(stored) else at
