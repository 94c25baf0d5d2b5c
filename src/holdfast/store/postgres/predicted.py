"""Writes an event together with the turn that it causes, if the sender predicted that turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import asyncpg

from holdfast.store.postgres import batch
from holdfast.store.postgres.columns import SEND_PREDICTED
from holdfast.store.postgres.errors import PREDICTION_FAILED, UNIQUE, sqlstate
from holdfast.store.postgres.operations import affects_others
from holdfast.store.postgres.send import SendRequest, send
from holdfast.store.postgres.sql import statements
from holdfast.store.postgres.text import encode_text
from holdfast.store.postgres.tx import Row, Tx
from holdfast.store.protocol import PLAINLY_APPLIED, Delivery, Fact, FactState, NewEvent, Prediction, Sent

_NO_CLAIM: Row = (None, None)
_COMMON, _RARE = SEND_PREDICTED.parts.values()
_NO_RARE_ARGUMENTS: list[Any] = [None] * len(_RARE)


async def send_predicted(tx: Tx, events: Sequence[SendRequest]) -> list[Sent]:
    """Send events as ``send`` does; a single event with a prediction is written with its turn."""
    if tx.failed_over:  # the prediction may rest on facts that are lost
        events = [SendRequest(replace(one.event, prediction=None, claimant=None), one.token) for one in events]
    if len(events) == 1:
        sent = await _send_with_turn(tx, events[0])
        if sent is not None:
            return [sent]
    return await send(tx, events)


async def _send_with_turn(tx: Tx, request: SendRequest) -> Sent | None:
    """Write an event with its predicted turn. None: no prediction, or it does not hold; nothing is written then."""
    prediction = request.event.prediction
    # Not inside a larger transaction: an error raised by holdfast_send_predicted would abort that.
    if prediction is None or not _is_supported(prediction, request.event) or tx.connection.is_in_transaction():
        return None
    written = (
        await _was_written(tx, prediction, request.token)
        if tx.is_retry
        else await write_prediction(tx, request, prediction)
    )
    return Sent(prediction.run, accepted=True, woken=True, committed=PLAINLY_APPLIED) if written else None


async def write_prediction(tx: Tx, request: SendRequest, prediction: Prediction) -> bool:
    """False: the prediction does not hold, and nothing is written."""
    event, commit, claimant = request.event, prediction.commit, request.event.claimant
    if claimant is None:
        return False
    [fact] = commit.observed.facts
    next_, status, output, *rest = batch.next_columns(commit.following.next)
    common = _COMMON.encode(
        (
            tx.store_id,
            commit.task.run,
            commit.task.epoch,
            prediction.n,
            prediction.at,
            event.type,
            event.payload,
            request.token,
            fact.key,
            fact.kind,
            fact.started_at,
            fact.seq,
            fact.wake_at,
            next_,
            status,
            output,
        )
    )
    owner, lease_ms = (claimant.owner, claimant.lease_ms) if commit.following.next is None else _NO_CLAIM
    rare = _RARE.encode((*rest, event.sender, event.dedup, owner, claimant.version, lease_ms, tx.now, event.trace))
    sql = statements("send", tx.schema)
    try:
        if rare == _NO_RARE_ARGUMENTS:
            written: bool = await tx.connection.fetchval(sql["send_predicted"], *common)
        else:
            written = await tx.connection.fetchval(sql["send_predicted_all_arguments"], *common, *rare)
    except asyncpg.PostgresError as error:
        if sqlstate(error) not in (PREDICTION_FAILED, UNIQUE):
            raise
        return False
    return written


async def _was_written(tx: Tx, prediction: Prediction, token: int) -> bool:
    """True if an earlier attempt of this call wrote the prediction; waits for one that is still running."""
    [fact] = prediction.commit.observed.facts
    arguments = (prediction.run.run, encode_text(fact.key), token)
    written: bool = await tx.connection.fetchval(statements("send", tx.schema)["prediction_written"], *arguments)
    return written


def _is_supported(prediction: Prediction, event: NewEvent) -> bool:
    """True if the predicted commit is the result of a wait for this event, followed by an end, a release or a step."""
    observed, following = prediction.commit.observed, prediction.commit.following
    if following.facts or following.streams or affects_others(following) or prediction.commit.started_at is not None:
        return False
    if not batch.has_one_fact(observed, following):
        return False
    [fact] = observed.facts
    wait = Fact(
        FactState.RESULT, fact.key, 0, fact.kind, prediction.at, fact.started_at,
        seq=fact.seq, wake_at=fact.wake_at, event_type=event.type, event=prediction.n,
    )  # fmt: skip
    return fact == wait and list(observed.deliveries) == [Delivery(prediction.n, fact.key, prediction.at)]
