"""Makes a failure small: first the faults, then the instances, as long as it stays the same kind of failure."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from holdfast.testing.simulation.run import Report, run_seed

T = TypeVar("T")
_MOST_RUNS = 200
_NAME = re.compile(r"\S*\d\S*")


@dataclass(slots=True)
class _Tries:
    left: int = _MOST_RUNS


def shrink_report(report: Report) -> Report:
    """The smallest run of the seed that was found to fail in the same way; needs faults and instances given to it."""
    tries = _Tries()

    def fails(only: Sequence[str], without: Sequence[str]) -> bool:
        tries.left -= 1
        found = run_seed(report.seed, only=only, without=without)
        return bool(found.failures) and kind(found) == kind(report)

    if not fails(report.faults, ()):
        return report  # it needs a fault that did not happen by name: the seed alone tells it
    kinds = smallest(
        sorted({_kind_of(fault) for fault in report.faults}),
        lambda kept: fails([fault for fault in report.faults if _kind_of(fault) in kept], ()),
        tries,
    )
    likely = [fault for fault in report.faults if _kind_of(fault) in kinds]
    only = smallest(likely, lambda faults: fails(faults, ()), tries)
    kept = smallest(report.instances, lambda keep: fails(only, _others(report, keep)), tries)
    without = _others(report, kept)
    if without:
        only = smallest(only, lambda faults: fails(faults, without), tries)
    return run_seed(report.seed, only=only, without=without)


def kind(report: Report) -> str:
    """What a failure is about, without names and numbers."""
    return _NAME.sub("…", report.failures[0])[:40] if report.failures else ""


def smallest(items: Sequence[T], fails: Callable[[Sequence[T]], bool], tries: _Tries | None = None) -> list[T]:
    """Delta debugging: a part of the items that still fails, and not without any one piece of it."""
    left, pieces = list(items), 2
    tries = tries or _Tries()
    if left and fails([]):
        return []
    while len(left) > 1 and tries.left > 0:
        size = -(-len(left) // pieces)
        for start in range(0, len(left), size):
            rest = left[:start] + left[start + size :]
            if rest and tries.left > 0 and fails(rest):
                left, pieces = rest, max(2, pieces - 1)
                break
        else:
            if size == 1:
                break
            pieces = min(len(left), 2 * pieces)
    return left


def _kind_of(fault: str) -> str:
    return fault.partition("@")[0]


def _others(report: Report, keep: Sequence[str]) -> list[str]:
    return [one for one in report.instances if one not in keep]
