"""The order of facts in models without replayed code, whose facts have no sequence numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from holdfast.core.facts import Fact, FactState

_RANKS: dict[int, int] = {
    FactState.START: 1,
    FactState.FAILURE: 2,
    FactState.WOKEN: 3,
    FactState.ITEM: 4,
    FactState.RESULT: 5,
    FactState.TOMBSTONE: 6,
}


def in_order(facts: Iterable[Fact], number: Callable[[str], int]) -> list[Fact]:
    """The facts without plan and heartbeats, by time. ``number``: the position of a key in the plan.

    Facts of the same millisecond are ordered by the plan, and within a key by attempt and state.
    """
    counted = [fact for fact in facts if fact.state in _RANKS]
    return sorted(
        counted, key=lambda fact: (fact.at, number(fact.key), _RANKS[fact.state] == 5, fact.n, _RANKS[fact.state])
    )
