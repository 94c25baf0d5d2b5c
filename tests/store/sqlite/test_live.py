"""Live transactions on SQLite: exclusive use of the writer, without blocking other calls forever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import apsw
import pytest

from holdfast.errors import (
    InputError,
    StateError,
    StoreBusyError,
    StoreError,
    StoreUnavailableError,
    UniqueConstraintError,
)
from holdfast.store.protocol import LiveTransaction, NewRun, RunByName, Statement, Verdict
from holdfast.store.sqlite import SqliteStore, live
from holdfast.store.sqlite.sql import statements
from store.processes import finish
from store.sqlite.internals import on_writer, process
from store.sqlite.test_errors import FailingCommit
from store.world import FLOW, LEASE, FakeClock, World, result, turn

ENDLESS = "WITH RECURSIVE n (i) AS (SELECT started() UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"


with_and_without_threads = pytest.mark.parametrize("store", ["a thread", "no thread"], indirect=True)
"""Statements run on the writer's thread, or at the call in a store without threads."""


@pytest.fixture
async def store(request: pytest.FixtureRequest, path: str, clock: FakeClock) -> AsyncIterator[SqliteStore]:
    options = {"spawn_thread": None} if getattr(request, "param", "a thread") == "no thread" else {}
    store = SqliteStore(path, clock=clock, **options)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def table(store: SqliteStore) -> None:
    await on_writer(store, lambda found: found.execute("CREATE TABLE mine (a UNIQUE)"))


pytestmark = pytest.mark.usefixtures("table")


async def _begin(store: SqliteStore, *values: int) -> LiveTransaction:
    live = await store.begin()
    for value in values:
        await live.execute("INSERT INTO mine VALUES (?)", (value,))
    return live


def _stored(path: str) -> list[int]:
    connection = apsw.Connection(path)
    try:
        return [a for (a,) in connection.execute("SELECT a FROM mine ORDER BY a")]
    finally:
        connection.close()


async def _endless(store: SqliteStore, live: LiveTransaction) -> asyncio.Task[object]:
    """Start a statement that never ends by itself."""
    loop, started = asyncio.get_running_loop(), asyncio.Event()

    def tell(*_: object) -> int:
        loop.call_soon_threadsafe(started.set)
        return 1

    assert store._writer is not None
    store._writer.tx.connection.create_scalar_function("started", tell)
    task: asyncio.Task[object] = asyncio.create_task(live.fetch(ENDLESS, ()))
    await started.wait()
    return task


# --- statements that are denied


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM holdfast_fact",
        "UPDATE holdfast_worker SET id = 'x'",
        "DROP TABLE holdfast_task",
        "CREATE TABLE holdfast_extra (a)",
        "CREATE TEMP TRIGGER sly AFTER INSERT ON holdfast_fact BEGIN SELECT 1; END",
        "SELECT 1; DELETE FROM holdfast_fact",
        "COMMIT",
        "ROLLBACK",
        "BEGIN",
        "SAVEPOINT x",
        "RELEASE holdfast_statements",
        "ATTACH ':memory:' AS other",
        "PRAGMA synchronous = OFF",
        "PRAGMA table_info(mine)",
    ],
)
async def test_a_statement_on_the_engines_tables_or_the_transaction_is_denied(
    world: World, store: SqliteStore, path: str, sql: str
) -> None:
    task = await world.start_claimed("a")
    await world.commit(task, facts=[result("s")])
    live = await _begin(store, 1)

    with pytest.raises(InputError, match="may not"):
        await live.execute(sql, ())
    with pytest.raises(InputError, match="may not"):
        await live.fetch(sql, ())

    assert (await world.commit(task, facts=[result("t")], transaction=live)).verdict is Verdict.APPLIED
    assert await world.keys(task.run) == ["s", "t"]
    assert _stored(path) == [1]


async def test_the_stores_own_statements_are_denied_also_when_they_are_cached(world: World, store: SqliteStore) -> None:
    task = await world.start_claimed("a")
    await world.commit(task, facts=[result("s")])
    live = await store.begin()

    for sql in (statements("commit")["insert_fact"], "COMMIT", "BEGIN IMMEDIATE"):
        with pytest.raises(InputError, match="may not"):
            await live.execute(sql, (None,) * sql.count("?"))

    await live.rollback()


async def test_the_guard_does_not_apply_to_the_stores_own_statements_afterwards(
    world: World, store: SqliteStore
) -> None:
    live = await _begin(store, 1)
    with pytest.raises(UniqueConstraintError):
        await live.execute("INSERT INTO mine VALUES (1)", ())
    await live.rollback()

    await on_writer(store, lambda found: found.execute("UPDATE holdfast_run SET note = 'x' WHERE id = 0"))


