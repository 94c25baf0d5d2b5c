"""The same seed gives the same execution, in this process and in any other."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.testing.simulation.loop import SimulatedLoop
from simulation.run import run_seed

TESTS = Path(__file__).parents[1]
PROGRAM = "from simulation.run import run_seed; print(run_seed({seed}).digest)"


@pytest.mark.parametrize("seed", [3, 4, 8])
def test_two_runs_of_a_seed_have_the_same_digest(seed: int) -> None:
    assert run_seed(seed).digest == run_seed(seed).digest


def test_a_seed_has_the_same_digest_in_a_process_with_other_hashes() -> None:
    digests = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM.format(seed=5)],
            env=os.environ | {"PYTHONHASHSEED": hashes, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for hashes in ("1", "2")
    }
    assert digests == {run_seed(5).digest}


def test_two_seeds_have_different_digests() -> None:
    assert run_seed(1).digest != run_seed(2).digest


def test_a_seed_with_all_its_faults_given_by_name_has_the_same_digest() -> None:
    report = run_seed(6)
    assert run_seed(6, only=report.faults).digest == report.digest


def test_leaving_out_a_fault_does_not_move_the_faults_before_it() -> None:
    report = run_seed(6)
    *kept, _last = report.faults

    again = run_seed(6, only=kept)

    assert again.faults == kept


@pytest.mark.usefixtures("frozen_heap")
def test_a_seed_leaves_nothing_in_memory() -> None:
    before = _loops()
    run_seed(7)
    assert _loops() == before


def _loops() -> int:
    gc.collect()
    return sum(isinstance(value, SimulatedLoop) for value in gc.get_objects())
