"""Statistics: counts of runs by workflow and status, queues, throughput, errors and slow steps."""

from __future__ import annotations

from holdfast.core.model import Status
from holdfast.core.origin import Origin
from holdfast.store.postgres import PostgresStore
from holdfast.store.protocol import (
    ContinueRun,
    DeleteInstance,
    ErrorCount,
    NextRun,
    QueueCount,
    RunCount,
    StatsQuery,
    StepTimes,
    StoreStats,
    Tally,
    WorkerProfile,
)
from holdfast.store.protocol.stats import EXACT_MINUTES, MAX_MINUTES, TALLY_MARGIN_MS
from holdfast.store.sqlite import SqliteStore
from store.sqlite.internals import on_writer
from store.world import FLOW, LEASE, World, result, unit

HOUR = 3_600_000
ALL_DETAILS = StatsQuery(details=True)


async def stats(world: World, query: StatsQuery = ALL_DETAILS) -> StoreStats:
    return await world.store.read(query)


async def counted(world: World) -> list[RunCount]:
    return list((await stats(world)).runs)


async def count_all(world: World) -> None:
    """Move the watermark as far as possible."""
    world.clock.advance(TALLY_MARGIN_MS + 60_000)
    while await world.store.maintain(Tally(2)):
        pass


async def ended(world: World, id: str, status: Status = Status.COMPLETE, **fields: object) -> None:
    await world.finish(await world.start_claimed(id), status, **fields)


async def test_an_empty_database_has_empty_statistics(world: World) -> None:
    found = await stats(world)

    assert (found.runs, found.queues, found.errors, found.slowest_steps) == ([], [], [], [])
    assert (found.workers_alive, found.ended_last_minute, found.ended_last_hour) == (0, 0, 0)
    assert (found.started_last_minute, found.started_last_hour) == (0, 0)
    assert await world.store.maintain(Tally(10)) is False


async def test_runs_are_counted_by_workflow_and_status(world: World) -> None:
    await world.start("a")
    await world.start("b", workflow="other")
    await world.start_waiting("c", "go")
    await world.start("d")
    await world.pause("d")
    await ended(world, "e")
    await ended(world, "f", Status.ERRORED, error=b'{"name":"KeyError"}')

    assert await counted(world) == [
        RunCount(FLOW, "active", 1),
        RunCount(FLOW, "complete", 1),
        RunCount(FLOW, "errored", 1),
        RunCount(FLOW, "paused", 1),
        RunCount(FLOW, "waiting", 1),
        RunCount("other", "active", 1),
    ]


async def test_the_tallies_change_no_count(world: World) -> None:
    for n in range(7):
        await ended(world, f"c{n}")
        await ended(world, f"e{n}", Status.ERRORED)
        world.clock.advance(1_000)
    before = await counted(world)

    world.clock.advance(TALLY_MARGIN_MS + 10_000)
    parts = 1
    while await world.store.maintain(Tally(2)):
        assert await counted(world) == before
        parts += 1
    assert parts > 2
    assert await counted(world) == before == [RunCount(FLOW, "complete", 7), RunCount(FLOW, "errored", 7)]
    assert await world.store.maintain(Tally(2)) is False

    await ended(world, "new")
    assert await counted(world) == [RunCount(FLOW, "complete", 8), RunCount(FLOW, "errored", 7)]
    await count_all(world)
    assert await counted(world) == [RunCount(FLOW, "complete", 8), RunCount(FLOW, "errored", 7)]


async def test_runs_with_a_successor_are_counted_too(world: World) -> None:
    task = await world.start_claimed("a")
    await world.finish(task, next=NextRun(None))
    await count_all(world)

    assert await counted(world) == [RunCount(FLOW, "active", 1), RunCount(FLOW, "complete", 1)]


async def test_restarted_and_terminated_runs_are_counted_once_each(world: World) -> None:
    await ended(world, "a")
    await count_all(world)
    await world.restart("a")
    await world.terminate("a")
    await count_all(world)

    assert await counted(world) == [RunCount(FLOW, "complete", 1), RunCount(FLOW, "terminated", 1)]


async def retry(world: World, id: str) -> None:
    source = await world.find(id)
    origin = Origin("retry", source.pid, source.number, 1, None, None, 0, 0).encode()
    await world.store.control(ContinueRun(FLOW, id, source.run, [], [], origin, None))


async def test_a_retried_run_is_counted_once(world: World) -> None:
    await ended(world, "before the watermark", Status.ERRORED)
    await count_all(world)
    await ended(world, "after it", Status.ERRORED)
    await ended(world, "not retried", Status.ERRORED)

    await retry(world, "before the watermark")
    await retry(world, "after it")
    expected = [RunCount(FLOW, "active", 2), RunCount(FLOW, "errored", 1)]
    assert await counted(world) == expected
    await count_all(world)
    assert await counted(world) == expected

    for claim in (await world.claim("w2", limit=2)).claims:
        await world.finish(claim.task, Status.ERRORED)
    assert await counted(world) == [RunCount(FLOW, "errored", 3)]
    await retry(world, "after it")
    assert await counted(world) == [RunCount(FLOW, "active", 1), RunCount(FLOW, "errored", 2)]
    await world.terminate("after it")
    await count_all(world)
    assert await counted(world) == [RunCount(FLOW, "errored", 2), RunCount(FLOW, "terminated", 1)]


