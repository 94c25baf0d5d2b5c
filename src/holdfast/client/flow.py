"""Reads and changes of limits, queues and workers by operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from holdfast.client.audit import audit
from holdfast.core.checks import check_text
from holdfast.core.durations import describe
from holdfast.core.model import from_ms
from holdfast.core.rate import Rate
from holdfast.core.records import LimitInfo
from holdfast.errors import LimitNotFoundError, WorkerNotFoundError
from holdfast.kernel.definition import Registry
from holdfast.kernel.flow import Limit, check_limit, check_queue, limit_values
from holdfast.kernel.notify import Hub
from holdfast.store.protocol import (
    Audit,
    ChangeLimit,
    DeclareLimits,
    DrainWorker,
    LimitKeysQuery,
    LimitKeyUses,
    LimitRecord,
    LimitValues,
    MoveQueue,
    PauseQueue,
    PermitPosition,
    ReadLimits,
    ReadQueues,
    Store,
    WorkersQuery,
)

KEEP: Any = object()
"""Leaves a value of a limit as it is."""


class LimitChanges(TypedDict, total=False):
    """The values of ``set_limit``."""

    concurrency: int | None
    rate: Rate | None
    fair: bool
    weights: Mapping[str, float] | None
    reason: str | None


class Flow:
    """Reads and changes limits, pauses and moves queues, drains workers."""

    def __init__(self, store: Store, registry: Registry, hub: Hub) -> None:
        self._store = store
        self._registry = registry
        self._hub = hub
        self._declared = frozenset[str]()
        """The limits that ``declare`` has stored."""

    async def declare(self) -> None:
        """Store the limits that the code declares: a start may be decided by them before a worker has stored them."""
        declared = {name: limit.values() for name, limit in self._registry.limits.items()}
        if declared.keys() - self._declared:
            await self._store.limits(DeclareLimits(declared))
            self._declared = frozenset(declared)

    async def limits(self) -> list[LimitInfo]:
        return [_info(record) for record in await self._store.limits(ReadLimits())]

    async def limit_keys(self, name: str, count: int) -> LimitKeyUses:
        """The use of a limit by key, the ``count`` keys with the most waiting attempts, nodes and runs."""
        if not await self._store.limits(ReadLimits(name)) and name not in self._registry.limits:
            raise _no_limit(name)
        return await self._store.read(LimitKeysQuery(name, count))

    async def set_limit(
        self,
        name: str,
        *,
        concurrency: int | None = KEEP,
        rate: Rate | None = KEEP,
        fair: bool = KEEP,
        weights: Mapping[str, float] | None = KEEP,
        reason: str | None = None,
    ) -> LimitInfo:
        """Change values of a limit that is stored, or declared by this process."""
        stored = await self._store.limits(ReadLimits(check_text("name", name)))
        if not stored and name not in self._registry.limits:
            raise _no_limit(name)
        old = stored[0].values if stored else self._registry.limits[name].values()
        kept = Limit(
            name,
            old.concurrency if concurrency is KEEP else concurrency,
            _rate(old) if rate is KEEP else rate,
            fair=old.fair if fair is KEEP else fair,
            weights=old.weights if weights is KEEP else weights,
        )
        check_limit(kept)
        values = limit_values(kept.concurrency, kept.rate, fair=kept.fair, weights=kept.weights)
        [record] = await self._store.limits(ChangeLimit(name, values, audit("limit_change", reason)))
        self._hub.limits_changed()
        return _info(record)

    # --- queues

    async def pause_queue(self, name: str, *, reason: str | None = None) -> None:
        await self._store.queues(PauseQueue(check_queue(name), True, audit("queue_pause", reason)))

    async def resume_queue(self, name: str, *, reason: str | None = None) -> None:
        await self._store.queues(PauseQueue(check_queue(name), False, audit("queue_resume", reason)))
        self._hub.work()

    async def move_queue(self, source: str, target: str, *, reason: str | None = None) -> int:
        move = MoveQueue(check_queue(source), check_queue(target), audit("queue_move", reason))
        reply = await self._store.queues(move)
        self._hub.work()
        return reply.moved

    # --- workers

    async def drain_worker(self, id: str, *, reason: str | None = None) -> None:
        await self._set_draining(id, True, audit("worker_drain", reason))

    async def resume_worker(self, id: str, *, reason: str | None = None) -> None:
        await self._set_draining(id, False, audit("worker_resume", reason))

    async def _set_draining(self, id: str, draining: bool, record: Audit) -> None:
        if not any(row.alive and row.profile.id == id for row in await self._store.read(WorkersQuery())):
            raise WorkerNotFoundError(f"there is no living worker {id!r}")
        await self._store.queues(DrainWorker(id, draining, record))

    async def paused_queues(self) -> frozenset[str]:
        return (await self._store.queues(ReadQueues())).paused


def _no_limit(name: str) -> LimitNotFoundError:
    return LimitNotFoundError(f"there is no limit {name!r}: no worker has declared it, and neither does this app")


def _rate(values: LimitValues) -> Rate | None:
    pace = values.rate
    return None if pace is None else Rate.unchecked(pace.permits, describe(pace.per_ms), pace.burst)


def _info(record: LimitRecord) -> LimitInfo:
    values = record.values
    return LimitInfo(
        record.name, values.concurrency, _rate(values), values.fair, values.weights, record.used, record.waiting,
        record.keys, changed=record.declared != values, rate_used=record.tokens,
        oldest_waiting=None if record.oldest_waiting is None else from_ms(record.oldest_waiting),
    )  # fmt: skip


def why_limited(positions: Sequence[PermitPosition]) -> str:
    """The clause of ``why`` about the permits that a run waits for; empty if it waits for none."""
    return "; ".join(map(_clause, positions))


def _clause(position: PermitPosition) -> str:
    of = f" of key {position.limit.key!r}" if position.limit.key else ""
    what = f"step {position.step!r} waits" if position.step else "waiting"
    if position.ready_at is not None:
        room = f"its rate has room at {from_ms(position.ready_at):%Y-%m-%d %H:%M:%S} UTC"
    else:
        room = f"{position.used} of {position.concurrency} in use"
    before = "many" if position.before is None else str(position.before)
    return f"{what} for limit {position.limit.name!r}{of} ({room}, {before} before it)"
