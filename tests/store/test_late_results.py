"""Late results: results and log lines that a worker writes after its run was ended by another process."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.store.protocol import LateResults, Log, LogsQuery, SnapshotQuery
from store.world import World, result


def log_line(message: str) -> Log:
    return Log("info", "workflow", message, b'{"n":1}', 5, "step\x00", 1)


async def stored(world: World, run: int) -> list[tuple[int, Log]]:
    return [(one.n, one.log) for one in await world.store.read(LogsQuery(run))]


async def test_logs_are_added_to_an_ended_run(world: World) -> None:
    task = await world.start_claimed("a")
    await world.terminate("a")

    first = await world.store.add_late_results(LateResults(task.run, [], [log_line("one"), log_line("t\x00wo")]))
    second = await world.store.add_late_results(LateResults(task.run, [], [log_line("three")]))

    assert (first, second) == (True, True)
    assert await stored(world, task.run) == [(1, log_line("one")), (2, log_line("t\x00wo")), (3, log_line("three"))]


async def test_no_logs_are_added_to_a_run_that_has_not_ended(world: World) -> None:
    task = await world.start_claimed("a")

    assert await world.store.add_late_results(LateResults(task.run, [], [log_line("one")])) is False
    assert await world.store.add_late_results(LateResults(task.run + 1, [], [log_line("one")])) is False
    assert await stored(world, task.run) == []


async def test_logs_added_concurrently_are_all_kept(world: World) -> None:
    task = await world.start_claimed("a")
    await world.terminate("a")

    await asyncio.gather(
        *(world.store.add_late_results(LateResults(task.run, [], [log_line(str(n))])) for n in range(5))
    )

    assert sorted(one.message for _, one in await stored(world, task.run)) == ["0", "1", "2", "3", "4"]


@pytest.mark.promise("committed-results-never-change")
async def test_results_are_added_to_a_terminated_run_and_replace_none(world: World) -> None:
    task = await world.start_claimed("a")
    await world.commit(task, facts=[result("known")])
    await world.terminate("a")

    await world.store.add_late_results(LateResults(task.run, [result("known", at=9), result("la\x00te")], []))
    await world.store.add_late_results(LateResults(task.run, [result("la\x00te")], []))

    found = (await world.store.read(SnapshotQuery(task.run))).facts
    assert sorted(found) == sorted([result("known"), result("la\x00te")])


@pytest.mark.promise("finality")
async def test_no_results_are_added_to_a_run_that_has_not_ended_or_has_finished(world: World) -> None:
    open_task, ended = await world.start_claimed("a"), await world.start_claimed("b")
    await world.finish(ended)

    assert await world.store.add_late_results(LateResults(open_task.run, [result("late")], [])) is False
    assert await world.store.add_late_results(LateResults(ended.run, [result("late")], [])) is True
    assert await world.keys(open_task.run) == []
    assert await world.keys(ended.run) == []
