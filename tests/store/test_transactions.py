"""Live transactions: the rows of a step and the commit that carries them are written together or not at all."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.core.model import Status
from holdfast.errors import AppClosedError, StateError, UniqueConstraintError
from holdfast.store.protocol import Finish, LiveTransaction, NewEvent, NewRun, Statement, TaskRef, Verdict
from store.world import FLOW, LEASE, Database, FakeClock, World, log_line, result, turn, waiting

CREATE = "CREATE TABLE mine (a INTEGER PRIMARY KEY, b TEXT)"


async def _insert(world: World, live: LiveTransaction, a: int, b: str | None = "x") -> int:
    return await live.execute(world.sql("INSERT INTO mine (a, b) VALUES (?, ?)"), (a, b))


async def _stored(world: World) -> list[int]:
    """The rows of the table that a new transaction sees."""
    live = await world.store.begin()
    rows = await live.fetch("SELECT a FROM mine ORDER BY a", ())
    await live.rollback()
    return [row["a"] for row in rows]


async def _begin(world: World, *values: int) -> LiveTransaction:
    """A live transaction that has inserted these values."""
    live = await world.store.begin()
    for value in values:
        assert await _insert(world, live, value) == 1
    return live


@pytest.fixture
async def task(world: World) -> TaskRef:
    """An owned run, in a database that has the user's table."""
    task = await world.start_claimed("a")
    live = await world.store.begin()
    await live.execute(CREATE, ())
    assert (await world.commit(task, transaction=live)).verdict is Verdict.APPLIED
    return task


# --- ended by a commit


@pytest.mark.promise("at-least-once-steps")
async def test_rows_of_a_live_transaction_are_committed_with_the_result(world: World, task: TaskRef) -> None:
    live = await _begin(world, 1, 2)

    answer = await world.commit(task, facts=[result("s")], logs=[log_line("l")], transaction=live)

    assert answer.verdict is Verdict.APPLIED
    assert await _stored(world) == [1, 2]
    assert await world.keys(task.run) == ["s"]


async def test_the_whole_commit_is_written_in_the_live_transaction(world: World, task: TaskRef) -> None:
    await world.start_waiting("b", "go")
    live = await _begin(world, 1)

    answer = await world.commit(
        task,
        transaction=live,
        statements=[Statement("INSERT INTO mine (a) VALUES (2)", ())],
        starts=[NewRun(FLOW, "child")],
        sends=[NewEvent(FLOW, "b", "go")],
        then_facts=[result("t")],
        then=Finish(Status.COMPLETE, b"7"),
    )

    assert (answer.verdict, len(answer.started), len(answer.sent)) == (Verdict.APPLIED, 1, 1)
    assert await _stored(world) == [1, 2]
    assert await world.keys(task.run) == ["t"]
    assert (await world.find("a")).output == b"7"
    assert sorted(await world.claimed_ids()) == ["b", "child"]


async def test_a_live_transaction_without_writes_can_be_committed(world: World, task: TaskRef) -> None:
    live = await world.store.begin()

    assert (await world.commit(task, facts=[result("s")], transaction=live)).verdict is Verdict.APPLIED

    assert await world.keys(task.run) == ["s"]


@pytest.mark.promise("fencing")
async def test_a_stale_turn_writes_neither_rows_nor_facts(world: World, task: TaskRef) -> None:
    await world.store.release([task])
    live = await _begin(world, 1)

    answer = await world.commit(task, facts=[result("s")], transaction=live)

    assert answer.verdict is Verdict.LOST
    assert await _stored(world) == []
    assert await world.keys(task.run) == []


@pytest.mark.promise("fencing")
async def test_a_task_lost_during_the_transaction_writes_neither_rows_nor_facts(world: World, task: TaskRef) -> None:
    live = await _begin(world, 1)
    releasing = asyncio.ensure_future(world.store.release([task]))  # may have to wait for the transaction

    answer = await world.commit(task, facts=[result("s")], transaction=live)
    await releasing

    applied = answer.verdict is Verdict.APPLIED
    assert applied or answer.verdict is Verdict.LOST
    assert await _stored(world) == ([1] if applied else [])
    assert await world.keys(task.run) == (["s"] if applied else [])


