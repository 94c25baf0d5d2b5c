"""``python -m tests.simulation.explore``: executes all schedules of small scenarios."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

# The tests' packages are top-level packages, as under pytest.
sys.path.insert(0, str(Path(__file__).parents[2]))

from simulation.explore.calls import ALL_FAULTS
from simulation.explore.command import PROGRAM, ExploreOptions, run
from simulation.planted import BUGS


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code: 1 if a promise was broken."""
    given = _parser().parse_args(argv)
    faults = None
    if given.faults is not None:
        names = [name for name in given.faults.split(",") if name]
        faults = tuple(fault for fault in ALL_FAULTS if fault in names)
        unknown = [name for name in names if name not in ALL_FAULTS]
        if unknown:
            _parser().error(f"unknown faults: {', '.join(unknown)}")
    return run(ExploreOptions(given.only, faults, given.bug, given.seconds, given.processes))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROGRAM, description="Execute all orders of store calls in small scenarios, with one fault at every point."
    )
    parser.add_argument("--only", default="", help="explore the scenarios whose names contain this text")
    parser.add_argument("--faults", help=f"explore these faults, separated by commas, of: {', '.join(ALL_FAULTS)}")
    parser.add_argument("--bug", choices=sorted(BUGS), help="plant a bug that the checks should find")
    parser.add_argument("--seconds", type=float, default=600, help="the time for all scenarios (default: %(default)s)")
    parser.add_argument("--processes", type=int, default=1, help="explore scenarios in this number of processes")
    return parser


if __name__ == "__main__":
    sys.exit(main())
