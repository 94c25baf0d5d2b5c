"""Random numbers of a simulation, all derived from the seed.

Each concern has its own stream, so the draws of one concern do not affect another. A fault is not drawn from a stream:
whether it happens at a place, such as the fourth claim of a worker, depends on the seed and the name of the place. One
fault can therefore be left out without moving the others.
"""

from __future__ import annotations

from random import Random
from zlib import crc32

_MASK = (1 << 64) - 1


def stream(seed: int, concern: str) -> Random:
    """Return the random stream of a concern."""
    return Random(mixed(seed, concern))  # noqa: S311  (reproducible by design)


def chance(seed: int, place: str) -> float:
    """Return a number in [0, 1) that is determined by the seed and the place."""
    return mixed(seed, place) / (_MASK + 1)


def mixed(seed: int, label: str) -> int:
    """Hash the seed and the label to 64 bits, with the finalizer of splitmix64."""
    text = label.encode()
    z = (seed * 0x9E3779B97F4A7C15 + crc32(text) * 0xBF58476D1CE4E5B9 + len(text)) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)
