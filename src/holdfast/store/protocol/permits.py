"""Limits and permits: maxima of the attempts and runs that are in progress at the same time, and of starts per time.

A **limit** has a name, a maximum of concurrent permits (``concurrency``) and a maximum rate (``Pace``); both hold for
each key of the limit separately. A **permit** is the right of one attempt, unit or run to be in progress under all of
its limits. It *waits*, is *granted*, and is *held* once an exchange has reported the grant to its owner. A granted or
held permit counts towards all of its limits; a waiting permit counts towards none.

A permit belongs to its task. Every write that ends the ownership of the task (release, loss, pause, end, takeover)
deletes the task's permits in the same transaction, by triggers of the database; the exceptions are permits that were
parked under the claim that ends, and held permits that are kept until the end of the run (``PermitRequest.until_end``).

Permits with equal limits and keys form a **group**. All permits of a group wait for the same limit, so only groups are
moved when a limit has room. A group waits at a limit that has no room (the *blocking* limit). A **freed** limit may
have room although groups wait at it, until the next ``exchange_permits`` grants the permits that it has room for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from holdfast.store.protocol.control import Audit
from holdfast.store.protocol.requests import Query
from holdfast.store.protocol.units import TaskRef


class Pace(NamedTuple):
    """A rate: ``permits`` in ``per_ms`` on average, and at most ``burst`` at once (GCRA)."""

    permits: int
    per_ms: int
    burst: int

    @property
    def interval(self) -> int:
        """Microseconds between two permits, rounded up so that the rate is not exceeded."""
        return -(-self.per_ms * 1000 // self.permits)


@dataclass(frozen=True, slots=True)
class LimitValues:
    """The values of a limit. ``weights``: the shares of keys under a fair limit, 1 for a key that has none."""

    concurrency: int | None = None
    rate: Pace | None = None
    fair: bool = False
    weights: Mapping[str, float] = field(default_factory=dict)


class LimitKey(NamedTuple):
    """A limit and one of its keys; the key of a limit without keys is empty."""

    name: str
    key: str = ""


def ordered_limits(keys: Sequence[LimitKey]) -> list[LimitKey]:
    """Limits in the order in which they are settled: limits with keys first, which have room for fewer permits."""
    return sorted(set(keys), key=lambda one: (one.key == "", one))


# --- requests about limits


@dataclass(frozen=True, slots=True)
class DeclareLimits:
    """Store the limits that the code declares.

    A limit that was changed at run time keeps its values until the code declares others than before.
    """

    declared: Mapping[str, LimitValues]


@dataclass(frozen=True, slots=True)
class ChangeLimit:
    """Set values of a limit at run time. Permits that are held stay held, also above a lower limit."""

    name: str
    values: LimitValues
    audit: Audit | None = None


class ReadLimits(NamedTuple):
    """Read limits: all, or one; with the use of one key, or the sum over all keys (None)."""

    name: str | None = None
    key: str | None = None


LimitRequest = DeclareLimits | ChangeLimit | ReadLimits


@dataclass(frozen=True, slots=True)
class LimitRecord:
    """A stored limit and its use."""

    name: str
    values: LimitValues
    declared: LimitValues | None
    """The values in the code; None: the limit was created at run time."""
    used: int
    """Permits that are granted or held."""
    waiting: int
    """Permits that wait at this limit."""
    oldest_waiting: int | None
    """The time of the first request of a permit that still waits at this limit; None: no permit waits."""
    keys: int
    """Keys with permits in use."""
    tokens: int = 0
    """Tokens of the rate's burst that are taken, under the key that has taken the most."""


