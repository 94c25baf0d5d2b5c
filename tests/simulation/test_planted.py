"""Planted bugs are found: else a simulation that finds nothing would prove nothing.

``--long`` looks for all of them, each in up to 5,000 seeds.
"""

from __future__ import annotations

import re

import pytest

from holdfast.testing.simulation import run_seed
from holdfast.testing.simulation.__main__ import main
from holdfast.testing.simulation.planted import BUGS, planted
from holdfast.testing.simulation.shrink import shrink_report, smallest

FOUND_BY = {
    "buffer_lost_at_a_rest": 1,
    "declared_events_not_checked": 4,
    "epoch_not_raised": 1,
    "event_consumed_twice": 6,
    "idempotency_key_of_an_attempt": 1,
    "items_dropped_if_one_fails": 5,
    "keys_of_events_ignored": 1,
    "late_results_for_any_run": 60,
    "late_results_not_offered": 8,
    "loss_not_told": 4,
    "losses_not_counted": 4,
    "mail_left_behind": 16,
    "no_fence": 5,
    "never_reaped": 2,
    "progress_lost_with_a_failure": 7,
    "reaped_too_early": 2,
    "renamed_steps_not_found": 4,
    "step_lease_not_renewed": 9,
    "step_lease_not_set": 9,
    "step_timeout_forgotten": 15,
    "terminate_overwritten": 1,
    "tombstone_not_written": 2,
    "exits_not_read": 61,
}
"""The first seed that finds a bug."""


def seeds_until_found(bug: str, most: int) -> int | None:
    with planted(bug):
        return next((seed for seed in range(1, most + 1) if run_seed(seed).failures), None)


@pytest.mark.parametrize("bug", FOUND_BY)
def test_a_planted_bug_is_found_soon(bug: str) -> None:
    with planted(bug):
        assert run_seed(FOUND_BY[bug]).failures
    assert not run_seed(FOUND_BY[bug]).failures


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("bug", sorted(BUGS))
def test_every_planted_bug_is_found(bug: str, request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("--long"):
        pytest.skip("takes a while")
    found = seeds_until_found(bug, 5000)
    print(f"{bug}: seed {found}")
    assert found is not None


def test_nothing_stays_planted() -> None:
    seed = seeds_until_found("losses_not_counted", 60)

    assert seed is not None
    assert not run_seed(seed).failures


def test_a_failure_is_made_small() -> None:
    with planted("epoch_not_raised"):
        report = run_seed(1)
        small = shrink_report(report)

    assert small.failures[0].startswith("a task was taken without a new epoch")
    assert len(small.faults) <= 4 < len(report.faults)
    assert len(small.instances) == 1


def test_the_command_tells_how_to_see_it_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "5", "--bug", "losses_not_counted"]) == 1

    said = capsys.readouterr().out
    assert "BROKEN: step" in said
    assert re.search(r"Again: python -m \S+ --seed \d --story --bug losses_not_counted", said)


def test_the_command_finds_it_in_other_processes_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "12", "--bug", "losses_not_counted", "--processes", "2"]) == 1
    assert "BROKEN: step" in capsys.readouterr().out


def test_the_command_tells_the_story_of_a_seed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "3", "--story"]) == 0
    assert "is called: i" in capsys.readouterr().out


def test_the_command_says_what_held(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "3", "--counts"]) == 0
    assert "3 seeds, no promise broken" in capsys.readouterr().out


def test_the_smallest_part_that_fails_is_found() -> None:
    assert smallest(range(100), lambda part: {17, 61} <= set(part)) == [17, 61]
    assert smallest([1, 2, 3], lambda _: True) == []
