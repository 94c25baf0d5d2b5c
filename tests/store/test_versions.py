"""Versions of runs: recorded at the start or by the first claim; a pinned run is claimed by workers of its version."""

from __future__ import annotations

from holdfast.core.model import Status
from holdfast.store.protocol import (
    Advance,
    Attributes,
    Claimant,
    Finish,
    MissingDecrement,
    MoveRun,
    NewUnit,
    RestartRun,
    VersionCount,
    VersionsQuery,
)
from store.world import FLOW, LEASE, World, result, waiting


async def move(world: World, id: str, version: str, *, pinned: bool = False) -> None:
    await world.store.control(MoveRun(FLOW, id, version, pinned))


async def test_a_run_records_the_version_that_started_it(world: World) -> None:
    await world.start("a", version="v1")
    await world.start("b", version="v1", pinned=True)
    await world.start("c")

    found = [await world.find(name) for name in ("a", "b", "c")]

    assert [(run.version, run.pinned) for run in found] == [("v1", False), ("v1", True), (None, False)]


async def test_a_created_record_equals_the_stored_one(world: World) -> None:
    for name, options in (("a", {}), ("b", {"memo": b"{}"})):
        created = await world.create(name, version="v1", pinned=True, attributes=Attributes(**options))

        assert created.run == await world.find(name)


async def test_a_pinned_run_is_claimed_only_by_workers_of_its_version(world: World) -> None:
    await world.start("a", version="v1", pinned=True)

    assert await world.claimed_ids() == []
    assert await world.claimed_ids(version="v2") == []
    assert await world.claimed_ids(version="v1") == ["a"]


async def test_a_run_that_is_not_pinned_is_claimed_by_any_worker(world: World) -> None:
    await world.start("a", version="v1")

    assert await world.claimed_ids(version="v2") == ["a"]
    assert (await world.find("a")).version == "v1"


async def test_pinned_and_other_runs_are_claimed_in_one_order(world: World) -> None:
    for name, pinned in (("a", False), ("b", True), ("c", False), ("d", True)):
        await world.start(name, version="v1", pinned=pinned)
        world.clock.advance(1)

    assert await world.claimed_ids(version="v1") == ["a", "b", "c", "d"]


async def test_the_next_due_time_ignores_runs_of_other_versions(world: World) -> None:
    await world.start("a", version="v1", pinned=True, delay_ms=10)
    await world.start("b", delay_ms=20)

    assert (await world.claim(version="v2")).next_due == world.now() + 20
    assert (await world.claim(version="v1")).next_due == world.now() + 10


async def test_the_first_claim_sets_the_version_of_a_run_that_has_none(world: World) -> None:
    await world.start("a")
    await world.start("b", workflow="other")

    claims = (await world.claim(version="v1", pinned=["other"], workflows=[FLOW, "other"])).claims

    assert {(one.run.workflow, one.run.version, one.run.pinned) for one in claims} == {
        (FLOW, "v1", False),
        ("other", "v1", True),
    }


async def test_a_run_that_the_first_claim_pinned_stays_with_its_version(world: World) -> None:
    await world.start("a")
    claim = await world.claim_one(version="v1", pinned=[FLOW])
    await world.commit(claim.task, then=waiting("go"))

    await world.send("go")

    assert await world.claimed_ids(version="v2", pinned=[FLOW]) == []
    assert await world.claimed_ids(version="v1", pinned=[FLOW]) == ["a"]


async def test_a_worker_without_a_version_sets_none(world: World) -> None:
    await world.start("a")

    claim = await world.claim_one(pinned=[FLOW])

    assert (claim.run.version, claim.run.pinned) == (None, False)


async def test_an_event_does_not_let_a_worker_of_another_version_claim_a_pinned_run(world: World) -> None:
    task = await world.start_claimed("a", version="v1", pinned=True)
    await world.commit(task, then=waiting("go"))

    other = await world.send("go", claimant=Claimant("w2", LEASE, ["default"], "v2"))
    own = await world.send("go", claimant=Claimant("w1", LEASE, ["default"], "v1"))

    assert (other.woken, other.claim) == (True, None)
    assert own.claim is not None
    assert own.claim.run.pinned


async def test_a_moved_run_is_claimed_by_workers_of_the_new_version(world: World) -> None:
    await world.start("a", version="v1", pinned=True)

    await move(world, "a", "v2")

    run = await world.find("a")
    assert (run.version, run.pinned) == ("v2", True)
    assert await world.claimed_ids(version="v1") == []
    assert await world.claimed_ids(version="v2") == ["a"]


