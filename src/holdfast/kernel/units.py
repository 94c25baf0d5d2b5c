"""The seam between the runner and a model whose runs are made of units: what is known in, what is to be done out.

A driver opens the **units** of a run from the plan that is stored with it. They are told what a unit needs to know, say
what it does, and what follows from its outcome for the others. Like a machine they do no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from holdfast.kernel.driver import Call, Outcome
from holdfast.store.protocol import GRAPH, Advance, Fact, Finish, Mail, NewRun, NewUnit, RunRecord, TaskRef

if TYPE_CHECKING:
    from holdfast.kernel.requests import Requests

__all__ = ["GRAPH", "PLAN_KEY", "Needs", "UnitDriver", "Units"]


class Needs(NamedTuple):
    """What has to be read before a unit can begin."""

    results: Sequence[str]
    """Keys of RESULT facts."""
    items: str | None = None
    """The key of ITEM facts."""


class Units(Protocol):
    """The units of one run."""

    def key(self, unit: int) -> str:
        """What people call it."""
        ...

    def needs(self, unit: int) -> Needs: ...

    def begin(
        self, task: TaskRef, results: Mapping[str, Fact], items: Sequence[Fact], now_ms: int
    ) -> Call | NewRun | Advance:
        """What a claimed unit does: call a function, start a run and wait for its end, or nothing but what follows."""
        ...

    def ended(self, task: TaskRef, outcome: Outcome) -> Advance:
        """What follows from a call."""
        ...

    def started(self, task: TaskRef) -> Advance:
        """What follows from a start: the unit waits."""
        ...

    def exited(self, keeper: TaskRef, mail: Sequence[Mail], now_ms: int) -> Advance:
        """What follows from the ends of runs that units have started; written by who holds unit 0."""
        ...

    def finish(self, results: Sequence[Fact], now_ms: int) -> Finish | None:
        """The end of the run, once all units have a result."""
        ...

    def units(self) -> Sequence[NewUnit]:
        """As they are at the beginning."""
        ...


class UnitDriver(Protocol):
    def open(self, run: RunRecord, plan: bytes, requests: Requests) -> Units: ...


PLAN_KEY = "meta"
"""Of the PLAN fact that units are opened from."""
