"""Runs many seeds of the engine's simulation, or one seed again, and prints the results."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from typing import NamedTuple

from holdfast.ports import SystemClock
from holdfast.testing.simulation.faults import CALL_FAULTS
from simulation.features.pairs import MIN_SEEDS_PER_PAIR, Pair, PairCounts, possible_pairs, rare_pairs, table_lines
from simulation.planted import planted
from simulation.run import Report, run_seed
from simulation.shrink import shrink_report

PROGRAM = "python -m tests.simulation"
DEFAULT_SEEDS = 100
_SEEDS_PER_TASK = 10
"""Number of seeds that a process receives at one time."""
_SEEDS_FOR_ALL_PAIRS = 10_000
"""Number of seeds from which on every fault of a call must have hit every operation."""
_SEEDS_FOR_PAIRS = 2_000
"""Number of seeds from which on every pair of features must have met often enough."""
_SEEDS_PER_REPETITION = 50
"""One seed in this number is run twice, and both runs must have the same digest."""

FaultCounts = Counter[tuple[str, str]]
"""Number of faults by kind and operation."""


@dataclass(frozen=True, slots=True)
class CommandOptions:
    """The options of the command line."""

    seeds: int = DEFAULT_SEEDS
    first: int = 1
    seed: int | None = None
    only: Sequence[str] | None = None
    without: Sequence[str] = ()
    story: bool = False
    bug: str | None = None
    counts: bool = False
    processes: int = 1


class _Outcome(NamedTuple):
    """The part of a report that a process sends back."""

    seed: int
    failed: bool
    counts: FaultCounts
    pairs: set[Pair]


def run(options: CommandOptions) -> int:
    """Run the seeds and print the results; return the exit code: 1 if a promise was broken."""
    with ExitStack() as bugs:
        if options.bug is not None:
            bugs.enter_context(planted(options.bug))
        return _run_many(options) if options.seed is None else _run_one(options, options.seed)


def split_names(text: str) -> list[str]:
    """Split a list of names that are separated by commas."""
    return [name for name in text.split(",") if name]


# --- many seeds


def _run_many(options: CommandOptions) -> int:
    clock, counts, pairs = SystemClock(), FaultCounts(), PairCounts()
    began = clock.monotonic()
    for outcome in _outcomes(options, range(options.first, options.first + options.seeds)):
        counts.update(outcome.counts)
        pairs.update(outcome.pairs)
        if outcome.failed:
            _print(f"seed {outcome.seed} fails, the first of {outcome.seed - options.first + 1}")
            report = run_seed(outcome.seed)
            if not report.failures:
                report.failures.append("the second run of the seed differs from the first")
            _print_failure(report, options)
            return 1
    _print_summary(options, counts, minutes=(clock.monotonic() - began) / 60)
    _print_pairs(options, pairs)
    missing_faults = _missing_pairs(counts) if options.seeds >= _SEEDS_FOR_ALL_PAIRS else []
    missing_features = rare_pairs(pairs, _minimum(options)) if options.seeds >= _SEEDS_FOR_PAIRS else []
    return 1 if missing_faults or missing_features else 0


def _print_summary(options: CommandOptions, counts: FaultCounts, minutes: float) -> None:
    processes = "" if options.processes == 1 else f" in {options.processes} processes"
    _print(f"{options.seeds} seeds, no promise broken, {options.seeds / minutes:.0f} a minute{processes}")
    _print(f"{len({kind for kind, _ in counts})} kinds of faults, {len(counts)} pairs of fault and operation")
    missing = _missing_pairs(counts)
    if missing:
        _print(f"pairs that did not occur: {', '.join(f'{kind} {operation}' for kind, operation in missing)}")
    if options.counts:
        for (kind, operation), times in sorted(counts.items()):
            _print(f"  {kind:<18} {operation:<14} {times:>8}")


def _print_pairs(options: CommandOptions, counts: PairCounts) -> None:
    """Print how often pairs of features met."""
    possible, minimum = [*possible_pairs()], _minimum(options)
    rare = rare_pairs(counts, minimum)
    rarest = min(possible, key=lambda pair: counts[pair])
    _print(
        f"{len(possible) - len(rare)} of {len(possible)} pairs of features met in at least {minimum} seeds, "
        f"the rarest ({' and '.join(rarest)}) in {counts[rarest]}"
    )
    if options.counts:
        _print(*table_lines(counts))
        _print(*(f"  TOO RARE: {' and '.join(pair)} met in {counts[pair]} seeds" for pair in rare))


def _minimum(options: CommandOptions) -> int:
    """Return the number of seeds in which each pair of features must meet."""
    return max(1, MIN_SEEDS_PER_PAIR * options.seeds // _SEEDS_FOR_ALL_PAIRS)


def _missing_pairs(counts: FaultCounts) -> list[tuple[str, str]]:
    """Return the pairs of a call fault and an operation that did not occur: the seeds prove nothing about these."""
    operations = sorted({operation for kind, operation in counts if kind in CALL_FAULTS})
    return [(kind, operation) for kind in CALL_FAULTS for operation in operations if not counts[kind, operation]]


def _outcomes(options: CommandOptions, seeds: range) -> Iterator[_Outcome]:
    """Run the seeds; yield the outcomes in the order of the seeds."""
    if options.processes == 1:
        yield from map(_outcome, seeds)
        return
    initializer = partial(_plant_in_process, options.bug)
    with ProcessPoolExecutor(options.processes, get_context("spawn"), initializer) as pool:
        try:
            yield from pool.map(_outcome, seeds, chunksize=_SEEDS_PER_TASK)
        finally:
            pool.shutdown(cancel_futures=True)


def _outcome(seed: int) -> _Outcome:
    report = run_seed(seed)
    repeat = not report.failures and seed % _SEEDS_PER_REPETITION == 0
    failed = bool(report.failures) or (repeat and run_seed(seed).digest != report.digest)
    return _Outcome(seed, failed, report.counts, report.pairs)


_planted_in_process = ExitStack()


def _plant_in_process(bug: str | None) -> None:
    """Plant a bug in a process of the pool, until the process ends."""
    if bug is not None:
        _planted_in_process.enter_context(planted(bug))


# --- one seed


def _run_one(options: CommandOptions, seed: int) -> int:
    report = run_seed(seed, only=options.only, without=options.without)
    if not report.failures:
        if options.story:
            _print(*map(str, report.trace))
        _print(f"seed {seed}: no promise broken in {report.seconds:.1f} s of virtual time, trace {report.digest}")
        return 0
    _print_failure(report, options)
    return 1


def _print_failure(report: Report, options: CommandOptions) -> None:
    shown = shrink_report(report) if options.story else report
    if options.story:
        _print(f"The trace with {len(shown.faults)} of {len(report.faults)} faults:")
        _print(*(f"  {entry}" for entry in shown.trace))
        left_out = [name for name in report.instances if name not in shown.instances]
        _print(f"Minimized: --only {','.join(shown.faults)!r} --without {','.join(left_out)!r}")
    _print(*(f"BROKEN: {failure}" for failure in shown.failures))
    bug = f" --bug {options.bug}" if options.bug else ""
    _print(f"Again: {PROGRAM} --seed {report.seed} --story{bug}")


def _print(*lines: str) -> None:
    sys.stdout.writelines(f"{line}\n" for line in lines)
    sys.stdout.flush()
