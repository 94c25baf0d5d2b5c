"""A soak of a few seconds, which tests the parts of the soak. ``make soak`` runs long enough to detect growth."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.faults import Kind
from chaos.server import Server

from .flat import What
from .samples import HAS_PROC
from .soak import Size, Soak

SHORT = Size(seconds=4, rate=12, workers=2, fault_every=0.6, sample_every=0.2, kept=1, calm=60)


@pytest.mark.slow
async def test_everything_is_run_sampled_deleted_and_checked(server: Server, tmp_path: Path) -> None:
    soak = Soak(server, tmp_path, SHORT, seed=20_260_715)
    await soak.run()

    series = {(one.what, one.of): one.points for one in soak.series()}
    assert {what for what, _ in series} == set(What) - (set() if HAS_PROC else {What.MEMORY, What.DESCRIPTORS})
    assert len(series[What.CONNECTIONS, "worker-0-0"]) > 4
    for what, of in (
        (What.CONNECTIONS, "worker-0-0"),
        (What.CONNECTIONS, "client"),
        (What.OBJECTS, "worker-0-0"),
        (What.ALL_CONNECTIONS, ""),
        (What.ROWS, "holdfast_run"),
        (What.TABLE, "holdfast_fact"),
        (What.INDEX, "holdfast_task_due"),
        (What.WAL, ""),
    ):
        assert max(value for _, value in series[what, of]) > 0, f"{what} of {of} was not measured"
    assert soak.injected[Kind.KILL.value] == 1  # the second worker, which was replaced by worker-1-1
    assert (What.CONNECTIONS, "worker-1-1") in series
    assert (What.CONNECTIONS, "worker-0-1") not in series
