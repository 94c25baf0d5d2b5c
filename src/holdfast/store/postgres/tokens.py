"""Random numbers by which a repeated call recognises the rows that its earlier attempt wrote."""

from __future__ import annotations

from holdfast.ports import Randomness


def token(random: Randomness) -> int:
    """64 random bits as a signed integer, which is PostgreSQL's BIGINT."""
    return int.from_bytes(random.bytes(8), "big", signed=True)
