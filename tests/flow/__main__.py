"""``python -m tests.flow --seeds 10000``: runs many seeds of the simulation of limits and start policies."""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

# The tests' packages are top-level packages, as under pytest.
sys.path.insert(0, str(Path(__file__).parent.parent))

from flow.simulated_starts import run_seed


def main() -> int:
    """Run the seeds; return the exit code: 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.flow")
    parser.add_argument("--seeds", type=int, default=1000, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--processes", type=int, default=2, help="how many processes run them")
    given = parser.parse_args()
    seeds, began, broken = range(given.first, given.first + given.seeds), time.monotonic(), 0
    with ProcessPoolExecutor(given.processes) as processes:
        for seed, failures in zip(seeds, processes.map(run_seed, seeds, chunksize=10), strict=True):
            broken += bool(failures)
            for failure in failures:
                print(f"seed {seed}: {failure}", flush=True)
    print(f"{given.seeds} seeds in {time.monotonic() - began:.0f} s, {broken} of them broke a promise")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
