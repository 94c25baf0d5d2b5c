"""Lines: the key of an event is known to all runs of which each asked for the next, and to no others."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.model import Status
from holdfast.store.protocol import (
    AnswerEvent,
    Claimant,
    Delivery,
    NewEvent,
    NextRun,
    OnConflict,
    OnReuse,
    PageQuery,
    Reply,
    RunRecord,
    TaskRef,
)
from store.world import FLOW, LEASE, World, pid, waiting

WAYS = pytest.mark.parametrize(
    ("status", "next"),
    [
        (Status.COMPLETE, {"continues": True}),
        (Status.ERRORED, {"attempt": 2}),
        (Status.COMPLETE, {"run_at": 10**15}),
    ],
    ids=["continuation", "attempt", "tick"],
)
HERE = Claimant("w9", LEASE, ["default"])


async def _read(world: World, task: TaskRef, n: int = 1) -> None:
    await world.commit(task, deliveries=[Delivery(n, f"wait{n}", 1)])


@WAYS
async def test_a_key_that_was_read_is_known_to_the_run_that_was_asked_for(
    world: World, status: Status, next: dict[str, Any]
) -> None:
    task = await world.begin("a")
    await world.send("go", dedup="k")
    await _read(world, task)
    await world.finish(task, status, next=NextRun(None, **next))
    after = await world.find("a", 1)

    again = await world.send("go", dedup="k")

    assert again.run is not None
    assert (again.run.run, again.accepted, again.duplicate, again.woken) == (after.run, True, True, False)
    assert await world.unread(after.run) == []


async def test_a_key_is_known_however_many_runs_came_after(world: World) -> None:
    task = await world.begin("a")
    await world.send("go", dedup="k")
    await _read(world, task)
    task = await world.gone_on(task, 2)
    await world.send("go", dedup="l")
    await _read(world, task)
    task = await world.gone_on(task, 2)

    assert [(await world.send("go", dedup=key)).duplicate for key in "klmm"] == [True, True, False, True]
    assert len(await world.unread(task.run)) == 1


async def test_a_key_that_was_moved_unread_is_known_after_it_was_read(world: World) -> None:
    task = await world.begin("a")
    await world.send("go", dedup="k")
    task = await world.gone_on(task, 2)
    await _read(world, task)
    task = await world.gone_on(task)

    assert (await world.send("go", dedup="k")).duplicate
    assert await world.unread(task.run) == []


async def test_a_repeat_wakes_and_claims_nobody(world: World) -> None:
    task = await world.begin("a")
    await world.send("go", dedup="k")
    await _read(world, task)
    task = await world.gone_on(task)
    await world.commit(task, then=waiting("go"))

    again = await world.send("go", dedup="k", claimant=HERE)

    assert (again.duplicate, again.woken, again.claim) == (True, False, None)
    assert await world.claimed_ids() == []


async def test_a_repeat_to_who_is_held_is_no_signal(world: World) -> None:
    task = await world.begin("a")
    await world.send("go", dedup="k")
    await _read(world, task)
    await world.gone_on(task)

    assert not (await world.send("go", dedup="k")).woken
    assert await world.store.signals("w1") == []


async def test_several_at_once_know_what_the_line_has(world: World) -> None:
    task = await world.begin("a")
    await world.send("go", dedup="k")
    await _read(world, task)
    task = await world.gone_on(task)
    await world.start("b")

    sent = await world.store.send([NewEvent(FLOW, to, "go", dedup=key) for to, key in ("ak", "bk", "al", "al")])

    assert [(one.accepted, one.duplicate) for one in sent] == [(True, True), (True, False), (True, False), (True, True)]
    assert len(await world.unread(task.run)) == 1


async def test_another_instance_does_not_know_it(world: World) -> None:
    task = await world.begin("a")
    await world.send("go", "a", dedup="k")
    await world.gone_on(task)
    await world.start("b")

    assert not (await world.send("go", "b", dedup="k")).duplicate


@pytest.mark.parametrize("ended", [False, True])
async def test_a_restart_begins_a_line(world: World, ended: bool) -> None:
    task = await world.begin("a")
    await world.send("go", dedup="k")
    task = await world.gone_on(task)
    if ended:
        await world.finish(task)

    new = await world.restart("a")

    assert not (await world.send("go", dedup="k")).duplicate
    assert (await world.send("go", dedup="k")).duplicate
    assert len(await world.unread(new.run)) == 1


async def test_the_line_that_a_restart_began_goes_on(world: World) -> None:
    await world.begin("a")
    await world.send("go", dedup="k")
    await world.restart("a")
    task = (await world.take("w1")).task
    await world.send("go", dedup="k")
    await _read(world, task)
    await world.gone_on(task)

    assert (await world.send("go", dedup="k")).duplicate


@pytest.mark.parametrize("lives", [False, True])
async def test_a_start_in_the_place_of_another_begins_a_line(world: World, lives: bool) -> None:
    task = await world.gone_on(await world.begin("a"))
    await world.send("go", dedup="k")
    if not lives:
        await world.finish(task)

    await world.create("a", on_conflict=OnConflict.TERMINATE_EXISTING, on_reuse=OnReuse.ALLOW)

    assert not (await world.send("go", dedup="k")).duplicate


async def test_a_run_that_has_ended_refuses_a_repeat(world: World) -> None:
    task = await world.begin("a")
    await world.send("go", dedup="k")
    await world.finish(await world.gone_on(task))

    assert not (await world.send("go", dedup="k")).accepted


async def test_events_without_a_key_are_no_repeats(world: World) -> None:
    task = await world.begin("a")
    await world.send("go")
    await _read(world, task)
    task = await world.gone_on(task)

    assert not (await world.send("go")).duplicate
    assert len(await world.unread(task.run)) == 1


async def test_what_runs_send_under_a_key_is_known_to_the_line(world: World) -> None:
    sender, task = await world.begin("sender"), await world.begin("a")
    event = NewEvent(FLOW, "a", "go", dedup="k", sender=pid("sender"))
    await world.act(sender, event)
    await _read(world, task)
    task = await world.gone_on(task)

    await world.act(sender, event, at=1)

    assert await world.unread(task.run) == []


# --------------------------------------------------------------------------------------------------- answers


async def _answered(world: World) -> tuple[TaskRef, list[RunRecord]]:
    """A question to the first run, answered by the second; the third is held. All of them."""
    task = await world.begin("a")
    await world.send("ask", dedup="k", ask="k")
    task = await world.gone_on(task)
    await world.act(task, AnswerEvent(1, Reply(True, b"7")))
    await _read(world, task)
    task = await world.gone_on(task)
    return task, [await world.find("a", number) for number in range(3)]


async def test_an_answer_is_found_by_any_run_of_the_line(world: World) -> None:
    _, runs = await _answered(world)

    assert [await world.store.reply(run.run, "k") for run in runs] == [Reply(True, b"7")] * 3


async def test_a_question_that_is_repeated_has_the_answer_it_got(world: World) -> None:
    task, _ = await _answered(world)

    again = await world.send("ask", dedup="k", ask="k")

    assert again.run is not None
    assert again.duplicate
    assert await world.store.reply(again.run.run, "k") == Reply(True, b"7")
    assert await world.unread(task.run) == []


async def test_a_question_that_is_repeated_before_it_is_answered_gets_the_one_answer(world: World) -> None:
    task = await world.begin("a")
    await world.send("ask", dedup="k", ask="k")
    task = await world.gone_on(task)
    again = await world.send("ask", dedup="k", ask="k")

    assert again.run is not None
    assert await world.store.reply(again.run.run, "k") is None
    await world.act(task, AnswerEvent(1, Reply(True, b"7")))

    assert again.duplicate
    assert await world.store.reply(again.run.run, "k") == Reply(True, b"7")
    assert len(await world.store.events(PageQuery(task.run))) == 1


async def test_answers_of_other_lines_are_not_found(world: World) -> None:
    await _answered(world)
    other = await world.start("b")
    new = await world.restart("a")

    assert [await world.store.reply(run.run, "k") for run in (other, new)] == [None, None]
