"""Chance of a simulation: one stream for each concern, all grown from the seed.

What one concern draws does not move another. Whether a fault happens at a place (the n-th claim of a worker) is
asked of the place itself and not of a stream: leave one fault out, and the others stay where they were.
"""

from __future__ import annotations

from random import Random
from zlib import crc32

_MASK = (1 << 64) - 1


def stream(seed: int, concern: str) -> Random:
    return Random(mixed(seed, concern))  # noqa: S311  (reproducible by design)


def chance(seed: int, place: str) -> float:
    """A number of [0, 1) that belongs to the place."""
    return mixed(seed, place) / (_MASK + 1)


def mixed(seed: int, label: str) -> int:
    """64 bits of both, by the finalizer of splitmix64."""
    text = label.encode()
    z = (seed * 0x9E3779B97F4A7C15 + crc32(text) * 0xBF58476D1CE4E5B9 + len(text)) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)
