"""Schedules: a change is applied once, and creates the runs of its ticks in its transaction."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from holdfast.core.model import Status
from holdfast.store.protocol import (
    KEPT_TICKS,
    Audit,
    AuditQuery,
    DueQuery,
    NewRun,
    ScheduleByName,
    ScheduleChange,
    SchedulePage,
    ScheduleRow,
    TickRow,
)
from store.world import FLOW, Database, World


def row(name: str = "nightly", **fields: Any) -> ScheduleRow:
    values: dict[str, Any] = {
        "workflow": FLOW, "content": b"{}", "params": b"[1]", "declaration": None, "paused": False, "note": "a\udc80\0",
        "created_at": 0, "updated_at": 0, "revision": 0, "next_tick": 50, "due_at": 60, "seq": 0, "result": b'"r"',
        "result_n": 0,
    }  # fmt: skip
    return ScheduleRow(name, **(values | fields))


def tick(n: int, state: str = "started", id: str | None = None) -> TickRow:
    return TickRow(n, n * 1000, "tick", "skip", state, FLOW, id or f"t{n}", 0)


async def put(world: World, *rows: ScheduleRow) -> None:
    done = await world.store.change_schedules([ScheduleChange(one.name, 0, one) for one in rows])
    assert all(one.applied for one in done)


async def get(world: World, name: str = "nightly", ticks: int = 0) -> ScheduleRow:
    [found] = await world.store.read(ScheduleByName(name, ticks))
    return found


async def test_a_schedule_is_read_as_it_was_written(world: World) -> None:
    await put(world, row())

    now = world.now()
    assert await get(world) == row(revision=1, created_at=now, updated_at=now, ticks=[])


async def test_of_concurrent_creations_one_is_applied_and_audited(world: World) -> None:
    audit = Audit("create", "ann")

    for n in range(5):
        name = f"nightly-{n}"
        calls = [
            world.store.change_schedules([
                ScheduleChange(name, 0, row(name), [tick(1, id=f"{n}-{k}")], [NewRun(FLOW, f"{n}-{k}")], audit)
            ])
            for k in range(6)
        ]  # fmt: skip
        replies = [done for [done] in await asyncio.gather(*calls)]

        assert [done.applied for done in replies].count(True) == 1
        assert sum(len(done.created) for done in replies) == 1
        assert len(await world.store.read(AuditQuery(f"schedule {name}", None, 10))) == 1


async def test_a_schedule_that_exists_is_not_created_again(world: World) -> None:
    await put(world, row())

    [done] = await world.store.change_schedules([ScheduleChange("nightly", 0, row(params=b"2"))])

    assert not done.applied
    assert (await get(world)).params == b"[1]"


async def test_a_change_of_an_earlier_revision_writes_nothing(world: World) -> None:
    await put(world, row())
    first = await get(world)
    change = ScheduleChange("nightly", first.revision, replace(first, seq=1), [tick(1)], [NewRun(FLOW, "t1")])

    [applied] = await world.store.change_schedules([change])
    [stale] = await world.store.change_schedules(
        [replace(change, ticks=[tick(2)], runs=[NewRun(FLOW, "t2")], audit=Audit("schedule_update"))]
    )

    assert (applied.applied, stale.applied) == (True, False)
    assert [one.run.instance_id for one in applied.created] == ["t1"]
    assert await world.ids() == ["t1"]
    assert [one.n for one in (await get(world, ticks=9)).ticks] == [1]
    assert await world.store.read(AuditQuery()) == []


async def test_one_of_many_concurrent_changes_is_applied(database: Database, world: World) -> None:
    stores = [database(), database()]
    for store in stores:
        await store.open()
    await stores[0].change_schedules([ScheduleChange("nightly", 0, row())])

    changes = [ScheduleChange("nightly", 1, row(seq=n), [tick(n)], [NewRun(FLOW, f"t{n}")]) for n in range(1, 9)]
    done = await asyncio.gather(*(stores[n % 2].change_schedules([one]) for n, one in enumerate(changes)))
    [found] = await stores[0].read(ScheduleByName("nightly", 9))
    for store in stores:
        await store.close()

    assert sum(one.applied for [one] in done) == 1
    assert found.revision == 2
    assert [one.status for one in found.ticks] == [Status.ACTIVE]


async def test_due_schedules_are_those_of_the_callers_workflows_whose_time_has_come(world: World) -> None:
    now = world.now()
    await put(
        world, row("late", due_at=now - 5), row("now", due_at=now), row("soon", due_at=now + 7),
        row("never", due_at=None), row("other", workflow="other", due_at=now - 9),
    )  # fmt: skip

    due = await world.store.read(DueQuery([FLOW], 10))
    assert [one.name for one in due.rows] == ["late", "now"]
    assert due.now == now
    one = await world.store.read(DueQuery([FLOW, "other"], 1))
    assert [found.name for found in one.rows] == ["other"]
    named = await world.store.read(DueQuery([], 10, ["never", "no such schedule"]))
    assert [found.name for found in named.rows] == ["never"]


async def test_the_next_due_time_is_that_of_the_first_schedule(world: World) -> None:
    await put(world, row("a", due_at=world.now() + 9), row("b", due_at=world.now() + 7), row("c", due_at=None))

    due = await world.store.read(DueQuery([FLOW], 10))

    assert (due.rows, due.next_due) == ([], world.now() + 7)


async def test_a_due_schedule_has_its_open_and_queued_ticks_with_the_status_of_their_runs(world: World) -> None:
    await put(world, row(due_at=world.now()))
    ended = await world.start_ended("t1")
    open_run = await world.start("t2")
    ticks = [tick(1), tick(2, "cancelling"), tick(3), tick(4, "queued"), tick(5, "skipped"), tick(6, "complete")]
    await world.store.change_schedules([ScheduleChange("nightly", 1, row(due_at=world.now(), seq=6), ticks)])

    [found] = (await world.store.read(DueQuery([FLOW], 10))).rows

    assert [(one.n, one.state, one.status, one.run) for one in found.ticks] == [
        (1, "started", ended.status, ended.run),
        (2, "cancelling", Status.ACTIVE, open_run.run),
        (3, "started", None, None),
        (4, "queued", None, None),
    ]


async def test_the_newest_ticks_are_read_first_and_a_tick_is_replaced_by_its_number(world: World) -> None:
    await put(world, row())
    await world.store.change_schedules([ScheduleChange("nightly", 1, row(seq=3), [tick(1), tick(2), tick(3)])])
    await world.store.change_schedules([ScheduleChange("nightly", 2, row(seq=3), [tick(3, "complete")])])

    assert [(one.n, one.state) for one in (await get(world, ticks=2)).ticks] == [(3, "complete"), (2, "started")]


async def test_old_ticks_are_deleted_unless_they_are_queued(world: World) -> None:
    await put(world, row())
    ticks = [tick(1, "queued"), tick(2), tick(3, "complete"), tick(KEPT_TICKS + 2)]

    await world.store.change_schedules([ScheduleChange("nightly", 1, row(seq=KEPT_TICKS + 2), ticks)])

    assert [one.n for one in (await get(world, ticks=9)).ticks] == [KEPT_TICKS + 2, 3, 1]


async def test_schedules_are_listed_by_name_in_pages(world: World) -> None:
    await put(world, row("b"), row("a"), row("c", workflow="other"))

    async def names(query: SchedulePage) -> list[str]:
        return [one.name for one in await world.store.read(query)]

    assert await names(SchedulePage(limit=2)) == ["a", "b"]
    assert await names(SchedulePage("b", 2)) == ["c"]
    assert await names(SchedulePage(workflows=["other"])) == ["c"]


async def test_a_deleted_schedule_has_no_ticks_when_it_is_created_again(world: World) -> None:
    await put(world, row())
    await world.store.change_schedules([ScheduleChange("nightly", 1, row(seq=1), [tick(1)])])

    [done] = await world.store.change_schedules(
        [ScheduleChange("nightly", 2, None, audit=Audit("schedule_delete", "ann"))]
    )

    assert done.applied
    assert await world.store.read(ScheduleByName("nightly")) == []
    [record] = await world.store.read(AuditQuery("schedule nightly"))
    assert (record.actor, record.action) == ("ann", "schedule_delete")
    await put(world, row())
    assert (await get(world, ticks=9)).ticks == []
