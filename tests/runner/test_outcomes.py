"""The queue of outcomes between the calls of a turn and its machine."""

from __future__ import annotations

from typing import Any, cast

from holdfast.core.failure import Failure
from holdfast.core.statement import Statement
from holdfast.kernel.driver import Outcome, StepWrites
from holdfast.runner.outcomes import OutcomeQueue


def _queue(*outcomes: Outcome) -> OutcomeQueue:
    queue = OutcomeQueue(cast("Any", None))
    for outcome in outcomes:
        queue.add(outcome)
    return queue


def _outcome(key: str, *, writes: StepWrites | None = None) -> Outcome:
    outcome = Outcome(key, 1, 0, 0, b"1", 1)
    outcome.writes = writes
    return outcome


def _keys(outcomes: Any) -> list[str]:
    return [outcome.key for outcome in outcomes]


def test_outcomes_before_a_transactional_one_are_taken_together_and_that_one_alone() -> None:
    statements = StepWrites((), (), (Statement("DELETE FROM t", ()),))
    queue = _queue(_outcome("a"), _outcome("b"), _outcome("c", writes=statements), _outcome("d"))

    taken = [_keys(queue.take()) for _ in range(3)]

    assert taken == [["a", "b"], ["c"], ["d"]]
    assert not queue


def test_an_outcome_with_a_live_transaction_is_taken_first() -> None:
    live = StepWrites((), (), (), cast("Any", object()))
    queue = _queue(_outcome("a"), _outcome("b", writes=live))

    assert _keys(queue.take()) == ["b"]


def test_outcomes_that_are_put_back_keep_their_order_in_front_of_the_others() -> None:
    queue = _queue(_outcome("a"), _outcome("b"), _outcome("c"))
    taken = queue.take()
    queue.add(_outcome("d"))

    queue.put_back(taken)

    assert _keys(queue) == ["a", "b", "c", "d"]


def test_a_rejected_outcome_is_put_back_as_a_failure() -> None:
    queue = _queue(_outcome("a", writes=StepWrites((), (), (Statement("DELETE FROM t", ()),))))
    queue.take()

    queue.fail_taken(Failure("StatementError", "no such table"))

    [failed] = queue.take()
    assert (failed.key, failed.failure and failed.failure.name) == ("a", "StatementError")
