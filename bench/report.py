"""Turns measurements into the table: medians, the spread of the rounds, ratios of medians."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.contract import Measurement

NOTHING = "-"


@dataclass(frozen=True, slots=True)
class Workload:
    """How one number is called and read."""

    key: str
    title: str
    unit: str
    about: str
    higher_is_better: bool = False


@dataclass(slots=True)
class Results:
    """All rounds of all contenders."""

    rounds: defaultdict[tuple[str, str], list[Measurement]] = field(default_factory=lambda: defaultdict(list))

    def add(self, workload: str, contender: str, measured: Measurement) -> None:
        self.rounds[workload, contender].append(measured)

    def median(self, workload: str, contender: str, name: str = "value") -> float | None:
        values = [measured[name] for measured in self.rounds[workload, contender] if name in measured]
        return statistics.median(values) if values else None

    def cell(self, workload: str, contender: str) -> str:
        """The median, and the lowest and highest round behind it."""
        values = [measured["value"] for measured in self.rounds[workload, contender]]
        if not values:
            return NOTHING
        middle = number(statistics.median(values))
        return middle if len(values) == 1 else f"{middle} ({number(min(values))} to {number(max(values))})"

    def times_better(self, workload: Workload, one: str, other: str) -> str:
        """How many times better one median is than the other; below 1 it is worse."""
        ours, theirs = self.median(workload.key, one), self.median(workload.key, other)
        if not ours or not theirs:
            return NOTHING
        ratio = ours / theirs if workload.higher_is_better else theirs / ours
        return f"{ratio:.2g} x" if ratio < 10 else f"{ratio:,.0f} x"

    def share_of_ceiling(self, workload: Workload, contender: str) -> str:
        ours, limit = self.median(workload.key, contender), self.median(workload.key, "ceiling")
        if not ours or not limit:
            return NOTHING
        share = ours / limit if workload.higher_is_better else limit / ours
        return f"{share:.1%}"


def number(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def comparison(results: Results, workloads: Sequence[Workload]) -> str:
    header = [
        "workload",
        "Holdfast",
        "DBOS tuned",
        "DBOS default",
        "vs tuned",
        "vs default",
        "ceiling",
        "of ceiling",
    ]
    rows = [header]
    rows += [_row(results, workload) for workload in workloads]
    return table(rows)


def _row(results: Results, workload: Workload) -> list[str]:
    return [
        f"{workload.title}, {workload.unit}",
        results.cell(workload.key, "holdfast"),
        results.cell(workload.key, "dbos"),
        results.cell(workload.key, "dbos_default"),
        results.times_better(workload, "holdfast", "dbos"),
        results.times_better(workload, "holdfast", "dbos_default"),
        results.cell(workload.key, "ceiling"),
        results.share_of_ceiling(workload, "holdfast"),
    ]


def table(rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose columns line up in a terminal too."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])
