"""Applies commits of different runs that affect no other runs, in one statement."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from holdfast.store.postgres.columns import COMMIT, COMMIT_ONE, DELIVERY, FACT_COMMON
from holdfast.store.postgres.constants import VERDICTS, CommitOneResult, Next, VerdictNumber
from holdfast.store.postgres.rows import affected
from holdfast.store.postgres.send import topics_text
from holdfast.store.postgres.sql import statements
from holdfast.store.postgres.tx import Row, Tx
from holdfast.store.protocol import (
    PLAINLY_APPLIED,
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

_OBSERVED, _FOLLOWING = VerdictNumber.PAUSING, VerdictNumber.APPLIED
"""The lowest verdict with which a row of the observed or the following part is written."""
_NO_DELIVERY: Sequence[Row] = [(None,) * len(DELIVERY)]
_NO_EARLIER_RECEIPT: Row = (None, None)
_COMMON, _RARE = COMMIT_ONE.parts.values()
_NO_RARE_ARGUMENTS: list[Any] = [None] * len(_RARE)


class Receipt(NamedTuple):
    """The sequence and number under which the database stores the result of a batch."""

    sequence: int | None
    n: int


class Batch(NamedTuple):
    commits: Sequence[Commit]
    receipt: Receipt
    token: int = 0
    """Token stored in the fact that holdfast_commit_one writes. That function writes no receipt."""
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
    rows: list[Row] = []
    facts: list[Row] = []
    deliveries: list[Row] = []
    logs: list[Row] = []
    outbox: list[Row] = []
    for n, commit in enumerate(commits, 1):
        rows.append(_commit_row(commit))
        facts += [(n, _OBSERVED, *fact) for fact in commit.observed.facts]
        facts += [(n, _FOLLOWING, *fact) for fact in commit.following.facts]
        deliveries += [(n, *delivery) for delivery in commit.observed.deliveries]
        logs += [(n, _OBSERVED, *log) for log in commit.observed.logs]
        logs += [(n, _FOLLOWING, *log) for log in commit.following.logs]
        outbox += [(n, *outbound) for outbound in commit.observed.outbox]
    return COMMIT.arrays(commits=rows, facts=facts, deliveries=deliveries, logs=logs, outbox=outbox)


async def _apply_one(tx: Tx, batch: Batch) -> Committed | None:
    """Apply a batch of one simple commit with holdfast_commit_one. None: the batch needs holdfast_commit."""
    commit, sequence = batch.commits[0], batch.receipt.sequence
    if len(batch.commits) > 1 or sequence is None or not has_one_fact(commit.observed, commit.following):
        return None
    [fact] = commit.observed.facts or commit.following.facts
    [delivery] = commit.observed.deliveries or _NO_DELIVERY
    next_, status, output, *rest = next_columns(commit.following.next)
    seen = commit.seen if next_ == Next.RELEASE else None
    receipt = batch.receipt if tx.is_retry or batch.is_retry else _NO_EARLIER_RECEIPT
    always, sometimes = fact[: len(FACT_COMMON)], fact[len(FACT_COMMON) :]
    common = _COMMON.encode((tx.store_id, *commit.task, *always, commit.started_at, next_, status, output, batch.token))
    rare = _RARE.encode((*sometimes, *delivery, *rest, seen, *receipt, tx.now))
    sql = statements("commit", tx.schema)
    if rare == _NO_RARE_ARGUMENTS:
        result: int = await tx.connection.fetchval(sql["commit_one"], *common)
    else:
        result = await tx.connection.fetchval(sql["commit_one_all_arguments"], *common, *rare)
    return _COMMIT_ONE_RESULTS[result]


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
    """The column ``next`` and the columns that go with it (END, RELEASE); None where the case has no value."""
    match next_:
        case None:
            return (Next.KEEP, None, None, None, None, None, None, None, None)
        case Finish():
            return (Next.FINISH, next_.status, next_.output, next_.error, next_.note, None, None, None, None)
        case Park():
            return (Next.PARK, None, None, None, next_.note, None, None, None, None)
        case Release(run_at, kind, topics, status):
            return (Next.RELEASE, status, None, None, None, run_at, kind, kind.bucket, topics_text(topics))


def _is_progress(commit: Commit) -> bool:
    """True if the commit has operations or a RESULT. Recording lost or running attempts is not progress."""
    return bool(commit.following.operations) or any(fact.state == FactState.RESULT for fact in commit.observed.facts)


def _committed(verdict: int, signal: int, due: bool, others: dict[str, Any] | None) -> Committed:
    if verdict == VerdictNumber.APPLIED and not signal and not due and others is None:
        return PLAINLY_APPLIED
    return Committed(VERDICTS[verdict], Signal(signal), due, affected=affected(**others) if others else None)


_COMMIT_ONE_RESULTS: dict[int, Committed | None] = {
    CommitOneResult.NOT_WRITTEN: None,
    CommitOneResult.APPLIED: PLAINLY_APPLIED,
    CommitOneResult.APPLIED_AND_DUE: Committed(Verdict.APPLIED, due_now=True),
}
