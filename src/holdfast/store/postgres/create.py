"""Creates runs with their tasks, or applies their policies if the instance exists already."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from holdfast.store.postgres.columns import NEW_RUN, NEW_RUN_OPTIONS, NEW_RUN_RARE, PLANS_AND_UNITS, START_EVENT, TERM
from holdfast.store.postgres.rows import affected, record
from holdfast.store.postgres.sql import statements
from holdfast.store.postgres.terms import term_rows
from holdfast.store.postgres.tx import Row, Tx
from holdfast.store.protocol import (
    FIRST_EPOCH,
    AffectedRuns,
    Attributes,
    BatchedStart,
    Created,
    DebouncedStart,
    LimitedStart,
    NewRun,
    OnConflict,
    OnReuse,
    RequestResult,
    SingletonStart,
    StoredEvent,
    gather_key,
    ordered_limits,
)

_NO_ATTRIBUTES = Attributes()
_PLAN, _UNITS = PLANS_AND_UNITS.parts.values()
_NO_OPTIONS: Row = (None,) * len(NEW_RUN_OPTIONS)
_NO_RANGE: Row = (None, None)
_NO_RARE_ARRAYS: Row = (None,) * len(NEW_RUN_RARE)
_NO_PLAN: Row = (None,) * len(_PLAN)
_NO_UNITS: Row = (None,) * len(_UNITS)


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
    if runs[0].new.policy is not None:
        return [await start_with_policy(tx, runs[0])]
    if tx.failed_over:  # the caller is no longer the worker of this id, and would not begin the run
        for one in runs:
            one.new.owner = None
    if len(runs) == 1 and _is_plain(runs[0].new):
        made = await _create_one(tx, runs[0])
        if made is not None:
            return [made]
    sql = statements("create", tx.schema)["create"]
    rows = await tx.connection.fetch(sql, tx.now, tx.store_id, tx.is_retry, *new_columns(runs))
    created_runs: dict[int, Created] = {}
    taken: dict[int, tuple[RequestResult, int, AffectedRuns | None]] = {}
    for row in rows:
        ord_, result, run, number, instance, at, *others, claimed = row.values()
        if result == RequestResult.DONE:
            if not claimed:  # the queue is paused
                runs[ord_ - 1].new.owner = None
            created_runs[ord_ - 1] = created(RunKey(run, number, instance, at), runs[ord_ - 1].new, affected(*others))
        else:
            taken[ord_ - 1] = RequestResult(result), run, affected(*others)
    if taken:
        created_runs |= await _existing_runs(tx, taken)
    return [created_runs[n] for n in range(len(runs))]


async def _create_one(tx: Tx, one: CreateRequest) -> Created | None:
    """Create one run. None: the instance exists already, perhaps created by an earlier attempt of this call."""
    sql, arguments = statements("create", tx.schema), (tx.now, tx.store_id, *_row(one))
    if one.new.version is None:
        made = await tx.connection.fetchval(sql["create_one"], *arguments)
    else:
        version = (one.new.version, one.new.pinned)
        made = await tx.connection.fetchval(sql["create_one_of_version"], *arguments, *version)
    if made is None:
        return None
    run, at, *paused = made.split()
    if paused:
        one.new.owner = None
    return created(RunKey(int(run), 0, int(run), int(at)), one.new)


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
            *_options(one.new),
            *_add_start_events(one.new, start_events),
            *_add_terms(one.new, terms),
            len(one.new.units) or None,
        )
        plain = plain and row == _NO_RARE_ARRAYS
        rare_rows.append(row)
    return [
        *NEW_RUN.arrays([_row(one) for one in runs]),
        *(_NO_RARE_ARRAYS if plain else NEW_RUN_RARE.arrays(rare_rows)),
        *START_EVENT.arrays(start_events),
        *TERM.arrays(terms),
        *_plan_and_unit_columns(runs),
    ]


def _plan_and_unit_columns(runs: Sequence[CreateRequest]) -> list[Row]:
    """Columns of the plan facts and units of all runs; the first column of each is the position of the run."""
    plan: list[Row] = []
    units: list[Row] = []
    for n, one in enumerate(runs, 1):
        plan += [(n, *fact) for fact in one.new.plan]
        if one.new.units:
            claimed = {unit.unit for unit in one.new.claimed_units()}
            units += [(n, *unit, unit.unit in claimed) for unit in one.new.units]
    return [*(_PLAN.arrays(plan) if plan else _NO_PLAN), *(_UNITS.arrays(units) if units else _NO_UNITS)]


def created(key: RunKey, new: NewRun, others: AffectedRuns | None = None) -> Created:
    made = new.record(key.run, key.number, key.instance, key.at)
    events = [
        StoredEvent(n, start_event.type, start_event.payload, key.at, new.sender)
        for n, start_event in enumerate(new.start_events, 1)
    ]
    epoch = 0 if made.owner is None else FIRST_EPOCH
    return Created(RequestResult.DONE, made, epoch, events, [unit.unit for unit in new.claimed_units()], others)


def _owner(new: NewRun) -> str | None:
    """The owner of the run or of its claimed units. A run that is delayed, or waits for its turn, has none."""
    waits = new.delay_ms > 0 or new.fair_key is not None
    return None if waits or (new.units and not new.claimed_units()) else new.owner


def _is_plain(new: NewRun) -> bool:
    """True if the run has no options but its version, and no other parts."""
    return _options(new)[:-2] == _NO_OPTIONS[:-2] and not (new.start_events or new.plan or new.units)


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


def _options(new: NewRun) -> Row:
    """The columns NEW_RUN_OPTIONS."""
    attributes = new.attributes or _NO_ATTRIBUTES
    child = new.parent_run is not None
    return (
        None if new.on_conflict == OnConflict.USE_EXISTING else new.on_conflict,
        None if new.on_reuse == OnReuse.USE_EXISTING else new.on_reuse,
        new.options,
        attributes.memo,
        attributes.search,
        new.reuse_after_ms or None,
        new.expires_ms,
        None if new.expires_ms is None else new.expiry,
        new.parent,
        new.parent_run,
        new.parent_close if child else None,
        int(new.watch) if child else None,
        new.sender if new.start_events else None,
        *(new.fair_key or (None, None)),
        new.version,
        None if new.version is None else new.pinned,
    )


def _add_start_events(new: NewRun, start_events: list[Row]) -> Row:
    """Append the run's start events to those of all runs; returns their first and last position."""
    if not new.start_events:
        return _NO_RANGE
    first = len(start_events) + 1
    start_events += new.start_events
    return (first, len(start_events))


