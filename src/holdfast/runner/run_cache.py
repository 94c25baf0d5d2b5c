"""Caches of a worker for the graph runs of which it owns units."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

from holdfast.kernel.model import Model
from holdfast.kernel.telemetry import Telemetry
from holdfast.kernel.unit_driver import PLAN_KEY, UnitDriver, Units
from holdfast.runner import report
from holdfast.runner.turn_context import TurnContext
from holdfast.store.protocol import Advance, Fact, FactsQuery, FactState, Finish, RunRecord, TaskRef

_MAX_CACHED_BYTES = 16 * 1024 * 1024


class RunCache:
    """The opened units of a run, and results that its units read; kept while the worker owns any of the units."""

    def __init__(self, run: RunRecord, driver: UnitDriver) -> None:
        self.run = run
        self.owned_units: set[int] = set()
        self.started = run.started_at is not None
        self._driver = driver
        self._units: asyncio.Future[Units] | None = None
        self.opened: Units | None = None
        """The units, once they are open."""
        self._results: dict[str, Fact] = {}
        self._size = 0

    async def units(self, context: TurnContext) -> Units:
        """The units of the run; the first caller reads the plan and opens them."""
        if self._units is None:
            self._units = asyncio.get_running_loop().create_future()
            try:
                self.open(await self.plan(self.run, context), context)
            except BaseException as error:
                opened, self._units = self._units, None
                opened.set_exception(error if isinstance(error, Exception) else RuntimeError("opening was cancelled"))
                opened.exception()  # the error is raised below, so the future must not log it as unretrieved
                raise
        return await asyncio.shield(self._units)  # without the shield, one cancelled caller would cancel all

    def open(self, plan: bytes, context: TurnContext) -> None:
        if self._units is None:
            self._units = asyncio.get_running_loop().create_future()
        self.opened = self._driver.open(self.run, plan, context.ports.requests)
        self._units.set_result(self.opened)

    @staticmethod
    async def plan(run: RunRecord, context: TurnContext) -> bytes:
        facts = await context.call_store(
            run, lambda: context.store.read(FactsQuery(run.run, FactState.PLAN, [PLAN_KEY]))
        )
        if not facts or facts[0].value is None:
            raise RuntimeError("there is no plan stored with this run")
        return facts[0].value

    def cached_results(self, keys: Sequence[str]) -> Mapping[str, Fact] | None:
        """RESULT facts by key; None if the cache lacks one of them."""
        cached = self._results
        results: dict[str, Fact] = {}
        for key in keys:
            if key not in cached:
                return None
            results[key] = cached[key]
        return results

    def all_results(self) -> Sequence[Fact]:
        """The cached RESULT facts, in the order in which the store returns them."""
        return [fact for _, fact in sorted(self._results.items())]

    async def results(self, keys: Sequence[str], context: TurnContext) -> Mapping[str, Fact]:
        """RESULT facts by key, from the cache or from the store."""
        results = {key: self._results[key] for key in keys if key in self._results}
        missing = [key for key in keys if key not in results]
        if missing:
            run = self.run
            read = await context.call_store(
                run, lambda: context.store.read(FactsQuery(run.run, FactState.RESULT, missing))
            )
            for fact in read:
                results[fact.key] = fact
                self.remember(fact)
        return results

    def remember(self, fact: Fact) -> None:
        """Cache a result, and evict the oldest ones beyond the size limit: recent results are needed next."""
        if fact.key in self._results:
            return
        self._results[fact.key] = fact
        self._size += len(fact.value or b"")
        while self._size > _MAX_CACHED_BYTES:
            oldest = next(iter(self._results))
            self._size -= len(self._results.pop(oldest).value or b"")


class RunCaches:
    """The caches of a worker's graph runs, by run."""

    def __init__(self, telemetry: Telemetry | None) -> None:
        self._caches: dict[int, RunCache] = {}
        self._telemetry = telemetry

    def __len__(self) -> int:
        return len(self._caches)

    def get(self, run: int) -> RunCache | None:
        return self._caches.get(run)

    def own(
        self, task: TaskRef, run: RunRecord, driver: UnitDriver, plan: Sequence[Fact], context: TurnContext
    ) -> RunCache:
        """The cache of a run, with one more unit that this worker owns. ``plan``: the PLAN facts, if known."""
        run_cache = self._caches.get(task.run)
        if run_cache is None:
            run_cache = self._caches[task.run] = RunCache(run, driver)
            for fact in plan:
                if fact.value is not None:
                    run_cache.open(fact.value, context)
        run_cache.owned_units.add(task.unit)
        return run_cache

    def disown(self, task: TaskRef) -> None:
        """Remove a unit from those that this worker owns; a cache without units is dropped."""
        run_cache = self._caches.get(task.run)
        if run_cache is not None:
            run_cache.owned_units.discard(task.unit)
            if not run_cache.owned_units:
                del self._caches[task.run]

    def clear(self) -> None:
        """Drop all caches. Turns that have begun keep theirs."""
        self._caches.clear()

    def owned_units(self, run: int) -> list[int]:
        run_cache = self._caches.get(run)
        return [] if run_cache is None else list(run_cache.owned_units)

    def remember(self, advance: Advance) -> None:
        """Cache the results of a written advance, and report them."""
        run_cache = self._caches.get(advance.task.run)
        if run_cache is not None:
            for fact in advance.results:
                run_cache.remember(fact)
            report.steps_failed(run_cache.run, advance.results)
            if self._telemetry is not None:
                self._telemetry.advance_written(run_cache.run, advance)


async def with_units(finish: Finish, run: RunRecord, model: Model, context: TurnContext) -> Finish:
    """Add the units of the run to its successor, for a run that is ended without being opened."""
    unit_model = model.units
    if finish.next is None or unit_model is None:
        return finish
    units = await context.call_store(run, lambda: unit_model.successor_units(context.store, run))
    return replace(finish, next=replace(finish.next, units=units))
