"""Counts the pairs of features that met: both were reached by runs of one instance, its descendants, and the requests
of clients on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from itertools import combinations

from simulation.features.table import FEATURES, impossible_pairs
from simulation.programs.names import root_of

Pair = tuple[str, str]
"""Two features in alphabetical order."""
Created = tuple[str, int, int | None]
"""A run: its instance, its number, the id of its parent."""
PairCounts = Counter[Pair]
"""The number of seeds in which each pair met."""

MIN_SEEDS_PER_PAIR = 50
"""Minimum number of seeds, in 10,000, in which each pair that can meet does."""


def met_pairs(reached: Mapping[str, Collection[str]], runs: Mapping[int, Created]) -> set[Pair]:
    """Return the pairs that met. ``reached``: the features of each instance. ``runs``: all runs that were created."""
    families: dict[str, set[str]] = {}
    root = _roots(runs)
    for instance, features in reached.items():
        families.setdefault(root.get(instance, instance), set()).update(features)
    return {pair for features in families.values() for pair in combinations(sorted(features), 2)}


def _roots(runs: Mapping[int, Created]) -> Mapping[str, str]:
    """For each instance: the instance that a client started, of which it is a descendant or a fork."""
    roots = {}
    for instance, _, parent in runs.values():
        ancestor = instance
        while parent is not None and parent in runs:
            ancestor, _, parent = runs[parent]
        roots[instance] = root_of(ancestor)
    return roots


def possible_pairs() -> Iterator[Pair]:
    """All pairs of features that can meet."""
    impossible = impossible_pairs()
    for pair in combinations(sorted(feature.name for feature in FEATURES), 2):
        if frozenset(pair) not in impossible:
            yield pair


def rare_pairs(counts: PairCounts, minimum: int) -> list[Pair]:
    """Pairs that met in fewer seeds than required."""
    return [pair for pair in possible_pairs() if counts[pair] < minimum]


def table_lines(counts: PairCounts) -> Iterator[str]:
    """The table of pairs as text: one line per feature, with its pairs from the rarest to the most frequent."""
    for feature in FEATURES:
        partners = sorted(
            (counts[pair], other)
            for pair in possible_pairs()
            if feature.name in pair
            for other in pair
            if other != feature.name
        )
        yield f"  {feature.name}: " + ", ".join(f"{other} {times}" for times, other in partners)
    for pair, reason in impossible_pairs().items():
        yield f"  {' and '.join(sorted(pair))} never meet: {reason}"
