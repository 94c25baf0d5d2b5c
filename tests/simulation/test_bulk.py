"""Bulk actions of the simulation: jobs are interrupted and continued by other processes, and their checks see it."""

from __future__ import annotations

import re
from collections import defaultdict

from simulation.run import Report, run_seed

SEEDS = range(1, 9)
_TAKEN = re.compile(r"take_bulk_jobs (.+)")


def _continued_jobs(report: Report) -> set[str]:
    """The jobs that more than one process has taken up."""
    processes = defaultdict[str, set[str]](set)
    for entry in report.trace:
        taken = _TAKEN.fullmatch(entry.text)
        for job in taken[1].split(", ") if taken else ():
            processes[job].add(entry.process)
    return {job for job, names in processes.items() if len(names) > 1}


def test_jobs_are_continued_by_other_processes() -> None:
    assert any(_continued_jobs(run_seed(seed)) for seed in SEEDS)
