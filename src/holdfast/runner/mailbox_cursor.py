"""The part of its run's mailbox that a turn has read, and where it continues reading.

A mailbox is read from the front. If it is too full to be read completely, only the event types that the code waits for
and the engine's own types are read. A hundred thousand events of other types then neither cost time nor delay an
awaited one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from holdfast.store.protocol import MailboxPage, StoredEvent

Read = Callable[[frozenset[str] | None, int], Awaitable[MailboxPage]]
"""Read the undelivered events of these topics (None: all) after a number."""


_NO_TOPICS: frozenset[str] = frozenset()


class MailboxCursor:
    """The read position of a turn in the mailbox of its run."""

    __slots__ = ("_topics", "_topics_complete", "_topics_read_to", "complete", "seen")

    def __init__(self, page: MailboxPage) -> None:
        self.seen = page.last
        """The number of the last event in the mailbox at the last read."""
        self.complete = page.complete
        """True if all events up to ``seen`` were read, whatever their type."""
        self._topics = _NO_TOPICS
        """The topics of the last read of a mailbox that is too full."""
        self._topics_read_to = 0
        """Number up to which events of ``_topics`` were read."""
        self._topics_complete = False
        """True if all events of ``_topics`` were read."""

    def has_all(self, topics: frozenset[str]) -> bool:
        """True if all events of these topics were read."""
        return self.complete or (self._topics_complete and topics <= self._topics)

    @property
    def known(self) -> int | None:
        """The number of the last event; None if not all events up to it were read."""
        return self.seen if self.complete else None

    async def read_next(self, topics: frozenset[str], read: Read) -> Sequence[StoredEvent]:
        """Read the next page: of all events while that is possible, otherwise of these topics."""
        if self.complete:
            page = await read(None, self.seen)
            self.complete = page.complete
        else:
            page = await read(topics, self._topics_read_to if topics <= self._topics else 0)
            self._topics, self._topics_complete = topics, page.complete
            self._topics_read_to = page.last if page.complete else page.events[-1].n
        self.seen = page.last
        return page.events


UNREAD = MailboxPage((), complete=True, last=0)
"""The page of a machine that has not received any event."""
