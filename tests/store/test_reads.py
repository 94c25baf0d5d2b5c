"""Reads: results, their order, and pages."""

from __future__ import annotations

import pytest

from holdfast.core.model import Status
from holdfast.store.protocol import (
    CurrentRuns,
    Delivery,
    EventsQuery,
    LogsQuery,
    NewRun,
    RunByName,
    RunsById,
    SnapshotQuery,
)
from store.world import FLOW, World, log_line, result


async def test_find_returns_the_current_run_and_earlier_ones_by_number(world: World) -> None:
    first = await world.start("a")
    await world.restart("a")

    assert (await world.find("a")).number == 1
    assert (await world.find("a", 0)).run == first.run
    assert not await world.store.read(RunByName(FLOW, "a", 2))
    assert not await world.store.read(RunByName(FLOW, "b"))
    assert not await world.store.read(RunByName("other", "a"))


async def test_get_returns_runs_in_the_requested_order_without_missing_ones(world: World) -> None:
    a, b = await world.start("a"), await world.start("b")

    found = await world.store.read(RunsById([b.run, 999, a.run]))

    assert found == [b, a]
    assert await world.store.read(RunsById([])) == []


async def test_a_list_is_newest_first(world: World) -> None:
    for name in ("a", "b", "c"):
        await world.start(name)

    assert await world.ids() == ["c", "b", "a"]
    assert await world.ids(workflow=FLOW) == ["c", "b", "a"]


async def test_a_list_merges_all_workflows_by_age(world: World) -> None:
    for n, workflow in enumerate(("x", "y", "z", "y", "x")):
        await world.start(f"r{n}", workflow=workflow)

    assert await world.ids() == ["r4", "r3", "r2", "r1", "r0"]
    assert await world.ids(workflow="y") == ["r3", "r1"]
    assert await world.ids(workflow="none") == []


@pytest.mark.parametrize("workflow", [None, FLOW])
async def test_a_list_filters_by_status(world: World, workflow: str | None) -> None:
    await world.start("active")
    await world.start_waiting("waiting", "go")
    await world.start_ended("complete")
    await world.start_waiting("too", "go")

    assert await world.ids(workflow=workflow, status=Status.WAITING) == ["too", "waiting"]
    assert await world.ids(workflow=workflow, status=Status.COMPLETE) == ["complete"]
    assert await world.ids(workflow=workflow, status=Status.ERRORED) == []


@pytest.mark.parametrize("workflow", [None, FLOW])
async def test_a_list_is_read_page_by_page(world: World, workflow: str | None) -> None:
    await world.store.create([NewRun(FLOW, f"r{n}") for n in range(7)])
    seen: list[str] = []
    before = None

    while page := await world.store.read(CurrentRuns(workflow, before=before, limit=3)):
        seen += [run.instance_id for run in page]
        before = page[-1].instance

    assert seen == [f"r{n}" for n in reversed(range(7))]


async def test_a_list_of_one_status_continues_from_its_cursor(world: World) -> None:
    for n in range(5):
        await world.start_waiting(f"w{n}", "go")
        await world.start(f"a{n}")
    first = await world.store.read(CurrentRuns(FLOW, Status.WAITING, limit=2))

    rest = await world.ids(workflow=FLOW, status=Status.WAITING, before=first[-1].instance)

    assert [run.instance_id for run in first] == ["w4", "w3"]
    assert rest == ["w2", "w1", "w0"]


async def test_a_restarted_instance_is_listed_once_in_its_old_position(world: World) -> None:
    for name in ("a", "b", "c"):
        await world.start(name)
    await world.restart("b")

    runs = await world.store.read(CurrentRuns())

    assert [(run.instance_id, run.number) for run in runs] == [("c", 0), ("b", 1), ("a", 0)]


async def test_a_list_includes_the_columns_of_the_task(world: World) -> None:
    task = await world.start_claimed("a")
    await world.pause("a")

    [run] = await world.store.read(CurrentRuns())

    assert (run.owner, run.pausing, run.losses) == (task.owner, True, 0)