@pytest.mark.promise("at-least-once-steps")
@pytest.mark.parametrize(
    "write",
    [
        {"sends": [NewEvent(FLOW, "nobody", "go")]},
        {"statements": [Statement("INSERT INTO nowhere (a) VALUES (1)", ())]},
        {"statements": [Statement("INSERT INTO mine (a) VALUES (1)", ())]},
    ],
    ids=["unreachable", "failed statement", "not unique"],
)
async def test_a_rejected_commit_writes_neither_rows_nor_facts(
    world: World, task: TaskRef, write: dict[str, Any]
) -> None:
    live = await _begin(world, 1)

    answer = await world.commit(task, facts=[result("s")], transaction=live, **write)

    assert answer.verdict is Verdict.REJECTED
    assert await _stored(world) == []
    assert await world.keys(task.run) == []
    assert (await world.commit(task, facts=[result("s")])).verdict is Verdict.APPLIED


@pytest.mark.parametrize(("in_flight", "verdict"), [(0, Verdict.PAUSED), (1, Verdict.PAUSING)])
async def test_a_pause_keeps_the_rows_and_the_observed_part(
    world: World, task: TaskRef, in_flight: int, verdict: Verdict
) -> None:
    await world.pause("a")
    live = await _begin(world, 1)

    answer = await world.commit(
        task, facts=[result("s")], then_facts=[result("t")], then=waiting("go"), transaction=live, in_flight=in_flight
    )

    assert answer.verdict is verdict
    assert await _stored(world) == [1]
    assert await world.keys(task.run) == ["s"]


async def test_a_commit_with_a_live_transaction_returns_signals(world: World, task: TaskRef) -> None:
    await world.send("go", "a")
    live = await _begin(world, 1)

    answer = await world.commit(task, facts=[result("s")], transaction=live)

    assert answer.signal


# --- rolled back


async def test_a_rollback_leaves_nothing(world: World, task: TaskRef) -> None:
    live = await _begin(world, 1)

    await live.rollback()

    assert await _stored(world) == []


async def test_a_commit_after_the_rollback_is_rejected(world: World, task: TaskRef) -> None:
    live = await _begin(world, 1)
    await live.rollback()

    answer = await world.commit(task, facts=[result("s")], transaction=live)

    assert (answer.verdict, answer.unique) == (Verdict.REJECTED, False)
    assert answer.message
    assert await world.keys(task.run) == []


async def test_a_transaction_is_committed_once(world: World, task: TaskRef) -> None:
    live = await _begin(world, 1)
    await world.commit(task, facts=[result("s")], transaction=live)

    answer = await world.commit(task, facts=[result("t")], transaction=live)

    assert answer.verdict is Verdict.REJECTED
    assert await world.keys(task.run) == ["s"]


async def test_a_rollback_after_the_end_does_nothing(world: World, task: TaskRef) -> None:
    live = await _begin(world, 1)
    await world.commit(task, facts=[result("s")], transaction=live)
    other = await _begin(world, 2)

    await live.rollback()
    await live.rollback()

    assert (await world.commit(task, transaction=other)).verdict is Verdict.APPLIED
    assert await _stored(world) == [1, 2]


async def test_an_ended_live_transaction_takes_no_statements(world: World, task: TaskRef) -> None:
    live = await _begin(world, 1)
    await live.rollback()

    with pytest.raises(StateError):
        await _insert(world, live, 2)
    with pytest.raises(StateError):
        await live.fetch("SELECT a FROM mine", ())

    assert await _stored(world) == []


# --- statements


async def test_execute_returns_the_number_of_changed_rows(world: World, task: TaskRef) -> None:
    live = await world.store.begin()

    assert await live.execute(world.sql("INSERT INTO mine (a, b) VALUES (?, ?), (?, ?)"), (1, "x", 2, "y")) == 2
    assert await live.execute(world.sql("UPDATE mine SET b = ?"), ("z",)) == 2
    assert await live.execute(world.sql("UPDATE mine SET b = ? WHERE a = ?"), ("z", 9)) == 0
    assert await live.execute("CREATE TABLE other (a INTEGER)", ()) == 0
    assert await live.execute(world.sql("DELETE FROM mine WHERE a = ?"), (1,)) == 1
    await live.rollback()


