"""Who works here: enrolled while it is there, dead once its lease ran out, and forgotten a day later."""

from __future__ import annotations

from holdfast.store.protocol import WorkerCard
from store.world import LEASE, World

DAY = 24 * 60 * 60 * 1000


def card(id: str = "w1", **fields: object) -> WorkerCard:
    given = {"host": "host-a", "pid": 17, "queues": ("default", "slow"), "concurrency": 8} | fields
    return WorkerCard(id, **given)  # type: ignore[arg-type]


async def _ids(world: World, *, alive: bool | None = None) -> list[str]:
    return [one.card.id for one in await world.store.workers() if alive is None or one.alive is alive]


async def test_nobody_is_there_at_first(world: World) -> None:
    assert await world.store.workers() == []


async def test_one_that_enrols_is_there_with_its_card(world: World) -> None:
    now = await world.now()

    await world.store.enroll(card(), LEASE)

    [worker] = await world.store.workers()
    assert worker.card == card()
    assert (worker.started_at, worker.seen_at, worker.alive) == (now, now, True)


async def test_a_card_may_say_anything(world: World) -> None:
    strange = card("w-\u2603", host="", queues=(), concurrency=0)

    await world.store.enroll(strange, LEASE)

    assert [one.card for one in await world.store.workers()] == [strange]


async def test_the_longest_enrolled_come_first(world: World) -> None:
    for name in ("b", "c", "a"):
        await world.store.enroll(card(name), LEASE)
        world.clock.advance(10)
    await world.store.enroll(card("b"), LEASE)

    assert await _ids(world) == ["b", "c", "a"]


async def test_to_enrol_again_renews_and_replaces_the_card(world: World) -> None:
    started = await world.now()
    await world.store.enroll(card(), LEASE)
    world.clock.advance(LEASE - 1)

    await world.store.enroll(card(concurrency=2), LEASE)

    world.clock.advance(LEASE - 1)
    [worker] = await world.store.workers()
    assert worker.card == card(concurrency=2)
    assert (worker.started_at, worker.seen_at, worker.alive) == (started, started + LEASE - 1, True)


async def test_a_heartbeat_renews(world: World) -> None:
    started = await world.now()
    await world.store.enroll(card(), LEASE)
    world.clock.advance(LEASE - 1)

    await world.store.heartbeat("w1", LEASE)

    world.clock.advance(LEASE - 1)
    [worker] = await world.store.workers()
    assert (worker.started_at, worker.seen_at, worker.alive) == (started, started + LEASE - 1, True)


async def test_a_heartbeat_renews_nobody_else(world: World) -> None:
    await world.store.enroll(card("w1"), LEASE)
    await world.store.enroll(card("w2"), LEASE)
    world.clock.advance(LEASE - 1)

    await world.store.heartbeat("w1", LEASE)

    world.clock.advance(1)
    assert await _ids(world, alive=True) == ["w1"]


async def test_a_heartbeat_enrols_nobody(world: World) -> None:
    await world.begin("a", "w1")

    assert len(await world.store.heartbeat("w1", LEASE)) == 1

    assert await world.store.workers() == []


async def test_one_whose_lease_ran_out_is_dead_and_still_listed(world: World) -> None:
    await world.store.enroll(card(), LEASE)
    world.clock.advance(LEASE - 1)
    assert await _ids(world, alive=True) == ["w1"]

    world.clock.advance(1)

    assert await _ids(world, alive=False) == ["w1"]


async def test_a_dead_one_that_beats_again_is_alive(world: World) -> None:
    await world.store.enroll(card(), LEASE)
    world.clock.advance(10 * LEASE)

    await world.store.heartbeat("w1", LEASE)

    assert await _ids(world, alive=True) == ["w1"]


async def test_one_that_left_in_order_is_gone(world: World) -> None:
    await world.store.enroll(card("w1"), LEASE)
    await world.store.enroll(card("w2"), LEASE)

    await world.store.dismiss("w1")
    await world.store.dismiss("nobody")

    assert await _ids(world) == ["w2"]


async def test_one_that_is_dead_for_a_day_is_forgotten_when_another_enrols(world: World) -> None:
    await world.store.enroll(card("w1"), LEASE)
    world.clock.advance(LEASE + DAY)
    await world.store.enroll(card("w2"), LEASE)
    assert await _ids(world) == ["w1", "w2"]

    world.clock.advance(1)
    await world.store.enroll(card("w3"), LEASE)

    assert await _ids(world) == ["w2", "w3"]
