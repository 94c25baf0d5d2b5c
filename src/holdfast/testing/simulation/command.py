"""Many seeds of the engine's own simulation, or one of them again, told to whoever runs it by a command."""

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
from holdfast.testing.simulation.planted import planted
from holdfast.testing.simulation.run import Report, run_seed
from holdfast.testing.simulation.shrink import shrink_report

DEFAULT_SEEDS = 100
_AT_ONCE = 10
_ENOUGH = 10_000
"""Seeds in which every fault of a call must have met every operation."""
_CHECKED_TWICE = 50
"""One of so many seeds is run again, to see that it does the same."""


@dataclass(frozen=True, slots=True)
class CommandOptions:
    """What was asked for. ``program``: how the command is called, for the line that shows a failure again."""

    program: str
    seeds: int = DEFAULT_SEEDS
    first: int = 1
    seed: int | None = None
    only: Sequence[str] | None = None
    without: Sequence[str] = ()
    story: bool = False
    bug: str | None = None
    counts: bool = False
    processes: int = 1


def run(asked: CommandOptions) -> int:
    """The exit code: 1 if a promise was broken."""
    with ExitStack() as bugs:
        if asked.bug is not None:
            bugs.enter_context(planted(asked.bug))
        return _many(asked) if asked.seed is None else _again(asked, asked.seed)


def names(text: str) -> list[str]:
    """Of a list with commas."""
    return [name for name in text.split(",") if name]


def _many(asked: CommandOptions) -> int:
    clock, counts = SystemClock(), Counter[tuple[str, str]]()
    began = clock.monotonic()
    seeds = range(asked.first, asked.first + asked.seeds)
    for looked in _looks(asked, seeds):
        counts.update(looked.counts)
        if looked.failed:
            _say(f"seed {looked.seed} fails, the first of {looked.seed - asked.first + 1}")
            report = run_seed(looked.seed)
            if not report.failures:
                report.failures.append("the same seed did something else the second time")
            _tell(report, asked)
            return 1
    minutes = (clock.monotonic() - began) / 60
    by = "" if asked.processes == 1 else f" in {asked.processes} processes"
    _say(f"{asked.seeds} seeds, no promise broken, {asked.seeds / minutes:.0f} a minute{by}")
    _say(f"{len({kind for kind, _ in counts})} kinds of faults, {len(counts)} pairs of fault and operation")
    never = _never_met(counts)
    if never:
        _say(f"never met: {', '.join(f'{kind} {operation}' for kind, operation in never)}")
    if asked.counts:
        for (kind, operation), times in sorted(counts.items()):
            _say(f"  {kind:<18} {operation:<14} {times:>8}")
    return 1 if never and asked.seeds >= _ENOUGH else 0


def _never_met(counts: Counter[tuple[str, str]]) -> list[tuple[str, str]]:
    """Faults of calls that did not happen to an operation: of these pairs the seeds prove nothing."""
    operations = sorted({operation for kind, operation in counts if kind in CALL_FAULTS})
    return [(kind, operation) for kind in CALL_FAULTS for operation in operations if not counts[kind, operation]]


class _Looked(NamedTuple):
    """What has to be known of a seed that was run in any process."""

    seed: int
    failed: bool
    counts: Counter[tuple[str, str]]


def _looks(asked: CommandOptions, seeds: range) -> Iterator[_Looked]:
    """In the order of the seeds."""
    if asked.processes == 1:
        yield from map(_look, seeds)
        return
    started = partial(_plant_for_good, asked.bug)
    with ProcessPoolExecutor(asked.processes, get_context("spawn"), started) as pool:
        try:
            yield from pool.map(_look, seeds, chunksize=_AT_ONCE)
        finally:
            pool.shutdown(cancel_futures=True)


def _look(seed: int) -> _Looked:
    report = run_seed(seed)
    again = not report.failures and seed % _CHECKED_TWICE == 0
    failed = bool(report.failures) or (again and run_seed(seed).digest != report.digest)
    return _Looked(seed, failed, report.counts)


_for_good = ExitStack()


def _plant_for_good(bug: str | None) -> None:
    """In a process that does nothing else."""
    if bug is not None:
        _for_good.enter_context(planted(bug))


def _again(asked: CommandOptions, seed: int) -> int:
    report = run_seed(seed, only=asked.only, without=asked.without)
    if not report.failures:
        if asked.story:
            _say(*map(str, report.story))
        _say(f"seed {seed}: no promise broken in {report.seconds:.1f} s of virtual time, trace {report.digest}")
        return 0
    _tell(report, asked)
    return 1


def _tell(report: Report, asked: CommandOptions) -> None:
    told = shrink_report(report) if asked.story else report
    if asked.story:
        _say(f"The story, with {len(told.faults)} of {len(report.faults)} faults:")
        _say(*(f"  {entry}" for entry in told.story))
        left_out = [name for name in report.instances if name not in told.instances]
        _say(f"What went wrong: --only {','.join(told.faults)!r} --without {','.join(left_out)!r}")
    _say(*(f"BROKEN: {failure}" for failure in told.failures))
    bug = f" --bug {asked.bug}" if asked.bug else ""
    _say(f"Again: {asked.program} --seed {report.seed} --story{bug}")


def _say(*lines: str) -> None:
    sys.stdout.writelines(f"{line}\n" for line in lines)
    sys.stdout.flush()
