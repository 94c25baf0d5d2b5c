"""Workers: registered while they run, dead after their lease expired, and deleted a day later."""

from __future__ import annotations

from holdfast.store.protocol import (
    Audit,
    AuditQuery,
    DrainWorker,
    NewRun,
    ReadQueues,
    RecordAction,
    VersionsQuery,
    WorkerProfile,
    WorkersQuery,
)
from store.world import FLOW, LEASE, World

DAY = 24 * 60 * 60 * 1000


def profile(id: str = "w1", **fields: object) -> WorkerProfile:
    values = {"host": "host-a", "pid": 17, "queues": ("default", "slow"), "concurrency": 8} | fields
    return WorkerProfile(id, **values)  # type: ignore[arg-type]


async def _ids(world: World, *, alive: bool | None = None) -> list[str]:
    return [one.profile.id for one in await world.store.read(WorkersQuery()) if alive is None or one.alive is alive]


async def test_a_new_database_has_no_workers(world: World) -> None:
    assert await world.store.read(WorkersQuery()) == []


async def test_a_registered_worker_is_listed_with_its_profile(world: World) -> None:
    now = world.now()

    await world.store.register_worker(profile(), LEASE)

    [worker] = await world.store.read(WorkersQuery())
    assert worker.profile == profile()
    assert (worker.started_at, worker.seen_at, worker.alive) == (now, now, True)


async def test_a_profile_can_have_any_values(world: World) -> None:
    strange = profile("w-\u2603", host="", queues=(), concurrency=0)

    await world.store.register_worker(strange, LEASE)

    assert [one.profile for one in await world.store.read(WorkersQuery())] == [strange]


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
    [worker] = await world.store.read(WorkersQuery())
    assert worker.profile == profile(concurrency=2)
    assert (worker.started_at, worker.seen_at, worker.alive) == (started, started + LEASE - 1, True)


async def test_a_heartbeat_renews_the_workers_row(world: World) -> None:
    started = world.now()
    await world.store.register_worker(profile(), LEASE)
    world.clock.advance(LEASE - 1)

    await world.store.heartbeat("w1", LEASE)

    world.clock.advance(LEASE - 1)
    [worker] = await world.store.read(WorkersQuery())
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

    assert await world.store.read(WorkersQuery()) == []


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


async def test_a_drain_is_stored_until_it_ends_or_the_worker_leaves(world: World) -> None:
    for name in ("w1", "w2"):
        await world.store.register_worker(profile(name), LEASE)

    await world.store.queues(DrainWorker("w1", True, Audit("worker_drain", "ann", "the host is replaced")))
    await world.store.heartbeat("w1", LEASE)
    assert {one.profile.id: one.draining for one in await world.store.read(WorkersQuery())} == {"w1": True, "w2": False}
    assert (await world.store.queues(ReadQueues("w1"))).draining
    assert not (await world.store.queues(ReadQueues("w2"))).draining
    assert not (await world.store.queues(ReadQueues("unknown"))).draining

    await world.store.queues(DrainWorker("w1", False))
    assert not (await world.store.queues(ReadQueues("w1"))).draining
    [record] = await world.store.read(AuditQuery("worker w1", None, 10))
    assert (record.action, record.reason) == ("worker_drain", "the host is replaced")


async def test_a_worker_shows_the_number_of_tasks_that_it_owns(world: World) -> None:
    await world.store.register_worker(profile(), LEASE)
    for name in ("a", "b"):
        await world.start(name)
    await world.claim(owner="w1")

    assert [one.held for one in await world.store.read(WorkersQuery())] == [2]


async def test_open_runs_are_counted_by_version_of_one_workflow_or_of_all(world: World) -> None:
    await world.create("a", version="1")
    await world.create("b", version="2")
    await world.create("c")
    await world.store.create([NewRun("other", "d", version="2")])

    assert await world.store.read(VersionsQuery()) == [("1", 1), ("2", 2), (None, 1)]
    assert await world.store.read(VersionsQuery(FLOW)) == [("1", 1), ("2", 1), (None, 1)]
    assert await world.store.read(VersionsQuery("other")) == [("2", 1)]


async def test_a_note_changes_nothing_and_is_audited(world: World) -> None:
    before = (await world.create("a")).run

    found = await world.store.control(RecordAction(FLOW, "a"), Audit("start", "ann", "by phone"))
    missing = await world.store.control(RecordAction(FLOW, "none"), Audit("start", "ann"))

    assert (found.run, found.refused, missing.run) == (before, False, None)
    assert await world.find("a") == before
    [record] = await world.store.read(AuditQuery(None, None, 10))
    assert (record.action, record.target, record.reason, record.outcome) == ("start", f"{FLOW}/a", "by phone", "done")
