"""The interface between an authoring model and the tools that inspect a run: stack, replay, check.

An **inspection** is a run on the code of this process, without a claim: it replays recorded facts, writes nothing and
calls no step. Its position only increases; for an earlier position, open another inspection.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from holdfast.core.facts import Fact, Log
    from holdfast.core.records import CodePosition
    from holdfast.core.redaction import Redaction
    from holdfast.core.views import PendingRequest, TaskStack
    from holdfast.kernel.requests import Requests
    from holdfast.store.protocol import RunRecord, Snapshot


class DifferenceKind(StrEnum):
    """The consequence for an open run of code that does not fit its history."""

    PARKED = "parked"
    """The run would be parked."""
    VALUE = "value"
    """A recorded value does not fit its type any more. Workflows and chains are parked; the node of a graph fails."""
    STEP = "step"
    """The run would call a step that has no record, while it does not use a recorded result."""
    UNUSED = "unused"
    """The run would continue without using a recorded result."""
    WAIT = "wait"
    """The code waits for another event than the one that wakes the run."""
    FAILED = "failed"
    """The code would raise an error that no recorded failure causes."""
    END = "end"
    """The run has ended, and the code would continue, or end with another result or error."""
    UNKNOWN = "unknown"
    """No workflow of this name is registered."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference between the history of a run and the code."""

    kind: DifferenceKind
    message: str
    """Names what is recorded and what the code requests."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A run to inspect, as it is stored."""

    run: RunRecord
    snapshot: Snapshot
    now_ms: int
    strict: bool = False
    """Replay is strict, whatever mode the definition has."""


class Inspection(Protocol):
    """A run on the code of this process, at a position in its history."""

    facts: Sequence[Fact]
    """The facts that positions count, in the order of the history."""
    position: int
    """Number of facts that were replayed."""

    def replay_to(self, position: int) -> None:
        """Replay more facts. ``position`` is not below the current one."""
        ...

    @property
    def difference(self) -> str | None:
        """The difference between history and code up to the current position; None if they fit."""
        ...

    def tasks(self, *, all: bool = False) -> list[TaskStack]:
        """The tasks that have not ended. ``all``: with frames of libraries and of the engine."""
        ...

    def pending(self) -> list[PendingRequest]:
        """The requests of the code that have no result yet."""
        ...

    def positions(self) -> Mapping[str | None, CodePosition]:
        """Positions in the code by the key of the step that is awaited there; None: of the main task."""
        ...

    def logs(self) -> Sequence[Log]:
        """Lines that the code itself has logged."""
        ...

    def differences(self) -> list[Difference]:
        """All differences between the history and this code. Called once, instead of ``replay_to``."""
        ...

    def close(self) -> None: ...


Inspect: TypeAlias = "Callable[[Subject, Requests, Redaction], Inspection]"
"""Opens an inspection at position 0."""
