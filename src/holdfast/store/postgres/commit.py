"""Applies commits: fence first, then what was observed, then what follows.

Commits that touch nothing but their own run are written together, in one call of a function in the database: one
round trip, one transaction. One that starts runs, sends events or carries users' statements may wait for others and may
be rejected; it is applied alone, in a transaction of its own.

When a connection breaks before the answer, a batch is sent again under the same number; the receipt in the database
tells whether it was done. Of a commit that was applied alone, the number of its transaction tells. That works also if
the server stayed away for so long that the call failed: whoever comes with the same ``Commit`` objects again gets the
answer of the first time.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import NamedTuple

from holdfast.errors import StateError, StoreError
from holdfast.ports import Randomness
from holdfast.store.postgres.create import Making, create
from holdfast.store.postgres.database import Attempt, Database
from holdfast.store.postgres.guard import Guard
from holdfast.store.postgres.live import Live
from holdfast.store.postgres.rows import columns, fact_rows, log_rows, packed
from holdfast.store.postgres.send import Sending, send, topics_text
from holdfast.store.postgres.sql import statements
from holdfast.store.postgres.tokens import token
from holdfast.store.postgres.tx import Row, Tx
from holdfast.store.protocol import (
    Commit,
    Committed,
    Created,
    FactState,
    Finish,
    Observed,
    Park,
    Release,
    Sent,
    Signal,
    Verdict,
)

_LOST = Committed(Verdict.LOST)
_VERDICTS = (Verdict.LOST, Verdict.PAUSING, Verdict.PAUSED, Verdict.APPLIED)
_APPLIED = 3
_OBSERVED, _FOLLOWS = 1, 3
"""What a commit must come to for a row of it to be written."""
_KEEP, _FINISH, _PARK, _RELEASE = range(4)
_NOTHING_KEPT = (Verdict.LOST, Verdict.REJECTED)
_COMMIT_WIDTH, _FACT_WIDTH, _DELIVERY_WIDTH, _LOG_WIDTH = 17, 18, 4, 10
_REMEMBERED = 10_000


class Receipt(NamedTuple):
    """A line on which one batch follows another, and the batch's number there."""

    line: int | None
    n: int


class Batch(NamedTuple):
    commits: Sequence[Commit]
    receipt: Receipt


NO_RECEIPT = Receipt(None, 0)


@dataclass(slots=True)
class _Pending:
    """A part of a call whose outcome is not known yet."""

    commits: Sequence[Commit]
    """Kept, or their ``id`` would be used again."""
    receipt: Receipt
    attempt: Attempt[Committed] = field(default_factory=Attempt[Committed])


class Commits:
    """The commits of one store."""

    def __init__(self, database: Database, guard: Guard, random: Randomness) -> None:
        self._database = database
        self._guard = guard
        self._random = random
        self._numbers = count(1)
        self._lines: list[int] = []
        self._used = count()
        self._pending: dict[tuple[int, ...], _Pending] = {}
        self._answered: dict[int, tuple[Commit, Committed]] = {}
        """Of calls that failed half-way."""

    async def apply(self, commits: Sequence[Commit]) -> list[Committed]:
        answered = {id(one): self._answered.pop(id(one))[1] for one in commits if id(one) in self._answered}
        try:
            for part in parts([one for one in commits if id(one) not in answered]):
                for one, answer in zip(part, await self._settle(part), strict=True):
                    answered[id(one)] = answer
        except BaseException:
            self._remember(commits, answered)
            raise
        return [answered[id(one)] for one in commits]

    def _remember(self, commits: Sequence[Commit], answered: dict[int, Committed]) -> None:
        for one in commits:
            if id(one) in answered:
                self._answered[id(one)] = (one, answered[id(one)])
        while len(self._answered) > _REMEMBERED:
            del self._answered[next(iter(self._answered))]

    async def _settle(self, part: Sequence[Commit]) -> Sequence[Committed]:
        key = tuple(id(one) for one in part)
        pending = self._pending.pop(key, None)
        if pending is None:
            pending = _Pending(part, self._take_receipt())
        try:
            answers = await self._try(pending)
        except StoreError:  # it may have been done all the same
            self._pending[key] = pending
            raise
        except BaseException:
            self._free(pending.receipt)
            raise
        self._free(pending.receipt)
        return answers

    async def _try(self, pending: _Pending) -> Sequence[Committed]:
        one = pending.commits[0]
        if not _is_alone(one.observed):
            return await self._database.call(together, Batch(pending.commits, pending.receipt))
        live = one.observed.transaction
        if live is not None:
            if not isinstance(live, Live) or live.database is not self._database:
                raise StateError("a commit's transaction must be one that this store began")
            return [await live.commit(self._alone, one)]
        users = bool(one.observed.statements)
        return [await self._database.transact(self._alone, one, is_kept, pending.attempt, users=users)]

    async def _alone(self, tx: Tx, one: Commit) -> Committed:
        """All of it, in the transaction open there. Only the last statement takes the lock of the fence."""
        observed = one.observed
        if not await tx.connection.fetchval(statements("commit", tx.schema)["holds"], *one.task):
            return _LOST
        if observed.statements:
            rejected = await self._guard.run(tx, observed.statements)
            if rejected is not None:
                return rejected
        started = await create(tx, [Making(new, token(self._random)) for new in observed.starts])
        sent = await send(tx, [Sending(event, token(self._random)) for event in observed.sends])
        [answer] = await together(tx, Batch([one], NO_RECEIPT))
        return _unreachable(observed, sent) or _with_answers(answer, started, sent)

    def _take_receipt(self) -> Receipt:
        line = heapq.heappop(self._lines) if self._lines else next(self._used)
        return Receipt(line, next(self._numbers))

    def _free(self, receipt: Receipt) -> None:
        if receipt.line is not None:
            heapq.heappush(self._lines, receipt.line)