class StoredLimit(NamedTuple):
    """The row of a limit in both stores."""

    name: str
    values: LimitValues
    declared: str | None
    """The values in the code, as ``declared_text`` writes them."""

    @classmethod
    def of_row(cls, row: Sequence[Any]) -> StoredLimit:
        name, concurrency, count, per_ms, burst, fair, weights, declared = row
        rate = None if count is None else Pace(count, per_ms, burst)
        return cls(name, LimitValues(concurrency, rate, bool(fair), json.loads(weights)), declared)

    def row(self) -> tuple[Any, ...]:
        rate = (None, None, None) if self.values.rate is None else self.values.rate
        weights = json.dumps(dict(self.values.weights))
        return (self.name, self.values.concurrency, *rate, self.values.fair, weights, self.declared)

    def record(
        self, used: int, waiting: int, oldest_waiting: int | None, keys: int, tat: int, now_ms: int
    ) -> LimitRecord:
        """``tat``: the latest theoretical arrival time of its keys, in microseconds."""
        declared, tokens, pace = None, 0, self.values.rate
        if pace is not None:
            tokens = min(pace.burst, max(0, -((now_ms * 1000 - tat) // pace.interval)))
        if self.declared is not None:
            concurrency, rate, fair, weights = json.loads(self.declared)
            declared = LimitValues(concurrency, None if rate is None else Pace(*rate), fair, weights)
        return LimitRecord(self.name, self.values, declared, used, waiting, oldest_waiting, keys, tokens)


def declared_text(values: LimitValues) -> str:
    """The values in the code as text. Equal values have equal texts."""
    return json.dumps([values.concurrency, values.rate, values.fair, dict(values.weights)], sort_keys=True)


# --- requests about permits


@dataclass(frozen=True, slots=True)
class PermitRequest:
    """Request a permit for an attempt, a unit or a run; a repeated request returns the same permit."""

    task: TaskRef
    step: str
    """The key of the step; empty for the task as a whole."""
    attempt: int
    limits: Sequence[LimitKey]
    priority: int = 0
    until_end: bool = False
    """Hold the permit until the run ends, also while its task has no owner."""
    park: bool = False
    """If the permit has to wait, release the task in the same transaction. A grant makes the task due."""


class PermitReturn(NamedTuple):
    """Return a permit, or withdraw a waiting one. Ignored if the task has another owner by now."""

    task: TaskRef
    step: str
    attempt: int


@dataclass(frozen=True, slots=True)
class PermitExchange:
    """One exchange of a worker: returns first, then requests; then everything that has room is granted."""

    owner: str
    returns: Sequence[PermitReturn] = ()
    requests: Sequence[PermitRequest] = ()

    @property
    def empty(self) -> bool:
        return not (self.returns or self.requests)


class PermitResult(Enum):
    HELD = 1
    WAITING = 2
    LOST = 3
    """The fence did not hold; nothing was written."""


class GrantedPermit(NamedTuple):
    """A permit that had to wait, and that its owner holds now."""

    run: int
    unit: int
    step: str
    attempt: int
    epoch: int


@dataclass(frozen=True, slots=True)
class PermitReply:
    results: Sequence[PermitResult] = ()
    """One for each request."""
    granted: Sequence[GrantedPermit] = ()
    """Permits of tasks that the worker owns, granted since its last exchange."""
    due: bool = False
    """True if tasks that no worker owns became due."""
    next_at: int | None = None
    """The time at which a rate has room again; None: no permit waits for a rate."""


class PermitPosition(NamedTuple):
    """A permit of a run that waits, for ``why``."""

    step: str
    limit: LimitKey
    """The limit that has no room."""
    used: int
    concurrency: int | None
    before: int | None
    """Number of permits that will be granted first under this limit; None: not known exactly."""
    waiting: int
    ready_at: int | None
    """The time at which the rate has room; None: the permit waits for a permit to be returned."""


@dataclass(frozen=True, slots=True)
class PermitPositionsQuery(Query[list[PermitPosition]]):
    """The waiting permits of a run, with the limits that have no room."""

    run: int


class LimitKeyUse(NamedTuple):
    """The use of one key of a limit."""

    key: str
    used: int
    waiting: int
    oldest_waiting: int | None = None
    """The time of the first request of a permit that still waits."""


class LimitKeyUses(NamedTuple):
    total: int
    """Number of keys that have permits in use or waiting permits."""
    keys: Sequence[LimitKeyUse]
    """The keys with the most waiting permits first."""


@dataclass(frozen=True, slots=True)
class LimitKeysQuery(Query[LimitKeyUses]):
    """The use of a limit by key. The cost grows with the number of keys in use, not with that of waiting permits."""

    name: str
    limit: int
    """Maximum number of keys."""
