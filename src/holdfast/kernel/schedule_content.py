"""The content of a schedule: its spec, its policies and the start options of its runs, checked and in stored form."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from typing import Any, Literal

from holdfast.core import codec
from holdfast.core.checks import check_enum
from holdfast.core.durations import Duration, describe, option_ms
from holdfast.core.model import DEFAULT_QUEUE, optional_from_ms
from holdfast.core.schedule_spec import ScheduleSpec
from holdfast.errors import InvalidOptionError


class Overlap(StrEnum):
    """Policy for a tick while an earlier run of the schedule has not ended."""

    SKIP = "skip"
    QUEUE_ONE = "queue_one"
    QUEUE_ALL = "queue_all"
    CANCEL_RUNNING = "cancel_running"
    TERMINATE_RUNNING = "terminate_running"
    ALLOW = "allow"


LAST = "last"

OverlapName = Literal["skip", "queue_one", "queue_all", "cancel_running", "terminate_running", "allow"]


@dataclass(frozen=True, slots=True)
class ScheduleContent:
    """The spec, the policies and the start options of a schedule, without its workflow and params."""

    spec: ScheduleSpec
    overlap: Overlap = Overlap.SKIP
    catch_up: int | Literal["last"] | None = None
    """Missed ticks: None skips all, LAST starts the latest, a number starts those of that many past milliseconds."""
    queue: str = DEFAULT_QUEUE
    priority: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    """Start options in the stored form of ``RunOptions``."""

    def encode(self) -> bytes:
        content = {
            "spec": self.spec.content(),
            "overlap": self.overlap.value,
            "catchUp": self.catch_up,
            "queue": self.queue,
            "priority": self.priority,
            "options": dict(self.options),
        }
        return codec.encode(content, what="schedule")

    @classmethod
    def decode(cls, data: bytes) -> ScheduleContent:
        return _decode(data)

    def catch_up_text(self) -> str | None:
        """The policy for missed ticks as users write it."""
        return describe(self.catch_up) if isinstance(self.catch_up, int) else self.catch_up

    def changed(self, changes: Mapping[str, Any]) -> ScheduleContent:
        """The content with some options of ``read_content`` replaced."""
        spec = self.spec
        if any(name in SPEC_OPTIONS for name in changes):
            spec = changed_spec(spec, {name: value for name, value in changes.items() if name in SPEC_OPTIONS})
        policies: dict[str, Any] = {}
        if "overlap" in changes:
            policies["overlap"] = check_enum("overlap", changes["overlap"], Overlap)
        if "catch_up" in changes:
            policies["catch_up"] = read_catch_up(changes["catch_up"])
        return replace(self, spec=spec, **policies)


@lru_cache(maxsize=20_000)
def _decode(data: bytes) -> ScheduleContent:
    content = codec.plain_object(data, "schedule")
    return ScheduleContent(
        ScheduleSpec.of_content(content["spec"]),
        Overlap(content["overlap"]),
        content["catchUp"],
        content["queue"],
        content["priority"],
        content["options"],
    )


SPEC_OPTIONS = ("cron", "every", "offset", "calendar", "exclude", "timezone", "start", "end", "jitter")
POLICY_OPTIONS = ("overlap", "catch_up")
_TICKS = ("cron", "every", "calendar")


def read_content(
    *,
    cron: str | Sequence[str] | None = None,
    every: Duration | None = None,
    offset: Duration | None = None,
    calendar: str | Sequence[str] | None = None,
    exclude: Any = None,
    timezone: str = "UTC",
    start: datetime | None = None,
    end: datetime | None = None,
    jitter: Duration | None = None,
    overlap: str = "skip",
    catch_up: Duration | None = None,
) -> ScheduleContent:
    """Check the options of a schedule."""
    spec = ScheduleSpec.read(
        cron=cron, every=every, offset=offset, calendar=calendar, exclude=exclude, timezone=timezone, start=start,
        end=end, jitter=jitter,
    )  # fmt: skip
    return ScheduleContent(spec, check_enum("overlap", overlap, Overlap), read_catch_up(catch_up))


def read_catch_up(value: Any) -> int | Literal["last"] | None:
    if value is None:
        return None
    if value == LAST:
        return "last"
    try:
        return option_ms("catch_up", value)
    except InvalidOptionError as error:
        raise InvalidOptionError(f"{error}; or 'last', or None") from None


def changed_spec(spec: ScheduleSpec, changes: Mapping[str, Any]) -> ScheduleSpec:
    """A spec with some options replaced. A new ``cron``, ``every`` or ``calendar`` also removes the other two."""
    given: dict[str, Any] = {
        "timezone": spec.timezone, "exclude": list(spec.exclude), "cron": list(spec.cron),
        "calendar": list(spec.calendar), "every": None if spec.every_ms is None else spec.every_ms / 1000,
        "offset": spec.offset_ms / 1000 if spec.offset_ms else None,
        "jitter": spec.jitter_ms / 1000 if spec.jitter_ms else None,
        "start": optional_from_ms(spec.start), "end": optional_from_ms(spec.end),
    }  # fmt: skip
    if any(changes.get(name) is not None for name in _TICKS):
        given |= {"cron": None, "calendar": None, "every": None, "offset": None}
    return ScheduleSpec.read(**(given | dict(changes)))


def digest(workflow: str, content: ScheduleContent, params: bytes | None, paused: bool) -> str:
    """A digest of a declaration, by which a later start of the program recognises that the code has changed."""
    text = b"\0".join((workflow.encode(), content.encode(), params or b"", b"p" if paused else b""))
    return hashlib.sha256(text).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Declaration:
    """A schedule that the code declares."""

    name: str
    workflow: str
    content: ScheduleContent
    params: bytes | None
    paused: bool = False

    @property
    def digest(self) -> str:
        return digest(self.workflow, self.content, self.params, self.paused)
