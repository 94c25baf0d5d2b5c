"""The simulation finds planted bugs. Otherwise a simulation without failures would prove nothing.

With ``--long`` every bug is searched for, in up to 5,000 seeds.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

import pytest

from simulation.__main__ import main
from simulation.planted import BUGS, planted
from simulation.run import run_seed
from simulation.shrink import shrink_report

pytestmark = pytest.mark.interpreted("a planted bug replaces functions that a compiled build calls directly")

FOUND_BY = {
    "buffer_lost_at_suspend": 1,
    "bulk_acts_again_after_crash": 30,
    "bulk_batch_skipped_after_crash": 30,
    "bulk_event_without_id": 93,
    "bulk_job_not_taken_up": 3,
    "bulk_position_before_action": 30,
    "bulk_progress_of_lost_lease": 80,
    "bulk_rate_ignored": 234,
    "bulk_status_ignored": 6,
    "declared_events_not_checked": 3,
    "epoch_not_incremented": 1,
    "event_claims_any_version": 37,
    "event_consumed_twice": 1,
    "idempotency_key_per_attempt": 1,
    "items_dropped_if_one_fails": 56,
    "event_ids_ignored": 1,
    "lanes_of_all_versions": 9,
    "transaction_overtakes_record": 3520,
    "late_results_for_any_run": 17,
    "late_results_not_added": 112,
    "loss_not_reported": 2,
    "losses_not_counted": 2,
    "events_not_moved_to_successor": 29,
    "blob_deleted_too_early": 102,
    "commit_before_blob": 13,
    "no_fence": 17,
    "never_reaped": 2,
    "pin_not_set_by_claim": 23,
    "pin_not_set_by_start": 9,
    "progress_lost_with_a_failure": 2,
    "renamed_steps_not_found": 4,
    "step_lease_not_renewed": 4,
    "step_lease_not_set": 4,
    "step_timeout_ignored": 4,
    "task_kept_after_terminate": 3,
    "tombstone_not_written": 3,
    "exits_not_read": 4,
    "attempts_kept_by_retry": 4,
    "children_not_repaired": 95,
    "children_of_open_runs_pruned": 6,
    "events_moved_by_fork": 22,
    "events_not_copied": 4,
    "events_not_moved_by_retry": 4,
    "facts_left_by_delete": 1,
    "facts_left_by_prune": 6,
    "forked_step_kept": 2,
    "idempotency_key_changed_by_retry": 1,
    "open_run_deleted": 1,
    "outputs_of_fork_ignored": 54,
    "resolution_ignored": 52,
    "results_lost_by_retry": 80,
    "watches_not_set_by_retry": 6,
    "pin_kept_by_move": 2,
    "position_of_move_not_written": 5,
    "ids_used_again_after_move": 8,
    "outbox_not_due_after_move": 49,
    "loss_forgotten_by_move": 8,
    "results_unused_for_check": 1,
    "ended_waits_open_for_check": 1,
    "catch_up_too_wide": 26,
    "overlap_ignored": 9,
    "schedule_changed_at_any_revision": 24,
    "tick_lost_by_crash": 9,
    "lost_chunk": 1,
    "chunk_written_again": 24,
    "duplicated_chunk_after_takeover": 42,
}
"""A seed that finds a bug."""
SAMPLE = sorted(FOUND_BY)[::10]
"""The bugs that are tried without ``--long``; ``make planted`` searches for all of them."""
MAX_TRIES = 60


def first_seed_that_finds(bug: str, max_seeds: int) -> int | None:
    with planted(bug):
        return next((seed for seed in range(1, max_seeds + 1) if run_seed(seed).failures), None)


@cache
def failures_without_bug(seed: int) -> Sequence[str]:
    return run_seed(seed).failures


@pytest.mark.parametrize("bug", FOUND_BY)
def test_a_planted_bug_is_found_by_its_seed_or_one_of_the_next(bug: str, request: pytest.FixtureRequest) -> None:
    """Another feature in the table changes some seeds, and thereby may move the first one that finds a bug."""
    if bug not in SAMPLE and not request.config.getoption("--long"):
        pytest.skip("takes a while")
    first = FOUND_BY[bug]
    with planted(bug):
        found = next((seed for seed in range(first, first + MAX_TRIES) if run_seed(seed).failures), None)
    if found != first:
        print(f"seed {first} does not find {bug} any more: write {found} into FOUND_BY")
    assert found is not None
    assert not failures_without_bug(found)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("bug", sorted(BUGS))
def test_every_planted_bug_is_found(bug: str, request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("--long"):
        pytest.skip("takes a while")
    found = first_seed_that_finds(bug, 5000)
    print(f"{bug}: seed {found}")
    assert found is not None


def test_a_planted_bug_is_removed_afterwards() -> None:
    seed = first_seed_that_finds("losses_not_counted", 60)

    assert seed is not None
    assert not run_seed(seed).failures


def test_a_failure_is_minimized() -> None:
    with planted("losses_not_counted"):
        report = run_seed(2)
        minimized = shrink_report(report)

    assert minimized.failures[0].startswith("step greeting of ")
    assert len(minimized.faults) <= 4 < len(report.faults)
    assert len(minimized.instances) == 1


def test_the_command_prints_how_to_reproduce_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "5", "--bug", "losses_not_counted"]) == 1

    printed = capsys.readouterr().out
    assert "BROKEN: step" in printed
    assert re.search(r"Again: python -m tests.simulation --seed \d --story --bug losses_not_counted", printed)


def test_the_command_plants_a_bug_in_each_of_its_processes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "4", "--bug", "losses_not_counted", "--processes", "2"]) == 1
    assert "BROKEN: step" in capsys.readouterr().out


def test_the_command_prints_the_trace_of_a_seed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "3", "--story"]) == 0
    assert "is called: i" in capsys.readouterr().out


def test_the_command_prints_a_summary_of_seeds_without_failures(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "3", "--counts"]) == 0
    assert "3 seeds, no promise broken" in capsys.readouterr().out


def test_every_planted_bug_patches_an_attribute_that_exists() -> None:
    missing = [bug for bug, patches in BUGS.items() for patch in patches if not hasattr(patch.owner, patch.name)]

    assert missing == []
