"""The same seed is the same story, in this process and in any other."""

from __future__ import annotations

import gc
import os
import subprocess
import sys

import pytest

from holdfast.testing.simulation import run_seed
from holdfast.testing.simulation.loop import SimulatedLoop

PROGRAM = "from holdfast.testing.simulation import run_seed; print(run_seed({seed}).digest)"


@pytest.mark.parametrize("seed", [3, 4, 8])
def test_a_seed_does_the_same_each_time(seed: int) -> None:
    assert run_seed(seed).digest == run_seed(seed).digest


def test_a_seed_does_the_same_in_a_process_with_other_hashes() -> None:
    digests = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM.format(seed=5)],
            env=os.environ | {"PYTHONHASHSEED": hashes},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for hashes in ("1", "2")
    }
    assert digests == {run_seed(5).digest}


def test_seeds_differ() -> None:
    assert run_seed(1).digest != run_seed(2).digest


def test_a_seed_with_all_its_faults_by_name_is_the_seed() -> None:
    report = run_seed(6)
    assert run_seed(6, only=report.faults).digest == report.digest


def test_a_fault_that_is_left_out_does_not_move_those_before_it() -> None:
    report = run_seed(6)
    *kept, _last = report.faults

    again = run_seed(6, only=kept)

    assert again.faults == kept


def test_a_seed_leaves_nothing_in_memory() -> None:
    before = _loops()
    run_seed(7)
    assert _loops() == before


def _loops() -> int:
    gc.collect()
    return sum(isinstance(one, SimulatedLoop) for one in gc.get_objects())
