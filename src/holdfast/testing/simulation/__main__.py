"""``python -m holdfast.testing.simulation``: many seeds, or one of them again."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack

from holdfast.ports import SystemClock
from holdfast.testing.simulation.planted import BUGS, planted
from holdfast.testing.simulation.run import Report, run_seed
from holdfast.testing.simulation.shrink import shrunk

_CHECKED_TWICE = 25
"""One of so many seeds is run again, to see that it does the same."""


def main(argv: Sequence[str] | None = None) -> int:
    asked = _parser().parse_args(argv)
    with ExitStack() as bugs:
        if asked.bug is not None:
            bugs.enter_context(planted(asked.bug))
        if asked.seed is not None:
            return _again(asked)
        return _many(asked)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m holdfast.testing.simulation",
        description="Run the engine in virtual time under faults, and check its promises.",
    )
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=1, help="the first of them")
    parser.add_argument("--seed", type=int, help="run this one alone")
    parser.add_argument("--only", help="with --seed: none but these faults, by name, separated by commas")
    parser.add_argument("--without", default="", help="with --seed: leave these instances out")
    parser.add_argument("--story", action="store_true", help="tell what happened, made as small as possible")
    parser.add_argument("--bug", choices=sorted(BUGS), help="with a planted bug: is it found?")
    parser.add_argument("--counts", action="store_true", help="how often each fault met each operation")
    return parser


def _many(asked: argparse.Namespace) -> int:
    clock, counts = SystemClock(), Counter[tuple[str, str]]()
    began = clock.monotonic()
    for seed in range(asked.first, asked.first + asked.seeds):
        report = run_seed(seed)
        counts.update(report.counts)
        if not report.failures and seed % _CHECKED_TWICE == 0 and run_seed(seed).digest != report.digest:
            report.failures.append("the same seed did something else the second time")
        if report.failures:
            _say(f"seed {seed} fails, the first of {seed - asked.first + 1}")
            _tell(report, asked)
            return 1
    minutes = (clock.monotonic() - began) / 60
    _say(f"{asked.seeds} seeds, no promise broken, {asked.seeds / minutes:.0f} a minute")
    _say(f"{len({kind for kind, _ in counts})} kinds of faults, {len(counts)} pairs of fault and operation")
    if asked.counts:
        for (kind, operation), times in sorted(counts.items()):
            _say(f"  {kind:<18} {operation:<14} {times:>8}")
    return 0


def _again(asked: argparse.Namespace) -> int:
    only = None if asked.only is None else [name for name in asked.only.split(",") if name]
    report = run_seed(asked.seed, only=only, without=[name for name in asked.without.split(",") if name])
    if not report.failures:
        if asked.story:
            _say(*map(str, report.story))
        _say(f"seed {asked.seed}: no promise broken in {report.seconds:.1f} s of virtual time, trace {report.digest}")
        return 0
    _tell(report, asked)
    return 1


def _tell(report: Report, asked: argparse.Namespace) -> None:
    told = shrunk(report) if asked.story else report
    if asked.story:
        _say(f"The story, with {len(told.faults)} of {len(report.faults)} faults:")
        _say(*(f"  {entry}" for entry in told.story))
        left_out = [name for name in report.instances if name not in told.instances]
        _say(f"What went wrong: --only {','.join(told.faults)!r} --without {','.join(left_out)!r}")
    _say(*(f"BROKEN: {failure}" for failure in told.failures))
    bug = f" --bug {asked.bug}" if asked.bug else ""
    _say(f"Again: python -m holdfast.testing.simulation --seed {report.seed} --story{bug}")


def _say(*lines: str) -> None:
    sys.stdout.writelines(f"{line}\n" for line in lines)
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
