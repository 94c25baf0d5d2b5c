"""Minimizes a failing seed: leaves out faults, then instances, while the seed still fails in the same way."""

from __future__ import annotations

import re
from collections.abc import Sequence

from holdfast.testing.simulation.minimize import RunBudget, minimize
from simulation.run import Report, run_seed

_NAME = re.compile(r"\S*\d\S*")
_COMPARED_LENGTH = 40


def shrink_report(report: Report) -> Report:
    """Return the report of the smallest run of the seed that fails in the same way.

    Returns ``report`` itself if the seed does not fail again with its faults given by name.
    """
    budget = RunBudget()

    def fails(only: Sequence[str], without: Sequence[str]) -> bool:
        budget.left -= 1
        repeated = run_seed(report.seed, only=only, without=without)
        return bool(repeated.failures) and _failure_kind(repeated) == _failure_kind(report)

    if not fails(report.faults, ()):
        return report
    kinds = minimize(
        sorted({_fault_kind(fault) for fault in report.faults}),
        lambda kept: fails([fault for fault in report.faults if _fault_kind(fault) in kept], ()),
        budget,
    )
    candidates = [fault for fault in report.faults if _fault_kind(fault) in kinds]
    only = minimize(candidates, lambda faults: fails(faults, ()), budget)
    kept = minimize(report.instances, lambda instances: fails(only, _others(report, instances)), budget)
    without = _others(report, kept)
    if without:
        only = minimize(only, lambda faults: fails(faults, without), budget)
    return run_seed(report.seed, only=only, without=without)


def _failure_kind(report: Report) -> str:
    """Return the first failure without names and numbers."""
    return _NAME.sub("…", report.failures[0])[:_COMPARED_LENGTH] if report.failures else ""


def _fault_kind(fault: str) -> str:
    return fault.partition("@")[0]


def _others(report: Report, kept: Sequence[str]) -> list[str]:
    return [instance for instance in report.instances if instance not in kept]
