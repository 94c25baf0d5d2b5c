"""What the store knew of a run when its machine was opened."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from holdfast.store.protocol import Fact, FactState, Mail, Snapshot


class Past:
    """Recorded facts by their use in a replay. Failures and waits that are added later are kept here too."""

    __slots__ = ("failures", "kinds", "logged", "mail", "results", "starts")

    def __init__(self, snapshot: Snapshot | None) -> None:
        facts: Sequence[Fact] = snapshot.facts if snapshot is not None else ()
        self.results = deque(sorted((f for f in facts if f.state == FactState.RESULT), key=_sequence))
        """Still to be delivered, in the order the code saw them."""
        self.kinds = {f.key: f.kind for f in facts}
        self.starts = {(f.key, f.n): f for f in facts if f.state == FactState.START}
        self.failures = _last_failures(facts)
        self.mail: Mapping[int, Mail] = snapshot.mail if snapshot is not None else {}
        self.logged = snapshot.logged if snapshot is not None else 0


def _sequence(fact: Fact) -> int:
    return fact.seq or 0


def _last_failures(facts: Sequence[Fact]) -> dict[str, Fact]:
    last: dict[str, Fact] = {}
    for fact in facts:
        if fact.state == FactState.FAILURE and (fact.key not in last or fact.n > last[fact.key].n):
            last[fact.key] = fact
    return last
