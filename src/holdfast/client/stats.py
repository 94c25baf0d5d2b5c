"""Statistics of the database, for people and for metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from holdfast.core.model import from_ms
from holdfast.core.records import QueueInfo, Stats, StepStats, WorkerInfo
from holdfast.store.protocol import StatsQuery, StepTimes, Store, StoreStats, Tally

CACHED_SECONDS = 5.0
_PART = 10_000


class StatsReader:
    """Reads statistics; repeated reads within five seconds get the same figures."""

    def __init__(self, store: Store, monotonic: Callable[[], float]) -> None:
        self._store = store
        self._monotonic = monotonic
        self._cached: dict[StatsQuery, tuple[float, StoreStats]] = {}
        self._lock = asyncio.Lock()

    async def counts(self) -> StoreStats:
        """The figures of the gauges, at most five seconds old. Concurrent calls share one query."""
        return await self.cached(StatsQuery())

    async def read(self) -> Stats:
        return _stats(await self.cached(StatsQuery(details=True)))

    async def cached(self, query: StatsQuery) -> StoreStats:
        async with self._lock:
            cached = self._cached.get(query)
            if cached is None or self._monotonic() - cached[0] >= CACHED_SECONDS:
                cached = self._cached[query] = (self._monotonic(), await self._read(query))
            return cached[1]

    async def fresh(self, query: StatsQuery = StatsQuery(details=True)) -> Stats:  # noqa: B008  (immutable)
        """Statistics as they are now."""
        return _stats(await self._read(query))

    async def queues(self, workers: list[WorkerInfo], paused: frozenset[str]) -> list[QueueInfo]:
        """The queues that have tasks or living workers, and the paused ones."""
        counts = {queue.queue: queue for queue in (await self._read(StatsQuery())).queues}
        serving: dict[str, int] = dict.fromkeys([*counts, *paused], 0)
        for worker in workers:
            for queue in worker.queues if worker.alive else ():
                serving[queue] = serving.get(queue, 0) + 1
        found = []
        for name in sorted(serving):
            count = counts.get(name)
            oldest = None if count is None or count.oldest_due is None else from_ms(count.oldest_due)
            due, running = (0, 0) if count is None else (count.due, count.running)
            found.append(QueueInfo(name, due, oldest, running, serving[name], name in paused))
        return found

    async def _read(self, query: StatsQuery) -> StoreStats:
        while await self._store.maintain(Tally(_PART)):
            pass
        return await self._store.read(query)


def _stats(found: StoreStats) -> Stats:
    runs: dict[str, dict[str, int]] = {}
    for count in found.runs:
        runs.setdefault(count.workflow, {})[count.status] = count.count
    due_times = [queue.oldest_due for queue in found.queues if queue.oldest_due is not None]
    return Stats(
        runs=runs,
        started_per_minute=found.started_last_minute,
        ended_per_minute=found.ended_last_minute,
        started_last_hour=found.started_last_hour,
        ended_last_hour=found.ended_last_hour,
        due=sum(queue.due for queue in found.queues),
        oldest_due=from_ms(min(due_times)) if due_times else None,
        workers=found.workers_alive,
        errors={error.name: error.count for error in found.errors},
        slowest_steps=[_step(step) for step in found.slowest_steps],
        step_p95={step.workflow: step.p95_ms / 1000 for step in found.workflow_steps},
    )


def _step(times: StepTimes) -> StepStats:
    mean, longest, p50, p95 = (ms / 1000 for ms in (times.mean_ms, times.max_ms, times.p50_ms, times.p95_ms))
    return StepStats(times.workflow, times.step or "", times.count, mean, longest, p50, p95)
