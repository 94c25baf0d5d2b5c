"""Deletion of finished runs: which runs, with which rows, and what stays."""

from __future__ import annotations

from dataclasses import replace

from holdfast.core.model import Status
from holdfast.store.protocol import (
    LARGE_RUN,
    Attributes,
    ClaimOutbox,
    Delivered,
    Delivery,
    EventsQuery,
    FactsQuery,
    Finish,
    LateResults,
    LogsQuery,
    NextRun,
    Outbound,
    Pruned,
    PruneRuns,
    RunsById,
    SettleOutbox,
    Term,
)
from store.world import FLOW, World, log_line, result

DAY = 24 * 60 * 60 * 1000
REQUEST = PruneRuns(FLOW, Status.COMPLETE, DAY)


async def prune(world: World, request: PruneRuns = REQUEST) -> int:
    """Delete all runs that the request allows; returns their number."""
    deleted = 0
    for _ in range(100):
        pruned = await world.store.maintain(request)
        deleted += pruned.runs
        if pruned.next is None:
            return deleted
        request = replace(request, after=pruned.next)
    raise AssertionError("the requests make no progress")


async def ended(world: World, name: str, status: Status = Status.COMPLETE, **options: object) -> int:
    task = await world.start_claimed(name, **options)
    await world.commit(task, then=Finish(status))
    return task.run


async def continued(world: World, name: str, runs: int) -> list[int]:
    """Create a line of runs of one instance; the last one has not ended."""
    first = await world.start_claimed(name)
    tasks = [first]
    for _ in range(runs - 1):
        await world.commit(tasks[-1], then=Finish(Status.COMPLETE, next=NextRun(None, continues=True)))
        tasks.append((await world.claim_one()).task)
    return [task.run for task in tasks]


async def test_runs_that_ended_long_ago_are_deleted(world: World) -> None:
    await ended(world, "old")
    world.clock.advance(DAY)
    await ended(world, "new")
    await world.start("open")

    assert await prune(world) == 1

    assert await world.ids() == ["open", "new"]


async def test_only_runs_of_the_workflow_and_the_status_are_deleted(world: World) -> None:
    await ended(world, "complete")
    await ended(world, "errored", Status.ERRORED)
    await ended(world, "other", workflow="other")
    world.clock.advance(DAY)

    assert await prune(world) == 1

    assert await world.ids() == ["other", "errored"]


async def test_all_rows_of_a_run_are_deleted(world: World) -> None:
    task = await world.start_claimed("a", attributes=Attributes(search=b"{}", terms=[Term("tag", "x")]))
    await world.send("go", dedup="key")
    await world.commit(task, facts=[result("step")], logs=[log_line("hello")], then=Finish(Status.COMPLETE))
    world.clock.advance(DAY)

    await prune(world)

    assert await world.store.read(FactsQuery(task.run)) == []
    assert await world.store.read(LogsQuery(task.run)) == []
    assert await world.store.read(EventsQuery(task.run)) == []
    assert await world.count("holdfast_term") == 0


async def test_the_id_of_a_deleted_instance_is_free(world: World) -> None:
    await ended(world, "a")
    world.clock.advance(DAY)
    await prune(world)

    created = await world.create("a")

    assert created.created
    assert created.run.number == 0


async def test_the_newest_runs_are_kept(world: World) -> None:
    for name in ("a", "b", "c", "d"):
        await ended(world, name, Status.ERRORED if name == "c" else Status.COMPLETE)
        world.clock.advance(1)
    world.clock.advance(DAY)

    assert await prune(world, replace(REQUEST, keep=5)) == 0
    assert await prune(world, replace(REQUEST, keep=2)) == 2

    assert await world.ids() == ["d", "c"]


async def test_a_child_is_kept_while_its_parent_has_not_ended(world: World) -> None:
    parent = await world.start_claimed("parent")
    await ended(world, "child", parent=f"{FLOW}/parent", parent_run=parent.run)
    world.clock.advance(DAY)

    assert await prune(world) == 0
    await world.commit(parent, then=Finish(Status.COMPLETE))
    assert await prune(world) == 1

    assert await world.ids() == ["parent"]


async def test_a_run_is_kept_until_its_outbound_events_are_delivered(world: World) -> None:
    task = await world.start_claimed("a")
    await world.commit(task, outbox=[Outbound("paid", b"1", "S")], then=Finish(Status.COMPLETE))
    world.clock.advance(DAY)

    assert await prune(world) == 0
    claim = await world.store.outbox(ClaimOutbox("w1", 1000, 10))
    await world.store.outbox(SettleOutbox("w1", [Delivered(row.run, row.n) for row in claim.rows]))
    assert await prune(world) == 1


