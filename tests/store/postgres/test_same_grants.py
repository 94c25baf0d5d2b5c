"""The functions of PostgreSQL grant many permits by one statement; SQLite, one after the other, is the reference."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from itertools import count
from pathlib import Path
from random import Random

import pytest

from holdfast.core.model import Status
from holdfast.store.protocol import (
    ChangeLimit,
    DeclareLimits,
    Finish,
    LimitKey,
    LimitValues,
    Pace,
    PermitExchange,
    PermitRequest,
    PermitResult,
    PermitReturn,
    ReadLimits,
    TaskRef,
)
from store.conftest import STORES
from store.world import FakeClock, World

_OWNERS = ("w1", "w2")
_KEYS = ("", "v", "w", "x", "y", "z")

Permit = tuple[str, str]
"""The name of a run, and a step."""


class Pair:
    """The same calls on both stores. The replies of PostgreSQL must be those of SQLite."""

    def __init__(self, reference: World, world: World) -> None:
        self.worlds = (reference, world)
        self.tasks: list[dict[str, TaskRef]] = [{}, {}]
        self.owners: dict[str, str] = {}
        self.limits_of: dict[Permit, list[LimitKey]] = {}
        self.held: set[Permit] = set()
        self.waiting: set[Permit] = set()
        self.groups: list[list[LimitKey]] = []
        self._numbers = count()

    async def start(self, owner: str) -> None:
        name = f"r{next(self._numbers):03}"
        self.owners[name] = owner
        for world, tasks in zip(self.worlds, self.tasks, strict=True):
            tasks[name] = await world.start_claimed(name, owner=owner)

    async def limits(self, values: dict[str, LimitValues]) -> None:
        for world in self.worlds:
            for name, one in values.items():
                await world.store.limits(ChangeLimit(name, one))
            await world.store.limits(DeclareLimits({}))

    async def exchange(
        self, owner: str, returns: Sequence[Permit] = (), requests: Sequence[tuple[Permit, list[LimitKey], int]] = ()
    ) -> None:
        self.limits_of |= {permit: keys for permit, keys, _ in requests}
        replies = []
        for world, tasks in zip(self.worlds, self.tasks, strict=True):
            names = {task.run: name for name, task in tasks.items()}
            reply = await world.store.exchange_permits(
                PermitExchange(
                    owner,
                    [PermitReturn(tasks[name], step, 1) for name, step in returns],
                    [PermitRequest(tasks[name], step, 1, keys, priority) for (name, step), keys, priority in requests],
                )
            )
            granted = {(names[one.run], one.step) for one in reply.granted}
            replies.append((list(reply.results), granted, reply.due))
        assert replies[1] == replies[0]
        results, granted, *_ = replies[0]
        self.held -= set(returns)
        self.waiting -= set(returns)
        for (permit, _, _), result in zip(requests, results, strict=True):
            (self.held if result is PermitResult.HELD else self.waiting).add(permit)
        self.held |= granted
        self.waiting -= granted

    async def end(self, name: str) -> None:
        for world, tasks in zip(self.worlds, self.tasks, strict=True):
            await world.commit(tasks.pop(name), then=Finish(Status.COMPLETE))
        self.held = {permit for permit in self.held if permit[0] != name}
        self.waiting = {permit for permit in self.waiting if permit[0] != name}
        del self.owners[name]

    async def check_limits(self) -> None:
        first, second = [await world.store.limits(ReadLimits()) for world in self.worlds]
        assert [(one.name, one.used, one.keys) for one in second] == [(one.name, one.used, one.keys) for one in first]
        assert sum(one.waiting for one in second) == sum(one.waiting for one in first)


async def _step(pair: Pair, random: Random, steps: count[int], clock: FakeClock) -> None:
    owner = random.choice(_OWNERS)
    mine = [name for name, of in pair.owners.items() if of == owner]
    if not mine or (len(mine) < 6 and random.random() < 0.2):
        await pair.start(owner)
        return
    if len(mine) > 2 and random.random() < 0.08:
        await pair.end(random.choice(mine))
        await pair.exchange(owner)  # SQLite grants in the transaction that ends the run
    elif random.random() < 0.1:
        clock.advance(random.choice((1, 10, 45, 100)))
    mine = [name for name, of in pair.owners.items() if of == owner]
    own = sorted(permit for permit in pair.held | pair.waiting if permit[0] in mine)
    held = sorted(permit for permit in pair.held if permit[0] in mine)
    returns = random.sample(held, random.randint(0, len(held))) if random.random() < 0.7 else []
    if random.random() < 0.1:
        returns = random.sample(own, random.randint(0, min(3, len(own))))
    requests: list[tuple[Permit, list[LimitKey], int]] = []
    for _ in range(random.randint(0, 8)):
        permit = (random.choice(mine), f"s{next(steps)}")
        requests.append((permit, random.choice(pair.groups), random.choice((0, 0, 0, 1, -1))))
    await pair.exchange(owner, returns, requests)
    for other in _OWNERS:
        await pair.exchange(other)
    await pair.check_limits()


@pytest.fixture
async def worlds(tmp_path: Path, clock: FakeClock) -> AsyncIterator[tuple[World, World]]:
    stores = [STORES[name](tmp_path, clock) for name in ("sqlite-memory", "postgres")]
    for store in stores:
        await store.open()
    yield World(stores[0], clock), World(stores[1], clock, numbered=True)
    for store in stores:
        await store.close()


@pytest.mark.parametrize("seed", range(10))
async def test_both_stores_grant_the_same_permits(worlds: tuple[World, World], clock: FakeClock, seed: int) -> None:
    random = Random(seed)
    pair = Pair(*worlds)
    # If groups share a fair key, or some have a fair limit and others none, the order within a batch may differ.
    fair = random.random() < 0.5
    await pair.limits(
        {
            name: LimitValues(
                random.choice((None, 1, 2, 3, 6)), random.choice((None, None, Pace(10, 1000, random.randint(1, 4)))),
                fair and name == "alpha", random.choice(({}, {"x": 3.0})),
            )
            for name in ("alpha", "beta", "gamma")
        }
    )  # fmt: skip
    clock.advance(1_000_000)
    for key in _KEYS if fair else random.choices(_KEYS, k=6):
        names = random.sample(("beta", "gamma"), random.randint(0, 2))
        other = [LimitKey(name, "" if name == "gamma" else random.choice(_KEYS)) for name in names]
        pair.groups.append([LimitKey("alpha", key), *other])
    steps = count()
    await pair.start("w1")
    first = [((name, f"s{next(steps)}"), keys, 0) for name in pair.owners for keys in pair.groups]
    await pair.exchange("w1", requests=first)  # makes all groups: a new one deletes idle ones, not the same in both
    for _ in range(30):
        await _step(pair, random, steps, clock)
    for name in list(pair.owners):
        await pair.end(name)
        for owner in _OWNERS:
            await pair.exchange(owner)
    await pair.check_limits()
