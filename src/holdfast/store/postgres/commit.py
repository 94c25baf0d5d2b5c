"""Applies commits: first the fence, then the observed part, then the following part.

Commits that affect only their own runs are written together, by one call of a function in the database: one round trip
and one transaction (``batch``). A commit that affects other runs by its operations is also one call, but a batch of its
own (``operations``). A commit whose steps start runs, send events or carry users' statements may be rejected; it is
applied alone, in its own transaction of several statements.

If the connection breaks before the reply, the call is repeated under the same number. The receipt in the database, or
the fact that the call wrote, shows whether the first attempt was committed. A transaction of several statements inserts
a marker for this purpose. This also works if the server was unavailable for so long that the call failed: a later call
with the same ``Commit`` objects returns the result of the first attempt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from holdfast.errors import StateError, StoreError
from holdfast.ports import Randomness
from holdfast.store.postgres.batch import NO_RECEIPT, Batch, Receipt, apply_batch
from holdfast.store.postgres.create import CreateRequest, create
from holdfast.store.postgres.database import Database
from holdfast.store.postgres.guard import Guard
from holdfast.store.postgres.live import Live
from holdfast.store.postgres.markers import MarkedTransaction
from holdfast.store.postgres.operations import OperationsRequest, affects_others, commit_with_operations
from holdfast.store.postgres.receipts import Receipts
from holdfast.store.postgres.send import SendRequest, send
from holdfast.store.postgres.sql import statements
from holdfast.store.postgres.streams import append
from holdfast.store.postgres.tokens import token
from holdfast.store.postgres.tx import Tx
from holdfast.store.protocol import Commit, Committed, Created, Following, Observed, OnConflict, Sent, Verdict

_LOST = Committed(Verdict.LOST)
_NOTHING_WRITTEN = (Verdict.LOST, Verdict.REJECTED)
_MAX_REMEMBERED = 10_000


@dataclass(slots=True)
class _Pending:
    """A transaction of a call whose outcome is not known yet."""

    commits: Sequence[Commit]
    """Referenced here so that their ``id`` values are not reused."""
    receipt: Receipt
    token: int
    is_retry: bool = False
    transaction: MarkedTransaction[Committed] | None = None


class Commits:
    """The commits of one store."""

    def __init__(self, database: Database, guard: Guard, receipts: Receipts, random: Randomness) -> None:
        self._database = database
        self._guard = guard
        self._receipts = receipts
        self._random = random
        self._pending: dict[tuple[int, ...], _Pending] = {}
        self._settled: dict[int, tuple[Commit, Committed]] = {}
        """Results of commits whose call failed after they were applied, by ``id`` of the commit."""

    async def apply(self, commits: Sequence[Commit]) -> list[Committed]:
        if len(commits) == 1 and not self._settled:
            return [*await self._settle(commits)]
        settled = {id(one): self._settled.pop(id(one))[1] for one in commits if id(one) in self._settled}
        try:
            for part in transactions([one for one in commits if id(one) not in settled]):
                for one, result in zip(part, await self._settle(part), strict=True):
                    settled[id(one)] = result
        except BaseException:
            self._remember(commits, settled)
            raise
        return [settled[id(one)] for one in commits]

    def _remember(self, commits: Sequence[Commit], settled: dict[int, Committed]) -> None:
        for one in commits:
            if id(one) in settled:
                self._settled[id(one)] = (one, settled[id(one)])
        while len(self._settled) > _MAX_REMEMBERED:
            del self._settled[next(iter(self._settled))]

    async def _settle(self, part: Sequence[Commit]) -> Sequence[Committed]:
        key = tuple(id(one) for one in part)
        pending = self._pending.pop(key, None)
        if pending is None:
            pending = _Pending(part, self._receipts.take(), token(self._random))
        try:
            results = await self._try(pending)
        except StoreError:  # the transaction may have been committed nevertheless
            pending.is_retry = True
            self._pending[key] = pending
            raise
        except BaseException:
            self._receipts.free(pending.receipt)
            raise
        self._receipts.free(pending.receipt)
        return results

    async def _try(self, pending: _Pending) -> Sequence[Committed]:
        one = pending.commits[0]
        if not _needs_transaction(one):
            batch = Batch(pending.commits, pending.receipt, pending.token, pending.is_retry)
            return await self._database.call(self._apply_in_one_call, batch)
        live = one.observed.transaction
        if live is not None:
            if not isinstance(live, Live) or live.database is not self._database:
                raise StateError("a commit's transaction must be one that this store began")
            return [await live.commit(self._apply_in_transaction, one)]
        user_statements = bool(one.observed.statements)
        transaction = pending.transaction = pending.transaction or MarkedTransaction()
        committed = await self._database.transact(
            self._apply_in_transaction, one, is_written, transaction, user_statements=user_statements
        )
        return [committed]

    async def _apply_in_one_call(self, tx: Tx, batch: Batch) -> Sequence[Committed]:
        """Apply the batch with one call of a function in the database."""
        one = batch.commits[0]
        if affects_others(one.following):
            results: Sequence[Committed] = [
                await commit_with_operations(tx, OperationsRequest.of(one, batch.receipt, self._random))
            ]
        else:
            results = await apply_batch(tx, batch)
        if one.following.streams and results[0].verdict is Verdict.APPLIED:
            await append(tx, one.following.streams)  # the commit is alone in its transaction
        return results

    async def _apply_in_transaction(self, tx: Tx, one: Commit) -> Committed:
        """Apply a commit in the open transaction. Only the last statement takes the lock of the fence."""
        observed = one.observed
        if not await tx.connection.fetchval(statements("commit", tx.schema)["is_owned"], *one.task):
            return _LOST
        if observed.statements:
            rejected = await self._guard.run(tx, observed.statements)
            if rejected is not None:
                return rejected
        if any(new.on_conflict is OnConflict.TERMINATE_EXISTING for new in observed.starts):
            return await self._in_two_parts(tx, one)
        started, sent = await self._start_and_send(tx, observed)
        [result] = await self._apply_in_one_call(tx, Batch([one], NO_RECEIPT))
        return _unreachable(observed, sent) or _with_results(result, started, sent)

    async def _in_two_parts(self, tx: Tx, one: Commit) -> Committed:
        """Apply the observed part first: a start may terminate this run, and then the following part is not applied."""
        observed_only = replace(one, following=Following())
        [result] = await self._apply_in_one_call(tx, Batch([observed_only], NO_RECEIPT))
        started, sent = await self._start_and_send(tx, one.observed)
        ended = any(one.task.run in new.affected.ended for new in started if new.affected is not None)
        if result.verdict is Verdict.APPLIED and not ended:
            following_only = replace(one, observed=Observed())
            [followed] = await self._apply_in_one_call(tx, Batch([following_only], NO_RECEIPT))
            result = replace(followed, signal=result.signal | followed.signal)
        return _unreachable(one.observed, sent) or _with_results(result, started, sent)

    async def _start_and_send(self, tx: Tx, observed: Observed) -> tuple[list[Created], list[Sent]]:
        started = await create(tx, [CreateRequest(new, token(self._random)) for new in observed.starts])
        sent = await send(tx, [SendRequest(event, token(self._random)) for event in observed.sends])
        return started, sent


def transactions(commits: Sequence[Commit]) -> Iterator[list[Commit]]:
    """Split commits into transactions: adjacent commits of different runs, or one commit that affects other runs."""
    batch: dict[int, Commit] = {}
    for one in commits:
        separate = _needs_transaction(one) or affects_others(one.following)
        if batch and (separate or one.task.run in batch):
            yield list(batch.values())
            batch = {}
        if separate:
            yield [one]
        else:
            batch[one.task.run] = one
    if batch:
        yield list(batch.values())


def is_written(result: Committed) -> bool:
    return result.verdict not in _NOTHING_WRITTEN


def _needs_transaction(one: Commit) -> bool:
    observed = one.observed
    return bool(observed.statements or observed.starts or observed.sends or one.following.streams) or (
        observed.transaction is not None
    )


def _unreachable(observed: Observed, sent: Sequence[Sent]) -> Committed | None:
    """The rejection of a commit that sends to a run which has ended and is not started by this commit."""
    starting = {(new.workflow, new.instance_id) for new in observed.starts}
    for event, result in zip(observed.sends, sent, strict=True):
        if not result.accepted and (event.workflow, event.instance_id) not in starting:
            pid = f"{event.workflow}/{event.instance_id}"
            return Committed(Verdict.REJECTED, unreachable=True, message=f"there is no run {pid} to send to")
    return None


def _with_results(result: Committed, started: list[Created], sent: list[Sent]) -> Committed:
    return replace(result, started=started, sent=sent) if started or sent else result
