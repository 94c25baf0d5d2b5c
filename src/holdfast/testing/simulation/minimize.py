"""Delta debugging: reduces a list to a part that still fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")
_MAX_RUNS = 200


class RunBudget:
    """The number of runs that may still be made to minimize a failure."""

    def __init__(self) -> None:
        self.left = _MAX_RUNS


def minimize(items: Sequence[T], fails: Callable[[Sequence[T]], bool], budget: RunBudget | None = None) -> list[T]:
    """Return a part of ``items`` that fails, and that does not fail if any one of its items is left out.

    ``fails`` counts its runs in ``budget``. When the budget is used up, the smallest part found so far is returned.
    """
    left, pieces = list(items), 2
    budget = budget or RunBudget()
    if left and fails([]):
        return []
    while len(left) > 1 and budget.left > 0:
        size = -(-len(left) // pieces)
        for start in range(0, len(left), size):
            rest = left[:start] + left[start + size :]
            if rest and budget.left > 0 and fails(rest):
                left, pieces = rest, max(2, pieces - 1)
                break
        else:
            if size == 1:
                break
            pieces = min(len(left), 2 * pieces)
    return left
