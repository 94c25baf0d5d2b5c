"""What a turn has read of its run's mailbox, and where it goes on reading.

A mailbox is read from the front. Of one that is too full to be read as a whole, only what the code waits for is read,
and the engine's own mail: a hundred thousand messages that nobody wants neither cost time nor hide the one that is
wanted.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from holdfast.store.protocol import Mail, Mailbag

Read = Callable[[frozenset[str] | None, int], Awaitable[Mailbag]]
"""Undelivered events of these topics (None: all) behind a number."""


class Letterbox:
    """The mailbox of one run, as its turn knows it."""

    def __init__(self, bag: Mailbag) -> None:
        self.seen = bag.last
        """The last number there was when it was last looked into."""
        self._whole = bag.complete
        """All up to there has been read."""
        self._topics: frozenset[str] = frozenset()
        self._to = 0
        self._through = False
        """Otherwise: all of these topics has been read, up to this number."""

    def has_all(self, topics: frozenset[str]) -> bool:
        """Whether everything was read that the code may be waiting for."""
        return self._whole or (self._through and topics <= self._topics)

    @property
    def known(self) -> int | None:
        """The number of the last event there was, if all up to there has been read."""
        return self.seen if self._whole else None

    async def look(self, topics: frozenset[str], read: Read) -> Sequence[Mail]:
        """Read on."""
        if self._whole:
            bag = await read(None, self.seen)
            self._whole = bag.complete
        else:
            bag = await read(topics, self._to if topics <= self._topics else 0)
            self._topics, self._through = topics, bag.complete
            self._to = bag.last if bag.complete else bag.mail[-1].n
        self.seen = bag.last
        return bag.mail


UNREAD = Mailbag((), complete=True, last=0)
"""Of a machine that has been told of nothing yet."""
