"""Parts of a run that are claimed, held and lost by themselves: the nodes of a graph.

A **unit** is a task of its own, ``(run, unit)``; unit 0 is the run itself. A unit waits until as many others as it is
``missing`` are done, and is due then. Unit 0 of such a run misses as many as have no RESULT yet, and is due when the
last one is written. Each claim of a unit other than 0 writes a START fact in the same transaction: ``key`` is the
unit's, ``n`` its new epoch, ``value`` the JSON of ``{"owner", "lease"}`` (the lease's end). So each attempt is a START,
and its number the epoch.

What is paused opens nothing: of a paused run no unit is due. Units that are held go on to their end, and those that
have nothing missing any more are due when it is resumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from holdfast.store.protocol.facts import Delivery, Fact, Log

GRAPH = "graph"
"""The kind of run that is made of units.

No code of its own could react to a cancellation, so ``cancel`` ends such a run at once (CANCELLED). Whenever one is
terminated or cancelled, a TOMBSTONE fact with the reason (JSON text, or null) is written in the same transaction.
"""


class TaskRef(NamedTuple):
    """A claimed task: the four values that every write of a turn must match."""

    run: int
    unit: int
    owner: str
    epoch: int


class NewUnit(NamedTuple):
    unit: int
    """From 1."""
    key: str
    """Of its START facts."""
    missing: int = 0
    """How many others have to be done before it; 0: it is due at once."""


class Opening(NamedTuple):
    """A unit misses so many less. One that is not there any more is passed over."""

    unit: int
    by: int = 1


class GiveBack(NamedTuple):
    """The unit is given back, without losses: due at ``run_at`` (None: never by itself) or when ``missing`` is 0.

    Unit 0 misses what it missed: it is due at once if that is nothing, or if there is mail of the engine (topics with
    ``@``) behind ``Advance.seen``.
    """

    run_at: int | None = None
    missing: int = 0


@dataclass(slots=True)
class Advance:
    """What became of one unit that is held, and what follows for the others. All of it, or (LOST) nothing.

    Order inside: fence, facts and results, tasks that go, come and open.
    """

    task: TaskRef
    facts: Sequence[Fact] = ()
    """FAILURE and ITEM."""
    results: Sequence[Fact] = ()
    """RESULTs, of this unit or others. One that is there already is passed over; each new one unit 0 misses less."""
    logs: Sequence[Log] = ()
    deliveries: Sequence[Delivery] = ()
    """Events that were read: with unit 0, whose the mailbox is."""
    opens: Sequence[Opening] = ()
    drops: Sequence[int] = ()
    """Units that are not to run (any more), whoever holds them: their tasks go."""
    adds: Sequence[NewUnit] = ()
    then: GiveBack | None = None
    """None: its task goes, too."""
    seen: int = 0
    """With unit 0: ``Mailbag.last`` of the last look into the mailbox."""
    started_at: int | None = None
    """Of the run: set once."""

    @property
    def idle(self) -> bool:
        """It writes nothing, and only gives the unit back as it was."""
        if self.then != GiveBack():
            return False
        written = self.facts or self.results or self.logs or self.deliveries
        return not (written or self.opens or self.drops or self.adds)


@dataclass(slots=True)
class Advanced:
    """What came of a batch."""

    applied: Sequence[bool]
    """One for each; False: the fence did not hold, and nothing was written."""
    taken: Sequence[TaskRef] = ()
    """Units (0 too) that became due by this and are held by the claimant now."""
    due: bool = False
    """More became due than was taken."""