async def test_a_move_does_not_take_the_run_from_its_owner(world: World) -> None:
    task = await world.start_claimed("a", version="v1", pinned=True)

    await move(world, "a", "v2")
    await world.commit(task, then=waiting(run_at=world.now()))

    assert await world.claimed_ids(version="v1") == []
    assert await world.claimed_ids(version="v2") == ["a"]


async def test_a_move_of_a_waiting_run_makes_cached_machines_invalid(world: World) -> None:
    task = await world.start_claimed("a", version="v1", pinned=True)
    await world.commit(task, then=waiting(run_at=world.now()))

    await move(world, "a", "v2")

    assert (await world.claim_one(version="v2")).task.epoch == task.epoch + 2


async def test_a_move_changes_the_version_of_a_run_that_is_not_pinned(world: World) -> None:
    await world.start("a", version="v1")

    await move(world, "a", "v2")

    run = await world.find("a")
    assert (run.version, run.pinned) == ("v2", False)
    assert await world.claimed_ids(version="v1") == ["a"]


async def test_a_move_can_pin_a_run(world: World) -> None:
    await world.start("a")

    await move(world, "a", "v2", pinned=True)

    assert await world.claimed_ids(version="v1") == []
    assert await world.claimed_ids(version="v2") == ["a"]


async def test_an_ended_run_is_not_moved(world: World) -> None:
    await world.start_ended("a")
    before = await world.find("a")

    answer = await world.store.control(MoveRun(FLOW, "a", "v2", pinned=True))

    assert answer.run == before == await world.find("a")
    assert (await world.store.control(MoveRun(FLOW, "none", "v2"))).run is None


async def test_a_successor_has_no_version_until_it_is_claimed(world: World) -> None:
    await world.start("a", version="v1", pinned=True)

    await world.store.control(RestartRun(FLOW, "a"))

    run = await world.find("a")
    assert (run.number, run.version, run.pinned) == (1, None, False)
    assert await world.claimed_ids(version="v2", pinned=[FLOW]) == ["a"]
    assert (await world.find("a")).version == "v2"


# --------------------------------------------------------------------------------------------------- units


async def test_units_of_a_pinned_run_are_claimed_by_workers_of_its_version(world: World) -> None:
    await world.graph("a", NewUnit(1, "x", 0), NewUnit(2, "y", 0), owner=None, version="v1", pinned=True)
    run = (await world.find("a")).run

    assert await world.claimed_units(version="v2") == []
    assert await world.claimed_units(version="v2", run=run) == []
    assert await world.claimed_units(version="v1", limit=1) == [1]
    assert await world.claimed_units(version="v1", run=run) == [2]


async def test_the_first_claim_pins_all_units(world: World) -> None:
    await world.graph("a", NewUnit(1, "x", 0), NewUnit(2, "y", 0), owner=None)

    assert await world.claimed_units(version="v1", pinned=[FLOW], limit=1) == [1]

    assert await world.claimed_units(version="v2", pinned=[FLOW]) == []
    assert await world.claimed_units(version="v1", pinned=[FLOW]) == [2]


async def test_an_advance_leaves_the_units_of_a_moved_run_to_the_new_version(world: World) -> None:
    [first] = await world.graph("a", NewUnit(1, "x", 0), NewUnit(2, "y", 1), version="v1", pinned=True)
    await move(world, "a", "v2")

    advanced = await world.advance(
        Advance(first, results=[result("x")], decrements=[MissingDecrement(2, 1)]), claim_limit=5, version="v1"
    )

    assert ([*advanced.claimed], advanced.due) == ([], True)
    assert await world.claimed_units(version="v1") == []
    assert await world.claimed_units(version="v2") == [2]


async def test_units_that_a_pinned_run_adds_are_pinned(world: World) -> None:
    [first] = await world.graph("a", NewUnit(1, "x", 0), version="v1", pinned=True)

    await world.advance(
        Advance(first, results=[result("x")], new_units=[NewUnit(5, "item", 0)]), claim_limit=0, version="v1"
    )

    assert await world.claimed_units(version="v2") == []
    assert await world.claimed_units(version="v1") == [5]


# --------------------------------------------------------------------------------------------------- counts


async def test_open_runs_are_counted_by_version(world: World) -> None:
    assert await world.store.read(VersionsQuery()) == []
    for name, version in (("a", "v2"), ("b", "v1"), ("c", "v2"), ("d", None)):
        await world.start(name, version=version)
    task = await world.start_claimed("e", version="v1")
    await world.commit(task, then=Finish(Status.COMPLETE))

    counts = await world.store.read(VersionsQuery())

    assert counts == [VersionCount("v1", 1), VersionCount("v2", 2), VersionCount(None, 1)]