async def test_the_engines_tables_may_be_read(world: World, store: SqliteStore) -> None:
    await world.start("a")
    live = await store.begin()

    assert await live.fetch("SELECT instance_id FROM holdfast_run", ()) == [{"instance_id": "a"}]

    await live.rollback()


# --- statements


async def test_rows_of_several_statements_have_their_own_columns(store: SqliteStore) -> None:
    live = await store.begin()

    assert await live.fetch("SELECT 1 AS x; SELECT 2 AS y, 3 AS z", ()) == [{"x": 1}, {"y": 2, "z": 3}]
    assert await live.execute("INSERT INTO mine VALUES (1), (2); SELECT a FROM mine", ()) == 2
    assert await live.execute("SELECT a FROM mine", ()) == 0

    await live.rollback()


@pytest.mark.parametrize("args", [(), (1, 2), (object(),), (2**70,)])
async def test_arguments_that_do_not_fit_leave_the_transaction_usable(
    world: World, store: SqliteStore, path: str, args: tuple[object, ...]
) -> None:
    task = await world.start_claimed("a")
    live = await _begin(store, 1)

    with pytest.raises((StoreError, TypeError, ValueError, OverflowError)):
        await live.execute("INSERT INTO mine VALUES (?)", args)

    await live.execute("INSERT INTO mine VALUES (?)", (2,))
    await world.commit(task, transaction=live)
    assert _stored(path) == [1, 2]


@with_and_without_threads
async def test_a_statement_that_failed_can_be_followed_by_another(world: World, store: SqliteStore, path: str) -> None:
    task = await world.start_claimed("a")
    live = await _begin(store, 1)
    with pytest.raises(UniqueConstraintError):
        await live.execute("INSERT INTO mine VALUES (2), (1)", ())

    await live.execute("INSERT INTO mine VALUES (3)", ())

    assert (await world.commit(task, transaction=live)).verdict is Verdict.APPLIED
    assert _stored(path) == [1, 3]


@with_and_without_threads
async def test_a_statement_that_rolls_back_ends_the_transaction(world: World, store: SqliteStore, path: str) -> None:
    task = await world.start_claimed("a")
    live = await _begin(store, 1)
    with pytest.raises(UniqueConstraintError):
        await live.execute("INSERT OR ROLLBACK INTO mine VALUES (1)", ())

    with pytest.raises(StateError, match="rolled back"):
        await live.execute("INSERT INTO mine VALUES (2)", ())
    answer = await world.commit(task, facts=[result("s")], transaction=live)

    assert (answer.verdict, answer.unique) == (Verdict.REJECTED, True)
    assert _stored(path) == []
    assert await world.keys(task.run) == []


async def test_a_statement_of_the_commit_that_rolls_back_rejects_the_commit(
    world: World, store: SqliteStore, path: str
) -> None:
    task, other = await world.start_claimed("a"), await world.start_claimed("b")
    live = await _begin(store, 1)
    rollback = Statement("INSERT OR ROLLBACK INTO mine VALUES (1)", ())

    answers = await store.commit(
        [turn(task, facts=[result("s")], transaction=live, statements=[rollback]), turn(other, facts=[result("s")])]
    )

    assert [one.verdict for one in answers] == [Verdict.REJECTED, Verdict.APPLIED]
    assert answers[0].unique
    assert _stored(path) == []
    assert await world.keys(task.run) == []


# --- calls that wait for the transaction


@with_and_without_threads
async def test_reads_continue_and_do_not_see_the_transaction(world: World, store: SqliteStore, path: str) -> None:
    task = await world.start_claimed("a")
    live = await _begin(store, 1)

    assert await world.keys(task.run) == []
    assert _stored(path) == []

    await live.rollback()


@pytest.mark.parametrize("options", [{}, {"spawn_thread": None}], ids=["a thread", "no thread"])
async def test_reads_continue_in_a_database_in_memory(clock: FakeClock, options: dict[str, None]) -> None:
    """There is one connection, and the owner of the transaction may be waiting for a reader."""
    store = SqliteStore(None, clock=clock, **options)
    await store.open()
    await store.create([NewRun(FLOW, "a")])
    live = await store.begin()
    await live.execute("CREATE TABLE theirs (a)", ())

    [found] = await asyncio.wait_for(store.read(RunByName(FLOW, "a")), 60)

    assert found.instance_id == "a"
    await live.rollback()
    assert not await store.read(RunByName(FLOW, "b"))
    await store.close()


@pytest.mark.parametrize("options", [{}, {"spawn_thread": None}], ids=["a thread", "no thread"])
async def test_in_memory_a_read_does_not_wait_for_a_transaction_that_opens_before_it(
    clock: FakeClock, options: dict[str, None]
) -> None:
    store = SqliteStore(None, clock=clock, **options)
    await store.open()
    await store.create([NewRun(FLOW, "a")])

    reading = store.read(RunByName(FLOW, "a"))
    live, [found] = await asyncio.wait_for(asyncio.gather(store.begin(), reading), 60)

    assert found.instance_id == "a"
    await live.rollback()
    assert not await store.read(RunByName(FLOW, "b"))
    await store.close()