def _add_terms(new: NewRun, terms: list[Row]) -> Row:
    """Append the run's search terms to those of all runs; returns their first and last position."""
    if new.attributes is None or not new.attributes.terms or new.attributes.search is None:
        return _NO_RANGE
    first = len(terms) + 1
    terms += term_rows(new.attributes.terms)
    return (first, len(terms))


async def _existing_runs(
    tx: Tx, taken: dict[int, tuple[RequestResult, int, AffectedRuns | None]]
) -> dict[int, Created]:
    runs = [run for _, run, _ in taken.values()]
    rows = await tx.connection.fetch(statements("reads", tx.schema)["records"], runs)
    found = {one.run: one for one in (record(tuple(row.values())) for row in rows)}
    return {n: Created(result, found[run], affected=others) for n, (result, run, others) in taken.items()}


# --- start policies


async def start_with_policy(tx: Tx, one: CreateRequest) -> Created:
    """Create a run with a start policy, or find the run that stands for it."""
    sql = statements("create", tx.schema)["create_with_policy"]
    row = await tx.connection.fetchrow(sql, tx.now, tx.store_id, tx.is_retry, *_policy(one.new), *new_columns([one]))
    result, run, ended, woken, work, limit = row.values()
    if result == RequestResult.LIMITED:
        refused = one.new.record(0, 0, 0, 0)
        refused.note = f"limit {limit!r} has no room"
        return Created(RequestResult.LIMITED, refused)
    found = await _existing_runs(tx, {0: (RequestResult(result), run, affected(ended, woken, work))})
    return found[0]


def _policy(new: NewRun) -> Row:
    """The name of the policy, its key, and its values."""
    match new.policy:
        case SingletonStart() as policy:
            return (policy.on_open, f"single {policy.key}", None, None, None, None, None, None)
        case DebouncedStart() as policy:
            return ("debounce", gather_key(policy), policy.max_wait_ms, None, None, None, None, None)
        case BatchedStart() as policy:
            return ("batch", gather_key(policy), None, policy.size, policy.max_bytes, None, None, None)
        case LimitedStart() as policy:
            limits = ordered_limits(policy.limits)
            names, keys = [limit.name for limit in limits], [limit.key for limit in limits]
            name = "refuse" if policy.reject else "drop"
            return (name, new.instance_id, None, None, None, names, keys, policy.until_end)
        case None:
            raise AssertionError("a run without a start policy")
