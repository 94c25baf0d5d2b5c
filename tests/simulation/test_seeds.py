"""Seeds: whole workers and clients under faults, and no promise broken."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.testing.simulation import run_seed

SEEDS = range(1, 51)  # `make simulate` runs a thousand
AT_ONCE = 25
KNOWN = [
    int(line.split()[0])
    for line in (Path(__file__).parent / "seeds.txt").read_text().splitlines()
    if line and not line.startswith("#")
]


@pytest.mark.parametrize("first", SEEDS[::AT_ONCE])
def test_no_promise_is_broken(first: int) -> None:
    for seed in range(first, first + AT_ONCE):
        assert run_seed(seed).failures == [], f"python -m holdfast.testing.simulation --seed {seed} --story"


@pytest.mark.parametrize("seed", KNOWN)
def test_what_was_found_once_is_not_found_again(seed: int) -> None:
    assert run_seed(seed).failures == []


def test_most_kinds_of_faults_happen_and_meet_most_operations() -> None:
    reports = [run_seed(seed) for seed in range(200, 230)]
    counts = {pair for report in reports for pair in report.counts}

    assert len({kind for kind, _ in counts}) >= 24
    for operation in ("claim", "commit", "create", "heartbeat", "send"):
        assert len({kind for kind, met in counts if met == operation}) >= 5, operation
