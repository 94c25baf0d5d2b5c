"""What is in runs' mailboxes: undelivered events a bagful at a time, replies, and the mail a successor takes over."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from heapq import merge
from itertools import islice
from operator import itemgetter
from typing import NamedTuple

from holdfast.store.protocol import ANY_TOPIC, CANCEL, Mail, Mailbag, Reply
from holdfast.store.sqlite.rows import mail, safe
from holdfast.store.sqlite.sql import statements
from holdfast.store.sqlite.tx import Row, Tx

_SQL = statements("mailbox")
BAGFUL = 500
"""How many events are handed out at once: a mailbox of a million is read bag by bag."""
EMPTY = Mailbag((), complete=True, last=0)
ENGINE = "@"
"""What the types of the engine's own mail begin with."""


class Look(NamedTuple):
    run: int
    topics: frozenset[str] | None
    after: int = 0


class Question(NamedTuple):
    run: int
    dedup: str


def mailbags(tx: Tx, runs: Sequence[int]) -> dict[int, Mailbag]:
    """Of those that ever got anything. What surely goes into a bag is fetched for all together."""
    found = json.loads(tx.connection.execute(_SQL["looks"], (json.dumps(runs),)).get)
    known = {run: last for run, last, _ in found if last is not None}
    unread = {run: first for run, _, first in found if first is not None}
    few = [run for run, first in unread.items() if known[run] - first < BAGFUL]
    mail_of: dict[int, list[Mail]] = {run: [] for run in known}
    if few:
        for run, *row in tx.connection.execute(_SQL["bags"], (json.dumps(few),)):
            mail_of[run].append(mail(tuple(row)))
    bags = {run: Mailbag(mail_of[run], complete=True, last=last) for run, last in known.items()}
    return bags | {run: _oldest(tx, run, known[run]) for run in unread.keys() - few}


def undelivered(tx: Tx, look: Look) -> Mailbag:
    last: int = tx.connection.execute(_SQL["last"], (look.run,)).get
    if look.topics is None or ANY_TOPIC in look.topics:
        return _oldest(tx, look.run, last, look.after)
    limit = (look.run, BAGFUL + 1, look.after)
    ranges = [tx.connection.execute(_SQL["of_type"], (*limit, topic)) for topic in _users(look.topics)]
    return _bag(merge(*ranges, tx.connection.execute(_SQL["engines"], limit), key=itemgetter(0)), last)


def reply(tx: Tx, question: Question) -> Reply | None:
    row = tx.connection.execute(_SQL["reply"], (question.run, safe(question.dedup))).fetchone()
    return None if row is None else Reply(row[0] == 1, row[1])


def move(tx: Tx, old: int, new: int, *, engines: bool) -> None:
    """What was not consumed goes to the successor, numbered from 1 again. A cancellation is meant for both."""
    unread = tx.connection.execute(_SQL["unread"], (old,)).fetchall()
    moving = [n for n, type_ in unread if engines or type_ == CANCEL or not type_.startswith(ENGINE)]
    tx.connection.executemany(_SQL["move"], [(old, n, new, place) for place, n in enumerate(moving, 1)])


def _users(topics: frozenset[str]) -> list[str]:
    return [topic for topic in topics if not topic.startswith(ENGINE)]


def _oldest(tx: Tx, run: int, last: int, after: int = 0) -> Mailbag:
    return _bag(tx.connection.execute(_SQL["all"], (run, BAGFUL + 1, after)), last)


def _bag(rows: Iterable[Row], last: int) -> Mailbag:
    found = [mail(row) for row in islice(rows, BAGFUL + 1)]
    return Mailbag(found[:BAGFUL], complete=len(found) <= BAGFUL, last=last)
