"""Numbers by which a call knows its own traces."""

from __future__ import annotations

from holdfast.ports import Randomness


def token(random: Randomness) -> int:
    """64 random bits, as PostgreSQL has them: signed."""
    return int.from_bytes(random.bytes(8), "big", signed=True)
