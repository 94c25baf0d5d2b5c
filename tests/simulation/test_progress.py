"""Tasks that are claimed again and again without progress are found, and others are not."""

from __future__ import annotations

from typing import Any

from holdfast.store.protocol import TaskRef
from holdfast.testing.simulation.progress import MAX_IDLE_CLAIMS, ProgressWatch

TASK = TaskRef(1, 0, "w1", 1)


class Rows:
    """A database with one run, of which these are the numbers."""

    def __init__(self) -> None:
        self.facts = 0

    def __call__(self, _sql: str, *_args: Any) -> list[tuple[Any, ...]]:
        return [("graph/i1", self.facts, 0, 0, 0, 1)]


def test_a_task_that_is_claimed_too_often_without_progress_is_reported_once() -> None:
    watch = ProgressWatch(Rows())

    found = [line for _ in range(2 * MAX_IDLE_CLAIMS) for line in watch.claimed([TASK])]

    assert found == [f"graph/i1 (unit 0) was claimed {MAX_IDLE_CLAIMS} times in a row without progress"]


def test_a_task_that_gets_further_may_be_claimed_as_often_as_it_likes() -> None:
    rows = Rows()
    watch = ProgressWatch(rows)
    for n in range(10 * MAX_IDLE_CLAIMS):
        rows.facts = n // 2
        assert [*watch.claimed([TASK])] == []
