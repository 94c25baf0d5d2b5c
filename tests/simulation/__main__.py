"""``python -m tests.simulation``: runs many seeds of the engine's simulation, or one seed again."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

# The tests' packages are top-level packages, as under pytest.
sys.path.insert(0, str(Path(__file__).parent.parent))

from simulation.command import DEFAULT_SEEDS, PROGRAM, CommandOptions, run, split_names
from simulation.planted import BUGS


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code: 1 if a promise was broken."""
    given = _parser().parse_args(argv)
    return run(
        CommandOptions(
            seeds=given.seeds,
            first=given.first,
            seed=given.seed,
            only=None if given.only is None else split_names(given.only),
            without=split_names(given.without),
            story=given.story,
            bug=given.bug,
            counts=given.counts,
            processes=given.processes,
        )
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROGRAM, description="Run the engine in virtual time under faults, and check its promises."
    )
    parser.add_argument("--seeds", type=int, default=DEFAULT_SEEDS, help="the number of seeds (default: %(default)s)")
    parser.add_argument("--first", type=int, default=1, help="the first seed (default: %(default)s)")
    parser.add_argument("--seed", type=int, help="run only this seed")
    parser.add_argument("--only", help="with --seed: inject only these faults, by name, separated by commas")
    parser.add_argument("--without", default="", help="with --seed: leave out these instances")
    parser.add_argument("--story", action="store_true", help="print the trace of a failing seed, minimized")
    parser.add_argument("--bug", choices=sorted(BUGS), help="plant a bug that the checks should find")
    parser.add_argument("--counts", action="store_true", help="print how often each fault hit each operation")
    parser.add_argument("--processes", type=int, default=1, help="run seeds in this number of processes")
    return parser


if __name__ == "__main__":
    sys.exit(main())
