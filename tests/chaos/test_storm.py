"""The storm, short: ``python -m tests.chaos`` has the long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from .faults import make_plan
from .server import Server
from .storm import LEASE, LONG, SHORT, storm


def test_the_same_seed_makes_the_same_plan() -> None:
    def made(seed: int) -> object:
        return make_plan(seed, count=LONG.faults, seconds=LONG.seconds, workers=LONG.workers, lease=LEASE)

    assert made(7) == made(7)
    assert made(7) != made(8)


@pytest.mark.slow
async def test_everything_comes_out_right_whatever_breaks(server: Server, tmp_path: Path) -> None:
    short = storm(server, tmp_path, SHORT, seed=20_260_715)
    await short.run()
    assert short.injected.total() >= SHORT.faults * 0.8
