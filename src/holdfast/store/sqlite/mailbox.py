"""Mailboxes of runs: pages of undelivered events, replies, and the events that are moved to a successor."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from heapq import merge
from itertools import islice
from operator import itemgetter

from holdfast.errors import StateError
from holdfast.store.protocol import ANY_TOPIC, CANCEL, MailboxPage, MailboxQuery, StoredEvent
from holdfast.store.sqlite.rows import stored_event
from holdfast.store.sqlite.sql import statements
from holdfast.store.sqlite.tx import Row, Tx

_SQL = statements("mailbox")
PAGE_SIZE = 500
"""Maximum number of events in a page, so that a mailbox of a million events is read in parts."""
EMPTY = MailboxPage((), complete=True, last=0)
ENGINE_PREFIX = "@"
"""The first character of the types of the engine's own events."""


def deliver(tx: Tx, rows: Sequence[Row]) -> None:
    """Mark events as consumed. A row is run, number, time and key."""
    for row in rows:
        tx.connection.execute(_SQL["deliver"], row)
        if tx.connection.changes() != 1:
            raise StateError(
                f"event {row[1]} of run {row[0]} cannot be consumed: it does not exist, or was consumed before"
            )


def mailbox_pages(tx: Tx, runs: Sequence[int]) -> dict[int, MailboxPage]:
    """The first pages of the runs that ever received an event.

    One query reads all mailboxes whose undelivered events certainly fit in one page.
    """
    found = json.loads(tx.connection.execute(_SQL["bounds"], (json.dumps(runs),)).get)
    known = {run: last for run, last, _ in found if last is not None}
    first_undelivered = {run: first for run, _, first in found if first is not None}
    short = [run for run, first in first_undelivered.items() if known[run] - first < PAGE_SIZE]
    events_of: dict[int, list[StoredEvent]] = {run: [] for run in known}
    if short:
        for run, *row in tx.connection.execute(_SQL["undelivered_of_runs"], (json.dumps(short),)):
            events_of[run].append(stored_event(tuple(row)))
    pages = {run: MailboxPage(events_of[run], complete=True, last=last) for run, last in known.items()}
    return pages | {run: _oldest(tx, run, known[run]) for run in first_undelivered.keys() - short}


def undelivered(tx: Tx, query: MailboxQuery) -> MailboxPage:
    last: int = tx.connection.execute(_SQL["last"], (query.run,)).get
    if query.topics is None or ANY_TOPIC in query.topics:
        return _oldest(tx, query.run, last, query.after)
    limit = (query.run, PAGE_SIZE + 1, query.after)
    ranges = [
        tx.connection.execute(_SQL["undelivered_of_type"], (*limit, topic)) for topic in _user_topics(query.topics)
    ]
    return _page(
        merge(*ranges, tx.connection.execute(_SQL["undelivered_engine_events"], limit), key=itemgetter(0)), last
    )


def move(tx: Tx, old: int, new: int, *, include_engine: bool) -> None:
    """Move undelivered events to the successor, numbered from 1 again.

    The engine's own events are moved only with ``include_engine``, except CANCEL, which addresses the successor too.
    """
    undelivered_types = tx.connection.execute(_SQL["undelivered_types"], (old,)).fetchall()
    moving = [
        n for n, type_ in undelivered_types if include_engine or type_ == CANCEL or not type_.startswith(ENGINE_PREFIX)
    ]
    tx.connection.executemany(_SQL["move"], [(old, n, new, new_n) for new_n, n in enumerate(moving, 1)])


def _user_topics(topics: frozenset[str]) -> list[str]:
    return [topic for topic in topics if not topic.startswith(ENGINE_PREFIX)]


def _oldest(tx: Tx, run: int, last: int, after: int = 0) -> MailboxPage:
    return _page(tx.connection.execute(_SQL["undelivered"], (run, PAGE_SIZE + 1, after)), last)


def _page(rows: Iterable[Row], last: int) -> MailboxPage:
    found = [stored_event(row) for row in islice(rows, PAGE_SIZE + 1)]
    return MailboxPage(found[:PAGE_SIZE], complete=len(found) <= PAGE_SIZE, last=last)