@with_and_without_threads
async def test_waiting_calls_are_served_in_order(world: World, store: SqliteStore) -> None:
    order: list[str] = []

    async def begin(name: str) -> None:
        live = await store.begin()
        order.append(name)
        await live.rollback()

    async def create(name: str) -> None:
        await store.create([NewRun(FLOW, name)])
        order.append(name)

    first = await store.begin()
    waiting = []
    for n in range(6):
        waiting.append(asyncio.create_task(begin(f"{n}") if n % 2 else create(f"{n}")))
        await asyncio.sleep(0.001)
    assert order == []
    await first.rollback()
    await asyncio.gather(*waiting)

    assert order == ["0", "1", "2", "3", "4", "5"]


async def test_two_stores_on_one_file_wait_for_each_other(
    world: World, store: SqliteStore, path: str, clock: FakeClock
) -> None:
    second = SqliteStore(path, clock=clock)
    await second.open()
    a, b = await world.start_claimed("a"), await world.start_claimed("b")
    one = await _begin(store, 1)

    waiting = asyncio.create_task(_begin(second, 2))
    beating = asyncio.create_task(second.heartbeat("w1", LEASE))
    assert await second.read(RunByName(FLOW, "a"))  # the event loop and reads continue
    assert not waiting.done()
    await world.commit(a, facts=[result("s")], transaction=one)
    answer = await World(second, clock).commit(b, facts=[result("s")], transaction=await waiting)

    assert answer.verdict is Verdict.APPLIED
    assert len(await beating) == 2
    assert _stored(path) == [1, 2]
    await second.close()


async def test_a_file_that_stays_locked_is_an_error_and_then_usable_again(store: SqliteStore, path: str) -> None:
    await on_writer(store, lambda found: found.set_busy_timeout(20))
    other = apsw.Connection(path)
    other.execute("BEGIN IMMEDIATE")

    with pytest.raises(StoreBusyError):
        await store.begin()

    other.execute("ROLLBACK")
    await (await _begin(store, 1)).rollback()


@with_and_without_threads
async def test_a_transaction_without_statements_for_too_long_is_rolled_back(
    world: World, store: SqliteStore, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "_IDLE_TIMEOUT_S", 0.05)
    task = await world.start_claimed("a")
    silent = await _begin(store, 1)

    assert (await world.create("b")).created

    with pytest.raises(StateError, match="had no statement"):
        await silent.execute("INSERT INTO mine VALUES (2)", ())
    answer = await world.commit(task, facts=[result("s")], transaction=silent)
    assert answer.verdict is Verdict.REJECTED
    assert "had no statement" in answer.message
    assert _stored(path) == []


async def test_a_rollback_interrupts_an_endless_statement(world: World, store: SqliteStore) -> None:
    live = await _begin(store, 1)
    endless = await _endless(store, live)

    await live.rollback()

    with pytest.raises(StoreError, match="interrupted"):
        await endless
    assert (await world.create("a")).created


async def test_other_calls_wait_while_a_statement_runs(world: World, store: SqliteStore) -> None:
    live = await _begin(store, 1)
    endless = await _endless(store, live)

    call = asyncio.create_task(world.create("a"))
    assert await world.ids() == []
    assert not call.done()
    await live.rollback()

    assert (await asyncio.wait_for(call, 60)).created
    await asyncio.gather(endless, return_exceptions=True)


async def test_closing_the_store_interrupts_an_endless_statement(world: World, store: SqliteStore, path: str) -> None:
    live = await _begin(store, 1)
    endless = await _endless(store, live)

    await store.close()

    with pytest.raises(StoreError, match="interrupted"):
        await endless
    assert _stored(path) == []


@with_and_without_threads
async def test_callers_that_wait_for_a_transaction_at_close_write_nothing(store: SqliteStore, path: str) -> None:
    first = await _begin(store, 1)
    waiting = [asyncio.create_task(_begin(store, n)) for n in (2, 3)]
    await asyncio.sleep(0)

    await store.close()

    assert {type(one) for one in await asyncio.gather(*waiting, return_exceptions=True)} == {StateError}
    await first.rollback()
    assert _stored(path) == []


@with_and_without_threads
async def test_a_commit_submitted_before_close_is_applied(world: World, store: SqliteStore, path: str) -> None:
    task = await world.start_claimed("a")
    live = await _begin(store, 1)
    call = asyncio.create_task(world.commit(task, transaction=live))
    await asyncio.sleep(0)

    await store.close()

    assert (await call).verdict is Verdict.APPLIED
    assert _stored(path) == [1]


