"""Results and log lines that a worker writes after its run was ended from outside."""

from __future__ import annotations

import asyncio

from holdfast.store.protocol import Log, PageQuery
from store.world import FLOW, World, result


def line(message: str) -> Log:
    return Log("info", "workflow", message, b'{"n":1}', 5, "step\x00", 1)


async def stored(world: World, run: int) -> list[tuple[int, Log]]:
    return [(one.n, one.line) for one in await world.store.logs(PageQuery(run))]


async def test_lines_are_added_to_a_run_that_has_ended(world: World) -> None:
    task = await world.begin("a")
    await world.store.terminate(FLOW, "a")

    first = await world.store.add_late(task.run, [], [line("one"), line("t\x00wo")])
    second = await world.store.add_late(task.run, [], [line("three")])

    assert (first, second) == (True, True)
    assert await stored(world, task.run) == [(1, line("one")), (2, line("t\x00wo")), (3, line("three"))]


async def test_no_lines_are_added_to_a_run_that_goes_on(world: World) -> None:
    task = await world.begin("a")

    assert await world.store.add_late(task.run, [], [line("one")]) is False
    assert await world.store.add_late(task.run + 1, [], [line("one")]) is False
    assert await stored(world, task.run) == []


async def test_lines_that_come_at_the_same_time_are_all_kept(world: World) -> None:
    task = await world.begin("a")
    await world.store.terminate(FLOW, "a")

    await asyncio.gather(*(world.store.add_late(task.run, [], [line(str(n))]) for n in range(5)))

    assert sorted(one.message for _, one in await stored(world, task.run)) == ["0", "1", "2", "3", "4"]


async def test_results_are_added_to_a_terminated_run_and_replace_none(world: World) -> None:
    task = await world.begin("a")
    await world.commit(task, facts=[result("known")])
    await world.store.terminate(FLOW, "a")

    await world.store.add_late(task.run, [result("known", at=9), result("la\x00te")], [])
    await world.store.add_late(task.run, [result("la\x00te")], [])

    found = (await world.store.load(task.run)).facts
    assert sorted(found) == sorted([result("known"), result("la\x00te")])


async def test_no_results_are_added_to_a_run_that_goes_on_or_came_to_its_own_end(world: World) -> None:
    open_task, ended = await world.begin("a"), await world.begin("b")
    await world.finish(ended)

    assert await world.store.add_late(open_task.run, [result("late")], []) is False
    assert await world.store.add_late(ended.run, [result("late")], []) is True
    assert await world.keys(open_task.run) == []
    assert await world.keys(ended.run) == []
