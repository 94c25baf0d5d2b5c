"""The recorded history of a run when its machine is opened."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from holdfast.core.model import StepType
from holdfast.store.protocol import Fact, FactState, Snapshot, StoredEvent


class RecordedHistory:
    """Recorded facts, indexed for the replay. Failures and waits that the machine adds later are indexed too."""

    __slots__ = ("events", "failures", "heartbeats", "kinds", "log_count", "results", "starts", "versions")

    def __init__(self, snapshot: Snapshot | None) -> None:
        self.results: deque[Fact] | tuple[()] = ()
        """Results to be delivered, in the order in which the code first received them."""
        self.kinds: dict[str, str] = {}
        self.starts: dict[tuple[str, int], Fact] = {}
        self.failures: dict[str, Fact] = {}
        self.heartbeats: dict[str, Fact] = {}
        """The last heartbeat of each step."""
        self.versions: dict[str, int] = {}
        self.events: Mapping[int, StoredEvent] = {}
        self.log_count = 0
        if snapshot is not None:
            self._load(snapshot)

    def _load(self, snapshot: Snapshot) -> None:
        facts = snapshot.facts
        self.results = deque(sorted((f for f in facts if f.seq is not None), key=_sequence))
        self.versions.update((f.key, int(f.value or b"0")) for f in facts if f.kind == StepType.VERSION)
        self.kinds.update((f.key, f.kind) for f in facts)
        self.starts.update(((f.key, f.n), f) for f in facts if f.state == FactState.START)
        self.failures.update(_last(facts, FactState.FAILURE))
        self.heartbeats.update(_last(facts, FactState.HEARTBEAT))
        self.events = snapshot.events
        self.log_count = snapshot.log_count


def _sequence(fact: Fact) -> int:
    return fact.seq or 0


def _last(facts: Sequence[Fact], state: FactState) -> dict[str, Fact]:
    last: dict[str, Fact] = {}
    for fact in facts:
        if fact.state == state and (fact.key not in last or fact.n > last[fact.key].n):
            last[fact.key] = fact
    return last
