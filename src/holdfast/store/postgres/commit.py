"""Applies commits: fence first, then what was observed, then what follows.

Commits that touch nothing but their own run are written together, in one call of a function in the database: one
round trip, one transaction (``batch``). So is one that reaches other runs by its acts, but alone (``acts``). One whose
steps start runs, send events or carry users' statements may be rejected; it is applied alone, in a transaction of its
own, statement by statement.

When a connection breaks before the answer, a call is made again under the same number; the receipt in the database
tells whether it was done, or the fact that it wrote. Of a transaction of several statements, the mark it left tells.
That works also if the server stayed away for so long that the call failed: whoever comes with the same ``Commit``
objects again gets the answer of the first time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from holdfast.errors import StateError, StoreError
from holdfast.ports import Randomness
from holdfast.store.postgres.acts import Reaching, is_reaching, reach
from holdfast.store.postgres.batch import NO_RECEIPT, Batch, Receipt, together
from holdfast.store.postgres.create import Making, create
from holdfast.store.postgres.database import Attempt, Database
from holdfast.store.postgres.guard import Guard
from holdfast.store.postgres.live import Live
from holdfast.store.postgres.receipts import Receipts
from holdfast.store.postgres.send import Sending, send
from holdfast.store.postgres.sql import statements
from holdfast.store.postgres.tokens import token
from holdfast.store.postgres.tx import Tx
from holdfast.store.protocol import Commit, Committed, Created, Follows, Observed, OnConflict, Sent, Verdict

_LOST = Committed(Verdict.LOST)
_NOTHING_KEPT = (Verdict.LOST, Verdict.REJECTED)
_REMEMBERED = 10_000


@dataclass(slots=True)
class _Pending:
    """A part of a call whose outcome is not known yet."""

    commits: Sequence[Commit]
    """Kept, or their ``id`` would be used again."""
    receipt: Receipt
    token: int
    again: bool = False
    attempt: Attempt[Committed] | None = None


class Commits:
    """The commits of one store."""

    def __init__(self, database: Database, guard: Guard, receipts: Receipts, random: Randomness) -> None:
        self._database = database
        self._guard = guard
        self._receipts = receipts
        self._random = random
        self._pending: dict[tuple[int, ...], _Pending] = {}
        self._answered: dict[int, tuple[Commit, Committed]] = {}
        """Of calls that failed half-way."""

    async def apply(self, commits: Sequence[Commit]) -> list[Committed]:
        if len(commits) == 1 and not self._answered:
            return [*await self._settle(commits)]
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
            pending = _Pending(part, self._receipts.take(), token(self._random))
        try:
            answers = await self._try(pending)
        except StoreError:  # it may have been done all the same
            pending.again = True
            self._pending[key] = pending
            raise
        except BaseException:
            self._receipts.free(pending.receipt)
            raise
        self._receipts.free(pending.receipt)
        return answers

    async def _try(self, pending: _Pending) -> Sequence[Committed]:
        one = pending.commits[0]
        if not _is_alone(one.observed):
            batch = Batch(pending.commits, pending.receipt, pending.token, pending.again)
            return await self._database.call(self._whole, batch)
        live = one.observed.transaction
        if live is not None:
            if not isinstance(live, Live) or live.database is not self._database:
                raise StateError("a commit's transaction must be one that this store began")
            return [await live.commit(self._alone, one)]
        users = bool(one.observed.statements)
        attempt = pending.attempt = pending.attempt or Attempt()
        return [await self._database.transact(self._alone, one, is_kept, attempt, users=users)]

    async def _whole(self, tx: Tx, batch: Batch) -> Sequence[Committed]:
        """In one call."""
        one = batch.commits[0]
        if is_reaching(one.follows):
            return [await reach(tx, Reaching.of(one, batch.receipt, self._random))]
        return await together(tx, batch)

    async def _alone(self, tx: Tx, one: Commit) -> Committed:
        """All of it, in the transaction open there. Only the last statement takes the lock of the fence."""
        observed = one.observed
        if not await tx.connection.fetchval(statements("commit", tx.schema)["holds"], *one.task):
            return _LOST
        if observed.statements:
            rejected = await self._guard.run(tx, observed.statements)
            if rejected is not None:
                return rejected
        if any(new.on_conflict is OnConflict.TERMINATE_EXISTING for new in observed.starts):
            return await self._in_two_parts(tx, one)
        started, sent = await self._start_and_send(tx, observed)
        [answer] = await self._whole(tx, Batch([one], NO_RECEIPT))
        return _unreachable(observed, sent) or _with_answers(answer, started, sent)

    async def _in_two_parts(self, tx: Tx, one: Commit) -> Committed:
        """A start may make room by ending this very run. What was observed is kept then, and nothing follows."""
        seen = replace(one, follows=Follows())
        [answer] = await self._whole(tx, Batch([seen], NO_RECEIPT))
        started, sent = await self._start_and_send(tx, one.observed)
        ended = any(one.task.run in new.touched.ended for new in started if new.touched is not None)
        if answer.verdict is Verdict.APPLIED and not ended:
            rest = replace(one, observed=Observed())
            [then] = await self._whole(tx, Batch([rest], NO_RECEIPT))
            answer = replace(then, signal=answer.signal | then.signal)
        return _unreachable(one.observed, sent) or _with_answers(answer, started, sent)

    async def _start_and_send(self, tx: Tx, observed: Observed) -> tuple[list[Created], list[Sent]]:
        started = await create(tx, [Making(new, token(self._random)) for new in observed.starts])
        sent = await send(tx, [Sending(event, token(self._random)) for event in observed.sends])
        return started, sent


def parts(commits: Sequence[Commit]) -> Iterator[list[Commit]]:
    """What is one transaction each: neighbours of different runs, or one that reaches out."""
    together: dict[int, Commit] = {}
    for one in commits:
        alone = _is_alone(one.observed) or is_reaching(one.follows)
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
