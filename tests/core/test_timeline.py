"""The timeline of a run: attempts, holders, lanes and working time, from facts."""

from __future__ import annotations

import json

from holdfast.core import history, timeline
from holdfast.core.facts import Fact, FactState
from holdfast.core.failure import worker_lost
from holdfast.core.model import StepType
from holdfast.core.timeline import Hold, Item

DO = StepType.DO


def started(key: str, n: int, at: int, owner: str) -> Fact:
    return Fact(FactState.START, key, n, DO, at, at, value=json.dumps({"owner": owner}).encode(), attempts=n)


def lost(key: str, n: int, start: int, at: int) -> Fact:
    value = worker_lost(key).encode()
    return Fact(FactState.FAILURE, key, n, DO, at, start, ok=False, value=value, attempts=n, wake_at=at)


def done(key: str, n: int, start: int, at: int) -> Fact:
    return Fact(FactState.RESULT, key, 0, DO, at, start, seq=n, value=b"1", attempts=n)


def items_of(*facts: Fact) -> list[Item]:
    return timeline.items_of(history.steps_of(0, facts, {}), facts)


def test_a_lost_worker_is_followed_by_a_gap_until_the_takeover() -> None:
    items = items_of(
        started("charge", 1, 1_000, "app-3"),
        lost("charge", 1, 1_000, 40_000),
        started("charge", 2, 40_000, "app-1"),
        done("charge", 2, 40_000, 45_000),
    )

    [item] = items
    assert [(one.n, one.outcome, one.worker) for one in item.attempts] == [(1, "lost", "app-3"), (2, "ok", "app-1")]
    assert timeline.holds_of(items, {"app-3": 9_000}) == [
        Hold("app-3", 1_000, 9_000, lost=True),
        Hold("app-1", 40_000, 45_000),
    ]
    assert timeline.holds_of(items, {})[0].end == 40_000
    assert timeline.working_ms(items, 50_000) == 5_000  # the time until the loss was noticed is idle


def test_attempts_of_one_worker_without_a_pause_are_one_hold() -> None:
    items = items_of(
        started("a", 1, 0, "w"), done("a", 1, 0, 5_000), started("b", 1, 5_500, "w"), done("b", 1, 5_500, 9_000),
        started("c", 1, 60_000, "w"),
    )  # fmt: skip

    assert timeline.holds_of(items, {}) == [Hold("w", 0, 9_000), Hold("w", 60_000, None)]
    assert items[-1].attempts[0].outcome == "running"


def test_working_time_counts_parallel_attempts_once() -> None:
    items = items_of(done("a", 1, 0, 1_000), done("b", 1, 500, 1_500), done("c", 1, 9_000, 10_000))

    assert timeline.working_ms(items, 20_000) == 2_500


def test_steps_that_began_together_share_a_lane_group() -> None:
    items = items_of(
        done("before", 1, 0, 10), done("a", 2, 10, 300), done("b", 3, 12, 400), done("c", 4, 13, 100),
        done("after", 5, 400, 500),
    )  # fmt: skip

    assert [(item.step.name, item.parallel) for item in items] == [
        ("before", None), ("a", 1), ("b", 1), ("c", 1), ("after", None),
    ]  # fmt: skip


def test_steps_one_after_the_other_are_not_parallel() -> None:
    items = items_of(done("a", 1, 0, 1), done("b", 2, 1, 2), done("c", 3, 2, 2))

    assert [item.parallel for item in items] == [None, None, None]


def test_a_step_whose_last_attempt_failed_has_each_attempt_once() -> None:
    failed = Fact(FactState.FAILURE, "a", 1, DO, 5, 0, ok=False, value=worker_lost("a").encode(), attempts=1, wake_at=9)
    final = Fact(FactState.RESULT, "a", 0, DO, 20, 9, seq=1, ok=False, value=worker_lost("a").encode(), attempts=2)

    [item] = items_of(failed, final)

    assert [(one.n, one.outcome, one.end) for one in item.attempts] == [(1, "lost", 5), (2, "failed", 20)]
