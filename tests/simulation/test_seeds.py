"""No seed breaks a promise: whole workers and clients run under faults."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulation.command import PROGRAM
from simulation.run import run_seed

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

SEEDS = range(1, 13)  # `make simulate` runs 1,000
SEEDS_OF_BUGS = [
    int(line.split()[0])
    for line in (Path(__file__).parent / "seeds.txt").read_text().splitlines()
    if line and not line.startswith("#")
]
SAMPLE = SEEDS_OF_BUGS[::5]
"""The seeds that are repeated without ``--long``."""


def test_no_promise_is_broken_while_most_kinds_of_faults_meet_most_operations() -> None:
    counts = set[tuple[str, str]]()
    for seed in SEEDS:
        report = run_seed(seed)
        assert report.failures == [], f"{PROGRAM} --seed {seed} --story"
        counts.update(report.counts)

    assert len({kind for kind, _ in counts}) >= 24
    for operation in ("claim", "commit", "create", "heartbeat", "send"):
        assert len({kind for kind, met in counts if met == operation}) >= 5, operation


@pytest.mark.parametrize("seed", SEEDS_OF_BUGS)
def test_a_seed_that_failed_before_does_not_fail_again(seed: int, request: pytest.FixtureRequest) -> None:
    if seed not in SAMPLE and not request.config.getoption("--long"):
        pytest.skip("takes a while")
    assert run_seed(seed).failures == []
