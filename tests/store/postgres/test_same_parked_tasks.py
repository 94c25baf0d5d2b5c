"""Tasks that wait for permits: random calls on both stores leave the same permits, tasks and counters."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest

from holdfast.core.model import Status
from holdfast.store.protocol import (
    ChangeLimit,
    Created,
    DeclareLimits,
    Finish,
    LimitedStart,
    LimitKey,
    LimitValues,
    MoveQueue,
    NewRun,
    Pace,
    PauseQueue,
    PermitExchange,
    PermitRequest,
    PermitResult,
    PermitReturn,
    TaskRef,
)
from store.conftest import STORES
from store.world import FLOW, LEASE, FakeClock, World, waiting

_OWNERS = ("w1", "w2")
_QUEUES = ("default", "bulk")
_KEYS = ("", "x", "y", "z")
_MAX_LOSSES = 3
_PERMITS = """
    SELECT r.instance_id, p.unit, p.step, p.attempt, p.state, p.priority, p.until_end, p.owner, p.epoch, p.parked,
           p.requested_at
      FROM holdfast_permit AS p JOIN holdfast_run AS r ON r.id = p.run"""
_TASKS = """
    SELECT r.instance_id, r.status, t.unit, t.owner, t.epoch, t.signal, t.has_tokens, t.queue,
           t.owner IS NULL AND t.run_at IS NOT NULL AND t.run_at <= {now} AS due
      FROM holdfast_task AS t JOIN holdfast_run AS r ON r.id = t.run"""
# A time of arrival in the past is as good as none: each store forgets it when it finds the key idle.
_USES = """
    SELECT name, key, used, CASE WHEN tat > {now} * 1000 THEN tat ELSE 0 END AS tat
      FROM holdfast_limit_use WHERE used > 0"""
_COUNTS = """
    SELECT g.waiting, count(p.id) AS waits FROM holdfast_permit_group AS g
      LEFT JOIN holdfast_permit AS p ON p.grp = g.id AND p.state = 0 GROUP BY g.id, g.waiting"""

_PARKED_WITH_OWNER = "SELECT run FROM holdfast_permit WHERE parked IS NOT NULL AND owner IS NOT NULL"
_LEFT_OVER = """
    SELECT p.run FROM holdfast_permit AS p
     WHERE NOT EXISTS (SELECT 1 FROM holdfast_task AS t WHERE t.run = p.run AND t.unit = p.unit)"""
_USED = """
    SELECT (SELECT coalesce(sum(used), 0) FROM holdfast_limit_use) AS used,
           (SELECT coalesce(sum({size}), 0) FROM holdfast_permit AS p
              JOIN holdfast_permit_group AS g ON g.id = p.grp WHERE p.state > 0) AS taken"""


class Pair:
    """The same calls on both stores. What PostgreSQL replies and stores must be that of SQLite."""

    def __init__(self, reference: World, world: World, random: Random) -> None:
        self.worlds = (reference, world)
        self.random = random
        self.tasks: tuple[dict[str, TaskRef], dict[str, TaskRef]] = ({}, {})
        """Owned tasks by the names of their runs."""
        self.names: list[str] = []
        """Names of all runs that were started."""
        self.groups: list[list[LimitKey]] = []
        self.entering: dict[str, tuple[list[LimitKey], int, bool]] = {}
        """The limits, priority and ``until_end`` of the permit of each run."""
        self.steps: dict[str, tuple[list[LimitKey], int]] = {}
        """The limits and attempt of the step that an owned run calls."""
        self._numbers = count()

    # --- calls

    async def both(self, call: Any) -> tuple[Any, Any]:
        first, second = self.worlds
        return await call(first, self.tasks[0]), await call(second, self.tasks[1])

    async def exchange(
        self,
        owner: str,
        *,
        returns: Sequence[tuple[str, str, int]] = (),
        requests: Sequence[tuple[str, str, int, list[LimitKey], int, bool, bool]] = (),
    ) -> list[PermitResult]:
        async def call(world: World, tasks: dict[str, TaskRef]) -> Any:
            names = {task.run: name for name, task in tasks.items()}
            reply = await world.store.exchange_permits(
                PermitExchange(
                    owner,
                    [PermitReturn(tasks[name], step, attempt) for name, step, attempt in returns],
                    [PermitRequest(tasks[name], *rest) for name, *rest in requests],
                )
            )
            return list(reply.results), sorted((names[one.run], one.step, one.attempt) for one in reply.granted)

        first, second = await self.both(call)
        assert second == first
        results: list[PermitResult] = first[0]
        for (name, *_, park), result in zip(requests, results, strict=True):
            if park and result is PermitResult.WAITING:
                self.drop(name)
        return results

    def drop(self, name: str) -> None:
        for tasks in self.tasks:
            tasks.pop(name, None)
        self.steps.pop(name, None)

    def owned(self, owner: str) -> list[str]:
        return sorted(name for name, task in self.tasks[0].items() if task.owner == owner)

    async def claim(self, owner: str) -> None:
        async def call(world: World, tasks: dict[str, TaskRef]) -> set[str]:
            claims = (await world.claim(owner, queues=_QUEUES)).claims
            tasks.update({claim.run.instance_id: claim.task for claim in claims})
            return {claim.run.instance_id for claim in claims}

        first, second = await self.both(call)
        assert second == first
        for name in first:
            self.steps.pop(name, None)
        await self.enter(owner, sorted(first))

    async def enter(self, owner: str, names: Sequence[str]) -> None:
        requests = [(name, "", 0, *self.entering[name], True) for name in names if self.random.random() < 0.9]
        await self.exchange(owner, requests=requests)

    # --- moves

    async def start(self, owner: str) -> None:
        name = f"r{next(self._numbers):03}"
        queue = self.random.choice(_QUEUES)
        limits, priority = self.random.choice(self.groups), self.random.choice((0, 0, 1, -1))
        self.entering[name] = limits, priority, self.random.random() < 0.2
        self.names.append(name)
        if self.random.random() < 0.3:
            policy = LimitedStart(limits, self.random.random() < 0.5, self.entering[name][2])

            async def limited(world: World, _: Any) -> Any:
                [created] = await world.store.create(
                    [NewRun(FLOW, name, queue=queue, priority=priority, policy=policy)]
                )
                return _shown(created)

            first, second = await self.both(limited)
            assert second == first
            return

        async def claimed(world: World, tasks: dict[str, TaskRef]) -> None:
            tasks[name] = await world.start_claimed(name, owner=owner, queue=queue)

        await self.both(claimed)
        await self.enter(owner, [name])

    async def call_steps(self, owner: str) -> None:
        returns: list[tuple[str, str, int]] = []
        requests: list[Any] = []
        for name in self.owned(owner):
            if name in self.steps:
                limits, attempt = self.steps[name]
                if self.random.random() < 0.6:
                    returns.append((name, "s", attempt))
                    del self.steps[name]
                elif self.random.random() < 0.3:
                    requests.append((name, "s", attempt, limits, 0, False, False))
            elif self.random.random() < 0.6:
                limits, attempt = self.random.choice(self.groups), self.random.randint(1, 3)
                self.steps[name] = limits, attempt
                requests.append((name, "s", attempt, limits, self.random.choice((0, 1)), False, False))
        await self.exchange(owner, returns=returns, requests=requests)

    async def release(self, owner: str) -> None:
        """A run suspends, or requests a permit and is released until the grant."""
        names = self.owned(owner)
        if not names:
            return
        name = self.random.choice(names)
        if self.random.random() < 0.5:
            limits, attempt = self.steps.get(name, (self.random.choice(self.groups), 1))
            step = "s" if name in self.steps else self.random.choice(("", "t"))
            [result] = await self.exchange(owner, requests=[(name, step, attempt, limits, 0, False, True)])
            if result is PermitResult.WAITING:
                return
        delay = self.random.choice((0, 5, None))

        async def call(world: World, tasks: dict[str, TaskRef]) -> None:
            run_at = None if delay is None else world.now() + delay
            await world.commit(tasks[name], then=waiting("go", run_at=run_at))

        await self.both(call)
        self.drop(name)

    async def end(self, owner: str) -> None:
        names = self.owned(owner)
        if not names:
            return
        name = self.random.choice(names)
        await self.both(lambda world, tasks: world.commit(tasks[name], then=Finish(Status.COMPLETE)))
        self.drop(name)

    async def control(self) -> None:
        if not self.names:
            return
        name = self.random.choice(self.names)
        action = self.random.choice(("pause", "resume", "resume", "terminate", "send_exit", "cancel"))
        await self.both(lambda world, _: getattr(world, action)(name))
        if action == "terminate":
            self.drop(name)

    async def change_queue(self) -> None:
        queue, paused = self.random.choice(_QUEUES), self.random.random() < 0.4
        request = PauseQueue(queue, paused)
        if self.random.random() < 0.2:
            await self.both(lambda world, _: world.store.queues(MoveQueue(queue, "default")))
        await self.both(lambda world, _: world.store.queues(request))

    async def change_limit(self) -> None:
        name, values = self.random.choice(("alpha", "beta", "gamma")), random_values(self.random)
        await self.both(lambda world, _: world.store.limits(ChangeLimit(name, values)))

    async def lose(self) -> None:
        """Leases expire; a worker takes the tasks over.

        SQLite grants what has room at the end of each transaction, PostgreSQL by the next exchange.
        """
        self.worlds[0].clock.advance(LEASE + 1)
        await self.settle()

        async def reap(world: World, tasks: dict[str, TaskRef]) -> Any:
            names = {task.run: name for name, task in tasks.items()}
            return {(names[one.run], one.losses, one.parked) for one in await world.store.reap(_MAX_LOSSES)}

        first, second = await self.both(reap)
        assert second == first
        for name in [*self.tasks[0]]:
            self.drop(name)
        for owner in _OWNERS:
            await self.settle()
            await self.claim(owner)

    # --- checks

    async def settle(self) -> None:
        for owner in _OWNERS:
            await self.exchange(owner)

    async def check(self) -> None:
        seen = [
            [await _rows(world, text.format(now=world.now())) for text in (_PERMITS, _TASKS, _USES)]
            for world in self.worlds
        ]
        for first, second in zip(*seen, strict=True):
            assert second == first
        for world in self.worlds:
            assert all(waiting == waits for waiting, waits in await _rows(world, _COUNTS))
            assert await _rows(world, _LEFT_OVER) == []
            assert await _rows(world, _PARKED_WITH_OWNER) == []
        for world, size in zip(self.worlds, ("json_array_length(g.limits)", "cardinality(g.names)"), strict=True):
            [(used, taken)] = await _rows(world, _USED.format(size=size))
            assert used == taken


def _shown(created: Created) -> tuple[Any, ...]:
    return created.result, created.run.status if created.run is not None else None


async def _rows(world: World, text: str) -> list[tuple[Any, ...]]:
    live = await world.store.begin()
    rows = [tuple(_value(value) for value in dict(row).values()) for row in await live.fetch(text, ())]
    await live.rollback()
    return sorted(rows, key=repr)


def _value(value: Any) -> Any:
    if isinstance(value, bytes | memoryview):
        return bytes(value).decode()
    return int(value) if isinstance(value, bool) else value


def random_values(random: Random) -> LimitValues:
    rate = random.choice((None, None, Pace(10, 1000, random.randint(1, 4))))
    return LimitValues(random.choice((None, 0, 1, 2, 3)), rate)


@pytest.fixture
async def worlds(tmp_path: Path, clock: FakeClock) -> AsyncIterator[tuple[World, World]]:
    stores = [STORES[name](tmp_path, clock) for name in ("sqlite-memory", "postgres")]
    for store in stores:
        await store.open()
    yield World(stores[0], clock), World(stores[1], clock, numbered=True)
    for store in stores:
        await store.close()


@pytest.mark.parametrize("seed", range(12))
async def test_both_stores_park_and_wake_the_same_tasks(
    worlds: tuple[World, World], clock: FakeClock, seed: int
) -> None:
    random = Random(seed)
    pair = Pair(*worlds, random)
    for name in ("alpha", "beta", "gamma"):
        values = random_values(random)
        await pair.both(lambda world, _, name=name, values=values: world.store.limits(ChangeLimit(name, values)))
    await pair.both(lambda world, _: world.store.limits(DeclareLimits({})))
    for key in _KEYS:
        names = random.sample(("beta", "gamma"), random.randint(0, 2))
        pair.groups.append([LimitKey("alpha", key), *(LimitKey(name, "") for name in names)])
    moves = [pair.start] * 3 + [pair.call_steps] * 4 + [pair.release] * 2 + [pair.end, pair.claim, pair.claim]
    others = [pair.control, pair.control, pair.change_queue, pair.change_limit, pair.lose]
    for _ in range(60):
        if random.random() < 0.8:
            await random.choice(moves)(random.choice(_OWNERS))
        else:
            await random.choice(others)()
        await pair.settle()
        if random.random() < 0.3:
            clock.advance(random.choice((1, 10, 45, 100)))
            await pair.settle()
        await pair.check()
