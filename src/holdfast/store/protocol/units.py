"""Units: parts of a run that are claimed, owned and lost individually. The nodes of a graph are units.

A **unit** is a task ``(run, unit)``; unit 0 is the run itself. ``missing`` is the number of other units that must be
done before a unit is due. For unit 0 it is the number of units without a RESULT, so unit 0 is due when the last RESULT
is written. Each claim of a unit other than 0 writes a START fact in the same transaction: ``key`` is the unit's key,
``n`` its new epoch, ``value`` the JSON of ``{"owner", "lease"}`` (the end of the lease). Each attempt therefore has a
START, and the attempt's number is the epoch.

No unit of a paused run is due. Units that are owned run to their end. Units that have nothing missing become due when
the run is resumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from holdfast.core.facts import Delivery, Fact, Log

GRAPH = "graph"
"""The kind of run that consists of units.

A graph has no code that could react to a cancellation, so ``CancelRun`` ends the run at once (CANCELLED). The
transaction that terminates or cancels a graph writes a TOMBSTONE fact with the reason (JSON text, or null).
"""


def first_unit(kind: str) -> int:
    """The unit whose first turn begins a run of this kind."""
    return 1 if kind == GRAPH else 0


class TaskRef(NamedTuple):
    """A claimed task: the four values that the fence compares for every write of a turn."""

    run: int
    unit: int
    owner: str
    epoch: int


class NewUnit(NamedTuple):
    unit: int
    """Counted from 1."""
    key: str
    """The key of the unit's START facts."""
    missing: int = 0
    """The number of other units that must be done before this one; 0: due at once."""


class MissingDecrement(NamedTuple):
    """Decrement of ``missing`` of a unit. Ignored if the unit has no task any more."""

    unit: int
    by: int = 1


class UnitRelease(NamedTuple):
    """Release of the unit, which resets its losses: due at ``run_at`` (None: no time), or when ``missing`` reaches 0.

    Unit 0 keeps its own ``missing``. It is due at once if that is 0, or if the mailbox has an undelivered event of the
    engine (topics with ``@``) after ``Advance.seen``.
    """

    run_at: int | None = None
    missing: int = 0


@dataclass(slots=True)
class Advance:
    """Everything that the turn of one unit writes, for this unit and others, under one fence: all of it or nothing.

    Order inside: fence, facts and results, then tasks that are deleted, inserted and made due.
    """

    task: TaskRef
    facts: Sequence[Fact] = ()
    """FAILURE and ITEM facts."""
    results: Sequence[Fact] = ()
    """RESULT facts of this unit or others. An existing one is ignored; each new one decrements unit 0's ``missing``."""
    logs: Sequence[Log] = ()
    deliveries: Sequence[Delivery] = ()
    """Events that were consumed; only with unit 0, which owns the mailbox."""
    decrements: Sequence[MissingDecrement] = ()
    removed_units: Sequence[int] = ()
    """Units that must not run any more: their tasks are deleted, even if they are owned."""
    new_units: Sequence[NewUnit] = ()
    release: UnitRelease | None = None
    """None: the unit's own task is deleted."""
    seen: int = 0
    """With unit 0: ``MailboxPage.last`` of the last read of the mailbox."""
    started_at: int | None = None
    """The run's ``started_at``; ignored if the run has one already."""

    @property
    def idle(self) -> bool:
        """True if the advance writes nothing and only releases the unit unchanged."""
        if self.release != UnitRelease():
            return False
        written = self.facts or self.results or self.logs or self.deliveries
        return not (written or self.decrements or self.removed_units or self.new_units)


@dataclass(slots=True)
class Advanced:
    """The result of a batch of advances."""

    applied: Sequence[bool]
    """One for each advance; False: the fence did not hold, and nothing of it was written."""
    claimed: Sequence[TaskRef] = ()
    """Units, including unit 0, that the batch made due and that the claimant owns now."""
    due: bool = False
    """True if more units became due than were claimed."""
