"""Buffered results that are lost, or that reach a run to which they do not belong, are reported."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.model import Status, StepType
from holdfast.store.protocol import (
    Commit,
    Committed,
    Fact,
    FactState,
    Finish,
    Following,
    LateResults,
    SnapshotQuery,
    TaskRef,
    Verdict,
)
from simulation.checks.buffered_results import ResultWatch

TASK = TaskRef(1, 0, "w1", 1)
LATE = Fact(FactState.RESULT, "u1", 0, StepType.DO, 5, 4, value=b"1")
ROW = (int(FactState.RESULT), "u1", 0, 1, b"1", 5, 1)


class Rows:
    """The rows of run 1."""

    def __init__(self, status: str = "active") -> None:
        self.status = status
        self.facts: list[tuple[Any, ...]] = []

    def __call__(self, sql: str, *_args: Any) -> list[tuple[Any, ...]]:
        if "SELECT status" in sql:
            return [(self.status,)]
        return [(row[1], row[4]) for row in self.facts] if "SELECT key" in sql else [*self.facts]


def added_late(before: list[tuple[Any, ...]], after: list[tuple[Any, ...]], status: str) -> list[str]:
    rows = Rows(status)
    watch = ResultWatch(rows)
    rows.facts = before
    facts = watch.before("add_late_results", (LateResults(1, [LATE], []),))
    rows.facts = after
    return [*watch.after("add_late_results", (LateResults(1, [LATE], []),), True, facts)]


@pytest.mark.parametrize(("status", "after"), [("terminated", [ROW]), ("active", []), ("complete", [])])
def test_a_late_result_is_added_to_a_terminated_run_only(status: str, after: list[tuple[Any, ...]]) -> None:
    assert added_late([], after, status) == []
    assert len(added_late([], [] if after else [ROW], status)) == 1


def test_a_late_result_replaces_no_recorded_result() -> None:
    assert added_late([ROW], [ROW], "terminated") == []
    assert len(added_late([(*ROW[:4], b"2", 5, 1)], [ROW], "terminated")) == 1


def test_a_run_that_ends_has_the_results_that_its_code_received() -> None:
    rows = Rows()
    watch = ResultWatch(rows)
    watch.result_seen(TASK, "u1", 1)
    call = "commit", ([Commit(TASK, following=Following(next=Finish(Status.COMPLETE)))],), [Committed(Verdict.APPLIED)]

    assert len([*watch.after(*call, {})]) == 1
    rows.facts = [ROW]
    assert [*watch.after(*call, {})] == []


def test_a_terminated_run_has_the_results_that_its_code_received_if_its_worker_is_alive() -> None:
    rows = Rows("terminated")
    watch = ResultWatch(rows)
    watch.result_seen(TASK, "u1", 1)
    watch.terminated(1, "w1", 1)

    assert [*watch.lost(["w2"])] == []
    assert len([*watch.lost(["w1"])]) == 1
    rows.facts = [ROW]
    assert [*watch.lost(["w1"])] == []


def test_a_worker_that_loads_a_run_has_to_call_its_steps_again() -> None:
    watch = ResultWatch(Rows("terminated"))
    watch.result_seen(TASK, "u1", 1)
    watch.terminated(1, "w1", 1)

    assert [*watch.after("read", (SnapshotQuery(1),), None, {})] == []
    assert [*watch.lost(["w1"])] == []
