"""Counters and histograms in memory, and their text in the exposition format of Prometheus.

A metric has a bounded number of label sets: values beyond the bound are counted under the value ``other``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

MAX_LABEL_SETS = 1_000
OTHER = "other"
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)

Labels = tuple[str, ...]


class Metric:
    """Name, help text, type and label names of a metric."""

    def __init__(self, name: str, kind: str, help_text: str, labels: Sequence[str] = ()) -> None:
        self.name = name
        self.labels = tuple(labels)
        self._head = (f"# HELP {name} {help_text}", f"# TYPE {name} {kind}")

    def head(self) -> tuple[str, str]:
        return self._head

    def sample(self, labels: Labels, value: float, suffix: str = "", extra: str = "") -> str:
        pairs = [f'{name}="{_escape(value)}"' for name, value in zip(self.labels, labels, strict=True)]
        text = ",".join([*pairs, extra] if extra else pairs)
        return f"{self.name}{suffix}{'{' + text + '}' if text else ''} {_number(value)}"


class Counter(Metric):
    def __init__(self, name: str, help_text: str, labels: Sequence[str] = ()) -> None:
        super().__init__(name, "counter", help_text, labels)
        self.values: dict[Labels, float] = {} if labels else {(): 0}

    def add(self, labels: Labels = ()) -> None:
        self.values[labels if labels in self.values else self.ensure(labels)] += 1

    def ensure(self, labels: Labels) -> Labels:
        """Add the label set, or that of ``other`` if there are too many; returns the one that counts."""
        if labels not in self.values:
            labels = _bounded(labels, len(self.values))
            self.values.setdefault(labels, 0)
        return labels

    def lines(self) -> Iterator[str]:
        yield from self.head()
        for labels, value in sorted(self.values.items()):
            yield self.sample(labels, value)


class Gauge(Metric):
    """A metric whose values are given when it is shown."""

    def __init__(self, name: str, help_text: str, labels: Sequence[str] = ()) -> None:
        super().__init__(name, "gauge", help_text, labels)

    def lines(self, values: Iterable[tuple[Labels, float]]) -> Iterator[str]:
        yield from self.head()
        for number, (labels, value) in enumerate(sorted(values)):
            if number < MAX_LABEL_SETS:
                yield self.sample(labels, value)


class Series:
    """The observations of one label set of a histogram."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS) + 1)
        self.total = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        if seconds > 0:
            self.total += seconds

    def observe_ms(self, ms: int) -> None:
        """Observe a duration in milliseconds. Most steps take at most one, which is the first bucket."""
        if ms <= 1:
            self.counts[0] += 1
        else:
            self.counts[bisect_left(BUCKETS, ms / 1000)] += 1
        if ms > 0:
            self.total += ms / 1000


class Histogram(Metric):
    def __init__(self, name: str, help_text: str, labels: Sequence[str] = ()) -> None:
        super().__init__(name, "histogram", help_text, labels)
        self.series: dict[Labels, Series] = {}

    def observe(self, seconds: float, labels: Labels = ()) -> None:
        self.of(labels).observe(seconds)

    def of(self, labels: Labels) -> Series:
        series = self.series.get(labels)
        if series is None:
            labels = _bounded(labels, len(self.series))
            series = self.series.setdefault(labels, Series())
        return series

    def lines(self) -> Iterator[str]:
        yield from self.head()
        for labels, series in sorted(self.series.items()):
            cumulative = 0
            for bound, count in zip(BUCKETS, series.counts, strict=False):
                cumulative += count
                yield self.sample(labels, cumulative, "_bucket", f'le="{_number(bound)}"')
            cumulative += series.counts[-1]
            yield self.sample(labels, cumulative, "_bucket", 'le="+Inf"')
            yield self.sample(labels, series.total, "_sum")
            yield self.sample(labels, cumulative, "_count")


def _bounded(labels: Labels, known: int) -> Labels:
    return labels if known < MAX_LABEL_SETS else (OTHER,) * len(labels)


def _escape(text: str) -> str:
    """A label value. The format is UTF-8, so lone surrogates are escaped."""
    text = text.encode("utf-8", "backslashreplace").decode()
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))
