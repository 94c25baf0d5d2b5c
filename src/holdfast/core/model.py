"""Statuses and kinds of runs, steps and tasks, and times in milliseconds. ``records.py`` has what users read."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import IntEnum, StrEnum
from typing import Literal, TypeAlias

DEFAULT_KIND = "workflow"
"""The kind that a list of instances omits."""

DEFAULT_QUEUE = "default"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def to_ms(when: datetime) -> int:
    """Milliseconds since 1970-01-01 UTC, the only form in which a store keeps a time."""
    return (when - _EPOCH) // _MILLISECOND


def optional_to_ms(when: datetime | None) -> int | None:
    return None if when is None else to_ms(when)


def from_ms(ms: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=ms)


def optional_from_ms(ms: int | None) -> datetime | None:
    return None if ms is None else from_ms(ms)


class Status(StrEnum):
    ACTIVE = "active"
    WAITING = "waiting"
    PAUSED = "paused"
    COMPLETE = "complete"
    ERRORED = "errored"
    TERMINATED = "terminated"
    CANCELLED = "cancelled"

    @property
    def terminal(self) -> bool:
        return self in TERMINAL


TERMINAL = frozenset({Status.COMPLETE, Status.ERRORED, Status.TERMINATED, Status.CANCELLED})


class StepType(StrEnum):
    DO = "do"
    NODE = "node"
    SLEEP = "sleep"
    WAIT = "waitForEvent"
    VERSION = "version"
    CHILD = "child"
    SEND = "send"
    ASK = "ask"
    REPLY = "reply"
    MONITOR = "monitor"
    UNMONITOR = "unmonitor"
    LINK = "link"
    UNLINK = "unlink"
    CANCEL = "cancel"
    TERMINATE = "terminate"
    # Recorded and replayed, but not shown as steps:
    TIMER = "timer"  # an anonymous wait, such as asyncio.sleep
    MESSAGE = "message"  # an event that was delivered to a channel
    WATCH = "watch"  # a watch that the engine sets or removes, such as that of an ask
    NOTE = "note"  # a logged warning; the fact keeps a replay from logging it again


class StepStatus(StrEnum):
    PENDING = "pending"
    WAITING = "waiting"
    COMPLETED = "completed"
    ERRORED = "errored"


class TaskKind(IntEnum):
    """The reason for which a task is due. Runs that continue are claimed before runs that start."""

    WAKE = 0
    RETRY = 1
    RESUME = 2
    RUN = 3

    @property
    def bucket(self) -> int:
        return 1 if self is TaskKind.RUN else 0


class Level(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARN = "warn"
    ERROR = "error"


StatusName: TypeAlias = Literal["active", "waiting", "paused", "complete", "errored", "terminated", "cancelled"]
LevelName: TypeAlias = Literal["debug", "info", "warn", "warning", "error"]
