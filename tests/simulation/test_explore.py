"""The exploration executes all schedules of a scenario, and finds bugs that random seeds find rarely."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from simulation.explore.__main__ import main
from simulation.explore.actions import Action, ActionKind, independent
from simulation.explore.calls import CallEnd, FaultKind, ProcessFault
from simulation.explore.scenarios import BY_NAME, SCENARIOS, Scenario
from simulation.explore.search import explore, replay
from simulation.planted import planted

DEADLINE = "an event against a deadline"
FOUND_IN: dict[str, tuple[str, tuple[FaultKind, ...]]] = {
    "prediction_not_compared": ("a predicted message against the message before it", ()),
    "unconfirmed_prediction_continued": ("a predicted message against the message before it", ()),
    "late_claim_begun": ("a lost reply of a claim against an unknown claim", (CallEnd.SLOW_REPLY,)),
    "deadline_before_mailbox_read": ("an event against a deadline beside a step", (CallEnd.SLOW_REQUEST,)),
    "deadline_during_mailbox_read": ("an event against the deadline of another wait", (CallEnd.SLOW_REPLY,)),
    "late_load_not_confirmed": ("a takeover against a late load", (ProcessFault.STALL,)),
    "undo_interrupted_by_cancel": ("a cancellation against a saga's undo steps", ()),
}
"""Bugs that random seeds find rarely: the scenario that finds each, and the kinds of faults that are explored."""


def scenario(name: str, *faults: FaultKind) -> Scenario:
    return replace(BY_NAME[name], faults=faults)


@pytest.mark.promise("fencing", "no-lost-wakeup", "at-least-once-steps", "messages-once-in-order")
def test_no_schedule_of_a_scenario_breaks_a_promise() -> None:
    found = explore(scenario("an event against a deadline beside a step", CallEnd.LOST_REPLY))

    assert found.failures == []
    assert found.complete
    assert found.schedules > found.states / 2 > 20


def test_time_moves_on_while_a_stalled_process_holds_a_reply() -> None:
    """Otherwise the schedule ends where no action is possible."""
    left = iter(range(300))
    stalling = replace(scenario("an event against a deadline beside a step", CallEnd.STALL_AFTER), faulty=("w1",))

    found = explore(stalling, lambda: next(left, None) is not None)

    assert found.failures == []
    assert found.schedules >= 300


def test_two_explorations_of_a_scenario_have_the_same_states() -> None:
    first, second = explore(scenario(DEADLINE)), explore(scenario(DEADLINE))

    assert (first.schedules, first.states) == (second.schedules, second.states)
    assert first.complete


def test_a_search_that_is_stopped_is_not_complete() -> None:
    found = explore(scenario(DEADLINE), lambda: False)

    assert (found.schedules, found.complete) == (1, False)


@pytest.mark.parametrize("bug", FOUND_IN)
@pytest.mark.interpreted("a planted bug replaces functions that a compiled build calls directly")
def test_the_exploration_finds_a_bug_that_random_seeds_find_rarely(bug: str) -> None:
    name, faults = FOUND_IN[bug]
    explored = replace(scenario(name, *faults), faulty=("w1",))
    with planted(bug):
        found = explore(explored)
        repeated = replay(explored, found.schedule)

    assert found.failures
    assert repeated == found.failures
    assert not found.complete
    assert replay(explored, found.schedule[:1]) == []


def test_only_reads_of_two_processes_are_independent() -> None:
    read = Action(ActionKind.EXECUTE, "w1.1 load#3", operation="load")
    other = Action(ActionKind.EXECUTE, "w2.1 undelivered#4", operation="undelivered")
    write = Action(ActionKind.EXECUTE, "w2.1 commit#4", operation="commit")

    assert independent(read, other)
    assert not independent(read, write)
    assert not independent(read, read._replace(target="w1.1 load#4"))
    assert not independent(read, other._replace(end=CallEnd.REFUSED))


def test_names_of_scenarios_are_unique() -> None:
    assert len(BY_NAME) == len(SCENARIOS)


def test_the_command_prints_schedules_and_states(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "a takeover against a late commit", "--faults", "crash"]) == 0

    printed = capsys.readouterr().out
    assert "schedules" in printed
    assert printed.rstrip().endswith("complete")


def test_the_command_prints_the_schedule_of_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--only", "predicted", "--faults", "", "--bug", "prediction_not_compared"]
    assert main(options) == 1

    printed = capsys.readouterr().out
    assert "BROKEN: i1 has an impossible result" in printed
    assert re.search(r"execute w1.1 send#\d+", printed)