async def test_earlier_runs_of_an_open_instance_are_deleted(world: World) -> None:
    runs = await continued(world, "a", 3)
    world.clock.advance(DAY)

    assert await prune(world) == 2

    assert [run.run for run in await world.store.read(RunsById(runs))] == runs[2:]


async def test_the_keys_of_events_are_kept_while_the_line_continues(world: World) -> None:
    first = await world.start_claimed("a")
    await world.send("go", dedup="key")
    await world.commit(first, deliveries=[Delivery(1, "wait", 1)], then=Finish(Status.COMPLETE, next=NextRun(None)))
    second = await world.claim_one()
    world.clock.advance(DAY)
    await prune(world)

    again = await world.send("go", dedup="key")

    assert again.duplicate
    await world.commit(second.task, then=Finish(Status.COMPLETE))
    world.clock.advance(DAY)
    await prune(world)
    assert await world.count("holdfast_event") == 0


async def test_the_current_run_is_deleted_with_all_earlier_runs(world: World) -> None:
    await ended(world, "a", Status.ERRORED)
    await world.restart("a")
    claim = await world.claim_one()
    await world.commit(claim.task, then=Finish(Status.COMPLETE))
    world.clock.advance(DAY)

    assert await prune(world) == 2

    assert await world.count("holdfast_run") == 0


async def test_the_rows_of_a_large_run_are_deleted_in_several_transactions(world: World) -> None:
    task = await world.start_claimed("a")
    await world.commit(task, facts=[result(f"s{n}", seq=n) for n in range(2_500)], then=Finish(Status.COMPLETE))
    world.clock.advance(DAY)

    first = await world.store.maintain(REQUEST)

    assert first.runs == 1
    assert await world.ids() == []
    assert await world.count("holdfast_fact") == 2_500
    await prune(world)
    assert await world.count("holdfast_fact") == 0
    assert await world.count("holdfast_leftover") == 0
    assert LARGE_RUN < 2_500


async def test_a_request_examines_at_most_its_limit_and_returns_the_next_position(world: World) -> None:
    for name in "abcde":
        await ended(world, name)
    world.clock.advance(DAY)

    first = await world.store.maintain(replace(REQUEST, limit=2))
    assert (first.runs, first.next is None) == (2, False)
    assert await prune(world, replace(REQUEST, limit=2)) == 3


async def test_runs_that_cannot_be_deleted_do_not_stop_the_others(world: World) -> None:
    parent = await world.start_claimed("parent")
    for n in range(5):
        await ended(world, f"child-{n}", parent=f"{FLOW}/parent", parent_run=parent.run)
    world.clock.advance(1)
    await ended(world, "free")
    world.clock.advance(DAY)

    assert await prune(world, replace(REQUEST, limit=2)) == 1


async def test_a_dry_run_counts_and_deletes_nothing(world: World) -> None:
    await ended(world, "a")
    await ended(world, "b")
    world.clock.advance(DAY)

    assert await prune(world, replace(REQUEST, dry_run=True)) == 2

    assert await world.ids() == ["b", "a"]


async def test_a_request_without_a_limit_reports_the_number_of_stored_runs(world: World) -> None:
    assert await world.store.maintain(replace(REQUEST, limit=0)) == Pruned(0, None, stored=0)
    await ended(world, "a")
    await world.start("b")

    assert await world.store.maintain(replace(REQUEST, age_ms=0, limit=0)) == Pruned(0, None, 2)


async def test_late_results_of_a_deleted_run_are_refused(world: World) -> None:
    run = await ended(world, "a", Status.TERMINATED)
    world.clock.advance(DAY)
    await prune(world, replace(REQUEST, status=Status.TERMINATED))

    assert not await world.store.add_late_results(LateResults(run, [result("late")], []))

    assert await world.count("holdfast_fact") == 0


async def test_an_event_for_a_deleted_instance_finds_none(world: World) -> None:
    await ended(world, "a")
    world.clock.advance(DAY)
    await prune(world)

    assert (await world.send("go")).run is None


async def test_a_request_without_a_workflow_deletes_runs_of_all_workflows(world: World) -> None:
    for name, workflow in (("a", "x"), ("b", "y"), ("c", "y"), ("d", "z")):
        await ended(world, name, workflow=workflow)
    world.clock.advance(DAY)

    assert await prune(world, replace(REQUEST, workflow=None, limit=1)) == 4


async def test_a_start_finds_an_instance_whose_first_run_was_deleted(world: World) -> None:
    await world.start_claimed("a")
    await world.restart("a")
    world.clock.advance(DAY)
    assert await prune(world, replace(REQUEST, status=Status.TERMINATED)) == 1

    created = await world.create("a")

    assert (created.created, created.run.number) == (False, 1)
    assert await world.ids() == ["a"]
