"""Verdicts on constructed series: growth is detected, oscillation is not taken for growth."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest

from .flat import RULES, Series, Verdict, What, judge, rate, table
from .soak import missing

MINUTES = 10
EVERY = 4.0
END = MINUTES * 60.0
TIMES = [i * EVERY for i in range(int(END / EVERY) + 1)]

Value = Callable[[float], float]


def judged(what: What, value: Value, of: str = "it") -> Verdict:
    verdict = judge(Series(what, of, [(at, value(at)) for at in TIMES]), 0, END)
    assert verdict is not None
    return verdict


def noise(size: float) -> Value:
    rng = random.Random(20_260_715)
    return lambda _at: rng.uniform(-size, size)


def of_minutes(value: Value) -> Value:
    return lambda at: value(at / 60)


@pytest.mark.parametrize(
    ("what", "value"),
    [
        (What.MEMORY, lambda minute: 70 + minute),  # 1 MB a minute
        (What.OBJECTS, lambda minute: 30_000 + 1_000 * minute),
        (What.DESCRIPTORS, lambda minute: 20 + 2 * minute),
        (What.CONNECTIONS, lambda minute: 4 + 60 / 8 * minute / 3),  # one for each fault that hit this worker
        (What.ALL_CONNECTIONS, lambda minute: 20 + 60 / 8 * minute),
        (What.TABLE, lambda minute: 1_000 + 200 * minute),
        (What.INDEX, lambda minute: 500 + 120 * minute),
        (What.ROWS, lambda minute: 300 + 60 * minute),  # a row for each run of one kind
        (What.DEAD, lambda minute: 1_000 + 1_000 * minute),
        (What.WAL_PER_RUN, lambda minute: 20 * (1 + 0.1 * minute)),
        (What.WAL, lambda minute: 64 + 16 * minute),
        (What.NOTIFICATIONS, lambda minute: 0.05 * minute),
    ],
)
def test_steady_growth_is_not_flat(what: What, value: Value) -> None:
    swinging = noise(0.05 * value(0))
    verdict = judged(what, lambda at: value(at / 60) + swinging(at))
    assert not verdict.flat
    assert "grew by" in verdict.why_not


@pytest.mark.parametrize("what", list(What))
@pytest.mark.parametrize(
    "wave", [noise(1), of_minutes(lambda minute: minute % 0.9 / 0.45 - 1), lambda at: math.sin(at / 7)]
)
def test_oscillation_counts_as_flat(what: What, wave: Value) -> None:
    """The amplitude is the permitted growth, so the values vary by twice as much."""
    rule = RULES[what]
    base = 5 if rule.most < math.inf else 20 * max(rule.more, 1)
    assert judged(what, lambda at: base + rule.allowed(base) * wave(at)).flat


def test_growth_in_the_warm_up_counts_as_flat() -> None:
    """Caches and pools fill, and tables grow until the first runs are old enough to be deleted."""
    assert judged(What.MEMORY, of_minutes(lambda minute: 40 + 20 * min(minute, 2.5))).flat
    assert judged(What.TABLE, of_minutes(lambda minute: 8_000 * min(minute, 2.5))).flat


def test_a_peak_counts_as_flat() -> None:
    assert judged(What.ROWS, lambda at: 5_000 if END - 60 < at < END - 20 else 300).flat


def test_a_constant_value_above_its_maximum_is_not_flat() -> None:
    verdict = judged(What.CONNECTIONS, lambda _at: 11)
    assert verdict.why_not == "more than 10"


def test_a_series_of_a_killed_process_has_no_verdict() -> None:
    points = [(at, 70 + at) for at in TIMES]
    assert judge(Series(What.MEMORY, "worker-1-0", points[:100]), 0, END) is None
    assert judge(Series(What.MEMORY, "worker-1-1", points[100:]), 0, END) is None
    assert judge(Series(What.MEMORY, "worker-0-0", points), 0, END) is not None


def test_quantities_without_samples_are_listed_as_missing() -> None:
    of_all: dict[What, list[str]] = {what: ["it"] for what in What}
    for what in (What.MEMORY, What.OBJECTS, What.DESCRIPTORS, What.CONNECTIONS):
        of_all[what] = ["worker-0-0", "client"]
    verdicts = [judged(what, lambda _at: 1, of) for what, names in of_all.items() for of in names]
    assert missing(verdicts, has_proc=True) == []

    def without(what: What, of: str = "it") -> list[Any]:
        return [v for v in verdicts if (v.series.what, v.series.of) != (what, of)]

    assert missing(without(What.WAL_PER_RUN), has_proc=True) == ["WAL per run"]
    assert missing(without(What.CONNECTIONS, "client"), has_proc=True) == ["connections: client"]
    assert missing(without(What.MEMORY, "client"), has_proc=True) == ["memory: client"]
    assert missing(without(What.MEMORY, "client"), has_proc=False) == []


def test_wal_is_divided_by_runs() -> None:
    written = [(at, 30 * at) for at in TIMES]
    ended = [(at, 1.5 * at) for at in TIMES]
    found = rate(written, ended, 30)
    assert found[0][0] >= 30
    assert all(value == pytest.approx(20) for _, value in found)

    growing = [(at, 30 * at * (1 + at / END)) for at in TIMES]
    verdict = judge(Series(What.WAL_PER_RUN, "", rate(growing, ended, 30)), 0, END)
    assert verdict is not None
    assert not verdict.flat


def test_the_rate_is_empty_if_no_work_was_done() -> None:
    assert rate([(at, at) for at in TIMES], [(at, 7.0) for at in TIMES], 30) == []


def test_the_table_shows_growth_and_omits_small_values() -> None:
    verdicts = [
        judged(What.MEMORY, of_minutes(lambda minute: 70 + 2 * minute), "worker-0-0"),
        judged(What.TABLE, lambda _at: 8_192, "holdfast_fact"),
        judged(What.ROWS, lambda _at: 3, "holdfast_meta"),
    ]
    lines = table(verdicts).splitlines()
    assert [line.split()[-1] for line in lines[:1]] == ["verdict"]
    assert "memory: worker-0-0" in lines[1]
    assert "NOT FLAT: grew by 10.5 MB, 4 allowed" in lines[1]
    assert lines[2].split() == ["table:", "holdfast_fact", "8,192", "kB", "8,192", "kB", "flat"]
    assert lines[3] == "and 1 values that are small and flat"