def parts(commits: Sequence[Commit]) -> Iterator[list[Commit]]:
    """What is one transaction each: neighbours of different runs, or one that reaches out."""
    together: dict[int, Commit] = {}
    for one in commits:
        alone = _is_alone(one.observed)
        if together and (alone or one.task.run in together):
            yield list(together.values())
            together = {}
        if alone:
            yield [one]
        else:
            together[one.task.run] = one
    if together:
        yield list(together.values())


def is_kept(answer: Committed) -> bool:
    return answer.verdict not in _NOTHING_KEPT


async def together(tx: Tx, batch: Batch) -> list[Committed]:
    """Commits of different runs, in one statement."""
    if await _one_result(tx, batch):
        return [_PLAIN]
    heads: list[Row] = []
    facts: list[Row] = []
    deliveries: list[Row] = []
    logs: list[Row] = []
    for n, one in enumerate(batch.commits, 1):
        heads.append(_head(one))
        facts += fact_rows(n, _OBSERVED, one.observed.facts)
        facts += fact_rows(n, _FOLLOWS, one.follows.facts)
        deliveries += [(n, event, packed(key), at) for event, key, at in one.observed.deliveries]
        logs += log_rows(n, _OBSERVED, one.observed.logs)
        logs += log_rows(n, _FOLLOWS, one.follows.logs)
    verdicts, signals, due = await tx.connection.fetchrow(
        statements("commit", tx.schema)["commit"],
        tx.now,
        tx.by,
        *batch.receipt,
        *columns(heads, _COMMIT_WIDTH),
        *columns(facts, _FACT_WIDTH),
        *columns(deliveries, _DELIVERY_WIDTH),
        *columns(logs, _LOG_WIDTH),
    )
    return [_committed(*each) for each in zip(verdicts, signals, due, strict=True)]


async def _one_result(tx: Tx, batch: Batch) -> bool:
    """Write the most common commit the short way. False: it is not one, or there is more to it."""
    one, line = batch.commits[0], batch.receipt.line
    observed, follows = one.observed, one.follows
    if len(batch.commits) > 1 or line is None or not isinstance(follows.next, Finish | None):
        return False
    more = observed.deliveries or observed.logs or follows.facts or follows.logs
    if more or len(observed.facts) != 1 or observed.facts[0].state != FactState.RESULT:
        return False
    [(_, _, *fact)] = fact_rows(0, _OBSERVED, observed.facts)
    end: Row = (None, None, None)
    if follows.next is not None:
        end = (follows.next.status, follows.next.output, follows.next.error)
    sql = statements("commit", tx.schema)["commit_one"]
    asked = (tx.now, tx.by, *batch.receipt, *one.task, *fact, one.started_at, *end)
    done: bool = await tx.connection.fetchval(sql, *asked)
    return done


def _head(one: Commit) -> Row:
    """What is said of a commit itself. NULL where what comes next does not need it."""
    known = (*one.task, one.in_flight, one.started_at, one.seen, _progress(one))
    match one.follows.next:
        case None:
            return (*known, _KEEP, None, None, None, None, None, None, None, None)
        case Finish(status, output, error):
            return (*known, _FINISH, status, output, error, None, None, None, None, None)
        case Park(note):
            return (*known, _PARK, None, None, None, packed(note), None, None, None, None)
        case Release(run_at, kind, topics, status):
            rest = (run_at, kind, kind.bucket, topics_text(topics))
            return (*known, _RELEASE, status, None, None, None, *rest)


def _progress(one: Commit) -> bool:
    """Whether the run got further. Writing down that attempts were lost, or that one runs, is not progress."""
    return any(fact.state == FactState.RESULT for fact in one.observed.facts)


def _committed(state: int, signal: int, due: bool) -> Committed:
    if state == _APPLIED and not signal and not due:
        return _PLAIN
    return Committed(_VERDICTS[state], Signal(signal), due)


_PLAIN = Committed(Verdict.APPLIED)


def _is_alone(observed: Observed) -> bool:
    return bool(observed.statements or observed.starts or observed.sends) or observed.transaction is not None


def _unreachable(observed: Observed, sent: Sequence[Sent]) -> Committed | None:
    """An event can be sent to a run that has not ended, or that starts with this very commit."""
    starting = {(new.workflow, new.instance_id) for new in observed.starts}
    for event, answer in zip(observed.sends, sent, strict=True):
        if not answer.accepted and (event.workflow, event.instance_id) not in starting:
            pid = f"{event.workflow}/{event.instance_id}"
            return Committed(Verdict.REJECTED, unreachable=True, message=f"there is no run {pid} to send to")
    return None


def _with_answers(answer: Committed, started: list[Created], sent: list[Sent]) -> Committed:
    return replace(answer, started=started, sent=sent) if started or sent else answer
