"""The writer's thread: one transaction for all waiting calls, which return only when it is durable."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast.store.protocol import (
    Commit,
    NewRun,
    Observed,
    RunByName,
    SnapshotQuery,
    Statement,
    StatsQuery,
    TaskRef,
    Verdict,
)
from holdfast.store.sqlite import SqliteStore, reads
from holdfast.store.sqlite.guard import Guard
from holdfast.store.sqlite.sql import groups, statements
from store.sqlite.internals import on_writer
from store.world import FLOW, FakeClock, World, log_line, result, turn


async def test_waiting_calls_share_a_transaction(world: World, store: SqliteStore) -> None:
    tasks = [await world.start_claimed(f"r{n}") for n in range(200)]
    commits = 0

    def trace(cursor: object, sql: str, bindings: object) -> bool:
        nonlocal commits
        commits += sql == "COMMIT"
        return True

    await on_writer(store, lambda found: setattr(found, "exec_trace", trace))
    busy, all_wait = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def hold_up(_: object) -> None:
        loop.call_soon_threadsafe(busy.set)
        all_wait.wait()

    held_up = asyncio.ensure_future(on_writer(store, hold_up))
    await busy.wait()  # otherwise the thread could take some of the calls together with this one
    calls = [asyncio.ensure_future(world.commit(task, facts=[result("s")])) for task in tasks]
    await asyncio.sleep(0)
    all_wait.set()
    await asyncio.gather(held_up, *calls)

    assert commits == 1


async def test_statements_are_prepared_once(world: World, store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    await _use_everything(world, "first")
    prepared: list[tuple[object, ...]] = []
    monkeypatch.setattr(Guard, "__call__", lambda _, *what: prepared.append(what) or apsw.SQLITE_OK)

    await _use_everything(world, "second")

    # Stores that fixtures of other tests keep open in this process poll data_version.
    assert [what for what in prepared if what[1] != "data_version"] == []


async def test_more_calls_than_fit_in_a_transaction_are_all_answered(world: World) -> None:
    made = await asyncio.gather(*(world.create(f"r{n}") for n in range(1_300)))

    assert all(one.created for one in made)
    assert len({one.run.run for one in made}) == 1_300


@pytest.mark.parametrize(("facts", "inline"), [(1, True), (reads._INLINE_MAX_FACTS + 1, False)])
async def test_only_short_histories_are_loaded_on_the_thread_of_the_loop(
    world: World, monkeypatch: pytest.MonkeyPatch, facts: int, inline: bool
) -> None:
    task = await world.start_claimed("a")
    await world.commit(task, facts=[result(f"s{n}") for n in range(facts)])
    opened, threads = reads.heads, list[threading.Thread]()

    def heads(*args: Any) -> Any:
        threads.append(threading.current_thread())
        return opened(*args)

    monkeypatch.setattr(reads, "heads", heads)
    snapshot = await world.store.read(SnapshotQuery(task.run))

    assert len(snapshot.facts) == facts
    assert [thread is threading.current_thread() for thread in threads] == [inline]


@pytest.mark.interpreted("replaces a method that a compiled build calls directly")
async def test_reads_that_wait_for_the_thread_are_handed_over_together(
    store: SqliteStore, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = store._reader
    assert reader is not None
    batches, may_read = list[int](), threading.Event()
    run = reader.runner.run

    def run_when_allowed(jobs: Any) -> None:
        batches.append(len(jobs))
        may_read.wait(timeout=60)
        run(jobs)

    monkeypatch.setattr(reader.runner, "run", run_when_allowed)
    long = asyncio.ensure_future(store.read(StatsQuery()))
    async with asyncio.timeout(60):
        while batches != [1]:  # until the thread has the long read
            await asyncio.sleep(0.001)
    reads = [asyncio.ensure_future(store.read(RunByName(FLOW, "a", None))) for _ in range(20)]
    for _ in range(5):
        await asyncio.sleep(0)
    may_read.set()

    await long
    assert await asyncio.gather(*reads) == [[]] * 20
    assert batches == [1, 20]


async def test_a_caller_that_is_cancelled_does_not_disturb_the_others(world: World) -> None:
    calls = [asyncio.create_task(world.create(f"r{n}")) for n in range(10)]
    await asyncio.sleep(0)
    calls[3].cancel()

    answers = await asyncio.gather(*calls, return_exceptions=True)

    assert isinstance(answers[3], asyncio.CancelledError)
    assert sum(not isinstance(answer, BaseException) for answer in answers) == 9


async def test_close_waits_for_earlier_calls(path: str, clock: FakeClock) -> None:
    store = SqliteStore(path, clock=clock)
    await store.open()
    calls = [asyncio.create_task(store.create([NewRun(FLOW, f"r{n}")])) for n in range(50)]
    await asyncio.sleep(0)

    await store.close()

    assert all([(await one)[0].created for one in calls])


async def test_threads_are_started_by_the_given_function(path: str, clock: FakeClock) -> None:
    started: list[str] = []

    def spawn(target: Callable[[], None], name: str) -> object:
        started.append(name)
        thread = threading.Thread(target=target, daemon=True)
        thread.start()
        return thread

    store = SqliteStore(path, clock=clock, spawn_thread=spawn)
    await store.open()
    await store.close()

    assert started == ["holdfast-writer", "holdfast-reader"]


async def test_a_store_without_threads_does_everything_on_the_loop(path: str, clock: FakeClock) -> None:
    before = set(threading.enumerate())
    store = SqliteStore(path, clock=clock, spawn_thread=None)
    await store.open()

    [made] = await store.create([NewRun("w", "a", owner="me", lease_ms=1000)])
    task = TaskRef(made.run.run, 0, "me", made.epoch)
    statement = Statement("CREATE TABLE theirs (a)", ())
    [committed] = await store.commit([Commit(task, Observed(statements=[statement]))])
    held = await store.heartbeat("me", 1000)

    assert (made.created, committed.verdict, [one.run for one in held]) == (True, Verdict.APPLIED, [made.run.run])
    assert set(threading.enumerate()) <= before  # threads of other tests may have ended meanwhile
    await store.close()


async def test_wait_for_change_ignores_the_stores_own_writes(world: World, store: SqliteStore) -> None:
    before = await store.wait_for_change(None)

    await world.start("a")

    assert await store.wait_for_change(before) == before


@pytest.mark.promise("bounded-resources")
async def test_the_wal_file_stays_bounded(world: World, path: str) -> None:
    task = await world.start_claimed("a")

    for n in range(60):
        await world.commit(task, facts=[result(f"s{n}", value=b"x" * 2**20)])
        await world.facts(task.run + 1)

    assert Path(path + "-wal").stat().st_size < 32 * 2**20


ROLLBACK = Statement("INSERT OR ROLLBACK INTO mine VALUES (1)", ())


@pytest.fixture
async def table(store: SqliteStore) -> None:
    await on_writer(store, lambda found: found.execute("CREATE TABLE mine (a UNIQUE); INSERT INTO mine VALUES (1)"))


@pytest.mark.usefixtures("table")
async def test_a_statement_that_rolls_back_rejects_only_its_own_commit(world: World) -> None:
    tasks = [await world.start_claimed(f"r{n}") for n in range(6)]
    rejected = (1, 4)

    answers = await asyncio.gather(
        *(
            world.commit(task, facts=[result("s")], statements=[ROLLBACK] if n in rejected else [])
            for n, task in enumerate(tasks)
        )
    )

    for n, (task, answer) in enumerate(zip(tasks, answers, strict=True)):
        assert answer.verdict is (Verdict.REJECTED if n in rejected else Verdict.APPLIED)
        assert answer.unique is (n in rejected)
        assert await world.keys(task.run) == ([] if n in rejected else ["s"])


@pytest.mark.usefixtures("table")
async def test_two_statements_that_roll_back_in_one_batch_are_both_rejected(world: World) -> None:
    a, b, c = [await world.start_claimed(name) for name in "abc"]
    turns = [turn(a, statements=[ROLLBACK]), turn(b, facts=[result("s")]), turn(c, statements=[ROLLBACK])]

    answers = await world.store.commit(turns)

    assert [one.verdict for one in answers] == [Verdict.REJECTED, Verdict.APPLIED, Verdict.REJECTED]
    assert await world.keys(b.run) == ["s"]


@pytest.mark.parametrize(
    "sql",
    [
        "PRAGMA synchronous = OFF",
        "ATTACH ':memory:' AS other",
        "DETACH main",
        "VACUUM",
        "CREATE TRIGGER mine AFTER INSERT ON holdfast_fact BEGIN SELECT 1; END",
        "CREATE TEMP TRIGGER mine AFTER INSERT ON holdfast_fact BEGIN SELECT 1; END",
        "SELECT 1; DELETE FROM holdfast_fact",
        "SELECT 1; COMMIT",
        "DROP VIEW holdfast_record",
        "DROP INDEX holdfast_task_due",
        "DELETE FROM main.holdfast_fact",
        "WITH x AS (SELECT 1) DELETE FROM holdfast_fact WHERE 1 IN x",
        "PRAGMA writable_schema = ON",
        "DELETE FROM sqlite_schema",
    ],
)
async def test_a_statement_cannot_change_the_engines_tables_or_settings(
    world: World, store: SqliteStore, sql: str
) -> None:
    task = await world.start_claimed("a")
    await world.commit(task, facts=[result("s")])

    answer = await world.commit(task, facts=[result("t")], statements=[Statement(sql, ())])

    assert answer.verdict is Verdict.REJECTED
    assert await world.keys(task.run) == ["s"]
    assert await on_writer(store, lambda found: found.pragma("synchronous")) == 2


async def test_a_trigger_of_the_users_cannot_reach_the_engines_tables(world: World, store: SqliteStore) -> None:
    task = await world.start_claimed("a")
    trigger = "CREATE TRIGGER sly AFTER INSERT ON mine BEGIN DELETE FROM holdfast_fact; END"
    await on_writer(store, lambda found: found.execute(f"CREATE TABLE mine (a); {trigger}"))
    await world.commit(task, facts=[result("s")])

    answer = await world.commit(task, statements=[Statement("INSERT INTO mine VALUES (1)", ())])

    assert answer.verdict is Verdict.REJECTED
    assert await world.keys(task.run) == ["s"]


WRITES = [
    sql
    for group in groups()
    for sql in (*statements(group).values(), "BEGIN IMMEDIATE", "COMMIT", "ROLLBACK")
    if sql.split()[0] in {"INSERT", "UPDATE", "DELETE", "BEGIN", "COMMIT", "ROLLBACK", "CREATE"}
]


async def test_users_cannot_run_the_stores_own_statements_also_when_they_are_cached(
    world: World, store: SqliteStore
) -> None:
    task = await _use_everything(world)

    for sql in sorted(set(WRITES)):
        answer = await world.commit(task, statements=[Statement(sql, (None,) * 20)])

        assert (answer.verdict, answer.unique) == (Verdict.REJECTED, False), sql
        assert "may not" in answer.message, sql


async def _use_everything(world: World, name: str = "a") -> TaskRef:
    """An owned run, after calls that have put statements into the cache."""
    other = f"other-{name}"
    await world.start_waiting(other, "go")
    await world.send("go", other)
    await world.claim("w2")
    await world.pause(other)
    await world.restart(other)
    await world.pause(other)
    task = await world.start_claimed(name)
    await world.commit(task, facts=[result("s")], logs=[log_line("l")])
    return task


@pytest.mark.promise("bounded-resources")
async def test_users_statements_do_not_fill_the_cache(world: World, store: SqliteStore) -> None:
    task = await world.start_claimed("a")

    for n in range(20):
        await world.commit(task, statements=[Statement(f"SELECT {n} AS users_own", ())])

    def texts(found: apsw.Connection) -> list[str]:
        return [entry["query"] for entry in found.cache_stats(include_entries=True)["entries"]]  # type: ignore[index,union-attr]

    assert not [text for text in await on_writer(store, texts) if "users_own" in text]
