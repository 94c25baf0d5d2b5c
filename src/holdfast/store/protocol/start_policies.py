"""Start policies: the rules by which the transaction of a start creates a run, or finds the run for the start.

A run that was started as a **singleton** belongs to a group: the open runs of a workflow with the same key. At most one
run of a group is executed at a time. The others are **held**: their tasks have no due time until the run before them
has ended. A trigger of the database releases the next one, however that run ended. Successors of a run keep its place.

A debounced or batched run is **pending** until a worker claims it: later starts with the same key change the run, and
create none. A debounced start replaces the params and moves the due time; a batched start appends an item.

A **limited** start creates a run only if the limits of the run have room. The run has its permit from the start.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.store.protocol.permits import LimitKey

REPLACED = "replaced"
"""The reason of a run that ended because a later start replaced it before it began."""
SUPERSEDED = "another run was started with singleton='cancel_running'"


class OnSingleton(StrEnum):
    """Effect of a start while a run of its group is open."""

    SKIP = "skip"
    """The open run stands for this start."""
    QUEUE = "queue"
    CANCEL_RUNNING = "cancel_running"
    """Cancel the runs that have begun, and replace those that have not."""
    REPLACE_WAITING = "replace_waiting"
    """Replace the runs that have not begun."""


@dataclass(frozen=True, slots=True)
class SingletonStart:
    key: str
    on_open: OnSingleton


@dataclass(frozen=True, slots=True)
class DebouncedStart:
    """A debounced start. ``NewRun.delay_ms`` is the time to wait for another one.

    A pending run is due at most ``max_wait_ms`` after its first start.
    """

    key: str
    max_wait_ms: int | None = None


@dataclass(frozen=True, slots=True)
class BatchedStart:
    """A batched start. ``NewRun.params`` is a list of one item, ``NewRun.delay_ms`` the time to wait for more.

    A batch is due at once when it has ``size`` items. An item that would make the params longer than ``max_bytes``
    begins another batch, and makes the present batch due.
    """

    key: str
    size: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class LimitedStart:
    """Take the permit of the run with its start. Without room, the start is rejected, or recorded as cancelled."""

    limits: Sequence[LimitKey]
    reject: bool
    until_end: bool = False


StartPolicy = SingletonStart | DebouncedStart | BatchedStart | LimitedStart


def gather_key(policy: DebouncedStart | BatchedStart) -> str:
    """The key by which starts find the pending run. Debounced and batched starts do not share runs."""
    return f"{'debounce' if isinstance(policy, DebouncedStart) else 'batch'} {policy.key}"


def dropped_reason(limit: str) -> str:
    """The reason of a start that was dropped."""
    return f"dropped: limit {limit!r} has no room"


SINGLE = "single"
"""The name of the group in the options of a run, from which successors inherit it."""


def single_of(options: bytes | None) -> str | None:
    """The group of a run, in the stored form of its options."""
    if options is None or b'"single":' not in options:
        return None
    key: str | None = json.loads(options).get(SINGLE)
    return key
