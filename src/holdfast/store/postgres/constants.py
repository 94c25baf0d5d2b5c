"""Values that SQL shares with Python, by name: in a ``.sql`` file, ``{Status.WAITING}`` stands for ``'waiting'``.

The values of the enums in ``ENUMS`` and of ``_VALUES`` appear in a ``.sql`` file by name only.
"""

from __future__ import annotations

from enum import Enum, IntEnum, StrEnum

from holdfast.core.facts import ANY_TOPIC, CANCEL, EXIT, REPLY, RESOLVE, FactState
from holdfast.core.model import DEFAULT_QUEUE, Status, StepType, TaskKind
from holdfast.store.postgres.errors import FAILED_OVER, FENCED, NOT_CONSUMABLE, PREDICTION_FAILED, STALE_RETRY
from holdfast.store.postgres.rows import MANY_RUNS, MAX_BIGINT, PAGE_SIZE
from holdfast.store.protocol import (
    GRAPH,
    LARGE_RUN,
    LEFTOVER_ROWS,
    MAX_CLOCK_SKEW_MS,
    REPLACED,
    SUPERSEDED,
    Expiry,
    OnConflict,
    OnReuse,
    OnSingleton,
    ParentClose,
    PermitResult,
    RequestResult,
    Signal,
    Verdict,
    Watch,
)
from holdfast.store.protocol.streams import CHUNK_BYTES, CHUNK_ITEMS, WriterState, WriteVerdict


class VerdictNumber(IntEnum):
    """The verdict of a commit. A row is written if the verdict is not lower than the one that the row needs."""

    LOST = 0
    PAUSING = 1
    PAUSED = 2
    APPLIED = 3


VERDICTS = tuple(Verdict[number.name] for number in VerdictNumber)


class Next(IntEnum):
    """The type of ``Following.next``; KEEP: None."""

    KEEP = 0
    FINISH = 1
    PARK = 2
    RELEASE = 3


class CommitOneResult(IntEnum):
    """The result of holdfast_commit_one."""

    NOT_WRITTEN = 0
    """The commit needs holdfast_commit."""
    APPLIED = 1
    APPLIED_AND_DUE = 2
    """The released task is due at once."""


class Bucket(IntEnum):
    """The order in which due tasks are claimed."""

    CONTINUING = TaskKind.WAKE.bucket
    STARTING = TaskKind.RUN.bucket
    SUSPECT = 2
    FAIR = 3
    """Runs that have not begun, of workflows whose keys are claimed in turn; ordinary claims leave them out."""


class AddedEvent(IntEnum):
    """The effect of adding an event to a mailbox. From SIGNALLED upwards the event wakes the run."""

    DUPLICATE = 0
    """The dedup key exists; nothing was written."""
    STORED = 1
    """The run does not wait for the event."""
    SIGNALLED = 2
    """The owner of the task is signalled."""
    DUE = 3


class OperationKind(StrEnum):
    START = "start"
    SEND = "send"
    WATCH = "watch"
    UNWATCH = "unwatch"
    CANCEL = "cancel"
    TERMINATE = "terminate"
    REPLY = "reply"


class PermitState(IntEnum):
    """The state of a stored permit."""

    WAITING = 0
    GRANTED = 1
    HELD = 2


_WAKE_RETRY_MS = 5
"""Time after which a task that was locked when its permit was granted is looked at again."""
_GRANTED_AT_ONCE = 256
"""Maximum number of permits that are granted before the use of their limits is written."""
_GRANTED_BY_RATE = 32
"""The same under a limit with a rate, which mostly has room for few of the permits that are read."""
_TURN_RETRY_MS = 20
"""Time after which a worker with free slots looks again at keys that other claims had locked."""
_LOST_RUN_IDS = 2**32
"""Number of run ids that are skipped after a failover: more than a standby that lags behind can have lost."""
_MAX_INTEGER = 2**31 - 1
_MAX_GATHERED = 100
"""Number of debounced starts whose tokens a run keeps."""
_NO_ROOM = "HF429"
"""The SQLSTATE by which a start undoes its writes if a limit has no room."""

ENUMS: tuple[type[Enum], ...] = (
    Status, FactState, StepType, TaskKind, Bucket, Signal, Watch, VerdictNumber, Next, CommitOneResult, AddedEvent,
    OperationKind, PermitState, PermitResult, RequestResult, OnConflict, OnReuse, OnSingleton, ParentClose, Expiry,
    WriterState, WriteVerdict,
)  # fmt: skip
_VALUES: dict[str, str | int] = {
    "EXIT": EXIT,
    "CANCEL": CANCEL,
    "RESOLVE": RESOLVE,
    "REPLY": REPLY,
    "ANY_TOPIC": ANY_TOPIC,
    "GRAPH": GRAPH,
    "MAX_CLOCK_SKEW_MS": MAX_CLOCK_SKEW_MS,
    "PAGE_SIZE": PAGE_SIZE,
    "DEFAULT_QUEUE": DEFAULT_QUEUE,
    "MANY_RUNS": MANY_RUNS,
    "MAX_BIGINT": MAX_BIGINT,
    "LARGE_RUN": LARGE_RUN,
    "LEFTOVER_ROWS": LEFTOVER_ROWS,
    "CHUNK_ITEMS": CHUNK_ITEMS,
    "CHUNK_BYTES": CHUNK_BYTES,
    "NOT_CONSUMABLE": NOT_CONSUMABLE,
    "FENCED": FENCED,
    "STALE_RETRY": STALE_RETRY,
    "PREDICTION_FAILED": PREDICTION_FAILED,
    "FAILED_OVER": FAILED_OVER,
    "LOST_RUN_IDS": _LOST_RUN_IDS,
    "MAX_INTEGER": _MAX_INTEGER,
    "WAKE_RETRY_MS": _WAKE_RETRY_MS,
    "TURN_RETRY_MS": _TURN_RETRY_MS,
    "GRANTED_AT_ONCE": _GRANTED_AT_ONCE,
    "GRANTED_BY_RATE": _GRANTED_BY_RATE,
    "REPLACED": REPLACED,
    "SUPERSEDED": SUPERSEDED.replace("'", "''"),
    "MAX_GATHERED": _MAX_GATHERED,
    "NO_ROOM": _NO_ROOM,
}


def sql_literals() -> dict[str, str]:
    """SQL literals by the names that stand for them: of constants, of members of enums, and of all members."""
    literals = {name: _literal(value) for name, value in _VALUES.items()}
    for enum in ENUMS:
        members = {f"{enum.__name__}.{name}": _literal(member.value) for name, member in enum.__members__.items()}
        literals |= members
        literals[enum.__name__] = ", ".join(members.values())
    return literals


def _literal(value: str | int) -> str:
    return str(int(value)) if isinstance(value, int) else f"'{value}'"
