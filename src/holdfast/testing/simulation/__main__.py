"""``python -m holdfast.testing.simulation``: many seeds, or one of them again. As ``holdfast simulate``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from holdfast.testing.simulation.command import DEFAULT_SEEDS, CommandOptions, names, run
from holdfast.testing.simulation.planted import BUGS

_PROGRAM = "python -m holdfast.testing.simulation"


def main(argv: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(argv)
    only = None if given.only is None else names(given.only)
    return run(
        CommandOptions(
            _PROGRAM, given.seeds, given.first, given.seed, only, names(given.without),
            story=given.story, bug=given.bug, counts=given.counts, processes=given.processes,
        )
    )  # fmt: skip


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=_PROGRAM, description="Run the engine in virtual time under faults, and check its promises."
    )
    parser.add_argument("--seeds", type=int, default=DEFAULT_SEEDS, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=1, help="the first of them")
    parser.add_argument("--seed", type=int, help="run this one alone")
    parser.add_argument("--only", help="with --seed: none but these faults, by name, separated by commas")
    parser.add_argument("--without", default="", help="with --seed: leave these instances out")
    parser.add_argument("--story", action="store_true", help="tell what happened, made as small as possible")
    parser.add_argument("--bug", choices=sorted(BUGS), help="with a planted bug: is it found?")
    parser.add_argument("--counts", action="store_true", help="how often each fault met each operation")
    parser.add_argument("--processes", type=int, default=1, help="run seeds in so many processes at once")
    return parser


if __name__ == "__main__":
    sys.exit(main())
