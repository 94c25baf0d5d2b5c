"""Watches: exit events at the end of a run, and what happens to its children."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast.core.model import Status, TaskKind
from holdfast.store.protocol import (
    CANCEL,
    EXIT,
    AffectedRuns,
    Finish,
    NewRun,
    ParentClose,
    RelatedRun,
    Relations,
    RelationsQuery,
    RequestResult,
    RestartRun,
    RunsById,
    Signal,
    StoredEvent,
    TaskRef,
    UnwatchRun,
    Verdict,
    Watch,
    WatchRun,
)
from store.world import FLOW, LEASE, World, affected, pid, turn, waiting

MONITOR, LINK = Watch.MONITOR, Watch.LINK


async def _watch(world: World, task: TaskRef, id: str, watch: Watch = MONITOR, at: int = 0) -> None:
    assert (await world.operate(task, WatchRun(FLOW, id, watch), at=at)).operation_results == [RequestResult.DONE]


async def _child(world: World, parent: TaskRef, id: str, **options: Any) -> TaskRef:
    [row] = await world.store.read(RunsById([parent.run]))
    return await world.start_claimed(id, parent=pid(row.instance_id), parent_run=parent.run, **options)


def _payload(event: StoredEvent) -> dict[str, Any]:
    payload: dict[str, Any] = json.loads(event.payload or b"")
    return payload


async def _exits(world: World, run: int) -> list[tuple[str | None, int]]:
    """The senders and watch flags of the exit events that a run has received."""
    return [(event.sender, _payload(event)["watch"]) for event in await world.undelivered(run) if event.type == EXIT]


# --------------------------------------------------------------------------------------------------- exit events


@pytest.mark.parametrize(
    ("end", "status", "output", "error", "note"),
    [
        (Finish(Status.COMPLETE, output=b'{"a": [1, 2.0]}'), "complete", {"a": [1, 2.0]}, None, None),
        (Finish(Status.COMPLETE), "complete", None, None, None),
        (Finish(Status.ERRORED, error=b'{"name":"Oops"}'), "errored", None, {"name": "Oops"}, None),
        (Finish(Status.CANCELLED, error=b'"c"', note='in "time"'), "cancelled", None, "c", 'in "time"'),
    ],
)
async def test_a_watcher_receives_status_output_and_error_of_the_end(
    world: World, end: Finish, status: str, output: Any, error: Any, note: str | None
) -> None:
    a, b = await world.start_claimed("a"), await world.start_claimed("b")
    await _watch(world, a, "b")
    world.clock.advance(5)

    answer = await world.commit(b, then=end)

    [event] = await world.undelivered(a.run)
    assert (event.n, event.type, event.sender, event.created_at) == (1, EXIT, pid("b"), world.now())
    assert _payload(event) == {"watch": 1, "status": status, "output": output, "error": error, "note": note}
    assert event.payload is not None
    assert event.payload.isascii()
    assert (affected(answer).woken, affected(answer).ended) == ([a.run], [])


@pytest.mark.parametrize("reason", [None, "enough", 'ü "quoted" \\ \n \ud800'])
async def test_a_watcher_receives_a_termination_with_its_reason(world: World, reason: str | None) -> None:
    a = await world.start_claimed("a")
    await world.start("b")
    await _watch(world, a, "b")

    steered = await world.terminate("b", reason)

    [event] = await world.undelivered(a.run)
    assert _payload(event) == {"watch": 1, "status": "terminated", "output": None, "error": None, "note": reason}
    assert steered.affected.woken == [a.run]


async def test_a_finished_run_has_the_note_it_ended_with(world: World) -> None:
    task = await world.start_claimed("a")

    await world.finish(task, Status.ERRORED, note="its time has run out")

    assert (await world.find("a")).note == "its time has run out"


async def test_an_exit_wakes_a_run_whatever_it_waits_for(world: World) -> None:
    a, b = await world.start_claimed("a"), await world.start_claimed("b")
    await _watch(world, a, "b")
    await world.commit(a, then=waiting("go", run_at=world.now() + 10**6))

    answer = await world.finish(b)

    claim = await world.claim_one("w2")
    assert (affected(answer).woken, affected(answer).work) == ([a.run], True)
    assert (claim.run.instance_id, claim.kind) == ("a", TaskKind.WAKE)
    assert [event.type for event in claim.mailbox_page.events] == [EXIT]


async def test_an_exit_wakes_a_run_that_waits_for_no_message_at_all(world: World) -> None:
    a, b = await world.start_claimed("a"), await world.start_claimed("b")
    await _watch(world, a, "b")
    await world.commit(a, then=waiting())

    await world.finish(b)

    assert await world.claimed_ids(owner="w2") == ["a"]


async def test_an_exit_signals_the_owner_of_the_watcher(world: World) -> None:
    a, b = await world.start_claimed("a", "w1"), await world.start_claimed("b", "w2")
    await _watch(world, a, "b")

    answer = await world.finish(b)

    assert (affected(answer).woken, affected(answer).work) == ([a.run], False)
    assert [(held.run, held.signal) for held in await world.store.fetch_signals("w1")] == [(a.run, Signal.EVENTS)]


async def test_an_exit_does_not_wake_a_paused_run(world: World) -> None:
    a, b = await world.start_claimed("a"), await world.start_claimed("b")
    await _watch(world, a, "b")
    await world.commit(a, then=waiting("go"))
    await world.pause("a")

    answer = await world.finish(b)

    assert affected(answer) == AffectedRuns()
    assert await world.claimed_ids(owner="w2") == []
    await world.resume("a")
    assert [event.type for event in (await world.claim_one("w2")).mailbox_page.events] == [EXIT]


@pytest.mark.promise("no-lost-wakeup")
async def test_an_exit_that_came_before_the_release_makes_it_due(world: World) -> None:
    a, b = await world.start_claimed("a"), await world.start_claimed("b")
    await _watch(world, a, "b")
    await world.finish(b)

    answer = await world.commit(a, then=waiting("other"))

    assert answer.due_now
    assert await world.claimed_ids(owner="w2") == ["a"]


async def test_an_exit_that_was_seen_does_not_make_a_release_due(world: World) -> None:
    a, b = await world.start_claimed("a"), await world.start_claimed("b")
    await _watch(world, a, "b")
    await world.finish(b)

    answer = await world.commit(a, then=waiting("other"), seen=1)

    assert not answer.due_now


@pytest.mark.parametrize("first", ["a", "b"])
async def test_watcher_and_watched_can_be_in_one_batch(world: World, first: str) -> None:
    a, b = await world.start_claimed("a"), await world.start_claimed("b")
    await _watch(world, a, "b")
    both = [turn(a, then=waiting("other")), turn(b, then=Finish(Status.COMPLETE))]

    await world.store.commit(both if first == "a" else both[::-1])

    assert await world.claimed_ids(owner="w2") == ["a"]


async def test_watcher_and_watched_can_end_in_one_batch(world: World) -> None:
    a, b = await world.start_claimed("a"), await world.start_claimed("b")
    await _watch(world, a, "b", LINK)

    answers = await world.store.commit([turn(task, then=Finish(Status.COMPLETE)) for task in (a, b)])

    assert [answer.verdict for answer in answers] == [Verdict.APPLIED] * 2
    assert (
        await world.store.read(RelationsQuery(a.run))
        == await world.store.read(RelationsQuery(b.run))
        == Relations([], [], [])
    )


async def test_a_watcher_receives_one_exit(world: World) -> None:
    a, b = await world.start_claimed("a"), await world.start_claimed("b")
    await _watch(world, a, "b")
    await world.finish(b)

    assert (
        await world.store.read(RelationsQuery(a.run))
        == await world.store.read(RelationsQuery(b.run))
        == Relations([], [], [])
    )
    await world.restart("b")
    await world.terminate("b")

    assert await _exits(world, a.run) == [(pid("b"), 1)]


async def test_watching_an_ended_run_sends_its_exit_at_once(world: World) -> None:
    await world.start_ended("b", Status.ERRORED)
    a = await world.start_claimed("a")

    answer = await world.operate(a, WatchRun(FLOW, "b", MONITOR))

    [event] = await world.undelivered(a.run)
    assert (answer.operation_results, answer.signal) == ([RequestResult.DONE], Signal.EVENTS)
    assert (event.sender, _payload(event)["watch"], _payload(event)["status"]) == (pid("b"), 1, "errored")
    assert (await world.store.read(RelationsQuery(a.run))).watches == []


async def test_a_hundred_watchers_all_receive_the_exit(world: World) -> None:
    b = await world.start_claimed("b")
    watchers = [await world.start_claimed(f"w{n}") for n in range(100)]
    for watcher in watchers:
        await _watch(world, watcher, "b")

    answer = await world.finish(b)

    assert sorted(affected(answer).woken) == [watcher.run for watcher in watchers]
    assert [await _exits(world, watcher.run) for watcher in watchers] == [[(pid("b"), 1)]] * 100


async def test_an_ended_watcher_receives_no_exit(world: World) -> None:
    a, b = await world.start_claimed("a"), await world.start_claimed("b")
    await _watch(world, a, "b")
    await world.finish(a)

    answer = await world.finish(b)

    assert affected(answer) == AffectedRuns()
    assert await world.undelivered(a.run) == []


async def test_watches_end_with_the_watcher(world: World) -> None:
    a, b = await world.start_claimed("a"), await world.start_claimed("b")
    await _watch(world, a, "b")

    await world.terminate("a")

    assert (await world.store.read(RelationsQuery(b.run))).watched_by == []


async def test_the_end_of_an_unwatched_run_affects_no_run(world: World) -> None:
    task = await world.start_claimed("a")
    await world.start_claimed("b")

    assert affected(await world.finish(task)) == AffectedRuns()


# --------------------------------------------------------------------------------------------------- flags


async def test_a_monitor_is_one_way(world: World) -> None:
    a, b = await world.start_claimed("a"), await world.start_claimed("b")
    await _watch(world, a, "b", MONITOR)

    await world.finish(a)

    assert await world.undelivered(b.run) == []


@pytest.mark.parametrize(("ends", "watcher"), [("a", "b"), ("b", "a")])
async def test_a_link_is_mutual(world: World, ends: str, watcher: str) -> None:
    tasks = {name: await world.start_claimed(name) for name in ("a", "b")}
    await _watch(world, tasks["a"], "b", LINK)

    await world.finish(tasks[ends])

    assert await _exits(world, tasks[watcher].run) == [(pid(ends), 2)]


async def test_a_link_is_removed_at_the_end_of_either_run(world: World) -> None:
    a, b = await world.start_claimed("a"), await world.start_claimed("b")
    await _watch(world, a, "b", LINK)

    await world.finish(a)
    answer = await world.finish(b)

    assert affected(answer) == AffectedRuns()


async def test_watching_twice_sends_one_exit_with_both_flags(world: World) -> None:
    a, b = await world.start_claimed("a"), await world.start_claimed("b")
    await _watch(world, a, "b", MONITOR)
    await _watch(world, a, "b", LINK, at=1)
    await _watch(world, a, "b", MONITOR, at=2)

    await world.finish(b)

    assert await _exits(world, a.run) == [(pid("b"), int(MONITOR | LINK))]


async def test_each_side_of_a_link_has_its_own_flags(world: World) -> None:
    a, b = await world.start_claimed("a"), await world.start_claimed("b")
    await _watch(world, a, "b", MONITOR | LINK)

    await world.finish(a)

    assert await _exits(world, b.run) == [(pid("a"), int(LINK))]


@pytest.mark.parametrize(("removed", "kept"), [(MONITOR, [2]), (LINK, [1]), (MONITOR | LINK, [])])
async def test_unwatching_removes_the_given_flags(world: World, removed: Watch, kept: list[int]) -> None:
    a, b = await world.start_claimed("a"), await world.start_claimed("b")
    await _watch(world, a, "b", MONITOR | LINK)

    answer = await world.operate(a, UnwatchRun(FLOW, "b", removed), at=1)
    await world.finish(b)

    assert answer.operation_results == [RequestResult.DONE]
    assert await _exits(world, a.run) == [(pid("b"), reason) for reason in kept]


async def test_removing_a_link_removes_both_directions(world: World) -> None:
    a, b = await world.start_claimed("a"), await world.start_claimed("b")
    await _watch(world, a, "b", LINK)

    await world.operate(b, UnwatchRun(FLOW, "a", LINK))
    await world.finish(a)

    assert await world.undelivered(b.run) == []
    assert await world.store.read(RelationsQuery(b.run)) == Relations([], [], [])


async def test_the_other_runs_monitor_is_kept_when_a_link_is_removed(world: World) -> None:
    a, b = await world.start_claimed("a"), await world.start_claimed("b")
    await _watch(world, a, "b", LINK)
    await _watch(world, b, "a", MONITOR)

    await world.operate(a, UnwatchRun(FLOW, "b", LINK), at=1)
    await world.finish(a)

    assert await _exits(world, b.run) == [(pid("a"), 1)]


@pytest.mark.parametrize("state", ["living", "ended"])
async def test_unwatching_an_unwatched_run_returns_done(world: World, state: str) -> None:
    a, b = await world.start_claimed("a"), await world.start_claimed("b")
    if state == "ended":
        await world.finish(b)

    assert (await world.operate(a, UnwatchRun(FLOW, "b", MONITOR | LINK))).operation_results == [RequestResult.DONE]


async def test_a_run_may_watch_itself_and_receives_no_exit(world: World) -> None:
    a = await world.start_claimed("a")
    await _watch(world, a, "a", MONITOR | LINK)

    assert (await world.finish(a)).verdict is Verdict.APPLIED
    assert await world.undelivered(a.run) == []


# --------------------------------------------------------------------------------------------------- children


async def test_a_child_record_has_its_parent(world: World) -> None:
    parent = await world.start_claimed("p")

    made = await world.create("c", parent=pid("p"), parent_run=parent.run)

    assert made.run.parent == pid("p")
    assert await world.find("c") == made.run
    assert (await world.find("p")).parent is None


async def test_a_parent_watches_its_child_from_the_start(world: World) -> None:
    parent = await world.start_claimed("p")
    child = await _child(world, parent, "c")

    await world.finish(child, output=b"7")

    [event] = await world.undelivered(parent.run)
    assert (event.sender, _payload(event)["watch"], _payload(event)["output"]) == (pid("c"), 1, 7)


async def test_a_child_can_be_linked_from_the_start(world: World) -> None:
    parent = await world.start_claimed("p")
    child = await _child(world, parent, "c", watch=MONITOR | LINK, parent_close=ParentClose.ABANDON)

    await world.finish(parent)

    assert await _exits(world, child.run) == [(pid("p"), 2)]


async def test_an_unwatched_child_sends_no_exit(world: World) -> None:
    parent = await world.start_claimed("p")
    child = await _child(world, parent, "c", watch=Watch(0))

    await world.finish(child)

    assert await world.undelivered(parent.run) == []


async def test_a_start_that_uses_an_existing_run_does_not_make_it_a_child(world: World) -> None:
    parent = await world.start_claimed("p")
    other = await world.start_claimed("c")

    await world.operate(parent, NewRun(FLOW, "c", parent=pid("p"), parent_run=parent.run))
    await world.finish(parent)

    assert ((await world.find("c")).status, (await world.find("c")).parent) == (Status.ACTIVE, None)
    assert affected(await world.finish(other)) == AffectedRuns()


async def _end(world: World, task: TaskRef, how: str) -> list[int]:
    """End a parent; returns the other runs that ended by that."""
    name = (await world.store.read(RunsById([task.run])))[0].instance_id
    match how:
        case "finish":
            return affected(await world.finish(task)).ended
        case "terminate":
            return [run for run in (await world.terminate(name)).affected.ended if run != task.run]
        case _:
            return [
                run for run in (await world.store.control(RestartRun(FLOW, name))).affected.ended if run != task.run
            ]


HOW = ["finish", "terminate", "restart"]


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("state", ["new", "held", "waiting", "paused"])
async def test_a_child_is_terminated_with_its_parent(world: World, how: str, state: str) -> None:
    parent = await world.start_claimed("p")
    child = await _child(world, parent, "c", parent_close=ParentClose.TERMINATE)
    match state:
        case "new":
            await world.store.release([child])
        case "waiting":
            await world.commit(child, then=waiting("go"))
        case "paused":
            await world.pause("c")
            await world.commit(child)
    world.clock.advance(5)

    ended = await _end(world, parent, how)

    run, now = await world.find("c"), world.now()
    assert (run.status, run.completed_at, run.updated_at, run.owner) == (Status.TERMINATED, now, now, None)
    assert run.note is not None
    assert ended == [child.run]
    assert (await world.commit(child)).verdict is Verdict.LOST
    assert await world.claimed_ids(owner="w2") == (["p"] if how == "restart" else [])


@pytest.mark.parametrize("how", HOW)
async def test_an_abandoned_child_continues(world: World, how: str) -> None:
    parent = await world.start_claimed("p")
    child = await _child(world, parent, "c", parent_close=ParentClose.ABANDON)
    before = await world.find("c")

    ended = await _end(world, parent, how)

    assert await world.find("c") == before
    assert ended == []
    assert await world.undelivered(child.run) == []
    assert (await world.commit(child)).verdict is Verdict.APPLIED


@pytest.mark.parametrize("how", HOW)
async def test_a_child_with_request_cancel_receives_a_cancellation(world: World, how: str) -> None:
    parent = await world.start_claimed("p")
    child = await _child(world, parent, "c", parent_close=ParentClose.REQUEST_CANCEL)
    await world.commit(child, then=waiting("go"))

    await _end(world, parent, how)

    [event] = await world.undelivered(child.run)
    assert (event.type, event.sender) == (CANCEL, pid("p"))
    assert set(_payload(event)) == {"reason", "deadlineMs"}
    assert _payload(event)["deadlineMs"] is None
    assert (await world.find("c")).expires_at is None
    assert "c" in await world.claimed_ids(owner="w2")


async def test_an_ended_child_is_not_changed_by_its_parents_end(world: World) -> None:
    parent = await world.start_claimed("p")
    child = await _child(world, parent, "c")
    await world.finish(child, output=b"7")
    ended = await world.find("c")
    world.clock.advance(5)

    await world.terminate("p")

    assert await world.find("c") == ended


async def test_a_parent_receives_no_exit_of_children_that_end_with_it(world: World) -> None:
    parent = await world.start_claimed("p")
    await _child(world, parent, "c", watch=MONITOR | LINK)

    await world.finish(parent)

    assert await world.undelivered(parent.run) == []


async def test_other_watchers_of_a_child_receive_its_exit(world: World) -> None:
    parent, other = await world.start_claimed("p"), await world.start_claimed("o")
    await _child(world, parent, "c")
    await _watch(world, other, "c")

    answer = await world.finish(parent)

    [event] = await world.undelivered(other.run)
    assert (event.sender, _payload(event)["status"]) == (pid("c"), "terminated")
    assert affected(answer).woken == [other.run]


async def test_children_of_other_runs_are_not_changed(world: World) -> None:
    parent, other = await world.start_claimed("p"), await world.start_claimed("o")
    await _child(world, other, "c")

    await world.finish(parent)

    assert (await world.find("c")).status is Status.ACTIVE


async def test_an_end_propagates_to_all_descendants_except_below_an_abandoned_child(world: World) -> None:
    top = await world.start_claimed("top")
    middle = await _child(world, top, "middle")
    low = await _child(world, middle, "low")
    free = await _child(world, middle, "free", parent_close=ParentClose.ABANDON)
    under_free = await _child(world, free, "under")

    answer = await world.finish(top)

    assert sorted(affected(answer).ended) == [middle.run, low.run]
    assert [run.status for run in await world.store.read(RunsById([free.run, under_free.run]))] == [Status.ACTIVE] * 2


async def test_a_thousand_generations_end_together(world: World) -> None:
    tasks = [await world.start_claimed("g0")]
    for n in range(1, 1_000):
        [created] = await world.store.create(
            [NewRun(FLOW, f"g{n}", owner="w1", lease_ms=LEASE, parent=pid(f"g{n - 1}"), parent_run=tasks[-1].run)]
        )
        tasks.append(TaskRef(created.run.run, 0, "w1", created.epoch))

    steered = await world.terminate("g0", "all of you")

    assert sorted(steered.affected.ended) == [task.run for task in tasks]
    assert await world.store.heartbeat("w1", LEASE) == []
    assert await world.ids(status=Status.ACTIVE) == []


async def test_three_hundred_children_end_with_their_parent(world: World) -> None:
    parent = await world.start_claimed("p")
    await world.store.create([NewRun(FLOW, f"c{n}", parent=pid("p"), parent_run=parent.run) for n in range(300)])

    answer = await world.finish(parent)

    assert len(affected(answer).ended) == 300
    assert (await world.claim("w2")).claims == ()


async def test_parents_that_end_in_one_batch_end_their_own_children(world: World) -> None:
    parents = [await world.start_claimed(f"p{n}") for n in range(3)]
    children = [await _child(world, parent, f"c{n}") for n, parent in enumerate(parents[:2])]

    answers = await world.store.commit([turn(parent, then=Finish(Status.COMPLETE)) for parent in parents])

    assert [affected(answer).ended for answer in answers] == [[children[0].run], [children[1].run], []]


async def test_a_restarted_child_stays_a_child_of_its_parent(world: World) -> None:
    parent = await world.start_claimed("p")
    await _child(world, parent, "c")
    again = await world.restart("c")
    assert again.parent == pid("p")
    assert await world.undelivered(parent.run) == []

    await world.finish(parent)

    assert (await world.find("c")).status is Status.TERMINATED


# --------------------------------------------------------------------------------------------------- relations


async def test_a_run_without_relations_has_empty_relations(world: World) -> None:
    run = await world.start("a")

    assert await world.store.read(RelationsQuery(run.run)) == Relations([], [], [])
    assert await world.store.read(RelationsQuery(999)) == Relations([], [], [])


async def test_relations_show_children_also_ended_ones_the_oldest_first(world: World) -> None:
    parent = await world.start_claimed("p")
    first = await _child(world, parent, "z")
    await _child(world, parent, "y")
    await _child(world, parent, "x")
    await world.finish(first)
    await world.restart("y")

    relations = await world.store.read(RelationsQuery(parent.run))

    assert relations.children == [
        RelatedRun(pid("z"), Status.COMPLETE),
        RelatedRun(pid("y"), Status.ACTIVE),
        RelatedRun(pid("x"), Status.ACTIVE),
    ]
    assert isinstance(relations.children[0].status, Status)


async def test_relations_show_watches_and_watchers_with_their_flags(world: World) -> None:
    a, b, c = await world.start_claimed("a"), await world.start_claimed("b"), await world.start_claimed("c")
    await _watch(world, a, "b", MONITOR)
    await _watch(world, a, "c", MONITOR | LINK, at=1)

    assert await world.store.read(RelationsQuery(a.run)) == Relations(
        [], [(pid("b"), MONITOR), (pid("c"), MONITOR | LINK)], [(pid("c"), LINK)]
    )
    assert await world.store.read(RelationsQuery(b.run)) == Relations([], [], [(pid("a"), MONITOR)])
    assert await world.store.read(RelationsQuery(c.run)) == Relations(
        [], [(pid("a"), LINK)], [(pid("a"), MONITOR | LINK)]
    )


async def test_relations_show_at_most_a_hundred_of_each(world: World) -> None:
    parent = await world.start_claimed("p")
    new = [NewRun(FLOW, f"c{n:03}", parent=pid("p"), parent_run=parent.run, watch=LINK) for n in range(120)]
    await world.store.create(new)

    relations = await world.store.read(RelationsQuery(parent.run))

    expected = [pid(f"c{n:03}") for n in range(100)]
    assert [child.pid for child in relations.children] == expected
    assert [other for other, _ in relations.watches] == expected
    assert [other for other, _ in relations.watched_by] == expected
