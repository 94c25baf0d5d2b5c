"""Creates runs with their tasks, or applies their policies if the instance exists already."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from holdfast.core.model import Status
from holdfast.store.postgres.rows import affected, columns, encode_text, fact_rows, record
from holdfast.store.postgres.sql import statements
from holdfast.store.postgres.terms import term_rows
from holdfast.store.postgres.tx import Row, Tx
from holdfast.store.protocol import (
    FIRST_EPOCH,
    AffectedRuns,
    Attributes,
    Created,
    NewRun,
    RequestResult,
    RunRecord,
    StoredEvent,
)

_WIDTH = 11
_START_EVENT_WIDTH, _TERM_WIDTH = 2, 3
_NO_ATTRIBUTES = Attributes()
_NO_RARE_COLUMNS: Row = (None,) * 12
_NO_RANGE: Row = (None, None)
_NO_PLAN: Row = (None,) * 17
_NO_UNITS: Row = (None,) * 5


class CreateRequest(NamedTuple):
    """A run to create, and the token by which a repeated call recognises its row."""

    new: NewRun
    token: int


class RunKey(NamedTuple):
    """The values of a created run that the database assigned."""

    run: int
    number: int
    instance: int
    at: int


async def create(tx: Tx, runs: Sequence[CreateRequest]) -> list[Created]:
    if not runs:
        return []
    if len(runs) == 1 and _is_plain(runs[0].new):
        made = await _create_one(tx, runs[0])
        if made is not None:
            return [made]
    sql = statements("create", tx.schema)["create"]
    rows = await tx.connection.fetch(sql, tx.now, tx.store_id, tx.is_retry, *new_columns(runs))
    created_runs: dict[int, Created] = {}
    taken: dict[int, tuple[RequestResult, int, AffectedRuns | None]] = {}
    for row in rows:
        ord_, result, run, number, instance, at, *others = row.values()
        if result == RequestResult.DONE:
            created_runs[ord_ - 1] = created(RunKey(run, number, instance, at), runs[ord_ - 1].new, affected(*others))
        else:
            taken[ord_ - 1] = RequestResult(result), run, affected(*others)
    if taken:
        created_runs |= await _existing_runs(tx, taken)
    return [created_runs[n] for n in range(len(runs))]


async def _create_one(tx: Tx, one: CreateRequest) -> Created | None:
    """Create one run. None: the instance exists already, perhaps created by an earlier attempt of this call."""
    sql = statements("create", tx.schema)["create_one"]
    made = await tx.connection.fetchval(sql, tx.now, tx.store_id, *_row(one))
    if made is None:
        return None
    run, at = map(int, made.split())
    return created(RunKey(run, 0, run, at), one.new)


def new_columns(runs: Sequence[CreateRequest]) -> list[Any]:
    """The arguments of holdfast_build_new_runs and holdfast_build_plans_and_units.

    Rarely used columns are NULL instead of an array if no run has a value.
    """
    start_events: list[Row] = []
    terms: list[Row] = []
    rare_rows: list[Row] = []
    plain = True
    for one in runs:
        row = (
            *_rare_columns(one.new),
            *_add_start_events(one.new, start_events),
            *_add_terms(one.new, terms),
            len(one.new.units) or None,
        )
        plain = plain and row == _NO_RARE_ARRAYS
        rare_rows.append(row)
    common = columns([_row(one) for one in runs], _WIDTH)
    rare = _NO_RARE_ARRAYS if plain else columns(rare_rows, len(_NO_RARE_ARRAYS))
    return [
        *common,
        *rare,
        *columns(start_events, _START_EVENT_WIDTH),
        *columns(terms, _TERM_WIDTH),
        *_plan_and_unit_columns(runs),
    ]


def _plan_and_unit_columns(runs: Sequence[CreateRequest]) -> list[Row]:
    """Columns of the plan facts and units of all runs; the first column of each is the position of the run."""
    plan: list[Row] = []
    units: list[Row] = []
    for n, one in enumerate(runs, 1):
        plan += fact_rows(one.new.plan, n)
        if one.new.units:
            taken = set(initially_claimed(one.new))
            units += [(n, unit, encode_text(key), missing, unit in taken) for unit, key, missing in one.new.units]
    return [*(columns(plan, 0) if plan else _NO_PLAN), *(columns(units, 0) if units else _NO_UNITS)]


def initially_claimed(new: NewRun) -> list[int]:
    """Units that are created claimed."""
    if new.owner is None or new.delay_ms > 0:
        return []
    return sorted(unit.unit for unit in new.units if not unit.missing)[: new.claim_limit]


def created(key: RunKey, new: NewRun, others: AffectedRuns | None = None) -> Created:
    attributes = new.attributes or _NO_ATTRIBUTES
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
        memo=attributes.memo,
        search=attributes.search,
        run_at=None if new.units else key.at + new.delay_ms,
        owner=owner,
        expires_at=None if new.expires_ms is None else key.at + new.expires_ms,
        expiry=None if new.expires_ms is None else new.expiry,
    )
    events = [
        StoredEvent(n, start_event.type, start_event.payload, key.at, new.sender)
        for n, start_event in enumerate(new.start_events, 1)
    ]
    return Created(
        RequestResult.DONE, made, 0 if owner is None else FIRST_EPOCH, events, initially_claimed(new), affected=others
    )


def _owner(new: NewRun) -> str | None:
    """The owner of the new run's task. A delayed run has none: its task is not due yet."""
    return None if new.delay_ms > 0 or (new.units and not initially_claimed(new)) else new.owner


def _is_plain(new: NewRun) -> bool:
    return _rare_columns(new) == _NO_RARE_COLUMNS and not (new.start_events or new.plan or new.units)


def _row(one: CreateRequest) -> Row:
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


def _rare_columns(new: NewRun) -> Row:
    """Columns that most runs leave at their defaults; a default is NULL."""
    attributes = new.attributes or _NO_ATTRIBUTES
    child = new.parent_run is not None
    return (
        None if new.on_conflict == "use_existing" else new.on_conflict,
        None if new.on_reuse == "use_existing" else new.on_reuse,
        new.options,
        attributes.memo,
        attributes.search,
        new.expires_ms,
        None if new.expires_ms is None else new.expiry,
        new.parent,
        new.parent_run,
        new.parent_close if child else None,
        int(new.watch) if child else None,
        encode_text(new.sender) if new.start_events else None,
    )


def _add_start_events(new: NewRun, start_events: list[Row]) -> Row:
    """Append the run's start events to those of all runs; their first and last position."""
    if not new.start_events:
        return _NO_RANGE
    first = len(start_events) + 1
    start_events += new.start_events
    return (first, len(start_events))


def _add_terms(new: NewRun, terms: list[Row]) -> Row:
    """Append the run's search terms to those of all runs; their first and last position."""
    if new.attributes is None or not new.attributes.terms or new.attributes.search is None:
        return _NO_RANGE
    first = len(terms) + 1
    terms += term_rows(new.attributes.terms)
    return (first, len(terms))


_NO_RARE_ARRAYS: Row = (*_NO_RARE_COLUMNS, *_NO_RANGE, *_NO_RANGE, None)


async def _existing_runs(
    tx: Tx, taken: dict[int, tuple[RequestResult, int, AffectedRuns | None]]
) -> dict[int, Created]:
    runs = [run for _, run, _ in taken.values()]
    rows = await tx.connection.fetch(statements("reads", tx.schema)["records"], runs)
    found = {one.run: one for one in (record(tuple(row.values())) for row in rows)}
    return {n: Created(result, found[run], affected=others) for n, (result, run, others) in taken.items()}
