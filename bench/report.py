"""Turns measurements into the table: medians, the spread of the rounds, ratios of medians."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.contract import Measurement

NO_VALUE = "-"


@dataclass(frozen=True, slots=True)
class Workload:
    """The name, unit and description of one measured number."""

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
        """The median, with the lowest and the highest round in brackets."""
        values = [measured["value"] for measured in self.rounds[workload, contender]]
        if not values:
            return NO_VALUE
        median_text = number(statistics.median(values))
        return median_text if len(values) == 1 else f"{median_text} ({number(min(values))} to {number(max(values))})"

    def times_better(self, workload: Workload, contender: str, other: str) -> str:
        """The ratio of two medians: above 1 if `contender` is better than `other`."""
        own, theirs = self.median(workload.key, contender), self.median(workload.key, other)
        if not own or not theirs:
            return NO_VALUE
        ratio = own / theirs if workload.higher_is_better else theirs / own
        return f"{ratio:.2g} x" if ratio < 10 else f"{ratio:,.0f} x"

    def share_of_ceiling(self, workload: Workload, contender: str) -> str:
        own, limit = self.median(workload.key, contender), self.median(workload.key, "ceiling")
        if not own or not limit:
            return NO_VALUE
        share = own / limit if workload.higher_is_better else limit / own
        return f"{share:.1%}"


def number(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def comparison(results: Results, workloads: Sequence[Workload]) -> str:
    header = [
        "workload",
        "Holdfast",
        "Holdfast compiled",
        "DBOS tuned",
        "DBOS default",
        "vs tuned",
        "compiled vs tuned",
        "vs default",
        "compiled vs default",
        "Restate",
        "vs Restate",
        "Absurd",
        "vs Absurd",
        "ceiling",
        "of ceiling",
    ]
    rows = [header]
    rows += [_row(results, workload) for workload in workloads]
    return table(_without_empty_columns(rows))


def _row(results: Results, workload: Workload) -> list[str]:
    return [
        f"{workload.title}, {workload.unit}",
        results.cell(workload.key, "holdfast"),
        results.cell(workload.key, "compiled"),
        results.cell(workload.key, "dbos"),
        results.cell(workload.key, "dbos_default"),
        results.times_better(workload, "holdfast", "dbos"),
        results.times_better(workload, "compiled", "dbos"),
        results.times_better(workload, "holdfast", "dbos_default"),
        results.times_better(workload, "compiled", "dbos_default"),
        results.cell(workload.key, "restate"),
        results.times_better(workload, "holdfast", "restate"),
        results.cell(workload.key, "absurd"),
        results.times_better(workload, "holdfast", "absurd"),
        results.cell(workload.key, "ceiling"),
        results.share_of_ceiling(workload, "holdfast"),
    ]


def _without_empty_columns(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """The rows without the columns of contenders that did not take part."""
    shown = [n for n in range(len(rows[0])) if any(row[n] != NO_VALUE for row in rows[1:])]
    return [[row[n] for n in shown] for row in rows]


def table(rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table with aligned columns, readable in a terminal too."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])
