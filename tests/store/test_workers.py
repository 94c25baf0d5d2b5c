"""Workers: registered while they run, dead after their lease expired, and deleted a day later."""

from __future__ import annotations

from holdfast.store.protocol import WorkerProfile
from store.world import LEASE, World

DAY = 24 * 60 * 60 * 1000


def profile(id: str = "w1", **fields: object) -> WorkerProfile:
    values = {"host": "host-a", "pid": 17, "queues": ("default", "slow"), "concurrency": 8} | fields
    return WorkerProfile(id, **values)  # type: ignore[arg-type]


async def _ids(world: World, *, alive: bool | None = None) -> list[str]:
    return [one.profile.id for one in await world.store.workers() if alive is None or one.alive is alive]


async def test_a_new_database_has_no_workers(world: World) -> None:
    assert await world.store.workers() == []


async def test_a_registered_worker_is_listed_with_its_profile(world: World) -> None:
    now = world.now()

    await world.store.register_worker(profile(), LEASE)

    [worker] = await world.store.workers()
    assert worker.profile == profile()
    assert (worker.started_at, worker.seen_at, worker.alive) == (now, now, True)


async def test_a_profile_can_have_any_values(world: World) -> None:
    strange = profile("w-\u2603", host="", queues=(), concurrency=0)

    await world.store.register_worker(strange, LEASE)

    assert [one.profile for one in await world.store.workers()] == [strange]


async def test_workers_are_listed_in_the_order_of_registration(world: World) -> None:
    for name in ("b", "c", "a"):
        await world.store.register_worker(profile(name), LEASE)
        world.clock.advance(10)
    await world.store.register_worker(profile("b"), LEASE)

    assert await _ids(world) == ["b", "c", "a"]


async def test_registering_again_renews_the_row_and_replaces_the_profile(world: World) -> None:
    started = world.now()
    await world.store.register_worker(profile(), LEASE)
    world.clock.advance(LEASE - 1)

    await world.store.register_worker(profile(concurrency=2), LEASE)

    world.clock.advance(LEASE - 1)
    [worker] = await world.store.workers()
    assert worker.profile == profile(concurrency=2)
    assert (worker.started_at, worker.seen_at, worker.alive) == (started, started + LEASE - 1, True)


async def test_a_heartbeat_renews_the_workers_row(world: World) -> None:
    started = world.now()
    await world.store.register_worker(profile(), LEASE)
    world.clock.advance(LEASE - 1)

    await world.store.heartbeat("w1", LEASE)

    world.clock.advance(LEASE - 1)
    [worker] = await world.store.workers()
    assert (worker.started_at, worker.seen_at, worker.alive) == (started, started + LEASE - 1, True)


async def test_a_heartbeat_does_not_renew_other_workers(world: World) -> None:
    await world.store.register_worker(profile("w1"), LEASE)
    await world.store.register_worker(profile("w2"), LEASE)
    world.clock.advance(LEASE - 1)

    await world.store.heartbeat("w1", LEASE)

    world.clock.advance(1)
    assert await _ids(world, alive=True) == ["w1"]


async def test_a_heartbeat_does_not_register_a_worker(world: World) -> None:
    await world.start_claimed("a", "w1")

    assert len(await world.store.heartbeat("w1", LEASE)) == 1

    assert await world.store.workers() == []


async def test_a_worker_whose_lease_expired_is_dead_and_still_listed(world: World) -> None:
    await world.store.register_worker(profile(), LEASE)
    world.clock.advance(LEASE - 1)
    assert await _ids(world, alive=True) == ["w1"]

    world.clock.advance(1)

    assert await _ids(world, alive=False) == ["w1"]


async def test_a_heartbeat_makes_a_dead_worker_alive_again(world: World) -> None:
    await world.store.register_worker(profile(), LEASE)
    world.clock.advance(10 * LEASE)

    await world.store.heartbeat("w1", LEASE)

    assert await _ids(world, alive=True) == ["w1"]


async def test_an_unregistered_worker_is_not_listed(world: World) -> None:
    await world.store.register_worker(profile("w1"), LEASE)
    await world.store.register_worker(profile("w2"), LEASE)

    await world.store.unregister_worker("w1")
    await world.store.unregister_worker("nobody")

    assert await _ids(world) == ["w2"]


async def test_a_registration_deletes_workers_dead_for_a_day(world: World) -> None:
    await world.store.register_worker(profile("w1"), LEASE)
    world.clock.advance(LEASE + DAY)
    await world.store.register_worker(profile("w2"), LEASE)
    assert await _ids(world) == ["w1", "w2"]

    world.clock.advance(1)
    await world.store.register_worker(profile("w3"), LEASE)

    assert await _ids(world) == ["w2", "w3"]
