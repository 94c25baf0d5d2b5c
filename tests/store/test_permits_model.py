"""Random limits, keys, rates and requests against a small model of what a store may grant, and when it must."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.core.model import Status
from holdfast.store.protocol import (
    ChangeLimit,
    DeclareLimits,
    Finish,
    LimitKey,
    LimitKeysQuery,
    LimitValues,
    Pace,
    PermitExchange,
    PermitReply,
    PermitRequest,
    PermitResult,
    PermitReturn,
    ReadLimits,
    TaskRef,
)
from store.world import LEASE, World, waiting

_NAMES = ("alpha", "beta", "gamma")
_KEYS = ("", "x", "y")
_OWNERS = ("w1", "w2")
_ids = (f"m{n}" for n in count())
_settings = settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@dataclass
class Bucket:
    """The reference of a rate: tokens that flow in continuously, at most ``burst`` of them."""

    rate: Pace
    tokens: float
    at: int

    def take(self, now: int) -> None:
        self.refill(now)
        self.tokens -= 1
        assert self.tokens > -0.01, "a permit was granted without a token"

    def refill(self, now: int) -> None:
        self.tokens = min(self.rate.burst, self.tokens + (now - self.at) * self.rate.permits / self.rate.per_ms)
        self.at = now


@dataclass
class Model:
    """The state that the replies of the store have reported so far."""

    limits: dict[str, LimitValues]
    held: dict[tuple[int, str], tuple[TaskRef, list[LimitKey]]] = field(default_factory=dict)
    waiting: dict[tuple[int, str], tuple[TaskRef, list[LimitKey]]] = field(default_factory=dict)
    requested: dict[tuple[int, str], int] = field(default_factory=dict)
    """The times of the requests."""
    buckets: dict[LimitKey, Bucket] = field(default_factory=dict)

    def used(self) -> Counter[LimitKey]:
        return Counter(key for _, keys in self.held.values() for key in keys)

    def grant(self, permit: tuple[int, str], now: int) -> None:
        """Note a grant, and check that every limit had room for it."""
        task, keys = self.waiting.pop(permit)
        for key in keys:
            values = self.limits[key.name]
            if values.concurrency is not None:
                assert self.used()[key] < values.concurrency, f"{key} is exceeded"
            if values.rate is not None:
                self.bucket(key, values.rate, now).take(now)
        self.held[permit] = (task, keys)

    def bucket(self, key: LimitKey, rate: Pace, now: int) -> Bucket:
        return self.buckets.setdefault(key, Bucket(rate, rate.burst, now))

    def check_no_waiter_has_room(self, now: int) -> None:
        for permit, (_, keys) in self.waiting.items():
            assert any(self._blocks(key, now) for key in keys), f"{permit} waits although {keys} have room"

    def _blocks(self, key: LimitKey, now: int) -> bool:
        values = self.limits[key.name]
        if values.concurrency is not None and self.used()[key] >= values.concurrency:
            return True
        if values.rate is None:
            return False
        bucket = self.bucket(key, values.rate, now)
        bucket.refill(now)
        return bucket.tokens < 0.99

    def forget(self, run: int) -> None:
        for permits in (self.held, self.waiting):
            for permit in [permit for permit in permits if permit[0] == run]:
                del permits[permit]


class Players:
    """Makes random calls of two workers, and keeps the model."""

    def __init__(self, world: World, model: Model, random: Random) -> None:
        self.world = world
        self.model = model
        self.random = random
        self.tasks: list[TaskRef] = []
        self.names: dict[int, str] = {}
        self._steps = count()

    async def step(self) -> None:
        actions = [self.start, self.request, self.request, self.request, self.give_back, self.give_back, self.end]
        actions += [self.suspend, self.lose, self.pass_time, self.change, self.exchange_many, self.exchange_many]
        await self.random.choice(actions)()
        for owner in _OWNERS:
            await self.look(owner)
        self.model.check_no_waiter_has_room(self.world.now())
        await self.check_counters()

    async def start(self) -> None:
        name = next(_ids)
        task = await self.world.start_claimed(name, owner=self.random.choice(_OWNERS))
        self.tasks.append(task)
        self.names[task.run] = name

    async def request(self) -> None:
        if not self.tasks:
            await self.start()
        task, step = self.random.choice(self.tasks), f"s{next(self._steps)}"
        names = self.random.sample(_NAMES, self.random.randint(1, 3))
        keys = [LimitKey(name, "" if name == "gamma" else self.random.choice(_KEYS)) for name in names]
        self.model.waiting[task.run, step] = (task, keys)
        self.model.requested[task.run, step] = self.world.now()
        asked = PermitRequest(task, step, 1, keys, self.random.randint(0, 2))
        reply = await self.world.store.exchange_permits(PermitExchange(task.owner, requests=[asked]))
        self.granted(reply)
        if reply.results[0] is PermitResult.HELD:
            self.model.grant((task.run, step), self.world.now())

    async def give_back(self) -> None:
        permits = [*self.model.held.items(), *self.model.waiting.items()]
        if permits:
            (run, step), (task, _) = self.random.choice(permits)
            self.model.held.pop((run, step), None)
            self.model.waiting.pop((run, step), None)
            returned = PermitReturn(task, step, 1)
            self.granted(await self.world.store.exchange_permits(PermitExchange(task.owner, returns=[returned])))

    async def exchange_many(self) -> None:
        """Returns and requests of one worker in one exchange; most requests are of one group."""
        owner = self.random.choice(_OWNERS)
        while not (tasks := [task for task in self.tasks if task.owner == owner]):
            await self.start()
        known = [*self.model.held.items(), *self.model.waiting.items()]
        own = [(permit, task) for permit, (task, _) in known if task.owner == owner]
        ended = self.random.sample(own, self.random.randint(0, min(4, len(own))))
        for permit, _ in ended:
            self.model.held.pop(permit, None)
            self.model.waiting.pop(permit, None)
        keys = [LimitKey(name, "") for name in self.random.sample(_NAMES, self.random.randint(1, 2))]
        asked = []
        for _ in range(self.random.randint(1, 6)):
            task, step = self.random.choice(tasks), f"s{next(self._steps)}"
            wanted = keys if self.random.random() < 0.8 else [LimitKey("alpha", self.random.choice(_KEYS))]
            self.model.waiting[task.run, step] = (task, wanted)
            self.model.requested[task.run, step] = self.world.now()
            asked.append(PermitRequest(task, step, 1, wanted, self.random.randint(0, 2)))
        returns = [PermitReturn(task, step, 1) for (_, step), task in ended]
        reply = await self.world.store.exchange_permits(PermitExchange(owner, returns, asked))
        self.granted(reply)
        for one, result in zip(asked, reply.results, strict=True):
            if result is PermitResult.HELD:
                self.model.grant((one.task.run, one.step), self.world.now())

    async def look(self, owner: str) -> None:
        self.granted(await self.world.store.exchange_permits(PermitExchange(owner)))

    def granted(self, reply: PermitReply) -> None:
        for permit in reply.granted:
            self.model.grant((permit.run, permit.step), self.world.now())

    async def end(self) -> None:
        if self.tasks:
            task = self.tasks.pop(self.random.randrange(len(self.tasks)))
            await self.world.commit(task, then=Finish(Status.COMPLETE))
            self.model.forget(task.run)

    async def suspend(self) -> None:
        if self.tasks:
            task = self.tasks.pop(self.random.randrange(len(self.tasks)))
            await self.world.commit(task, then=waiting("never"))
            self.model.forget(task.run)

    async def lose(self) -> None:
        loser, other = self.random.sample(_OWNERS, 2)
        await self.world.store.heartbeat(other, 100 * LEASE)
        self.world.clock.advance(LEASE + 1)
        for lost in await self.world.store.reap(100):
            self.model.forget(lost.run)
            self.tasks = [task for task in self.tasks if task.run != lost.run]
            await self.world.terminate(self.names[lost.run])
        await self.world.store.heartbeat(loser, 100 * LEASE)

    async def pass_time(self) -> None:
        self.world.clock.advance(self.random.choice((1, 10, 45, 90, 100)))

    async def change(self) -> None:
        name = self.random.choice(_NAMES)
        values = LimitValues(self.random.randint(1, 4), self.model.limits[name].rate, self.model.limits[name].fair)
        self.model.limits[name] = values
        await self.world.store.limits(ChangeLimit(name, values))

    async def check_counters(self) -> None:
        used: Counter[str] = Counter()
        for key, n in self.model.used().items():
            used[key.name] += n
        waits, oldest = 0, []
        for record in await self.world.store.limits(ReadLimits()):
            assert record.used == used[record.name], f"{record.name}: a permit is lost or counted twice"
            waits += record.waiting
            oldest.append(record.oldest_waiting)
            by_key = (await self.world.store.read(LimitKeysQuery(record.name, 100))).keys
            assert sum(one.waiting for one in by_key) == record.waiting
            assert _first(one.oldest_waiting for one in by_key) == record.oldest_waiting
        assert waits == len(self.model.waiting)
        assert _first(oldest) == _first(self.model.requested[permit] for permit in self.model.waiting)


def _first(times: Iterable[int | None]) -> int | None:
    return min((time for time in times if time is not None), default=None)


def _limits(random: Random) -> dict[str, LimitValues]:
    rates = [None, None, Pace(10, 1000, random.randint(1, 3))]
    return {
        name: LimitValues(random.choice((None, 1, 2, 3)), random.choice(rates), random.random() < 0.5)
        for name in _NAMES
    }


@_settings
@given(st.integers(0, 2**32))
async def test_random_requests_are_granted_exactly_when_all_limits_have_room(world: World, seed: int) -> None:
    random = Random(seed)
    limits = _limits(random)
    for name, values in limits.items():
        await world.store.limits(ChangeLimit(name, values))
    await world.store.limits(DeclareLimits({}))
    world.clock.advance(1_000_000)  # every bucket is full, whatever an earlier example took
    players = Players(world, Model(limits), random)

    for _ in range(40):
        await players.step()

    for run, name in players.names.items():
        await world.terminate(name)
        players.model.forget(run)
    for owner in _OWNERS:
        await players.look(owner)
    await players.check_counters()


@pytest.mark.parametrize("fair", [False, True])
async def test_the_order_of_grants_is_the_order_of_requests_unless_the_limit_is_fair(world: World, fair: bool) -> None:
    await world.store.limits(DeclareLimits({"all": LimitValues(concurrency=1), "key": LimitValues(fair=fair)}))
    tasks = [await world.start_claimed(next(_ids)) for _ in range(8)]
    keys = dict(zip((task.run for task in tasks), "aaaaabbb", strict=True))
    for task in tasks:
        limits = [LimitKey("all"), LimitKey("key", keys[task.run])]
        asked = PermitRequest(task, "s", 1, limits)
        await world.store.exchange_permits(PermitExchange("w1", requests=[asked]))

    served, current = "a", tasks[0]
    while len(served) < len(tasks):
        exchange = PermitExchange("w1", returns=[PermitReturn(current, "s", 1)])
        [permit] = (await world.store.exchange_permits(exchange)).granted
        current = next(task for task in tasks if task.run == permit.run)
        served += keys[permit.run]

    assert served == ("abababaa" if fair else "aaaaabbb")
