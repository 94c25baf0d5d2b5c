"""Makes runs with their tasks and all that they come with, or does what their policies say if an id is taken."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from holdfast.core.model import Status
from holdfast.store.postgres.rows import columns, fact_rows, packed, record, touched
from holdfast.store.postgres.sql import statements
from holdfast.store.postgres.terms import term_rows
from holdfast.store.postgres.tx import Row, Tx
from holdfast.store.protocol import FIRST_EPOCH, Answer, Attributes, Created, Mail, NewRun, RunRecord, Touched

_WIDTH = 11
_LETTER_WIDTH, _TERM_WIDTH = 2, 3
_NOTHING_SAID = Attributes()
_PLAIN: Row = (None,) * 12
_NONE: Row = (None, None)
_NO_PLAN: Row = (None,) * 17
_NO_UNITS: Row = (None,) * 5


class Making(NamedTuple):
    """A run to make, and a number by which the call that made it knows its row again."""

    new: NewRun
    token: int


class Key(NamedTuple):
    """Which run was made: what the database knows, and the request does not."""

    run: int
    number: int
    instance: int
    at: int


async def create(tx: Tx, runs: Sequence[Making]) -> list[Created]:
    if not runs:
        return []
    if len(runs) == 1 and _is_plain(runs[0].new):
        made = await _create_one(tx, runs[0])
        if made is not None:
            return [made]
    sql = statements("create", tx.schema)["create"]
    rows = await tx.connection.fetch(sql, tx.now, tx.by, tx.again, *new_columns(runs))
    answers: dict[int, Created] = {}
    taken: dict[int, tuple[Answer, int, Touched | None]] = {}
    for row in rows:
        ord_, answer, run, number, instance, at, *others = row.values()
        if answer == Answer.DONE:
            answers[ord_ - 1] = created(Key(run, number, instance, at), runs[ord_ - 1].new, touched(*others))
        else:
            taken[ord_ - 1] = Answer(answer), run, touched(*others)
    if taken:
        answers |= await _existing(tx, taken)
    return [answers[n] for n in range(len(runs))]


async def _create_one(tx: Tx, one: Making) -> Created | None:
    """None: its id is taken, or an earlier try has made it."""
    sql = statements("create", tx.schema)["create_one"]
    made = await tx.connection.fetchval(sql, tx.now, tx.by, *_row(one), tx.quiet)
    if made is None:
        return None
    run, at = map(int, made.split())
    return created(Key(run, 0, run, at), one.new)


def new_columns(runs: Sequence[Making]) -> list[Any]:
    """The arguments of holdfast_news and holdfast_parts_of. What none of the runs has is one NULL for all."""
    letters: list[Row] = []
    terms: list[Row] = []
    more: list[Row] = []
    plain = True
    for one in runs:
        row = (*_more(one.new), *_letters(one.new, letters), *_terms(one.new, terms), len(one.new.units) or None)
        plain = plain and row == _ALL_PLAIN
        more.append(row)
    given = columns([_row(one) for one in runs], _WIDTH)
    seldom = _ALL_PLAIN if plain else columns(more, len(_ALL_PLAIN))
    return [*given, *seldom, *columns(letters, _LETTER_WIDTH), *columns(terms, _TERM_WIDTH), *_parts(runs)]


def _parts(runs: Sequence[Making]) -> list[Row]:
    """What the runs consist of, each row with the place of its run."""
    plan: list[Row] = []
    units: list[Row] = []
    for n, one in enumerate(runs, 1):
        plan += fact_rows(one.new.plan, n)
        if one.new.units:
            taken = set(born(one.new))
            units += [(n, unit, packed(key), missing, unit in taken) for unit, key, missing in one.new.units]
    return [*(columns(plan, 0) if plan else _NO_PLAN), *(columns(units, 0) if units else _NO_UNITS)]


def born(new: NewRun) -> list[int]:
    """Units that are born claimed."""
    if new.owner is None or new.delay_ms > 0:
        return []
    return sorted(unit.unit for unit in new.units if not unit.missing)[: new.room]


def created(key: Key, new: NewRun, others: Touched | None = None) -> Created:
    said = new.attributes or _NOTHING_SAID
    owner = None if new.units else _owner(new)
    made = RunRecord(
        run=key.run,
        workflow=new.workflow,
        instance_id=new.instance_id,
        number=key.number,
        kind=new.kind,
        status=Status.WAITING if new.delay_ms > 0 else Status.ACTIVE,
        params=new.params,
        output=None,
        error=None,
        queue=new.queue,
        priority=new.priority,
        created_at=key.at,
        updated_at=key.at,
        started_at=None,
        completed_at=None,
        instance=key.instance,
        seed=new.seed,
        parent=new.parent,
        options=new.options,
        memo=said.memo,
        search=said.search,
        run_at=None if new.units else key.at + new.delay_ms,
        owner=owner,
        expires_at=None if new.expires_ms is None else key.at + new.expires_ms,
        expiry=None if new.expires_ms is None else new.expiry,
    )
    mail = [Mail(n, letter.type, letter.payload, key.at, new.sender) for n, letter in enumerate(new.letters, 1)]
    return Created(Answer.DONE, made, 0 if owner is None else FIRST_EPOCH, mail, born(new), touched=others)


def _owner(new: NewRun) -> str | None:
    """There is nothing to hold before its time has come."""
    return None if new.delay_ms > 0 or (new.units and not born(new)) else new.owner


def _is_plain(new: NewRun) -> bool:
    return _more(new) == _PLAIN and not (new.letters or new.plan or new.units)


def _row(one: Making) -> Row:
    new = one.new
    return (
        one.token,
        new.workflow,
        new.instance_id,
        new.kind,
        new.params,
        new.queue,
        new.priority,
        new.delay_ms,
        new.seed,
        _owner(new),
        new.lease_ms,
    )


def _more(new: NewRun) -> Row:
    """What runs seldom come with; what is not asked for, or is as usual, is NULL."""
    said = new.attributes or _NOTHING_SAID
    child = new.parent_run is not None
    return (
        None if new.on_conflict == "use_existing" else new.on_conflict,
        None if new.on_reuse == "use_existing" else new.on_reuse,
        new.options,
        said.memo,
        said.search,
        new.expires_ms,
        None if new.expires_ms is None else new.expiry,
        new.parent,
        new.parent_run,
        new.parent_close if child else None,
        int(new.watch) if child else None,
        packed(new.sender) if new.letters else None,
    )


def _letters(new: NewRun, letters: list[Row]) -> Row:
    """Where its letters are among those of all, which they are added to."""
    if not new.letters:
        return _NONE
    first = len(letters) + 1
    letters += new.letters
    return (first, len(letters))


def _terms(new: NewRun, terms: list[Row]) -> Row:
    if new.attributes is None or not new.attributes.terms or new.attributes.search is None:
        return _NONE
    first = len(terms) + 1
    terms += term_rows(new.attributes.terms)
    return (first, len(terms))


_ALL_PLAIN: Row = (*_PLAIN, *_NONE, *_NONE, None)


async def _existing(tx: Tx, taken: dict[int, tuple[Answer, int, Touched | None]]) -> dict[int, Created]:
    runs = [run for _, run, _ in taken.values()]
    rows = await tx.connection.fetch(statements("reads", tx.schema)["records"], runs)
    found = {one.run: one for one in (record(tuple(row.values())) for row in rows)}
    return {n: Created(answer, found[run], touched=others) for n, (answer, run, others) in taken.items()}
