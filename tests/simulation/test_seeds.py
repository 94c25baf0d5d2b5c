"""Seeds: whole workers and clients under faults, and no promise broken."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.testing.simulation import run_seed

pytestmark = pytest.mark.promise(
    "committed-results-never-change",
    "fencing",
    "durability",
    "no-lost-wakeup",
    "liveness",
    "finality",
    "at-least-once-steps",
    "messages-once-in-order",
    "outbox",
    "exact-replay",
)

SEEDS = range(1, 51)  # `make simulate` runs a thousand
KNOWN = [
    int(line.split()[0])
    for line in (Path(__file__).parent / "seeds.txt").read_text().splitlines()
    if line and not line.startswith("#")
]


def test_no_promise_is_broken_while_most_kinds_of_faults_meet_most_operations() -> None:
    counts = set[tuple[str, str]]()
    for seed in SEEDS:
        report = run_seed(seed)
        assert report.failures == [], f"python -m holdfast.testing.simulation --seed {seed} --story"
        counts.update(report.counts)

    assert len({kind for kind, _ in counts}) >= 24
    for operation in ("claim", "commit", "create", "heartbeat", "send"):
        assert len({kind for kind, met in counts if met == operation}) >= 5, operation


@pytest.mark.parametrize("seed", KNOWN)
def test_what_was_found_once_is_not_found_again(seed: int) -> None:
    assert run_seed(seed).failures == []
