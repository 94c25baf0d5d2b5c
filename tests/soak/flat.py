"""Decides whether a measured value is flat or grows.

The first part of a soak is the warm-up, in which caches, pools and tables fill. The rest is the plateau. The median of
its first quarter is compared with the median of its last quarter, so that a single peak or a sawtooth (between two
vacuums) has no effect, and steady growth is detected.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median

WARM_UP = 0.3
"""The share of the time that is the warm-up."""
_FEWEST = 8
"""The minimum number of points in a plateau."""
_LATE = 0.1
"""The share of the plateau that may be missing at either end of a series."""

Points = Sequence[tuple[float, float]]
"""Time in seconds, and the value."""


@dataclass(frozen=True, slots=True)
class Rule:
    """The permitted growth of a value: ``more``, or ``share`` of its start, whichever is larger."""

    unit: str
    more: float = 0.0
    share: float = 0.0
    most: float = math.inf
    """The maximum at the end, whatever the value was at the start."""

    def allowed(self, start: float) -> float:
        return max(self.more, self.share * start)


class What(StrEnum):
    MEMORY = "memory"
    OBJECTS = "objects"
    DESCRIPTORS = "open files"
    CONNECTIONS = "connections"
    ALL_CONNECTIONS = "all connections"
    TABLE = "table"
    INDEX = "index"
    ROWS = "rows"
    DEAD = "dead rows"
    WAL_PER_RUN = "WAL per run"
    WAL = "pg_wal"
    NOTIFICATIONS = "notifications unread"


# A process has at most 10 connections (docs/production.md). The rows of killed workers and their receipts are kept for
# a day: some tens of rows in a soak.
RULES = {
    What.MEMORY: Rule("MB", more=4, share=0.05),
    What.OBJECTS: Rule("", more=3_000, share=0.1),
    What.DESCRIPTORS: Rule("", more=6),
    What.CONNECTIONS: Rule("", more=5, most=10),
    What.ALL_CONNECTIONS: Rule("", more=10),
    What.TABLE: Rule("kB", more=512, share=0.35),
    What.INDEX: Rule("kB", more=512, share=0.35),
    What.ROWS: Rule("", more=100, share=0.3),
    What.DEAD: Rule("", more=2_000, share=1.0),
    What.WAL_PER_RUN: Rule("kB", share=0.25),
    What.WAL: Rule("MB", more=32),
    What.NOTIFICATIONS: Rule("%", more=0.1),
}


@dataclass(slots=True)
class Series:
    """A measured value over time. ``of`` names the process, table or index."""

    what: What
    of: str
    points: list[tuple[float, float]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.what}: {self.of}" if self.of else str(self.what)


@dataclass(frozen=True, slots=True)
class Verdict:
    series: Series
    start: float
    end: float
    why_not: str = ""
    """The reason why the series is not flat; empty if it is flat."""

    @property
    def flat(self) -> bool:
        return not self.why_not

    @property
    def small(self) -> bool:
        """True if the value is flat and not larger than the permitted growth; the table omits such values."""
        return self.flat and max(self.start, self.end) <= RULES[self.series.what].more


def judge(series: Series, began: float, ended: float) -> Verdict | None:
    """Decide whether a series is flat; None if it does not cover the plateau, as of a process that was killed."""
    start = began + WARM_UP * (ended - began)
    late = _LATE * (ended - start)
    points = [(at, value) for at, value in series.points if start <= at <= ended]
    if len(points) < _FEWEST or points[0][0] > start + late or points[-1][0] < ended - late:
        return None
    quarter = (ended - start) / 4
    first = median(value for at, value in points if at < start + quarter)
    last = median(value for at, value in points if at > ended - quarter)
    return Verdict(series, first, last, _why_not(RULES[series.what], first, last))


def _why_not(rule: Rule, first: float, last: float) -> str:
    if last - first > rule.allowed(first):
        return f"grew by {shown(last - first)} {rule.unit}".rstrip() + f", {shown(rule.allowed(first))} allowed"
    if last > rule.most:
        return f"more than {shown(rule.most)}"
    return ""


def rate(amounts: Points, counts: Points, seconds: float) -> list[tuple[float, float]]:
    """The growth of ``amounts`` per count, over the last ``seconds`` before each time; both have the same times."""
    found, begin = [], 0
    for i, (at, amount) in enumerate(amounts):
        while begin + 1 < i and at - amounts[begin + 1][0] >= seconds:
            begin += 1
        done = counts[i][1] - counts[begin][1]
        if at - amounts[begin][0] >= seconds and done > 0:
            found.append((at, (amount - amounts[begin][1]) / done))
    return found


def shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:,.1f}"


def table(verdicts: Sequence[Verdict]) -> str:
    """The values at both ends of the plateau with their verdicts, as text. Small values are omitted."""
    listed = [verdict for verdict in verdicts if not verdict.small]
    lines = [("", "start of plateau", "end", "verdict")]
    for verdict in listed:
        unit = RULES[verdict.series.what].unit
        start, end = (f"{shown(value)} {unit}".rstrip() for value in (verdict.start, verdict.end))
        lines.append((verdict.series.name, start, end, "flat" if verdict.flat else f"NOT FLAT: {verdict.why_not}"))
    widths = [max(len(line[i]) for line in lines) for i in range(3)]
    shown_lines = [f"{a:<{widths[0]}}  {b:>{widths[1]}}  {c:>{widths[2]}}  {d}".rstrip() for a, b, c, d in lines]
    return "\n".join([*shown_lines, f"and {len(verdicts) - len(listed)} values that are small and flat"])
