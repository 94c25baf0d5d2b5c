"""The short storm; ``python -m tests.chaos`` runs the long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from .faults import make_plan
from .server import Server
from .storm import LEASE, LONG, SHORT, storm


def test_the_same_seed_makes_the_same_plan() -> None:
    def plan_of(seed: int) -> object:
        return make_plan(seed, count=LONG.faults, seconds=LONG.seconds, workers=LONG.workers, lease=LEASE)

    assert plan_of(7) == plan_of(7)
    assert plan_of(7) != plan_of(8)


@pytest.mark.promise("liveness")
@pytest.mark.slow
async def test_all_runs_complete_correctly_under_random_faults(server: Server, tmp_path: Path) -> None:
    short = storm(server, tmp_path, SHORT, seed=20_260_715)
    await short.run()
    assert short.injected.total() >= SHORT.faults * 0.8