async def test_wait_for_change_ignores_commits_of_live_transactions(world: World, store: SqliteStore) -> None:
    task = await world.start_claimed("a")
    before = await store.wait_for_change(None)

    await world.commit(task, transaction=await _begin(store, 1))

    assert await store.wait_for_change(before) == before


# --- failures


@pytest.mark.parametrize("replaced", [False, True])
async def test_a_deleted_or_replaced_file_is_noticed(
    world: World, store: SqliteStore, path: str, replaced: bool
) -> None:
    task = await world.start_claimed("a")
    live = await _begin(store, 1)
    Path(path).rename(path + ".old")
    if replaced:
        Path(path).touch()

    with pytest.raises(StoreUnavailableError, match="deleted or replaced"):
        await world.commit(task, facts=[result("s")], transaction=live)
    with pytest.raises(StoreUnavailableError, match="deleted or replaced"):
        await store.begin()

    Path(path + ".old").rename(path)
    assert _stored(path) == []


async def test_after_a_failed_fsync_the_handle_is_not_used_again(world: World, store: SqliteStore, path: str) -> None:
    task = await world.start_claimed("a")
    live = await _begin(store, 1)
    writer = store._writer
    assert writer is not None
    failing = FailingCommit(writer.tx.connection, apsw.IOError)
    writer.tx.connection = failing  # type: ignore[assignment]

    with pytest.raises(StoreUnavailableError):
        await world.commit(task, facts=[result("s")], transaction=live)

    assert not writer.tx.connected
    assert (await world.commit(task, facts=[result("s")], transaction=live)).verdict is Verdict.REJECTED
    live = await _begin(store, 2)
    assert failing.closed
    assert (await world.commit(task, facts=[result("s")], transaction=live)).verdict is Verdict.APPLIED
    assert _stored(path) == [2]


async def test_a_handle_that_breaks_under_a_statement_takes_the_transaction_with_it(
    world: World, store: SqliteStore, path: str
) -> None:
    task = await world.start_claimed("a")
    live = await _begin(store, 1)

    def fail(*_: object) -> None:
        raise apsw.IOError("disk")

    writer = store._writer
    assert writer is not None
    writer.tx.connection.create_scalar_function("broken", fail)
    with pytest.raises(StoreUnavailableError):
        await live.fetch("SELECT broken()", ())

    with pytest.raises(StateError, match="rolled back"):
        await live.execute("INSERT INTO mine VALUES (2)", ())
    assert (await world.commit(task, facts=[result("s")], transaction=live)).verdict is Verdict.REJECTED
    assert (await world.commit(task, facts=[result("s")])).verdict is Verdict.APPLIED
    assert _stored(path) == []


@with_and_without_threads
async def test_a_failed_commit_writes_neither_rows_nor_facts(world: World, store: SqliteStore, path: str) -> None:
    task = await world.start_claimed("a")
    await world.commit(task, facts=[result("s")])
    live = await _begin(store, 1)

    with pytest.raises(StateError, match="the row exists already"):
        await world.commit(task, facts=[result("t"), result("s")], transaction=live)

    assert _stored(path) == []
    assert await world.keys(task.run) == ["s"]


async def test_a_killed_process_leaves_no_writes_and_no_lock(world: World, path: str) -> None:
    started = process(
        """
        async def main():
            store = SqliteStore(path, clock=FakeClock())
            await store.open()
            live = await store.begin()
            await live.execute("INSERT INTO mine VALUES (1)", ())
            print("open", flush=True)
            await asyncio.sleep(60)

        asyncio.run(main())
        """,
        path,
    )
    assert started.stdout is not None
    assert started.stdout.readline() == "open\n"
    waiting = asyncio.create_task(world.start("a"))
    await world.ids()
    assert not waiting.done()

    started.kill()

    assert (await waiting).instance_id == "a"
    assert _stored(path) == []
    started.communicate()


async def test_processes_take_turns(store: SqliteStore, path: str) -> None:
    code = """
        async def main():
            store = SqliteStore(path, clock=FakeClock())
            await store.open()
            world = World(store, FakeClock())
            for n in range(20):
                task = await world.start_claimed(f"{sys.argv[2]}-{n}")
                live = await store.begin()
                [row] = await live.fetch("SELECT count(*) AS n FROM mine", ())
                await live.execute("INSERT INTO mine VALUES (?)", (row["n"],))
                answer = await world.commit(task, facts=[result("s")], transaction=live)
                assert answer.verdict is Verdict.APPLIED, answer
            await store.close()

        asyncio.run(main())
    """

    for one in [process(code, path, f"p{n}") for n in range(3)]:
        finish(one)

    assert _stored(path) == list(range(60))
