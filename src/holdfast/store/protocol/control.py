"""Control requests: what operators, clients and other runs ask of the current run of an instance.

``TerminateRun`` and ``CancelRun`` are also operations: a run sends them in its commit (``Following.operations``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from holdfast.store.protocol.runs import AffectedRuns, Expiry, RunRecord
from holdfast.store.protocol.units import NewUnit


@dataclass(frozen=True, slots=True)
class PauseRun:
    """Pause the run at once if its task has no owner, else signal the owner. A paused run is not changed."""

    workflow: str
    instance_id: str


@dataclass(frozen=True, slots=True)
class ResumeRun:
    """Make a paused run due (kind RESUME), or withdraw a pause that has not taken effect; else do nothing.

    The count of losses is reset, except for a loss that no claim has reported.
    """

    workflow: str
    instance_id: str


@dataclass(frozen=True, slots=True)
class TerminateRun:
    """End the run now. The row is terminal and the task is deleted, with all units, in the same transaction."""

    workflow: str
    instance_id: str
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class CancelRun:
    """Send the run a CANCEL event. A run that has not ended at the deadline expires. A graph ends at once."""

    workflow: str
    instance_id: str
    payload: bytes
    """The payload of the CANCEL event."""
    deadline_ms: int | None = None


@dataclass(frozen=True, slots=True)
class RestartRun:
    """Create a run with the next number that starts from the beginning.

    The old run is ended (TERMINATED) if it has not ended. It stays readable and keeps its events. The new run
    inherits the PLAN facts, params, options, parent, memo, search and watchers; its attempt is 1.
    """

    workflow: str
    instance_id: str
    expires_ms: int | None = None
    """As in ``NewRun``."""
    expiry: Expiry | None = None
    options: bytes | None = None
    """Replaces the options of the old run; None keeps them."""
    units: Sequence[NewUnit] = ()
    """As in ``NewRun``."""


@dataclass(frozen=True, slots=True)
class RedeliverOutbox:
    """Make the parked outbound events of the run due again, with no attempts counted. Also for ended runs."""

    workflow: str
    instance_id: str
    number: int | None = None
    """The run with this number; None: the current run."""


@dataclass(frozen=True, slots=True)
class MoveRun:
    """Set the version of the run. A pinned run is claimed by workers of the new version from its next claim on.

    An owner of the run, or of one of its units, keeps it until it releases it.
    """

    workflow: str
    instance_id: str
    version: str
    pinned: bool = False
    """Pin the run if it is not pinned yet."""


ControlRequest = PauseRun | ResumeRun | TerminateRun | CancelRun | RestartRun | RedeliverOutbox | MoveRun


class ControlResult(NamedTuple):
    """The run that a control request addressed (None: no such run), and the other runs that were affected."""

    run: RunRecord | None
    """The run as it was before the request; after RestartRun the new run."""
    affected: AffectedRuns
    redelivered: int = 0
    """With RedeliverOutbox: the number of events that are due again."""
