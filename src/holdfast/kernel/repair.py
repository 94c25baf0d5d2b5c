"""The history with which a retried, resolved or forked run continues.

The rules choose facts of a recorded run; they write nothing. A new run gets copies of these facts, so no recorded fact
changes and the old run stays readable. Each authoring model has rules of its own (``workflow/repair.py`` and so on),
because the models give their facts different meanings.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, Protocol

from holdfast.core.facts import RESOLVE, Fact, FactState, Watch
from holdfast.core.model import StepType
from holdfast.errors import StateError

if TYPE_CHECKING:
    from holdfast.kernel.model import RecordedRun
    from holdfast.store.protocol import NewUnit


class Resolution(NamedTuple):
    """The outcome of a step that was decided by hand. ``value`` is the encoded result or error."""

    step: str
    ok: bool
    value: bytes
    at: int

    def result(self, fact: Fact) -> Fact:
        """The RESULT fact of the step. ``fact``: any fact of it."""
        return fact._replace(
            state=FactState.RESULT, n=0, at=self.at, ok=self.ok, value=self.value, event=None, event_type=RESOLVE
        )


@dataclass(frozen=True, slots=True)
class Continuation:
    """The history and the data with which a new run continues the history of another run."""

    facts: Sequence[Fact]
    """Without PLAN facts, which the new run inherits."""
    units: Sequence[NewUnit] = ()
    open_nodes: int = 0
    children: Sequence[str] = ()
    """Pids of children that a retry needs: failed ones, and those that had not ended when the run ended."""
    watches: Sequence[tuple[str, Watch]] = ()

    @property
    def events(self) -> list[int]:
        return sorted({fact.event for fact in self.facts if fact.event is not None})

    def without_children(self, pids: Collection[str]) -> Continuation:
        """The history without the starts of children that were deleted: the code starts them again."""
        if not pids:
            return self
        facts = [fact for fact in self.facts if fact.kind != StepType.CHILD or fact.name not in pids]
        return replace(self, facts=facts, watches=[watch for watch in self.watches if watch[0] not in pids])


class RepairRules(Protocol):
    """The rules of an authoring model."""

    def retry(self, run: RecordedRun, now: int, resolution: Resolution | None = None) -> Continuation:
        """The history without the failures that ended the run. ``resolution`` replaces one of these failures."""
        ...

    def fork(self, run: RecordedRun, before: str, outputs: Mapping[str, bytes]) -> Continuation:
        """The history before a step, with other results of earlier steps."""
        ...


def replaced(run: RecordedRun, facts: Sequence[Fact], outputs: Mapping[str, bytes], kind: str) -> list[Fact]:
    """The facts of a run with other results of some steps."""
    known = {fact.key for fact in facts if fact.state == FactState.RESULT and fact.kind == kind}
    for key in outputs:
        if key not in known:
            raise StateError(
                f"outputs: step {key!r} of {run.row.pid} has no recorded result before the fork; "
                f"steps with one: {_listed(known)}"
            )
    return [
        fact._replace(ok=True, value=outputs[fact.key], event_type=RESOLVE)
        if fact.state == FactState.RESULT and fact.key in outputs
        else fact
        for fact in facts
    ]


def unknown_step(run: RecordedRun, before: str, known: Iterable[str]) -> StateError:
    return StateError(
        f"before: run {run.row.number} of {run.row.pid} has no step {before!r} to fork before; "
        f"its steps: {_listed(known)}"
    )


def not_failed(run: RecordedRun, step: str, failed: Iterable[str]) -> StateError:
    return StateError(
        f"step {step!r} of {run.row.pid} is not the reason why the run failed, so it cannot be resolved; "
        f"failed steps: {_listed(failed)}"
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, sorted(names))) or "none"
