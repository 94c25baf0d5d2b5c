"""Writes a commit that reaches other runs: by its acts, or by an end after which another run comes.

One statement: it locks all whom that may concern, writes the turn's own rows as a batch of one, and then does what
follows, each part if the one before was done. What came of it is kept with the receipt, as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.ports import Randomness
from holdfast.store.postgres.batch import VERDICTS, Receipt, batch_columns
from holdfast.store.postgres.create import Key, Making, created, new_columns
from holdfast.store.postgres.rows import columns, fact_rows, packed, touched, unit_rows
from holdfast.store.postgres.send import dedup_key
from holdfast.store.postgres.sql import statements
from holdfast.store.postgres.terms import term_rows
from holdfast.store.postgres.tokens import token
from holdfast.store.postgres.tx import Row, Tx
from holdfast.store.protocol import (
    Act,
    Answer,
    AnswerEvent,
    Attributes,
    CancelRun,
    Commit,
    Committed,
    Created,
    Deed,
    Finish,
    Follows,
    NewEvent,
    NewRun,
    Signal,
    TerminateRun,
    UnwatchRun,
    WatchRun,
    reason_of,
)

_DEED_WIDTH, _FACT_WIDTH, _TERM_WIDTH, _UNIT_WIDTH = 12, 14, 3, 3
_NO_END: Row = (None,) * 4
_NO_NEXT: Row = (False, None, None, None, None, None, None, None)
_NOTHING_SAID = Attributes()


def is_reaching(follows: Follows) -> bool:
    ends_in_another = isinstance(follows.next, Finish) and follows.next.next is not None
    return bool(follows.acts) or follows.attributes is not None or ends_in_another


@dataclass(slots=True)
class Reaching:
    """A commit, and the numbers by which what it makes is known again."""

    commit: Commit
    receipt: Receipt
    token: int
    """Of the run that comes after."""
    deeds: list[Row] = field(default_factory=list)
    starts: list[Making] = field(default_factory=list)

    @classmethod
    def of(cls, commit: Commit, receipt: Receipt, random: Randomness) -> Reaching:
        made = cls(commit, receipt, token(random))
        for act in commit.follows.acts:
            if isinstance(act.deed, NewRun):
                made.starts.append(Making(act.deed, token(random)))
                made.deeds.append(_deed("start", number=len(made.starts)))
            else:
                made.deeds.append(_deed_row(act.deed, token(random)))
        return made


async def reach(tx: Tx, reaching: Reaching) -> Committed:
    commit = reaching.commit
    follows = commit.follows
    end = follows.next if isinstance(follows.next, Finish) else None
    own = replace(follows, next=None if end is not None else follows.next)
    said = follows.attributes or _NOTHING_SAID
    asked: tuple[Any, ...] = (
        tx.now,
        tx.by,
        *reaching.receipt,
        commit.task.run,
        end is not None,
        *columns(reaching.deeds, _DEED_WIDTH),
        *new_columns(reaching.starts),
        *batch_columns([replace(commit, follows=own)]),
        *columns([_fact_row(act) for act in follows.acts], _FACT_WIDTH),
        said.memo,
        said.search,
        *columns(term_rows(said.terms), _TERM_WIDTH),
        *_end(end),
        reaching.token,
        *columns(_units(end), _UNIT_WIDTH),
    )
    verdict, signal, due, more = await tx.connection.fetchrow(statements("acts", tx.schema)["reach"], *asked)
    answer = Committed(VERDICTS[verdict], Signal(signal), due)
    return answer if more is None else _with_answers(answer, more, follows.acts)


def _with_answers(answer: Committed, more: str, acts: Sequence[Act]) -> Committed:
    said = json.loads(more)
    others = touched(said["ended"], said["woken"], said["work"])
    return replace(
        answer,
        signal=answer.signal | Signal.MAIL if said["mail"] else answer.signal,
        acted=[Answer(word) for word in said["acted"]],
        births=[_birth(json.loads(one), said["at"], acts) for one in said["born"] or ()],
        touched=others,
    )


def _birth(born: Row, at: int, acts: Sequence[Act]) -> Created:
    place, run, number, instance = born
    deed = acts[place - 1].deed
    if not isinstance(deed, NewRun):
        raise AssertionError(f"act {place} made a run, and is none that could")
    return created(Key(run, number, instance, at), deed)


def _deed_row(deed: Deed, own: int) -> Row:
    match deed:
        case NewEvent():
            return _deed(
                "send",
                deed.workflow,
                deed.instance_id,
                deed.type,
                deed.payload,
                packed(deed.sender),
                dedup_key(deed, own),
                packed(deed.ask),
                own,
            )
        case WatchRun(workflow, instance_id, watch):
            return _deed("watch", workflow, instance_id, number=int(watch))
        case UnwatchRun(workflow, instance_id, watch):
            return _deed("unwatch", workflow, instance_id, number=int(watch))
        case CancelRun(workflow, instance_id, payload, deadline_ms):
            reason = packed(reason_of(payload))
            return _deed("cancel", workflow, instance_id, payload=payload, number=deadline_ms, note=reason)
        case TerminateRun(workflow, instance_id, reason):
            return _deed("terminate", workflow, instance_id, note=packed(reason))
        case AnswerEvent(event, (ok, value)):
            return _deed("answer", payload=value, number=event, ok=ok)
        case _:
            raise AssertionError(f"{type(deed).__name__} is no deed of this kind")


def _deed(
    what: str,
    workflow: str | None = None,
    instance_id: str | None = None,
    type_: str | None = None,
    payload: bytes | None = None,
    sender: bytes | None = None,
    dedup: bytes | None = None,
    ask: bytes | None = None,
    own: int | None = None,
    *,
    number: int | None = None,
    note: bytes | None = None,
    ok: bool | None = None,
) -> Row:
    return (what, workflow, instance_id, type_, payload, sender, dedup, ask, own, number, note, ok)


def _fact_row(act: Act) -> Row:
    """All but what the answer says."""
    [(state, key, n, kind, at, started_at, seq, _, _, *rest)] = fact_rows([act.fact])
    return (state, key, n, kind, at, started_at, seq, *rest)


def _end(end: Finish | None) -> Row:
    if end is None:
        return (*_NO_END, *_NO_NEXT)
    next_ = end.next
    ended = (end.status, end.output, end.error, packed(end.note))
    if next_ is None:
        return (*ended, *_NO_NEXT)
    expiry = None if next_.expires_ms is None else next_.expiry
    then = (next_.params, next_.run_at, next_.attempt, next_.expires_ms, expiry, next_.continues, next_.options)
    return (*ended, True, *then)


def _units(end: Finish | None) -> list[Row]:
    """Of the run that comes after."""
    return [] if end is None or end.next is None else unit_rows(end.next.units)
