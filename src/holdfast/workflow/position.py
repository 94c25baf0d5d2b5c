"""The position of a run in its history."""

from __future__ import annotations

from holdfast.store.protocol import Fact


class Position:
    """The position of the code of a run: the number and the time of the last delivered fact."""

    __slots__ = ("history_length", "history_size", "now_ms", "replaying", "seq", "started_ms", "wall_ms")

    def __init__(self, started_at: int | None) -> None:
        self.seq = 0
        """The sequence number of the last delivered fact."""
        self.now_ms = started_at or 0
        """The time as the code sees it: the time of the last delivered fact."""
        self.started_ms = self.now_ms
        self.wall_ms = 0
        """The time of the current advance."""
        self.replaying = False
        """True while recorded results are delivered."""
        self.history_length = 0
        """Number of results that the code has received."""
        self.history_size = 0
        """Size of these results in bytes."""

    def start(self, now_ms: int) -> None:
        self.now_ms = self.started_ms = now_ms

    def advance(self, fact: Fact) -> None:
        self.seq = fact.seq or self.seq
        self.now_ms = max(self.now_ms, fact.at)

    def count(self, value: bytes | None) -> None:
        """Count a result or an event that the code receives."""
        self.history_length += 1
        if value is not None:
            self.history_size += len(value)

    def receive(self, fact: Fact) -> None:
        """Advance to a result that the code receives, and count it."""
        seq, at, value = fact.seq, fact.at, fact.value
        if seq:
            self.seq = seq
        if at > self.now_ms:  # noqa: PLR1730  (called for every result: max() takes longer)
            self.now_ms = at
        self.history_length += 1
        if value is not None:
            self.history_size += len(value)
