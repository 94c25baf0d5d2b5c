"""Lines: a dedup key is known to all runs of a line, and to no other run."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.model import Status
from holdfast.store.protocol import (
    Claimant,
    Delivery,
    EventsQuery,
    NewEvent,
    NextRun,
    OnConflict,
    OnReuse,
    Reply,
    ReplyQuery,
    ReplyToEvent,
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
CLAIMANT = Claimant("w9", LEASE, ["default"])


async def _deliver(world: World, task: TaskRef, n: int = 1) -> None:
    await world.commit(task, deliveries=[Delivery(n, f"wait{n}", 1)])


@pytest.mark.promise("messages-once-in-order")
@WAYS
async def test_a_delivered_dedup_key_is_known_to_the_successor(
    world: World, status: Status, next: dict[str, Any]
) -> None:
    task = await world.start_claimed("a")
    await world.send("go", dedup="k")
    await _deliver(world, task)
    await world.finish(task, status, next=NextRun(None, **next))
    after = await world.find("a", 1)

    again = await world.send("go", dedup="k")

    assert again.run is not None
    assert (again.run.run, again.accepted, again.duplicate, again.woken) == (after.run, True, True, False)
    assert await world.undelivered(after.run) == []


async def test_a_dedup_key_is_known_to_all_later_runs_of_the_line(world: World) -> None:
    task = await world.start_claimed("a")
    await world.send("go", dedup="k")
    await _deliver(world, task)
    task = await world.continue_claimed(task, 2)
    await world.send("go", dedup="l")
    await _deliver(world, task)
    task = await world.continue_claimed(task, 2)

    assert [(await world.send("go", dedup=key)).duplicate for key in "klmm"] == [True, True, False, True]
    assert len(await world.undelivered(task.run)) == 1


async def test_a_moved_dedup_key_is_known_after_its_delivery(world: World) -> None:
    task = await world.start_claimed("a")
    await world.send("go", dedup="k")
    task = await world.continue_claimed(task, 2)
    await _deliver(world, task)
    task = await world.continue_claimed(task)

    assert (await world.send("go", dedup="k")).duplicate
    assert await world.undelivered(task.run) == []


async def test_a_duplicate_wakes_and_claims_no_run(world: World) -> None:
    task = await world.start_claimed("a")
    await world.send("go", dedup="k")
    await _deliver(world, task)
    task = await world.continue_claimed(task)
    await world.commit(task, then=waiting("go"))

    again = await world.send("go", dedup="k", claimant=CLAIMANT)

    assert (again.duplicate, again.woken, again.claim) == (True, False, None)
    assert await world.claimed_ids() == []


async def test_a_duplicate_does_not_signal_the_owner(world: World) -> None:
    task = await world.start_claimed("a")
    await world.send("go", dedup="k")
    await _deliver(world, task)
    await world.continue_claimed(task)

    assert not (await world.send("go", dedup="k")).woken
    assert await world.store.fetch_signals("w1") == []


async def test_a_batch_of_events_is_deduplicated_against_the_line(world: World) -> None:
    task = await world.start_claimed("a")
    await world.send("go", dedup="k")
    await _deliver(world, task)
    task = await world.continue_claimed(task)
    await world.start("b")

    sent = await world.store.send([NewEvent(FLOW, to, "go", dedup=key) for to, key in ("ak", "bk", "al", "al")])

    assert [(one.accepted, one.duplicate) for one in sent] == [(True, True), (True, False), (True, False), (True, True)]
    assert len(await world.undelivered(task.run)) == 1


async def test_a_dedup_key_is_not_known_to_another_instance(world: World) -> None:
    task = await world.start_claimed("a")
    await world.send("go", "a", dedup="k")
    await world.continue_claimed(task)
    await world.start("b")

    assert not (await world.send("go", "b", dedup="k")).duplicate


@pytest.mark.parametrize("ended", [False, True])
async def test_a_restart_begins_a_new_line(world: World, ended: bool) -> None:
    task = await world.start_claimed("a")
    await world.send("go", dedup="k")
    task = await world.continue_claimed(task)
    if ended:
        await world.finish(task)

    new = await world.restart("a")

    assert not (await world.send("go", dedup="k")).duplicate
    assert (await world.send("go", dedup="k")).duplicate
    assert len(await world.undelivered(new.run)) == 1


async def test_the_line_of_a_restarted_run_continues(world: World) -> None:
    await world.start_claimed("a")
    await world.send("go", dedup="k")
    await world.restart("a")
    task = (await world.claim_one("w1")).task
    await world.send("go", dedup="k")
    await _deliver(world, task)
    await world.continue_claimed(task)

    assert (await world.send("go", dedup="k")).duplicate


@pytest.mark.parametrize("running", [False, True])
async def test_a_start_that_replaces_a_run_begins_a_new_line(world: World, running: bool) -> None:
    task = await world.continue_claimed(await world.start_claimed("a"))
    await world.send("go", dedup="k")
    if not running:
        await world.finish(task)

    await world.create("a", on_conflict=OnConflict.TERMINATE_EXISTING, on_reuse=OnReuse.ALLOW)

    assert not (await world.send("go", dedup="k")).duplicate


async def test_an_ended_run_does_not_accept_a_duplicate(world: World) -> None:
    task = await world.start_claimed("a")
    await world.send("go", dedup="k")
    await world.finish(await world.continue_claimed(task))

    assert not (await world.send("go", dedup="k")).accepted


async def test_events_without_a_dedup_key_are_not_duplicates(world: World) -> None:
    task = await world.start_claimed("a")
    await world.send("go")
    await _deliver(world, task)
    task = await world.continue_claimed(task)

    assert not (await world.send("go")).duplicate
    assert len(await world.undelivered(task.run)) == 1


async def test_dedup_keys_of_events_that_runs_send_are_known_to_the_line(world: World) -> None:
    sender, task = await world.start_claimed("sender"), await world.start_claimed("a")
    event = NewEvent(FLOW, "a", "go", dedup="k", sender=pid("sender"))
    await world.operate(sender, event)
    await _deliver(world, task)
    task = await world.continue_claimed(task)

    await world.operate(sender, event, at=1)

    assert await world.undelivered(task.run) == []


# --------------------------------------------------------------------------------------------------- replies


async def _replied(world: World) -> tuple[TaskRef, list[RunRecord]]:
    """An ask to the first run, replied to by the second. Returns the claim of the third run, and all three runs."""
    task = await world.start_claimed("a")
    await world.send("ask", dedup="k", ask="k")
    task = await world.continue_claimed(task)
    await world.operate(task, ReplyToEvent(1, Reply(True, b"7")))
    await _deliver(world, task)
    task = await world.continue_claimed(task)
    return task, [await world.find("a", number) for number in range(3)]


async def test_a_reply_is_found_by_any_run_of_the_line(world: World) -> None:
    _, runs = await _replied(world)

    assert [await world.store.read(ReplyQuery(run.run, "k")) for run in runs] == [Reply(True, b"7")] * 3


async def test_a_repeated_ask_has_the_reply_of_the_first(world: World) -> None:
    task, _ = await _replied(world)

    again = await world.send("ask", dedup="k", ask="k")

    assert again.run is not None
    assert again.duplicate
    assert await world.store.read(ReplyQuery(again.run.run, "k")) == Reply(True, b"7")
    assert await world.undelivered(task.run) == []


async def test_an_ask_repeated_before_its_reply_has_the_same_reply(world: World) -> None:
    task = await world.start_claimed("a")
    await world.send("ask", dedup="k", ask="k")
    task = await world.continue_claimed(task)
    again = await world.send("ask", dedup="k", ask="k")

    assert again.run is not None
    assert await world.store.read(ReplyQuery(again.run.run, "k")) is None
    await world.operate(task, ReplyToEvent(1, Reply(True, b"7")))

    assert again.duplicate
    assert await world.store.read(ReplyQuery(again.run.run, "k")) == Reply(True, b"7")
    assert len(await world.store.read(EventsQuery(task.run))) == 1


async def test_replies_of_other_lines_are_not_found(world: World) -> None:
    await _replied(world)
    other = await world.start("b")
    new = await world.restart("a")

    assert [await world.store.read(ReplyQuery(run.run, "k")) for run in (other, new)] == [None, None]
