"""Line charts as SVG text, with logarithmic axes. No plotting library is needed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 640, 360
LEFT, RIGHT, TOP, BOTTOM = 70, 40, 60, 50
COLOURS = ("#1f5fa8", "#b4490f", "#2c7a4b")


@dataclass(frozen=True, slots=True)
class Line:
    label: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class _Axis:
    """A logarithmic axis from ``low`` to ``high``, both powers of ten, on the pixels from ``start`` to ``end``."""

    low: int
    high: int
    start: float
    end: float

    @classmethod
    def of(cls, values: Sequence[float], start: float, end: float) -> _Axis:
        low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
        return cls(low, max(high, low + 1), start, end)

    def at(self, value: float) -> float:
        share = (math.log10(value) - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    @property
    def ticks(self) -> list[float]:
        return [10.0**power for power in range(self.low, self.high + 1)]


def chart(title: str, x_label: str, y_label: str, lines: Sequence[Line]) -> str:
    """One chart. Points that are not positive have no place on a logarithmic axis and are left out."""
    shown = [Line(line.label, [point for point in line.points if min(point) > 0]) for line in lines]
    points = [point for line in shown for point in line.points]
    x = _Axis.of([point[0] for point in points], LEFT, WIDTH - RIGHT)
    y = _Axis.of([point[1] for point in points], HEIGHT - BOTTOM, TOP)
    parts = [_text(LEFT, 20, title, size=15), *_grid(x, y)]
    parts += [_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, x_label, anchor="middle")]
    parts += [_text(LEFT, TOP - 6, y_label)]
    for number, line in enumerate(shown):
        parts += _curve(line, x, y, COLOURS[number % len(COLOURS)], number)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">'
    background = f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>'
    return "\n".join([head, background, *parts, "</svg>", ""])


def _grid(x: _Axis, y: _Axis) -> list[str]:
    parts = []
    for tick in x.ticks:
        at = x.at(tick)
        parts.append(f'<path d="M{at:.1f} {y.start}V{y.end}" stroke="#ddd"/>')
        parts.append(_text(at, y.start + 18, _number(tick), anchor="middle"))
    for tick in y.ticks:
        at = y.at(tick)
        parts.append(f'<path d="M{x.start} {at:.1f}H{x.end}" stroke="#ddd"/>')
        parts.append(_text(x.start - 8, at + 4, _number(tick), anchor="end"))
    return parts


def _curve(line: Line, x: _Axis, y: _Axis, colour: str, number: int) -> list[str]:
    at = [(x.at(px), y.at(py)) for px, py in line.points]
    path = " ".join(f"{px:.1f},{py:.1f}" for px, py in at)
    dots = [f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3" fill="{colour}"/>' for px, py in at]
    label = _text(WIDTH - RIGHT, 20 + 15 * number, line.label, anchor="end", colour=colour)
    return [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>', *dots, label]


def _text(x: float, y: float, text: str, *, size: int = 12, anchor: str = "start", colour: str = "#222") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{colour}">{escape(text)}</text>'
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"