async def test_retried_runs_that_are_deleted_change_no_count_of_the_others(world: World) -> None:
    for name in ("a", "b"):
        await ended(world, name, Status.ERRORED)
        await retry(world, name)
    await ended(world, "c", Status.ERRORED)
    await count_all(world)

    await execute(world, "DELETE FROM holdfast_run WHERE number = 0 AND instance_id = 'a'")
    assert await counted(world) == [RunCount(FLOW, "active", 2), RunCount(FLOW, "errored", 1)]
    await world.terminate("b")
    await world.store.control(DeleteInstance(FLOW, "b"))

    assert await counted(world) == [RunCount(FLOW, "active", 1), RunCount(FLOW, "errored", 1)]
    await ended(world, "d", Status.ERRORED)
    await count_all(world)
    assert await counted(world) == [RunCount(FLOW, "active", 1), RunCount(FLOW, "errored", 2)]


async def test_throughput_is_counted_for_the_last_minute_and_hour(world: World) -> None:
    await ended(world, "old")
    world.clock.advance(2 * HOUR)
    await ended(world, "within the hour")
    await count_all(world)
    world.clock.advance(10 * 60_000)
    await count_all(world)
    await ended(world, "now")

    found = await stats(world)
    assert (found.ended_last_minute, found.ended_last_hour) == (1, 2)
    assert (found.started_last_minute, found.started_last_hour) == (1, 2)
    assert found.runs == [RunCount(FLOW, "complete", 3)]


