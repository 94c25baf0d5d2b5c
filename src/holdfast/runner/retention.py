"""The retention loop: deletes finished runs that are older than the ``Retention`` of their workflow.

Runs are deleted in small transactions with pauses between them, so that the loop uses at most a tenth of one
connection's time. Every worker has this loop; workers skip the runs that another worker is deleting.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import NamedTuple

from holdfast.core.durations import to_ms
from holdfast.core.model import Status
from holdfast.kernel.definition import Registry
from holdfast.ports import Randomness
from holdfast.runner.background_loop import BackgroundLoop
from holdfast.store.protocol import Pruned, PrunePosition, PruneRuns, Store
from holdfast.store.protocol.streams import PruneStreams

_log = logging.getLogger("holdfast")

PAUSE_SECONDS = 60.0
"""Time between two passes."""
_FIRST_PASS_SECONDS = 30.0
"""Maximum time between the start of a worker and its first pass."""
_CHECK_SECONDS = 3600.0
"""Time between two checks of the number of stored runs, in an app without retention."""
MANY_RUNS = 1_000_000
_FIRST_LIMIT, _MAX_LIMIT = 10, 200
_TARGET_SECONDS = 0.01
"""A batch that takes longer is followed by smaller ones. No lock may be held for more than 50 ms."""
_PAUSE_FACTOR = 9


class _Rule(NamedTuple):
    workflow: str
    status: Status
    age_ms: int
    keep: int


class RetentionLoop:
    """Deletes finished runs of the workflows that this process implements."""

    def __init__(self, store: Store, registry: Registry, random: Randomness) -> None:
        self.loop = BackgroundLoop("retention", self._step, random)
        self._store = store
        self._registry = registry
        self._random = random
        self._limit = _FIRST_LIMIT
        self._started = False
        self._warned = False

    async def _step(self) -> float:
        if not self._started:
            self._started = True
            return _FIRST_PASS_SECONDS * self._random.random()  # many workers start at the same time
        if not any(self._rules()) and not any(self._stream_rules()):
            await self._check_size()
            return _CHECK_SECONDS
        await self.prune(pausing=True)
        return PAUSE_SECONDS * (0.9 + 0.2 * self._random.random())

    async def prune(self, *, pausing: bool = False) -> int:
        """Delete all runs that are old enough; returns their number. ``pausing``: pause between transactions."""
        deleted = 0
        for rule in self._rules():
            count = await self._prune(rule, pausing=pausing)
            if count:
                _log.info("retention: deleted %d %s runs of %s", count, rule.status.value, rule.workflow)
            deleted += count
        for workflow, age_ms in self._stream_rules():
            await self._prune_streams(PruneStreams(workflow, age_ms), pausing=pausing)
        return deleted

    async def _prune_streams(self, request: PruneStreams, *, pausing: bool) -> None:
        while await self._store.maintain(request) == request.limit:
            if pausing:
                await asyncio.sleep(_TARGET_SECONDS * _PAUSE_FACTOR)

    def _stream_rules(self) -> Iterator[tuple[str, int]]:
        for definition in self._registry:
            retention = definition.retention or self._registry.retention
            if definition.runnable and retention is not None and retention.streams is not None:
                yield definition.name, to_ms(retention.streams)

    async def _prune(self, rule: _Rule, *, pausing: bool) -> int:
        deleted, position = 0, PrunePosition()
        while True:
            pruned = await self._store.maintain(
                PruneRuns(rule.workflow, rule.status, rule.age_ms, rule.keep, position, self._limit)
            )
            deleted += pruned.runs
            self._adapt(pruned)
            if pruned.next is None:
                return deleted
            position = pruned.next
            if pausing:
                await asyncio.sleep(pruned.seconds * _PAUSE_FACTOR)

    def _adapt(self, pruned: Pruned) -> None:
        if pruned.seconds > _TARGET_SECONDS:
            self._limit = max(1, self._limit // 2)
        elif pruned.runs:
            self._limit = min(_MAX_LIMIT, self._limit * 2)

    def _rules(self) -> Iterator[_Rule]:
        for definition in self._registry:
            retention = definition.retention or self._registry.retention
            if definition.runnable and retention is not None:
                for status, age_ms in retention.rules():
                    yield _Rule(definition.name, status, age_ms, retention.keep)

    async def _check_size(self) -> None:
        if self._warned:
            return
        pruned = await self._store.maintain(PruneRuns("", Status.COMPLETE, 0, limit=0))
        if pruned.stored >= MANY_RUNS:
            self._warned = True
            _log.warning(
                "the database has about %d runs, and finished runs are kept for ever: set Holdfast(retention=...), "
                "or delete old runs with `holdfast prune`",
                pruned.stored,
            )
