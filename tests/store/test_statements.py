"""Users' statements in a commit: executed with it or not at all, and denied access to the engine's tables."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.core.model import Status
from holdfast.store.protocol import Finish, NewRun, RunByName, SnapshotQuery, Statement, TaskRef, Verdict
from store.world import FLOW, World, log_line, result, turn

CREATE = Statement("CREATE TABLE mine (a INTEGER PRIMARY KEY, b TEXT NOT NULL)", ())


def insert(a: Any, b: Any = "x") -> Statement:
    return Statement("INSERT INTO mine (a, b) VALUES (?, ?)", (a, b))


async def _is_there(world: World, a: int) -> bool:
    """True if the row is stored: a second insert is then rejected as not unique."""
    task = await world.start_claimed(f"check-{a}")
    return (await world.commit(task, statements=[insert(a)])).unique


@pytest.fixture
async def task(world: World) -> TaskRef:
    """An owned run, in a database that has the user's table."""
    task = await world.start_claimed("a")
    assert (await world.commit(task, statements=[CREATE])).verdict is Verdict.APPLIED
    return task


async def test_a_statement_is_executed_with_its_commit(world: World, task: TaskRef) -> None:
    answer = await world.commit(task, statements=[insert(1), insert(2)], facts=[result("s")])

    assert answer.verdict is Verdict.APPLIED
    assert await world.keys(task.run) == ["s"]
    assert await _is_there(world, 1)
    assert await _is_there(world, 2)


async def test_a_uniqueness_violation_rejects_the_commit(world: World, task: TaskRef) -> None:
    await world.commit(task, statements=[insert(1)])

    answer = await world.commit(
        task,
        statements=[insert(2), insert(1)],
        facts=[result("s")],
        logs=[log_line("l")],
        starts=[NewRun(FLOW, "child")],
        then=Finish(Status.COMPLETE),
    )

    assert (answer.verdict, answer.unique) == (Verdict.REJECTED, True)
    assert answer.message
    assert await world.keys(task.run) == []
    assert (await world.store.read(SnapshotQuery(task.run))).log_count == 0
    assert not await world.store.read(RunByName(FLOW, "child"))
    run = await world.find("a")
    assert (run.status, run.owner) == (Status.ACTIVE, "w1")
    assert not await _is_there(world, 2)


@pytest.mark.parametrize(
    "statement",
    [
        insert(5, None),
        Statement("INSERT INTO nowhere VALUES (1)", ()),
        Statement("this is not SQL", ()),
        Statement("INSERT INTO mine (a, b) VALUES (?, ?)", (1,)),
        insert(object()),
    ],
    ids=["not null", "no such table", "no SQL", "too few arguments", "no such type"],
)
async def test_any_other_statement_error_rejects_the_commit(world: World, task: TaskRef, statement: Statement) -> None:
    answer = await world.commit(task, statements=[insert(7), statement], facts=[result("s")])

    assert (answer.verdict, answer.unique) == (Verdict.REJECTED, False)
    assert answer.message
    assert await world.keys(task.run) == []
    assert not await _is_there(world, 7)


async def test_a_turn_can_commit_after_a_rejection(world: World, task: TaskRef) -> None:
    await world.commit(task, statements=[Statement("nonsense", ())])

    assert (await world.commit(task, facts=[result("s")])).verdict is Verdict.APPLIED


async def test_a_rejected_commit_does_not_affect_its_batch(world: World, task: TaskRef) -> None:
    b, c = await world.start_claimed("b"), await world.start_claimed("c")

    answers = await world.store.commit(
        [
            turn(b, statements=[insert(1)], facts=[result("s")]),
            turn(task, statements=[insert(1)], facts=[result("s")]),
            turn(c, facts=[result("s")]),
        ]
    )

    assert [one.verdict for one in answers] == [Verdict.APPLIED, Verdict.REJECTED, Verdict.APPLIED]
    assert [await world.keys(one.run) for one in (b, task, c)] == [["s"], [], ["s"]]


@pytest.mark.promise("isolation-of-runs")
async def test_a_rejection_affects_only_its_own_commit_among_concurrent_ones(world: World, task: TaskRef) -> None:
    tasks = [await world.start_claimed(f"r{n}") for n in range(30)]

    answers = await asyncio.gather(
        *(world.commit(one, statements=[insert(n % 10)], facts=[result("s")]) for n, one in enumerate(tasks))
    )

    applied = [one for one, answer in zip(tasks, answers, strict=True) if answer.verdict is Verdict.APPLIED]
    assert len(applied) == 10
    assert sum(answer.unique for answer in answers) == 20
    for one in tasks:
        assert await world.keys(one.run) == (["s"] if one in applied else [])


@pytest.mark.promise("fencing")
async def test_a_statement_of_a_stale_turn_is_not_executed(world: World, task: TaskRef) -> None:
    await world.store.release([task])

    assert (await world.commit(task, statements=[insert(1)])).verdict is Verdict.LOST
    assert not await _is_there(world, 1)


async def test_a_statement_is_executed_although_a_pause_was_requested(world: World, task: TaskRef) -> None:
    await world.pause("a")

    assert (await world.commit(task, statements=[insert(1)])).verdict is Verdict.PAUSED
    assert await _is_there(world, 1)


async def test_a_statement_may_return_rows(world: World, task: TaskRef) -> None:
    answer = await world.commit(task, statements=[insert(1), insert(2), Statement("SELECT a FROM mine", ())])

    assert answer.verdict is Verdict.APPLIED


@pytest.mark.parametrize("sql", ["COMMIT", "ROLLBACK", "BEGIN", "SAVEPOINT x", "RELEASE SAVEPOINT x", "  commit ;"])
async def test_a_statement_may_not_end_the_transaction(world: World, task: TaskRef, sql: str) -> None:
    answer = await world.commit(task, statements=[insert(1), Statement(sql, ())], facts=[result("s")])

    assert (answer.verdict, answer.unique) == (Verdict.REJECTED, False)
    assert await world.keys(task.run) == []
    assert not await _is_there(world, 1)


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM holdfast_fact",
        "UPDATE holdfast_run SET status = 'complete'",
        "INSERT INTO holdfast_log SELECT * FROM holdfast_log",
        "DROP TABLE holdfast_task",
        "delete from HOLDFAST_FACT",
        "ALTER TABLE holdfast_run RENAME TO mine2",
        "CREATE TABLE holdfast_extra (a INTEGER)",
        "CREATE INDEX holdfast_extra ON holdfast_run (note)",
    ],
)
async def test_a_statement_may_not_change_the_engines_tables(world: World, task: TaskRef, sql: str) -> None:
    await world.commit(task, facts=[result("s")])

    answer = await world.commit(task, statements=[Statement(sql, ())])

    assert (answer.verdict, answer.unique) == (Verdict.REJECTED, False)
    assert await world.keys(task.run) == ["s"]
    assert (await world.find("a")).status is Status.ACTIVE


async def test_a_statement_may_read_the_engines_tables(world: World, task: TaskRef) -> None:
    statement = Statement("INSERT INTO mine (a, b) SELECT 3, instance_id FROM holdfast_run WHERE id = ?", (task.run,))

    assert (await world.commit(task, statements=[statement])).verdict is Verdict.APPLIED
    assert await _is_there(world, 3)