async def test_a_run_record_has_its_topics_while_it_has_no_owner(world: World) -> None:
    new = await world.start("new")
    waits = await world.start_waiting("waits", "go", "stop")
    await world.send("go", "waits")
    claims = {claim.run.instance_id: claim.run for claim in (await world.claim()).claims}

    assert (new.topics, waits.topics) == (frozenset(), frozenset({"go", "stop"}))
    assert claims["waits"].topics == (await world.find("waits")).topics == frozenset()


async def test_load_returns_all_that_a_replay_needs(world: World) -> None:
    task = await world.start_claimed("a")
    await world.send("go", payload=b"1")
    await world.send("go", payload=b"2")
    await world.send("go", payload=b"3")
    logs = [log_line("flow"), log_line("step", step_key="s"), log_line("again", is_replay=True), log_line("flow too")]
    facts = [result("consumed", event=2), result("looked at", event=3), result("s")]
    await world.commit(task, facts=facts, deliveries=[Delivery(1, "unnamed", 5), Delivery(2, "wait", 5)], logs=logs)

    snapshot = await world.store.read(SnapshotQuery(task.run))

    assert [fact.key for fact in snapshot.facts] == ["consumed", "looked at", "s"]
    assert {n: (event.n, event.payload) for n, event in snapshot.events.items()} == {2: (2, b"2"), 3: (3, b"3")}
    assert snapshot.log_count == 2


async def test_load_of_a_fresh_run_is_empty(world: World) -> None:
    run = await world.start("a")

    snapshot = await world.store.read(SnapshotQuery(run.run))

    assert (list(snapshot.facts), dict(snapshot.events), snapshot.log_count) == ([], {}, 0)


@pytest.mark.promise("isolation-of-runs")
async def test_runs_do_not_see_each_others_facts_events_and_logs(world: World) -> None:
    a, b = await world.start_claimed("a"), await world.start_claimed("b")
    await world.send("go", "a")
    await world.commit(a, facts=[result("s")], logs=[log_line("l")])

    assert await world.facts(b.run) == []
    assert await world.store.read(EventsQuery(b.run)) == []
    assert await world.store.read(LogsQuery(b.run)) == []


async def test_events_are_read_page_by_page_in_both_directions(world: World) -> None:
    run = await world.start("a")
    for _ in range(5):
        await world.send("go")

    async def numbers(**page: object) -> list[int]:
        return [event.n for event in await world.store.read(EventsQuery(run.run, **page))]  # type: ignore[arg-type]

    assert await numbers() == [1, 2, 3, 4, 5]
    assert await numbers(limit=2) == [1, 2]
    assert await numbers(after=2, limit=2) == [3, 4]
    assert await numbers(descending=True, limit=2) == [5, 4]
    assert await numbers(descending=True, after=4) == [3, 2, 1]
    assert await numbers(after=5) == []


async def test_events_returns_delivered_and_undelivered_events(world: World) -> None:
    task = await world.start_claimed("a")
    await world.send("go")
    await world.send("go")
    await world.commit(task, deliveries=[Delivery(1, "s", 8)])

    first, second = await world.store.read(EventsQuery(task.run))

    assert (first.delivered_at, first.consumed_by) == (8, "s")
    assert (second.delivered_at, second.consumed_by) == (None, None)


async def test_logs_are_read_page_by_page_and_filtered(world: World) -> None:
    task = await world.start_claimed("a")
    lines = [log_line(str(n), level="warn" if n % 2 else "info", category="x" if n < 3 else "y") for n in range(6)]
    await world.commit(task, logs=lines)

    async def messages(**page: object) -> str:
        found = await world.store.read(LogsQuery(task.run, **page))  # type: ignore[arg-type]
        return "".join(log.log.message for log in found)

    assert await messages() == "012345"
    assert await messages(level="warn") == "135"
    assert await messages(category="y") == "345"
    assert await messages(level="warn", category="y") == "35"
    assert await messages(after=2, limit=2) == "23"
    assert await messages(descending=True, limit=2) == "54"
    assert await messages(descending=True, after=3, level="info") == "0"


async def test_a_log_line_is_read_as_it_was_written(world: World) -> None:
    task = await world.start_claimed("a")
    full = log_line("m", level="error", category="http", data=b"[1]", at=9, step_key="s", attempt=2, is_replay=True)

    await world.commit(task, logs=[full])

    [stored] = await world.store.read(LogsQuery(task.run))
    assert stored.log == full
    assert stored.log.is_replay is True