async def minutes(world: World) -> list[tuple[str, int, int]]:
    """Counts by what they count and minutes before now; the counts of one minute added up."""
    found: dict[tuple[str, int], int] = {}
    for count in (await stats(world, StatsQuery(minutes=MAX_MINUTES))).minutes:
        key = (count.what, world.now() // 60_000 - count.minute)
        found[key] = found.get(key, 0) + count.count
    return sorted((what, age, count) for (what, age), count in found.items())


async def test_starts_and_ends_are_counted_by_minute_before_and_after_the_watermark(world: World) -> None:
    await ended(world, "a")
    await world.start("open")
    expected = [("complete", 0, 1), ("started", 0, 2)]
    assert await minutes(world) == expected

    await count_all(world)
    await ended(world, "b", Status.ERRORED)

    age = (TALLY_MARGIN_MS + 60_000) // 60_000
    assert [entry for entry in await minutes(world) if entry[1] == 0] == [("errored", 0, 1), ("started", 0, 1)]
    assert sum(count for what, _, count in await minutes(world) if what == "started") == 3
    assert {entry[1] for entry in await minutes(world)} <= {0, age, age + 1}
    assert (await stats(world)).ended_last_hour == 2


async def test_counts_by_minute_are_added_up_by_hour_after_a_day_and_deleted_after_a_week(world: World) -> None:
    for n in range(3):
        await ended(world, f"r{n}")
        await count_all(world)
        world.clock.advance(5 * 60_000)
    world.clock.advance(HOUR)
    await ended(world, "later")
    await count_all(world)
    world.clock.advance((EXACT_MINUTES + 60) * 60_000)
    await count_all(world)

    found = (await stats(world, StatsQuery(minutes=MAX_MINUTES))).minutes
    assert {count.minute % 60 for count in found} == {0}
    assert sum(count.count for count in found if count.what == "complete") == 4
    assert sum(count.count for count in found if count.what == "started") == 4

    world.clock.advance(MAX_MINUTES * 60_000)
    await count_all(world)
    assert (await stats(world, StatsQuery(minutes=MAX_MINUTES))).minutes == []
    assert await counted(world) == [RunCount(FLOW, "complete", 4)]


async def test_queues_have_their_due_and_running_tasks(world: World) -> None:
    began = world.now()
    await world.start("a")
    world.clock.advance(500)
    await world.start("b")
    await world.start("later", delay_ms=60_000)
    await world.start("c", queue="slow")
    await world.start_claimed("d")
    await world.start_waiting("e", "go")

    assert (await stats(world)).queues == [
        QueueCount("default", 2, began, 1),
        QueueCount("slow", 1, began + 500, 0),
    ]
    await world.graph("g", unit(1), unit(2), claim_limit=1)
    assert (await stats(world)).queues[0] == QueueCount("default", 3, began, 2)


async def test_living_workers_are_counted(world: World) -> None:
    await world.store.register_worker(WorkerProfile("w1", "h", 1, ("default",), 1), LEASE)
    await world.store.register_worker(WorkerProfile("w2", "h", 2, ("default",), 1), 10 * LEASE)
    assert (await stats(world)).workers_alive == 2

    world.clock.advance(2 * LEASE)

    assert (await stats(world)).workers_alive == 1


async def test_errors_of_the_last_hour_are_counted_by_name(world: World) -> None:
    await ended(world, "old", Status.ERRORED, error=b'{"name":"Old"}')
    world.clock.advance(2 * HOUR)
    for n, name in enumerate(["KeyError", "ValueError", "KeyError"]):
        await ended(world, f"r{n}", Status.ERRORED, error=f'{{"name":"{name}","message":"x"}}'.encode())

    assert (await stats(world)).errors == [ErrorCount("KeyError", 2), ErrorCount("ValueError", 1)]
    assert (await stats(world, StatsQuery())).errors == []


async def test_the_slowest_steps_come_first(world: World) -> None:
    for n in range(2):
        task = await world.start_claimed(f"r{n}")
        facts = [
            result("charge", at=100 + 50 * n, started_at=0),
            result("charge#2", name="charge", at=10, started_at=0),
            result("\udc00", at=500, started_at=0),
            result("nap", kind="sleep", at=10_000, started_at=0),
        ]
        await world.commit(task, facts=facts)
        await world.finish(task)

    assert (await stats(world)).slowest_steps == [
        StepTimes(FLOW, "\udc00", 2, 500.0, 500, 500, 500),
        StepTimes(FLOW, "charge", 4, 67.5, 150, 10, 150),
    ]


async def test_percentiles_of_steps_are_nearest_ranks(world: World) -> None:
    for n in range(5):
        task = await world.start_claimed(f"r{n}")
        times = range(4 * n, 4 * n + 4)
        await world.commit(task, facts=[result(f"wash#{at}", name="wash", at=at, started_at=0) for at in times])
        await world.finish(task)
    task = await world.start_claimed("other", workflow="other")
    await world.commit(task, facts=[result("iron", at=7, started_at=0)])
    await world.finish(task)

    found = await stats(world)

    assert found.slowest_steps == [
        StepTimes(FLOW, "wash", 20, 9.5, 19, 9, 18),
        StepTimes("other", "iron", 1, 7.0, 7, 7, 7),
    ]
    assert found.workflow_steps == [
        StepTimes(FLOW, None, 20, 9.5, 19, 9, 18),
        StepTimes("other", None, 1, 7.0, 7, 7, 7),
    ]


async def test_statistics_without_details_have_all_counts(world: World) -> None:
    await ended(world, "a")
    await world.start_waiting("b", run_at=world.now() + 5)
    world.clock.advance(5)

    found = await stats(world, StatsQuery())

    assert found.runs == [RunCount(FLOW, "complete", 1), RunCount(FLOW, "waiting", 1)]
    assert [queue.due for queue in found.queues] == [1]
    assert found.ended_last_minute == 1


async def execute(world: World, sql: str) -> None:
    """Run a statement on the tables of the engine."""
    store = world.store
    if isinstance(store, PostgresStore):
        await store._call(lambda tx, text: tx.connection.execute(text), sql.replace("holdfast_", "holdfast.holdfast_"))
    elif isinstance(store, SqliteStore):
        await on_writer(store, lambda connection: connection.execute(sql).fetchall())


async def test_deleted_and_continued_runs_leave_the_tallies(world: World) -> None:
    for n in range(5):
        await ended(world, f"r{n}", Status.ERRORED)
    await count_all(world)
    await ended(world, "new", Status.ERRORED)

    await execute(world, "DELETE FROM holdfast_run WHERE instance_id IN ('r0', 'r1', 'new')")
    assert await counted(world) == [RunCount(FLOW, "errored", 3)]
    await execute(world, "UPDATE holdfast_run SET status = 'active', completed_at = NULL WHERE instance_id = 'r2'")

    assert await counted(world) == [RunCount(FLOW, "active", 1), RunCount(FLOW, "errored", 2)]
    await count_all(world)
    assert await counted(world) == [RunCount(FLOW, "active", 1), RunCount(FLOW, "errored", 2)]


IMPORT = (
    "INSERT INTO holdfast_run (id, instance, workflow, instance_id, number, current, kind, status, queue, priority,"
    " created_at, updated_at, completed_at, seed, retried)"
    " SELECT id + 100, instance + 100, 'imported', instance_id, number, current, kind, status, queue, priority,"
    " created_at, updated_at, completed_at, seed, retried FROM holdfast_run"
)


async def test_runs_that_are_imported_after_their_retry_are_counted_once(world: World) -> None:
    await ended(world, "a", Status.ERRORED)
    await retry(world, "a")
    await count_all(world)

    await execute(world, IMPORT)

    assert await counted(world) == [RunCount(FLOW, "active", 1), RunCount("imported", "active", 1)]
    await count_all(world)
    assert await counted(world) == [RunCount(FLOW, "active", 1), RunCount("imported", "active", 1)]


async def test_runs_that_are_imported_after_their_end_are_counted(world: World) -> None:
    await ended(world, "a")
    await count_all(world)

    await execute(world, IMPORT)

    assert await counted(world) == [RunCount(FLOW, "complete", 1), RunCount("imported", "complete", 1)]
    await count_all(world)
    assert await counted(world) == [RunCount(FLOW, "complete", 1), RunCount("imported", "complete", 1)]
