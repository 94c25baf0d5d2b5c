"""Leases of chain steps that differ from the declared ones are reported."""

from __future__ import annotations

import pytest

from holdfast.store.protocol import TaskRef
from simulation.checks.lease_watch import LeaseWatch

TASK = TaskRef(1, 0, "w1", 1)


@pytest.fixture
def watch() -> LeaseWatch:
    watch = LeaseWatch()
    assert [*watch.granted(TASK, 2000)] == []
    return watch


def test_a_step_that_is_called_with_another_lease_is_reported(watch: LeaseWatch) -> None:
    assert [*watch.called(TASK, "SHORT", 300, safe=False)] == [
        "run 1 has a lease of 2000 ms in step SHORT, whose lease is 300 ms"
    ]


def test_a_lease_that_is_renewed_for_another_time_is_reported(watch: LeaseWatch) -> None:
    assert [*watch.called(TASK, "NEITHER", 2000, safe=False)] == []
    assert [*watch.granted(TASK, 2000)] == []
    assert len([*watch.granted(TASK, 500)]) == 1


def test_a_claim_whose_step_has_ended_may_have_any_lease(watch: LeaseWatch) -> None:
    assert [*watch.called(TASK, "NEITHER", 2000, safe=True)] == []
    watch.committed(TASK)
    assert [*watch.granted(TASK, 500)] == []
    assert [*watch.freed(1, 0)] == []


@pytest.mark.parametrize("safe", [False, True])
def test_a_lost_lease_is_reported_only_if_no_fault_explains_it(watch: LeaseWatch, safe: bool) -> None:
    assert [*watch.called(TASK, "NEITHER", 2000, safe=safe)] == []
    assert bool([*watch.freed(1, 0)]) is safe
