"""What the store knew of a run when its machine was opened."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from holdfast.core.model import StepType
from holdfast.store.protocol import Fact, FactState, Mail, Snapshot


class Past:
    """Recorded facts by their use in a replay. Failures and waits that are added later are kept here too."""

    __slots__ = ("failures", "heartbeats", "kinds", "logged", "mail", "results", "starts", "versions")

    def __init__(self, snapshot: Snapshot | None) -> None:
        self.results: deque[Fact] = deque()
        """Still to be delivered, in the order the code saw them."""
        self.kinds: dict[str, str] = {}
        self.starts: dict[tuple[str, int], Fact] = {}
        self.failures: dict[str, Fact] = {}
        self.heartbeats: dict[str, Fact] = {}
        """The last one of each step."""
        self.versions: dict[str, int] = {}
        self.mail: Mapping[int, Mail] = {}
        self.logged = 0
        if snapshot is not None:
            self._remember(snapshot)

    def _remember(self, snapshot: Snapshot) -> None:
        facts = snapshot.facts
        self.results.extend(sorted((f for f in facts if f.seq is not None), key=_sequence))
        self.versions.update((f.key, int(f.value or b"0")) for f in facts if f.kind == StepType.VERSION)
        self.kinds.update((f.key, f.kind) for f in facts)
        self.starts.update(((f.key, f.n), f) for f in facts if f.state == FactState.START)
        self.failures.update(_last(facts, FactState.FAILURE))
        self.heartbeats.update(_last(facts, FactState.HEARTBEAT))
        self.mail = snapshot.mail
        self.logged = snapshot.logged


def _sequence(fact: Fact) -> int:
    return fact.seq or 0


def _last(facts: Sequence[Fact], state: FactState) -> dict[str, Fact]:
    last: dict[str, Fact] = {}
    for fact in facts:
        if fact.state == state and (fact.key not in last or fact.n > last[fact.key].n):
            last[fact.key] = fact
    return last
