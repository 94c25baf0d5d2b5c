"""The interface between the runner and an authoring model whose runs consist of units.

A driver opens the **units** of a run from the stored plan. ``Units`` names the facts that a unit reads, decides what
the unit does, and turns its outcome into an advance. Like a machine, ``Units`` does no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from holdfast.kernel.driver import Call, Outcome

if TYPE_CHECKING:
    from holdfast.kernel.requests import Requests
    from holdfast.store.protocol import Advance, Fact, Finish, NewRun, NewUnit, RunRecord, StoredEvent, TaskRef


class Needs(NamedTuple):
    """Keys of the facts that must be read before a unit can begin."""

    results: Sequence[str]
    """Keys of RESULT facts."""
    items: str | None = None
    """The key of ITEM facts."""


class Units(Protocol):
    """The units of one run."""

    def key(self, unit: int) -> str:
        """Name of the unit in messages and in the results of ``app.advance``."""
        ...

    def needs(self, unit: int) -> Needs: ...

    def begin(
        self, task: TaskRef, results: Mapping[str, Fact], items: Sequence[Fact], now_ms: int
    ) -> Call | NewRun | Advance:
        """Decide what a claimed unit does: call a function, start a run and wait for its end, or advance at once."""
        ...

    def ended(self, task: TaskRef, outcome: Outcome) -> Advance:
        """The advance after a call."""
        ...

    def started(self, task: TaskRef) -> Advance:
        """The advance after the start of a run: the unit waits."""
        ...

    def exited(self, task: TaskRef, events: Sequence[StoredEvent], now_ms: int) -> Advance:
        """The advance after exit events of runs that units have started. ``task``: unit 0, whose owner writes."""
        ...

    def finish(self, results: Sequence[Fact], now_ms: int) -> Finish | None:
        """The end of the run; None until all units have a result."""
        ...

    def units(self) -> Sequence[NewUnit]:
        """The units in their initial state."""
        ...


class UnitDriver(Protocol):
    def open(self, run: RunRecord, plan: bytes, requests: Requests) -> Units: ...

    def check_result(self, key: str, value: bytes) -> bytes:
        """The bytes to store for the result of a unit.

        Raises ``ResultInvalidError`` if it does not fit the annotation of the unit's function.
        """
        ...


PLAN_KEY = "meta"
"""Key of the PLAN fact from which units are opened."""