async def test_fetch_returns_rows_by_column_name(world: World, task: TaskRef) -> None:
    live = await _begin(world)
    await _insert(world, live, 1, "eins \u2603")
    await _insert(world, live, 2, None)

    rows = await live.fetch(world.sql("SELECT a, b AS text FROM mine WHERE a < ? ORDER BY a DESC"), (9,))
    none = await live.fetch("SELECT a FROM mine WHERE a > 9", ())

    assert [dict(row) for row in rows] == [{"a": 2, "text": None}, {"a": 1, "text": "eins \u2603"}]
    assert list(none) == []
    await live.rollback()


async def test_fetch_may_write_and_return(world: World, task: TaskRef) -> None:
    live = await _begin(world, 1)

    [row] = await live.fetch(world.sql("UPDATE mine SET a = a + ? RETURNING a"), (4,))

    assert row["a"] == 5
    await world.commit(task, transaction=live)
    assert await _stored(world) == [5]


async def test_a_live_transaction_sees_earlier_commits(world: World, task: TaskRef) -> None:
    await world.commit(task, transaction=await _begin(world, 1))

    assert await _stored(world) == [1]


async def test_a_uniqueness_violation_raises_unique_constraint_error(world: World, task: TaskRef) -> None:
    live = await _begin(world, 1)

    with pytest.raises(UniqueConstraintError) as caught:
        await _insert(world, live, 1)

    assert (caught.value.kind, caught.value.retryable) == ("UniqueConstraint", False)
    await live.rollback()


@pytest.mark.parametrize("sql", ["INSERT INTO nowhere (a) VALUES (1)", "this is not SQL"])
async def test_a_statement_that_fails_raises_and_the_transaction_can_be_rolled_back(
    world: World, task: TaskRef, sql: str
) -> None:
    live = await _begin(world, 1)

    with pytest.raises(Exception, match=r"nowhere|syntax"):
        await live.execute(sql, ())

    await live.rollback()
    assert await _stored(world) == []


# --- batches and concurrency


async def test_results_of_a_batch_are_in_the_order_of_the_commits(world: World, task: TaskRef) -> None:
    b, c, d = [await world.start_claimed(name) for name in "bcd"]
    await world.store.release([d])
    live = await _begin(world, 1)

    answers = await world.store.commit(
        [
            turn(b, facts=[result("s")], starts=[NewRun(FLOW, "of-b")]),
            turn(d, facts=[result("s")]),
            turn(task, facts=[result("s")], starts=[NewRun(FLOW, "of-a")], transaction=live),
            turn(c, facts=[result("s")], starts=[NewRun(FLOW, "of-c")]),
        ]
    )

    applied, lost = Verdict.APPLIED, Verdict.LOST
    assert [one.verdict for one in answers] == [applied, lost, applied, applied]
    assert [[new.run.instance_id for new in one.started] for one in answers] == [["of-b"], [], ["of-a"], ["of-c"]]
    assert [await world.keys(one.run) for one in (b, d, task, c)] == [["s"], [], ["s"], ["s"]]
    assert await _stored(world) == [1]


async def test_a_lost_commit_with_a_live_transaction_does_not_affect_its_batch(world: World, task: TaskRef) -> None:
    b, c = await world.start_claimed("b"), await world.start_claimed("c")
    await world.store.release([task])
    live = await _begin(world, 1)

    answers = await world.store.commit(
        [turn(b, facts=[result("s")]), turn(task, transaction=live), turn(c, facts=[result("s")])]
    )

    assert [one.verdict for one in answers] == [Verdict.APPLIED, Verdict.LOST, Verdict.APPLIED]
    assert await world.keys(b.run) == await world.keys(c.run) == ["s"]
    assert await _stored(world) == []


