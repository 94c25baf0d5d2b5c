"""Applies a commit that affects other runs: by its operations, or by an end with a successor.

One statement locks the tasks of all runs that may be affected, writes the turn's own rows as a batch of one, and then
applies the following part. The result is stored with the receipt, as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.ports import Randomness
from holdfast.store.postgres.batch import Receipt, batch_columns
from holdfast.store.postgres.columns import FOLLOWING, OPERATIONS, TERM, UNIT
from holdfast.store.postgres.constants import VERDICTS, OperationKind
from holdfast.store.postgres.create import CreateRequest, RunKey, created, new_columns
from holdfast.store.postgres.rows import affected
from holdfast.store.postgres.send import dedup_key
from holdfast.store.postgres.sql import statements
from holdfast.store.postgres.terms import term_rows
from holdfast.store.postgres.tokens import token
from holdfast.store.postgres.tx import Row, Tx
from holdfast.store.protocol import (
    Attributes,
    CancelRun,
    Commit,
    Committed,
    Created,
    Fact,
    Finish,
    Following,
    NewEvent,
    NewRun,
    Operation,
    RecordedOperation,
    ReplyToEvent,
    RequestResult,
    Signal,
    TerminateRun,
    UnwatchRun,
    WatchRun,
    cancel_reason,
)

_NO_END: Row = (None,) * 4
_NO_SUCCESSOR: Row = (False, None, None, None, None, None, None, None)
_NO_ATTRIBUTES = Attributes()


def affects_others(following: Following) -> bool:
    has_successor = isinstance(following.next, Finish) and following.next.next is not None
    return bool(following.operations) or following.attributes is not None or has_successor


@dataclass(slots=True)
class OperationsRequest:
    """A commit with operations, and the tokens by which a repeated call recognises the rows that it wrote."""

    commit: Commit
    receipt: Receipt
    token: int
    """Token of the successor."""
    operation_rows: list[Row] = field(default_factory=list)
    starts: list[CreateRequest] = field(default_factory=list)

    @classmethod
    def of(cls, commit: Commit, receipt: Receipt, random: Randomness) -> OperationsRequest:
        request = cls(commit, receipt, token(random))
        for recorded in commit.following.operations:
            if isinstance(recorded.operation, NewRun):
                request.starts.append(CreateRequest(recorded.operation, token(random)))
                request.operation_rows.append(_row(OperationKind.START, number=len(request.starts)))
            else:
                request.operation_rows.append(_operation_row(recorded.operation, token(random)))
        return request


async def commit_with_operations(tx: Tx, request: OperationsRequest) -> Committed:
    commit = request.commit
    following = commit.following
    end = following.next if isinstance(following.next, Finish) else None
    own_following = replace(following, next=None if end is not None else following.next)
    attributes = following.attributes or _NO_ATTRIBUTES
    arguments: tuple[Any, ...] = (
        tx.now,
        tx.store_id,
        *request.receipt,
        commit.task.run,
        end is not None,
        *FOLLOWING.parts["facts"].arrays([_fact_row(recorded.fact) for recorded in following.operations]),
        attributes.memo,
        attributes.search,
        *TERM.arrays(term_rows(attributes.terms)),
        *FOLLOWING.parts["end"].encode((*_end(end), request.token)),
        *UNIT.arrays(end.next.units if end is not None and end.next is not None else ()),
        *OPERATIONS.arrays(operations=request.operation_rows),
        *new_columns(request.starts),
        *batch_columns([replace(commit, following=own_following)]),
    )
    sql = statements("operations", tx.schema)["commit_with_operations"]
    verdict, signal, due, more = await tx.connection.fetchrow(sql, *arguments)
    result = Committed(VERDICTS[verdict], Signal(signal), due)
    return result if more is None else _with_results(result, more, following.operations)


def _with_results(result: Committed, more: str, operations: Sequence[RecordedOperation]) -> Committed:
    stored = json.loads(more)
    others = affected(stored["ended"], stored["woken"], stored["work"])
    return replace(
        result,
        signal=result.signal | Signal.EVENTS if stored["events"] else result.signal,
        operation_results=[RequestResult(value) for value in stored["operation_results"]],
        claimed_children=[
            _claimed_child(json.loads(child), stored["at"], operations) for child in stored["claimed_children"] or ()
        ],
        affected=others,
    )


def _claimed_child(row: Row, at: int, operations: Sequence[RecordedOperation]) -> Created:
    position, run, number, instance = row
    operation = operations[position - 1].operation
    if not isinstance(operation, NewRun):
        raise AssertionError(f"operation {position} created a run but is not a start")
    return created(RunKey(run, number, instance, at), operation)


def _operation_row(operation: Operation, token: int) -> Row:
    match operation:
        case NewEvent():
            return _row(
                OperationKind.SEND,
                operation.workflow,
                operation.instance_id,
                operation.type,
                operation.payload,
                operation.sender,
                dedup_key(operation, token),
                operation.ask,
                token,
                trace=operation.trace,
            )
        case WatchRun(workflow, instance_id, watch):
            return _row(OperationKind.WATCH, workflow, instance_id, number=int(watch))
        case UnwatchRun(workflow, instance_id, watch):
            return _row(OperationKind.UNWATCH, workflow, instance_id, number=int(watch))
        case CancelRun(workflow, instance_id, payload, deadline_ms, children_only):
            kind, reason = OperationKind.CANCEL, cancel_reason(payload)
            return _row(kind, workflow, instance_id, payload=payload, number=deadline_ms, note=reason, ok=children_only)
        case TerminateRun(workflow, instance_id, reason):
            return _row(OperationKind.TERMINATE, workflow, instance_id, note=reason)
        case ReplyToEvent(event, (ok, value), trace):
            return _row(OperationKind.REPLY, payload=value, number=event, ok=ok, trace=trace)
        case _:
            raise AssertionError(f"{type(operation).__name__} has no operation row")


def _row(
    kind: OperationKind,
    workflow: str | None = None,
    instance_id: str | None = None,
    type_: str | None = None,
    payload: bytes | None = None,
    sender: str | None = None,
    dedup: bytes | None = None,
    ask: str | None = None,
    token: int | None = None,
    *,
    number: int | None = None,
    note: str | None = None,
    ok: bool | None = None,
    trace: str | None = None,
) -> Row:
    return (kind, workflow, instance_id, type_, payload, sender, dedup, ask, token, number, note, ok, trace)


def _fact_row(fact: Fact) -> Row:
    """The row of the fact without ``ok`` and ``value``, which the database sets from the result."""
    state, key, n, kind, at, started_at, seq, _, _, *rest = fact
    return (state, key, n, kind, at, started_at, seq, *rest)


def _end(end: Finish | None) -> Row:
    if end is None:
        return (*_NO_END, *_NO_SUCCESSOR)
    next_ = end.next
    ended = (end.status, end.output, end.error, end.note)
    if next_ is None:
        return (*ended, *_NO_SUCCESSOR)
    expiry = None if next_.expires_ms is None else next_.expiry
    then = (next_.params, next_.run_at, next_.attempt, next_.expires_ms, expiry, next_.continues, next_.options)
    return (*ended, True, *then)
