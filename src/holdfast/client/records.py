"""Conversion of store rows to the records that users read, with pages, cursors and checks of query options."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from holdfast.core import codec, durations
from holdfast.core.durations import Duration
from holdfast.core.failure import Failure
from holdfast.core.model import from_ms, optional_from_ms
from holdfast.core.outbound import OutboxRecord, OutboxState, outbound_id
from holdfast.core.records import EventRecord, LogLine, OriginRecord, StepRecord
from holdfast.core.show import shown
from holdfast.errors import (
    DamagedRunError,
    ErrorInfo,
    HoldfastError,
    InvalidCursorError,
    InvalidOptionError,
)
from holdfast.store.protocol import (
    OutboxRow,
    RunRecord,
    StoredEvent,
    StoredLog,
)

T = TypeVar("T")

_CURSOR_DIGITS = 18
_LAST_POSITION = 10**_CURSOR_DIGITS - 1


@dataclass(slots=True, eq=False)
class HistoryQuery:
    """Options of a page of a run's history. Each list has its own cursor."""

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
    """A page of one list of a run. ``cursor`` points after its last entry, even if there are no more entries yet."""

    items: list[T]
    cursor: str
    more: bool


@dataclass(slots=True, eq=False)
class HistoryPage:
    run_number: int
    steps: Part[StepRecord]
    events: Part[EventRecord]
    logs: Part[LogLine] | None
    origin: OriginRecord | None = None


@contextmanager
def reading(row: RunRecord) -> Iterator[None]:
    """Raise ``DamagedRunError`` with the name of the run if its stored rows cannot be interpreted."""
    try:
        yield
    except DamagedRunError as error:
        raise DamagedRunError(f"the stored data of run {row.pid} (run {row.number}) is damaged: {error}") from error
    except HoldfastError:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        what = f"{type(error).__name__}: {error}"
        raise DamagedRunError(f"the stored data of run {row.pid} (run {row.number}) is damaged: {what}") from error


def error_of(row: RunRecord) -> ErrorInfo | None:
    return None if row.error is None else Failure.displayed(row.error).info


def outbox_record(row: OutboxRow) -> OutboxRecord:
    state = OutboxState.PENDING
    if row.delivered_at is not None or row.parked_at is not None:
        state = OutboxState.PARKED if row.delivered_at is None else OutboxState.DELIVERED
    return OutboxRecord(
        id=outbound_id(row.workflow, row.instance_id, row.number, row.n),
        type=row.type,
        payload=codec.displayed(row.payload),
        step=row.step,
        state=state.value,
        attempts=row.attempts,
        error=row.error,
        created_at=from_ms(row.created_at),
        next_attempt_at=from_ms(row.run_at) if state is OutboxState.PENDING else None,
        delivered_at=optional_from_ms(row.delivered_at),
        parked_at=optional_from_ms(row.parked_at),
    )


def event_value(event: StoredEvent) -> dict[str, Any]:
    return {"type": event.type, "payload": codec.displayed(event.payload), "timestamp": _iso(event.created_at)}


def event_record(number: int, event: StoredEvent) -> EventRecord:
    return EventRecord(
        id=f"{number}:{event.n}",
        run_number=number,
        type=event.type,
        payload=codec.displayed(event.payload),
        created_at=from_ms(event.created_at),
        delivered_at=optional_from_ms(event.delivered_at),
        consumed_by_step_key=event.consumed_by,
        sender=event.sender,
    )


def log_line(number: int, stored: StoredLog) -> LogLine:
    line = stored.log
    return LogLine(
        id=f"{number}:{stored.n}",
        run_number=number,
        step_key=line.step_key,
        attempt=line.attempt,
        level=line.level,
        category=line.category,
        message=line.message,
        data=codec.displayed(line.data),
        is_replay=line.is_replay,
        created_at=from_ms(line.at),
    )


def _iso(ms: int) -> str:
    return from_ms(ms).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def part_of(entries: Sequence[tuple[int, T]], prefix: str, limit: int, after: int) -> Part[T]:
    page = entries[:limit]
    last = page[-1][0] if page else after
    return Part([item for _, item in page], f"{prefix}{last}", len(entries) > limit)


@dataclass(slots=True, eq=False)
class Positions:
    """The position after which each list of a history continues."""

    steps: int
    events: int
    logs: int

    @classmethod
    def of(cls, query: HistoryQuery) -> Positions:
        first = _LAST_POSITION if query.descending else 0
        cursors = (query.steps_cursor, "s"), (query.events_cursor, "e"), (query.logs_cursor, "l")
        positions = [position(*cursor) for cursor in cursors]
        return cls(*(first if number is None else number for number in positions))


def position(cursor: str | None, prefix: str) -> int | None:
    """The position that a cursor encodes; ``prefix`` is the letter of its list."""
    if cursor is None:
        return None
    number = cursor[1:] if isinstance(cursor, str) and cursor.startswith(prefix) else ""
    if not (number.isascii() and number.isdigit() and len(number) <= _CURSOR_DIGITS):
        raise InvalidCursorError(f"{shown(cursor)} is not a cursor that this list returned")
    return int(number)


def check_choice(name: str, value: Any, choices: Sequence[str]) -> str:
    if value not in choices:
        raise InvalidOptionError(f"{name} must be one of {', '.join(choices)}, not {value!r}")
    return str(value)


def seconds_of(timeout: Duration | None) -> float | None:
    return None if timeout is None else durations.to_ms(timeout, "timeout") / 1000
