"""Curves: how cost grows with the number of runs, steps, nodes, events. Holdfast only, on SQLite.

`python -m bench curves --scale 0.1 --out docs/plots` measures sizes up to a tenth of the full ones and writes a chart
for each curve. The report names every cost per unit that grows with the size.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from bench.contract import Job, Measurement, database
from bench.processes import measure
from bench.report import number, table
from bench.svg import Line, chart

TIME_LIMIT_SECONDS = 3600.0
GROWTH = 1.5
"""A cost per unit that is this many times higher at the largest size than at the best one is reported."""
FIRST_JUDGED = 100
"""Below this size, the start of the app dominates."""


@dataclass(frozen=True, slots=True)
class Curve:
    name: str
    title: str
    unit: str
    """The label of the horizontal axis."""
    sizes: tuple[int, ...]
    lines: dict[str, str]
    """Labels of the measured values in the chart."""
    costs: tuple[str, ...]
    """Values that must not grow with the size."""


CURVES = (
    Curve(
        "concurrent",
        "Runs in flight at the same time, five steps each",
        "runs",
        (1, 10, 100, 1_000, 10_000, 50_000),
        {"per_second": "steps per second", "bytes_per_run": "bytes per run", "cpu_us": "µs CPU per step"},
        ("cpu_us", "bytes_per_run"),
    ),
    Curve(
        "history",
        "One run with a long history",
        "steps",
        (10, 100, 1_000, 10_000),
        {"per_second": "steps per second", "cpu_us": "µs CPU per step", "replay_cpu_us": "µs CPU per step, replay"},
        ("cpu_us", "replay_cpu_us"),
    ),
    Curve(
        "graph",
        "One graph",
        "nodes",
        (100, 1_000, 10_000, 100_000),
        {"per_second": "nodes per second", "cpu_us": "µs CPU per node", "rss_megabytes": "MB of memory"},
        ("cpu_us",),
    ),
    Curve(
        "sleeping",
        "Sleeping runs in one file",
        "runs",
        (1_000, 10_000, 100_000, 1_000_000),
        {
            "cpu_us": "µs CPU to start one and put it to sleep",
            "wake_cpu_us": "µs CPU to wake one",
            "rss_megabytes": "MB, idle",
        },
        ("cpu_us", "wake_cpu_us", "rss_megabytes"),
    ),
    Curve(
        "events",
        "One event to each of many waiting runs",
        "runs",
        (100, 1_000, 10_000, 100_000),
        {"per_second": "runs woken and ended per second", "cpu_us": "µs CPU per run"},
        ("cpu_us",),
    ),
    Curve(
        "finished",
        "Finished runs in one file",
        "runs",
        (1_000, 10_000, 100_000, 1_000_000),
        {
            "cpu_us": "µs CPU per run",
            "w1_cpu_us": "µs CPU per step, W1 beside them",
            "list_cpu_ms": "ms CPU, list of 50",
        },
        ("cpu_us", "w1_cpu_us", "list_cpu_ms"),
    ),
)


def run(where: Path, *, scale: float, only: list[str], out: Path | None) -> str:
    parts = [_run_one(curve, where, scale, out) for curve in CURVES if not only or curve.name in only]
    return "\n\n".join(["", *parts])


def _run_one(curve: Curve, where: Path, scale: float, out: Path | None) -> str:
    sizes = [size for size in curve.sizes if size <= max(curve.sizes) * scale] or [curve.sizes[0]]
    points = [_point(curve, where, size) for size in sizes]
    if out is not None:
        _write(curve, points, out)
    columns = [name for name in points[0] if name != "n"]
    rows = [[curve.unit, *columns], *([f"{point['n']:,.0f}", *(number(point[c]) for c in columns)] for point in points)]
    return "\n".join([f"## {curve.title}", "", table(rows), "", *_findings(curve, points)])


def _point(curve: Curve, where: Path, size: int) -> Measurement:
    print(f"{curve.title}: {size:,} {curve.unit} ...", file=sys.stderr, flush=True)
    db = database(where, f"{curve.name}-{size}")
    measured = measure(Job("holdfast", f"curve_{curve.name}", db, args={"n": size}), time_limit=TIME_LIMIT_SECONDS)
    for path in where.glob(f"{curve.name}-{size}*"):
        path.unlink()
    return measured


def _write(curve: Curve, points: list[Measurement], out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    lines = [Line(label, [(point["n"], point[name]) for point in points]) for name, label in curve.lines.items()]
    (out / f"{curve.name}.svg").write_text(chart(curve.title, curve.unit, "", lines), "utf-8")
    (out / f"{curve.name}.json").write_text(json.dumps(points, indent=1) + "\n", "utf-8")


def _findings(curve: Curve, points: list[Measurement]) -> list[str]:
    """Costs per unit that grow with the size."""
    judged = [point for point in points if point["n"] >= FIRST_JUDGED]
    found = []
    for cost in curve.costs:
        best = min((point[cost] for point in judged), default=0.0)
        if judged and best > 0 and judged[-1][cost] > GROWTH * best:
            ratio, size = judged[-1][cost] / best, judged[-1]["n"]
            found.append(f"GROWS: {cost} is {ratio:.1f} times the lowest at {size:,.0f} {curve.unit}")
    return found or ["No cost per unit grows."]
