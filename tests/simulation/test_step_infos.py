"""Values of ``step_info()`` that contradict each other or the recorded facts are reported."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from holdfast.core.failure import Failure
from holdfast.store.protocol import FactState
from holdfast.testing.simulation.loop import Process
from simulation.checks.step_infos import CallInfo, StepId, step_info_failures

STEP = StepId("program", "i1", 0, "s1")
FIRST = CallInfo(STEP, 1, None, "key", None, Process("w1"))
SECOND = replace(FIRST, attempt=2, previous=[*STEP, 1])


class Rows:
    """A database in which the first attempt failed, and the attempt ``result`` returned the result."""

    def __init__(self, result: int = 2) -> None:
        self._rows: dict[int, tuple[Any, ...]] = {
            FactState.FAILURE: (*STEP, 1, Failure("ValueError", "once more").encode()),
            FactState.RESULT: (*STEP, result),
        }

    def rows(self, _sql: str, state: int, *_others: Any) -> list[tuple[Any, ...]]:
        return [self._rows[state]]


def failures(*calls: CallInfo, result: int = 2) -> list[str]:
    database: Any = Rows(result)
    return [*step_info_failures(calls, database, frozenset(), progress_kept=True)]


def test_two_attempts_of_one_step_have_no_violations() -> None:
    assert failures(FIRST, SECOND) == []


def test_an_idempotency_key_belongs_to_one_step() -> None:
    assert len(failures(FIRST, replace(SECOND, idempotency_key="other"))) == 1
    assert len(failures(FIRST, SECOND, replace(FIRST, step=STEP._replace(key="s2")))) == 1


def test_an_attempt_number_is_used_once() -> None:
    assert len(failures(FIRST, FIRST, SECOND)) == 1
    stopped = Process("w2")
    stopped.shut_down = True
    assert failures(replace(FIRST, process=stopped), FIRST, SECOND) == []


def test_the_last_number_is_recorded_and_within_the_limit() -> None:
    assert len(failures(FIRST, SECOND, result=3)) == 1
    assert len(failures(FIRST, replace(SECOND, max_attempts=1))) == 1


def test_an_attempt_receives_the_progress_of_the_attempt_before_it() -> None:
    assert len(failures(FIRST, replace(SECOND, previous=None))) == 1
    assert len(failures(FIRST, replace(SECOND, previous=["program", "i1", 0, "s2", 1]))) == 1
    assert len(failures(FIRST, replace(SECOND, previous=[*STEP, 3]))) == 1
