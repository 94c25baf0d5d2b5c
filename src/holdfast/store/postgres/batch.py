"""Applies commits of different runs that affect no other runs, in one statement."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from holdfast.store.postgres.rows import affected, columns, encode_text, fact_rows, log_rows
from holdfast.store.postgres.send import topics_text
from holdfast.store.postgres.sql import statements
from holdfast.store.postgres.tx import Row, Tx
from holdfast.store.protocol import (
    Commit,
    Committed,
    FactState,
    Finish,
    Following,
    Observed,
    Park,
    Release,
    Signal,
    Verdict,
)

VERDICTS = (Verdict.LOST, Verdict.PAUSING, Verdict.PAUSED, Verdict.APPLIED)
_APPLIED = 3
_OBSERVED, _FOLLOWING = 1, 3
"""The lowest verdict with which a row of the observed or the following part is written."""
_KEEP, _FINISH, _PARK, _RELEASE = range(4)
_COMMIT_WIDTH, _FACT_WIDTH, _DELIVERY_WIDTH, _LOG_WIDTH, _OUTBOX_WIDTH = 17, 18, 4, 10, 4
_NO_DELIVERY: Row = (None, None, None)
_NO_EARLIER_RECEIPT: Row = (None, None)
_COMMON_FACT_COLUMNS = 13
"""Number of leading fact columns that are arguments of every call of holdfast_commit_one."""
_NO_OTHER_ARGUMENTS: Row = (None,) * 16


class Receipt(NamedTuple):
    """The line and number under which the database stores the result of a batch."""

    line: int | None
    n: int


class Batch(NamedTuple):
    commits: Sequence[Commit]
    receipt: Receipt
    token: int = 0
    """Identifies the fact of a commit by holdfast_commit_one, which writes no receipt."""
    is_retry: bool = False
    """An earlier call may have applied the batch."""


NO_RECEIPT = Receipt(None, 0)


async def apply_batch(tx: Tx, batch: Batch) -> list[Committed]:
    committed = await _apply_one(tx, batch)
    if committed is not None:
        return [committed]
    arguments = (tx.now, tx.store_id, *batch.receipt, *batch_columns(batch.commits))
    row = await tx.connection.fetchrow(statements("commit", tx.schema)["commit"], *arguments)
    verdicts, signals, due, more = row
    affected_by = {} if more is None else json.loads(more)
    return [
        _committed(verdict, signal, is_due, affected_by.get(str(commit.task.run)))
        for commit, verdict, signal, is_due in zip(batch.commits, verdicts, signals, due, strict=True)
    ]


def batch_columns(commits: Sequence[Commit]) -> list[Any]:
    """The array arguments of holdfast_commit."""
    commit_rows: list[Row] = []
    facts: list[Row] = []
    deliveries: list[Row] = []
    logs: list[Row] = []
    outbox: list[Row] = []
    for n, commit in enumerate(commits, 1):
        commit_rows.append(_commit_row(commit))
        facts += fact_rows(commit.observed.facts, n, _OBSERVED)
        facts += fact_rows(commit.following.facts, n, _FOLLOWING)
        deliveries += [(n, event, encode_text(key), at) for event, key, at in commit.observed.deliveries]
        logs += log_rows(commit.observed.logs, n, _OBSERVED)
        logs += log_rows(commit.following.logs, n, _FOLLOWING)
        outbox += [
            (n, encode_text(type_), payload, encode_text(step)) for type_, payload, step in commit.observed.outbox
        ]
    return [
        *columns(commit_rows, _COMMIT_WIDTH),
        *columns(facts, _FACT_WIDTH),
        *columns(deliveries, _DELIVERY_WIDTH),
        *columns(logs, _LOG_WIDTH),
        *columns(outbox, _OUTBOX_WIDTH),
    ]


async def _apply_one(tx: Tx, batch: Batch) -> Committed | None:
    """Apply a batch of one simple commit with holdfast_commit_one. None: the batch needs holdfast_commit."""
    commit, line = batch.commits[0], batch.receipt.line
    if len(batch.commits) > 1 or line is None or not has_one_fact(commit.observed, commit.following):
        return None
    [fact] = fact_rows(commit.observed.facts or commit.following.facts)
    delivery: Row = _NO_DELIVERY
    if commit.observed.deliveries:
        [(event, key, at)] = commit.observed.deliveries
        delivery = (event, encode_text(key), at)
    next_, status, output, *rest = next_columns(commit.following.next)
    seen = commit.seen if next_ == _RELEASE else None
    receipt = batch.receipt if tx.is_retry or batch.is_retry else _NO_EARLIER_RECEIPT
    common = (
        tx.store_id,
        *commit.task,
        *fact[:_COMMON_FACT_COLUMNS],
        commit.started_at,
        next_,
        status,
        output,
        batch.token,
    )
    other = (*fact[_COMMON_FACT_COLUMNS:], *delivery, *rest, seen, *receipt, tx.now)
    sql = statements("commit", tx.schema)
    if other == _NO_OTHER_ARGUMENTS:
        done: int = await tx.connection.fetchval(sql["commit_one"], *common)
    else:
        done = await tx.connection.fetchval(sql["commit_one_all_arguments"], *common, *other)
    return None if done == 0 else PLAIN if done == 1 else _DUE


def has_one_fact(observed: Observed, following: Following) -> bool:
    """True if the commit has one fact, at most one delivery, no log lines and outbound events, and does not park."""
    if observed.logs or following.logs or observed.outbox or isinstance(following.next, Park):
        return False
    return len(observed.facts) + len(following.facts) == 1 and len(observed.deliveries) <= 1


def _commit_row(commit: Commit) -> Row:
    progress = _is_progress(commit)
    return (
        *commit.task, commit.in_flight, commit.started_at, commit.seen, progress, *next_columns(commit.following.next)
    )  # fmt: skip


def next_columns(next_: Finish | Park | Release | None) -> Row:
    """The p_c_next column and the columns that go with it; None where the case has no value."""
    match next_:
        case None:
            return (_KEEP, None, None, None, None, None, None, None, None)
        case Finish():
            return (_FINISH, next_.status, next_.output, next_.error, encode_text(next_.note), None, None, None, None)
        case Park():
            return (_PARK, None, None, None, encode_text(next_.note), None, None, None, None)
        case Release(run_at, kind, topics, status):
            return (_RELEASE, status, None, None, None, run_at, kind, kind.bucket, topics_text(topics))


def _is_progress(commit: Commit) -> bool:
    """True if the run got further. Recording that attempts were lost, or that one is running, is not progress."""
    return bool(commit.following.operations) or any(fact.state == FactState.RESULT for fact in commit.observed.facts)


def _committed(verdict: int, signal: int, due: bool, others: dict[str, Any] | None) -> Committed:
    if verdict == _APPLIED and not signal and not due and others is None:
        return PLAIN
    return Committed(VERDICTS[verdict], Signal(signal), due, affected=affected(**others) if others else None)


PLAIN = Committed(Verdict.APPLIED)
_DUE = Committed(Verdict.APPLIED, due_now=True)
