"""Schedules under faults: several workers take up the same ticks, their calls fail before and after they are executed,
and time jumps. Each tick starts exactly once, runs do not overlap, and no missed tick starts too late.

Bugs are planted in the engine to test that these checks find them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from itertools import count, pairwise
from random import Random
from typing import Any, NamedTuple

import pytest

from holdfast import Context, Holdfast
from holdfast.core.model import from_ms, to_ms
from holdfast.errors import StoreUnavailableError
from holdfast.kernel import schedule_rules
from holdfast.kernel.requests import Requests
from holdfast.runner.worker import Worker
from holdfast.store.protocol import DueQuery, ScheduleByName, ScheduleChange, ScheduleChanged
from holdfast.store.sqlite import schedules as sqlite_schedules
from holdfast.testing import Harness

EVERY_S, MINUTES, WORKERS = 60, 40, 3
POLICIES = ("skip", "queue_one", "queue_all", "cancel_running", "terminate_running", "allow")


class FaultyStore:
    """A store whose calls about schedules wait, fail before they are executed, or lose their replies."""

    def __init__(self, store: Any, random: Random) -> None:
        self._store = store
        self._random = random
        self.calm = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def read(self, query: Any) -> Any:
        found = await self._store.read(query)
        if isinstance(query, DueQuery):
            await self._wait()
        return found

    async def change_schedules(self, changes: Sequence[ScheduleChange]) -> list[ScheduleChanged]:
        await self._wait()
        chance = 1.0 if self.calm else self._random.random()
        if chance < 0.15:
            raise StoreUnavailableError("before")
        done: list[ScheduleChanged] = await self._store.change_schedules(changes)
        if chance < 0.3:
            raise StoreUnavailableError("after")
        return done

    async def _wait(self) -> None:
        for _ in range(0 if self.calm else self._random.randrange(4)):
            await asyncio.sleep(0)


class Run(NamedTuple):
    tick: int
    number: int
    began: int
    ended: int | None


class Outcome(NamedTuple):
    start: int
    now: int
    runs: list[Run]
    states: dict[int, str]
    """Keyed by tick."""


async def simulate(seed: int, overlap: str, catch_up: str | None) -> Outcome:
    random = Random(seed)
    app = Holdfast("sqlite://")

    @app.workflow
    async def job(ctx: Context) -> None:
        assert ctx.info.scheduled_for is not None
        await ctx.sleep("work", random.choice([1, 30, 100, 200]))

    async with Harness(app, seed=seed) as h:
        start = to_ms(h.now())
        await h.app.schedules.create("s", job, every=EVERY_S, overlap=overlap, catch_up=catch_up)  # type: ignore[arg-type]
        faulty = FaultyStore(h._opened().store, random)
        workers = [new_worker(h, faulty) for _ in range(WORKERS)]
        while (h.now() - from_ms(start)) < timedelta(minutes=MINUTES):
            h._clock.move_to(h.now() + timedelta(seconds=random.choice([1, 5, 9, 20, 70])))
            await asyncio.gather(*(take_up(worker, random) for worker in workers))
            if random.random() < 0.2:  # a worker is killed and another one is started
                workers[random.randrange(WORKERS)] = new_worker(h, faulty)
            await h.run_until_idle() if random.random() < 0.7 else None
        faulty.calm = True
        for _ in range(10):
            await h.run_until_idle()
        rows = await h._opened().store.read(ScheduleByName("s", 200))
        runs = []
        for item in (await h.app.list(limit=100)).items:
            about = await (await h.app.get("job", item.id)).describe()
            assert about.scheduled_for is not None
            ended = None if about.completed_at is None else to_ms(about.completed_at)
            runs.append(Run(to_ms(about.scheduled_for), about.run_number, to_ms(about.created_at), ended))
        states = {tick.tick: tick.state for tick in rows[0].ticks}
        return Outcome(start, to_ms(h.now()), runs, states)


def new_worker(h: Harness, store: Any) -> Worker:
    worker = h._opened().new_worker(h.app.worker_config)
    worker._loops.schedules._store = store
    return worker


async def take_up(worker: Worker, random: Random) -> None:
    for _ in range(random.randrange(3)):
        try:
            await worker.take_up_schedules()
        except StoreUnavailableError:
            return


def problems(outcome: Outcome, overlap: str, catch_up: str | None) -> list[str]:
    found = [f"tick {tick} was started twice" for tick, n in Counter(run.tick for run in outcome.runs).items() if n > 1]
    found += [f"tick {run.tick} was started again" for run in outcome.runs if run.number > 0]
    ticks = range(outcome.start - outcome.start % 60_000 + 60_000, outcome.now + 1, EVERY_S * 1000)
    started = {run.tick for run in outcome.runs}
    if catch_up is not None:
        found += [f"tick {tick} was lost" for tick in ticks if tick not in started and tick not in outcome.states]
    else:
        late = [run for run in outcome.runs if run.began - run.tick > schedule_rules.GRACE_MS and overlap == "allow"]
        found += [f"tick {run.tick} was missed and started" for run in late]
    if overlap != "allow":
        ordered = sorted(outcome.runs, key=lambda run: run.began)
        found += [f"{a} overlaps {b}" for a, b in pairwise(ordered) if a.ended is None or a.ended > b.began]
    return found


def cases(seeds: int) -> Iterator[tuple[int, str, str | None]]:
    for seed in range(seeds):
        yield seed, POLICIES[seed % len(POLICIES)], "1 day" if seed // len(POLICIES) % 2 else None


@pytest.mark.parametrize("part", range(4))
async def test_each_tick_starts_once_and_policies_hold_under_faults(part: int, request: pytest.FixtureRequest) -> None:
    seeds = 400 if request.config.getoption("--long") else 16
    for seed, overlap, catch_up in list(cases(seeds))[part::4]:
        outcome = await simulate(seed, overlap, catch_up)

        assert problems(outcome, overlap, catch_up) == [], (seed, overlap, catch_up)


# --- planted bugs


@contextmanager
def planted(monkeypatch: pytest.MonkeyPatch, bug: str) -> Iterator[None]:
    with monkeypatch.context() as patch:
        BUGS[bug](patch)
        yield


def _double_tick(patch: pytest.MonkeyPatch) -> None:
    """A change of an earlier revision is applied, and the ids of runs do not depend on their ticks."""
    apply, scheduled_run, numbers = sqlite_schedules._apply, Requests.scheduled_run, count()

    def any_revision(tx: Any, one: ScheduleChange) -> bool:
        sql = "SELECT revision FROM holdfast_schedule WHERE name = ?1"
        row = tx.connection.execute(sql, (one.name,)).fetchone()
        return apply(tx, one if row is None or not one.revision else replace(one, revision=row[0]))

    def again(self: Requests, start: Any) -> Any:
        new = scheduled_run(self, start)
        new.instance_id = f"run-{next(numbers)}"
        return new

    patch.setattr(sqlite_schedules, "_apply", any_revision)
    patch.setattr(Requests, "scheduled_run", again)


def _lost_tick(patch: pytest.MonkeyPatch) -> None:
    """The schedule advances in a change of its own; the worker dies before the change that starts the runs."""
    change, calls = sqlite_schedules.change, count()

    def without_runs(tx: Any, changes: Sequence[ScheduleChange]) -> list[ScheduleChanged]:
        if next(calls) % 5 == 4:
            changes = [replace(one, ticks=[], runs=[]) for one in changes]
        return change(tx, changes)

    patch.setattr(sqlite_schedules, "change", without_runs)


def _overlap_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(schedule_rules, "OPEN_TICKS", ())


def _catch_up_too_wide(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(schedule_rules, "GRACE_MS", 3_600_000)


BUGS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "double tick": _double_tick,
    "lost tick": _lost_tick,
    "overlap ignored": _overlap_ignored,
    "catch-up too wide": _catch_up_too_wide,
}


@pytest.mark.parametrize("bug", BUGS)
async def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    grace = schedule_rules.GRACE_MS
    with planted(monkeypatch, bug):
        for seed, overlap, catch_up in cases(36):
            outcome = await simulate(seed, overlap, catch_up)
            with monkeypatch.context() as real:
                real.setattr(schedule_rules, "GRACE_MS", grace)
                if problems(outcome, overlap, catch_up):
                    return
    pytest.fail(f"{bug} was not found")
