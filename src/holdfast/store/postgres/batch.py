"""Writes commits of different runs, and nothing but those runs, in one statement."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from holdfast.store.postgres.rows import columns, fact_rows, log_rows, packed, touched
from holdfast.store.postgres.send import topics_text
from holdfast.store.postgres.sql import statements
from holdfast.store.postgres.tx import Row, Tx
from holdfast.store.protocol import (
    Commit,
    Committed,
    FactState,
    Finish,
    Follows,
    Observed,
    Park,
    Release,
    Signal,
    Verdict,
)

VERDICTS = (Verdict.LOST, Verdict.PAUSING, Verdict.PAUSED, Verdict.APPLIED)
_APPLIED = 3
_OBSERVED, _FOLLOWS = 1, 3
"""What a commit must come to for a row of it to be written."""
_KEEP, _FINISH, _PARK, _RELEASE = range(4)
_COMMIT_WIDTH, _FACT_WIDTH, _DELIVERY_WIDTH, _LOG_WIDTH, _OUTBOX_WIDTH = 17, 18, 4, 10, 4
_NO_DELIVERY: Row = (None, None, None)
_NONE_ASKED: Row = (None, None)
_OFTEN = 13
"""How many columns of a fact are those that most facts have."""
_NOTHING_ELSE: Row = (None,) * 16


class Receipt(NamedTuple):
    """A line on which one batch follows another, and the batch's number there."""

    line: int | None
    n: int


class Batch(NamedTuple):
    commits: Sequence[Commit]
    receipt: Receipt
    token: int = 0
    """By which a short commit, which leaves no receipt, knows its fact again."""
    again: bool = False
    """An earlier call may have done it."""


NO_RECEIPT = Receipt(None, 0)


async def together(tx: Tx, batch: Batch) -> list[Committed]:
    answer = await _short(tx, batch)
    if answer is not None:
        return [answer]
    asked = (tx.now, tx.by, *batch.receipt, *batch_columns(batch.commits))
    verdicts, signals, due, more = await tx.connection.fetchrow(statements("commit", tx.schema)["commit"], *asked)
    others = {} if more is None else json.loads(more)
    return [
        _committed(state, signal, is_due, others.get(str(one.task.run)))
        for one, state, signal, is_due in zip(batch.commits, verdicts, signals, due, strict=True)
    ]


def batch_columns(commits: Sequence[Commit]) -> list[Any]:
    """The arguments of holdfast_commit."""
    heads: list[Row] = []
    facts: list[Row] = []
    deliveries: list[Row] = []
    logs: list[Row] = []
    outbox: list[Row] = []
    for n, one in enumerate(commits, 1):
        heads.append(_head(one))
        facts += fact_rows(one.observed.facts, n, _OBSERVED)
        facts += fact_rows(one.follows.facts, n, _FOLLOWS)
        deliveries += [(n, event, packed(key), at) for event, key, at in one.observed.deliveries]
        logs += log_rows(one.observed.logs, n, _OBSERVED)
        logs += log_rows(one.follows.logs, n, _FOLLOWS)
        outbox += [(n, packed(type_), payload, packed(step)) for type_, payload, step in one.observed.outbox]
    return [
        *columns(heads, _COMMIT_WIDTH),
        *columns(facts, _FACT_WIDTH),
        *columns(deliveries, _DELIVERY_WIDTH),
        *columns(logs, _LOG_WIDTH),
        *columns(outbox, _OUTBOX_WIDTH),
    ]


async def _short(tx: Tx, batch: Batch) -> Committed | None:
    """Write the most common commit the short way. None: it is not one, or there is more to it."""
    one, line = batch.commits[0], batch.receipt.line
    if len(batch.commits) > 1 or line is None or not is_short(one.observed, one.follows):
        return None
    [fact] = fact_rows(one.observed.facts or one.follows.facts)
    delivery: Row = _NO_DELIVERY
    if one.observed.deliveries:
        [(event, key, at)] = one.observed.deliveries
        delivery = (event, packed(key), at)
    next_, status, output, *rest = what_comes(one.follows.next)
    seen = one.seen if next_ == _RELEASE else None
    receipt = batch.receipt if tx.again or batch.again else _NONE_ASKED
    often = (tx.by, *one.task, *fact[:_OFTEN], one.started_at, next_, status, output, batch.token, tx.quiet)
    seldom = (*fact[_OFTEN:], *delivery, *rest, seen, *receipt, tx.now)
    sql = statements("commit", tx.schema)
    if seldom == _NOTHING_ELSE:
        done: int = await tx.connection.fetchval(sql["commit_one"], *often)
    else:
        done = await tx.connection.fetchval(sql["commit_one_with_more"], *often, *seldom)
    return None if done == 0 else PLAIN if done == 1 else _DUE


def is_short(observed: Observed, follows: Follows) -> bool:
    """One fact, and at most one event."""
    if observed.logs or follows.logs or observed.outbox or isinstance(follows.next, Park):
        return False
    return len(observed.facts) + len(follows.facts) == 1 and len(observed.deliveries) <= 1


def _head(one: Commit) -> Row:
    """What is said of a commit itself."""
    return (*one.task, one.in_flight, one.started_at, one.seen, _progress(one), *what_comes(one.follows.next))


def what_comes(next_: Finish | Park | Release | None) -> Row:
    """NULL where it needs nothing."""
    match next_:
        case None:
            return (_KEEP, None, None, None, None, None, None, None, None)
        case Finish():
            return (_FINISH, next_.status, next_.output, next_.error, packed(next_.note), None, None, None, None)
        case Park():
            return (_PARK, None, None, None, packed(next_.note), None, None, None, None)
        case Release(run_at, kind, topics, status):
            return (_RELEASE, status, None, None, None, run_at, kind, kind.bucket, topics_text(topics))


def _progress(one: Commit) -> bool:
    """Whether the run got further. Writing down that attempts were lost, or that one runs, is not progress."""
    return bool(one.follows.acts) or any(fact.state == FactState.RESULT for fact in one.observed.facts)


def _committed(state: int, signal: int, due: bool, others: dict[str, Any] | None) -> Committed:
    if state == _APPLIED and not signal and not due and others is None:
        return PLAIN
    return Committed(VERDICTS[state], Signal(signal), due, touched=touched(**others) if others else None)


PLAIN = Committed(Verdict.APPLIED)
_DUE = Committed(Verdict.APPLIED, due_now=True)