async def test_an_ended_live_transaction_does_not_affect_its_batch(world: World, task: TaskRef) -> None:
    b, c = await world.start_claimed("b"), await world.start_claimed("c")
    over = await _begin(world, 1)
    await over.rollback()
    live = await _begin(world, 2)

    answers = await world.store.commit(
        [turn(b, transaction=over), turn(task, facts=[result("s")], transaction=live), turn(c, facts=[result("s")])]
    )

    assert [one.verdict for one in answers] == [Verdict.REJECTED, Verdict.APPLIED, Verdict.APPLIED]
    assert await _stored(world) == [2]


async def test_many_concurrent_live_transactions_are_all_applied(world: World, task: TaskRef) -> None:
    await world.commit(task, transaction=await _begin(world, 0))

    async def add(name: str) -> Verdict:
        own = await world.start_claimed(name)
        live = await world.store.begin()
        await live.execute("UPDATE mine SET a = a + 1", ())
        return (await world.commit(own, facts=[result("s")], transaction=live)).verdict

    verdicts = await asyncio.gather(*(add(f"r{n}") for n in range(10)))

    assert set(verdicts) == {Verdict.APPLIED}
    assert await _stored(world) == [10]


async def test_other_calls_run_or_wait_and_finish_after_the_live_transaction(world: World, task: TaskRef) -> None:
    other = await world.start_claimed("b")
    await world.start("d")
    live = await _begin(world, 1)

    beat = asyncio.create_task(world.store.heartbeat("w1", LEASE))
    written = asyncio.create_task(world.commit(other, facts=[result("s")]))
    made = asyncio.create_task(world.create("c"))
    rest = asyncio.gather(world.send("go", "b"), world.claim("w2"), world.pause("d"))
    looked = asyncio.create_task(world.store.wait_for_change(None))
    for _ in range(10):
        await asyncio.sleep(0)
    await _insert(world, live, 2)
    answer = await world.commit(task, facts=[result("s")], transaction=live)
    await asyncio.gather(rest, looked)

    assert answer.verdict is (await written).verdict is Verdict.APPLIED
    assert {one.run for one in await beat} >= {task.run, other.run}
    assert (await made).created
    assert await _stored(world) == [1, 2]


async def test_a_caller_that_waits_for_a_live_transaction_can_be_cancelled(world: World, task: TaskRef) -> None:
    first = await _begin(world, 1)
    second = asyncio.create_task(world.store.begin())
    await asyncio.sleep(0.01)
    second.cancel()
    [got] = await asyncio.gather(second, return_exceptions=True)
    if not isinstance(got, BaseException):  # a store that allows several transactions did not make the caller wait
        await got.rollback()
    await world.commit(task, transaction=first)

    assert (await world.create("b")).created
    assert await _stored(world) == [1]


async def test_a_statement_of_a_cancelled_caller_does_not_outlive_the_rollback(world: World, task: TaskRef) -> None:
    live = await _begin(world, 1)
    call = asyncio.create_task(_insert(world, live, 2))
    await asyncio.sleep(0)
    call.cancel()

    await live.rollback()

    assert await _stored(world) == []


# --- the store of a transaction


async def test_a_transaction_of_another_store_is_refused(database: Database, clock: FakeClock) -> None:
    one, two = database(), database()
    await one.open()
    await two.open()
    task = await World(one, clock).start_claimed("a")
    live = await two.begin()

    with pytest.raises(StateError):
        await one.commit([turn(task, facts=[result("s")], transaction=live)])

    await live.rollback()
    assert await World(one, clock).keys(task.run) == []
    await one.close()
    await two.close()


async def test_a_closed_store_begins_no_live_transaction(database: Database) -> None:
    with pytest.raises(AppClosedError):
        await database().begin()


async def test_a_live_transaction_that_is_open_at_close_is_rolled_back(database: Database, clock: FakeClock) -> None:
    store = database()
    await store.open()
    world = World(store, clock)
    task = await world.start_claimed("a")
    live = await store.begin()
    await live.execute(CREATE, ())
    await world.commit(task, transaction=live)
    live = await store.begin()
    await live.execute("INSERT INTO mine (a) VALUES (1)", ())

    async with asyncio.timeout(60):  # close does not wait for the transaction
        await store.close()

    await live.rollback()
    with pytest.raises(StateError):
        await live.execute("INSERT INTO mine (a) VALUES (2)", ())
    await store.open()
    assert await _stored(world) == []
    await store.close()
