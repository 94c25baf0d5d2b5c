"""The base of inspections without code to replay (chains, graphs): a position is the state that its facts give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.core.facts import Fact, FactState, Log
from holdfast.core.records import CodePosition
from holdfast.core.redaction import Redaction
from holdfast.core.views import PendingRequest
from holdfast.kernel.inspection import Subject


class FactInspection:
    """The parts of an ``Inspection`` that depend on positions only. Subclasses set ``facts``, in their order."""

    facts: Sequence[Fact] = ()

    def __init__(self, subject: Subject, redaction: Redaction) -> None:
        self._subject = subject
        self._redaction = redaction
        self._plan = [fact for fact in subject.snapshot.facts if fact.state == FactState.PLAN]
        self.position = 0
        self.difference: str | None = None

    def replay_to(self, position: int) -> None:
        self.position = position

    def close(self) -> None: ...

    def logs(self) -> Sequence[Log]:
        return ()

    def pending(self) -> list[PendingRequest]:
        """The requests that wait at the position."""
        raise NotImplementedError

    def positions(self) -> Mapping[str | None, CodePosition]:
        """The places of the pending requests in the code; None: the place of the first one."""
        positions: dict[str | None, CodePosition] = {}
        for request in self.pending():
            if request.position is not None:
                positions[request.step_key] = request.position
                positions.setdefault(None, request.position)
        return positions

    def _replayed(self) -> list[Fact]:
        """The plan, and the facts up to the position."""
        return [*self._plan, *self.facts[: self.position]]
