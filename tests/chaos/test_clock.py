"""Workers whose machine's clock is wrong by an hour: the database's clock decides."""

from __future__ import annotations

from pathlib import Path

import pytest

from .server import Server
from .storm import Size, Storm


@pytest.mark.parametrize("clock_off", [3600, -3600])
async def test_timers_and_deadlines_fire_when_they_are_due_by_the_databases_clock(
    server: Server, tmp_path: Path, clock_off: float, request: pytest.FixtureRequest
) -> None:
    if clock_off < 0 and not request.config.getoption("--long"):
        pytest.skip("takes a while")
    size = Size(copies=3, seconds=2, workers=1, clock_off=clock_off, completion_timeout=300, pause=1)
    await Storm(server, tmp_path, size, faults=[]).run()


@pytest.mark.parametrize("clock_off", [3600, -3600])
async def test_no_worker_loses_a_valid_lease(
    server: Server, tmp_path: Path, clock_off: float, request: pytest.FixtureRequest
) -> None:
    """One clock is wrong, the other is right, and both workers look for expired leases."""
    if clock_off > 0 and not request.config.getoption("--long"):
        pytest.skip("takes a while")
    size = Size(copies=4, seconds=3, workers=2, clock_off=clock_off, completion_timeout=300, pause=1)
    storm = Storm(server, tmp_path, size, faults=[])
    await storm.run()
    assert not [line for line in storm.log_text().splitlines() if "died or stalled" in line]
