"""Rows of the store as the records that users read, a page at a time; cursors and the checks of what is asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from holdfast.core import chains, codec, history
from holdfast.core.failure import Failure
from holdfast.core.model import (
    EventRecord,
    LogLine,
    Status,
    StepRecord,
    from_ms,
    optional_from_ms,
)
from holdfast.core.outbound import OutboxRecord, OutboxState, outbound_id
from holdfast.core.show import shown
from holdfast.errors import (
    ErrorInfo,
    InvalidCursorError,
    InvalidOptionError,
)
from holdfast.graph.history import current_node, nodes_of
from holdfast.kernel.units import GRAPH
from holdfast.store.protocol import (
    Fact,
    Mail,
    OutboxRow,
    PageQuery,
    RunRecord,
    StoredLog,
)

T = TypeVar("T")

_CURSOR_DIGITS = 18
_LAST_POSITION = 10**_CURSOR_DIGITS - 1


@dataclass(slots=True, eq=False)
class HistoryQuery:
    """Which page of a run's history: each list has a cursor of its own."""

    limit: int = 25
    descending: bool = False
    steps_cursor: str | None = None
    events_cursor: str | None = None
    include_logs: bool = False
    logs_cursor: str | None = None
    level: str | None = None
    category: str | None = None


@dataclass(slots=True, eq=False)
class Part(Generic[T]):
    """A page of one list of a run. ``cursor`` points behind its last entry, also when no more are there yet."""

    items: list[T]
    cursor: str
    more: bool


@dataclass(slots=True, eq=False)
class HistoryPage:
    run_number: int
    steps: Part[StepRecord]
    events: Part[EventRecord]
    logs: Part[LogLine] | None


def error_of(row: RunRecord) -> ErrorInfo | None:
    return None if row.error is None else Failure.decode(row.error).info


def steps_of(row: RunRecord, facts: Iterable[Fact], payloads: Mapping[int, Any]) -> list[StepRecord]:
    """The steps of a run; of a chain or a graph also those that are to come."""
    if row.kind == chains.CHAIN:
        return chains.records(row.number, facts, chains.Place(row.owner is not None, row.run_at))
    if row.kind == GRAPH:
        return nodes_of(row.number, facts)
    return history.steps_of(row.number, facts, payloads)


def current_step(row: RunRecord, steps: list[StepRecord]) -> StepRecord | None:
    if row.kind == GRAPH:
        return current_node(steps)
    return chains.current_record(steps) if row.kind == chains.CHAIN else history.current_step(steps)


def open_steps(row: RunRecord, steps: list[StepRecord]) -> list[StepRecord]:
    """Those that say what the run is at, or waits for."""
    return [step for step in steps if chains.is_open(step)] if row.kind == chains.CHAIN else steps


def unhandled_step(row: RunRecord, facts: Iterable[Fact]) -> str | None:
    """The current step of a chain that was given back for lack of a handler."""
    if row.kind != chains.CHAIN or row.status is not Status.WAITING or row.started_at is None or row.owner is not None:
        return None
    return chains.without_handler(facts, row.run_at)


def outbox_record(row: OutboxRow) -> OutboxRecord:
    state = OutboxState.PENDING
    if row.delivered_at is not None or row.parked_at is not None:
        state = OutboxState.PARKED if row.delivered_at is None else OutboxState.DELIVERED
    return OutboxRecord(
        id=outbound_id(row.workflow, row.instance_id, row.number, row.n),
        type=row.type,
        payload=codec.plain(row.payload),
        step=row.step,
        state=state.value,
        attempts=row.attempts,
        error=row.error,
        created_at=from_ms(row.created_at),
        next_attempt_at=from_ms(row.run_at) if state is OutboxState.PENDING else None,
        delivered_at=optional_from_ms(row.delivered_at),
        parked_at=optional_from_ms(row.parked_at),
    )


def event_value(mail: Mail) -> dict[str, Any]:
    return {"type": mail.type, "payload": codec.plain(mail.payload), "timestamp": _iso(mail.created_at)}


def event_record(number: int, mail: Mail) -> EventRecord:
    return EventRecord(
        id=f"{number}:{mail.n}",
        run_number=number,
        type=mail.type,
        payload=codec.plain(mail.payload),
        created_at=from_ms(mail.created_at),
        delivered_at=optional_from_ms(mail.delivered_at),
        consumed_by_step_key=mail.consumed_by,
        sender=mail.sender,
    )


def log_line(number: int, stored: StoredLog) -> LogLine:
    line = stored.line
    return LogLine(
        id=f"{number}:{stored.n}",
        run_number=number,
        step_key=line.step_key,
        attempt=line.attempt,
        level=line.level,
        category=line.category,
        message=line.message,
        data=codec.plain(line.data),
        is_replay=line.is_replay,
        created_at=from_ms(line.at),
    )


def _iso(ms: int) -> str:
    return from_ms(ms).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def part_of(entries: Sequence[tuple[int, T]], letter: str, limit: int, after: int) -> Part[T]:
    page = entries[:limit]
    last = page[-1][0] if page else after
    return Part([item for _, item in page], f"{letter}{last}", len(entries) > limit)


def page_query(row: RunRecord, query: HistoryQuery, after: int) -> PageQuery:
    """One more than the page shows, to know whether there is one."""
    return PageQuery(row.run, after=after, limit=query.limit + 1, descending=query.descending)


@dataclass(slots=True, eq=False)
class Positions:
    """Behind which entry each list of a history goes on."""

    steps: int
    events: int
    logs: int

    @classmethod
    def of(cls, query: HistoryQuery) -> Positions:
        first = _LAST_POSITION if query.descending else 0
        given = (query.steps_cursor, "s"), (query.events_cursor, "e"), (query.logs_cursor, "l")
        found = [position(*one) for one in given]
        return cls(*(first if one is None else one for one in found))


def position(cursor: str | None, letter: str) -> int | None:
    """What a cursor points at; ``letter`` says of which list it is."""
    if cursor is None:
        return None
    number = cursor[1:] if isinstance(cursor, str) and cursor.startswith(letter) else ""
    if not (number.isascii() and number.isdigit() and len(number) <= _CURSOR_DIGITS):
        raise InvalidCursorError(f"{shown(cursor)} is not a cursor that this list returned")
    return int(number)


def check_choice(name: str, value: Any, choices: Sequence[str]) -> str:
    if value not in choices:
        raise InvalidOptionError(f"{name} must be one of {', '.join(choices)}, not {value!r}")
    return str(value)
