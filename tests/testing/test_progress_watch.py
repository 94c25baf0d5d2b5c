"""Tasks that are claimed many times in a row without progress are reported."""

from __future__ import annotations

from typing import Any

from holdfast.store.protocol import TaskRef
from holdfast.testing.simulation.progress_watch import MAX_IDLE_CLAIMS, ProgressWatch

TASK = TaskRef(1, 0, "w1", 1)


class Rows:
    """A database with one run. ``facts`` is the number of its facts."""

    def __init__(self) -> None:
        self.facts = 0

    def __call__(self, _sql: str, *_args: Any) -> list[tuple[Any, ...]]:
        return [("graph/i1", self.facts, 0, 0, 0, 1)]


def test_a_task_that_is_claimed_too_often_without_progress_is_reported_once() -> None:
    watch = ProgressWatch(Rows())

    violations = [text for _ in range(2 * MAX_IDLE_CLAIMS) for text in watch.claimed([TASK])]

    assert violations == [f"graph/i1 (unit 0) was claimed {MAX_IDLE_CLAIMS} times in a row without progress"]


def test_a_task_with_progress_may_be_claimed_any_number_of_times() -> None:
    rows = Rows()
    watch = ProgressWatch(rows)
    for n in range(10 * MAX_IDLE_CLAIMS):
        rows.facts = n // 2
        assert [*watch.claimed([TASK])] == []
