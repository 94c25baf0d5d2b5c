"""Writes an event together with the turn that it causes, where that was foreseen."""

from __future__ import annotations

from collections.abc import Sequence

import asyncpg

from holdfast.store.postgres import batch
from holdfast.store.postgres.acts import is_reaching
from holdfast.store.postgres.errors import NOT_FORESEEN, UNIQUE, sqlstate
from holdfast.store.postgres.rows import packed
from holdfast.store.postgres.send import Sending, send
from holdfast.store.postgres.sql import statements
from holdfast.store.postgres.tx import Row, Tx
from holdfast.store.protocol import Delivery, Fact, FactState, Foreseen, NewEvent, Sent

_CLAIMS_NOTHING: Row = (None, None)
_NOTHING_ELSE: Row = (None,) * 11


async def send_foreseen(tx: Tx, events: Sequence[Sending]) -> list[Sent]:
    """As ``send``."""
    if len(events) == 1:
        sent = await _with_its_turn(tx, events[0])
        if sent is not None:
            return [sent]
    return await send(tx, events)


async def _with_its_turn(tx: Tx, one: Sending) -> Sent | None:
    """None: it is not foreseen what comes of it, or something else came of it, and nothing is written."""
    foreseen = one.event.foreseen
    # Where several statements have to be one transaction, this one must not fail.
    if foreseen is None or not _is_common(foreseen, one.event) or tx.connection.is_in_transaction():
        return None
    written = await _was_written(tx, foreseen, one.token) if tx.again else await write(tx, one, foreseen)
    return Sent(foreseen.run, accepted=True, woken=True, committed=batch.PLAIN) if written else None


async def write(tx: Tx, one: Sending, foreseen: Foreseen) -> bool:
    """False: it is not as it was foreseen, and nothing is written."""
    event, commit, claimant = one.event, foreseen.commit, one.event.claimant
    if claimant is None:
        return False
    [fact] = commit.observed.facts
    next_, status, output, *rest = batch.what_comes(commit.follows.next)
    often: Row = (
        tx.by,
        commit.task.run,
        commit.task.epoch,
        foreseen.n,
        foreseen.at,
        event.type,
        event.payload,
        one.token,
        packed(fact.key),
        fact.kind,
        fact.started_at,
        fact.seq,
        fact.wake_at,
        next_,
        status,
        output,
        tx.quiet,
    )
    claims = (claimant.owner, claimant.lease_ms) if commit.follows.next is None else _CLAIMS_NOTHING
    seldom: Row = (*rest, packed(event.sender), packed(event.dedup), *claims, tx.now)
    sql = statements("send", tx.schema)
    try:
        if seldom == _NOTHING_ELSE:
            written: bool = await tx.connection.fetchval(sql["send_foreseen"], *often)
        else:
            written = await tx.connection.fetchval(sql["send_foreseen_with_more"], *often, *seldom)
    except asyncpg.PostgresError as error:
        if sqlstate(error) not in (NOT_FORESEEN, UNIQUE):
            raise
        return False
    return written


async def _was_written(tx: Tx, foreseen: Foreseen, token: int) -> bool:
    """By an earlier try of this call. One that is still under way has the lock of the task."""
    [fact] = foreseen.commit.observed.facts
    where = (foreseen.run.run, packed(fact.key), token)
    written: bool = await tx.connection.fetchval(statements("send", tx.schema)["was_foreseen"], *where)
    return written


def _is_common(foreseen: Foreseen, event: NewEvent) -> bool:
    """It is the result of a wait for this very event, and what follows from that: an end, a rest, a step's call."""
    observed, follows = foreseen.commit.observed, foreseen.commit.follows
    if follows.facts or is_reaching(follows) or foreseen.commit.started_at is not None:
        return False
    if not batch.is_short(observed, follows):
        return False
    [fact] = observed.facts
    wait = Fact(
        FactState.RESULT, fact.key, 0, fact.kind, foreseen.at, fact.started_at,
        seq=fact.seq, wake_at=fact.wake_at, event_type=event.type, event=foreseen.n,
    )  # fmt: skip
    return fact == wait and list(observed.deliveries) == [Delivery(foreseen.n, fact.key, foreseen.at)]
