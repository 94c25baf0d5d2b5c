"""A step's transaction: its statements commit with the step's result, once, or not at all."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from driving import finish
from holdfast import (
    Context,
    Holdfast,
    InputError,
    Retry,
    RunFailedError,
    StepError,
    StepTx,
    UniqueConstraintError,
    WorkerConfig,
)
from holdfast.testing import Harness

Rows = Callable[[], list[Any]]

pytestmark = pytest.mark.above_the_store  # the statements are SQLite's


@pytest.fixture
def shop_file(tmp_path: Path) -> Path:
    path = tmp_path / "shop.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE item (name TEXT UNIQUE, n INTEGER)")
    connection.close()
    return path


@pytest.fixture
def app(shop_file: Path) -> Holdfast:
    return Holdfast(f"sqlite:///{shop_file}")


@pytest.fixture
def rows(shop_file: Path) -> Rows:
    def read() -> list[Any]:
        connection = sqlite3.connect(shop_file)
        try:
            return connection.execute("SELECT name, n FROM item ORDER BY rowid").fetchall()
        finally:
            connection.close()

    return read


async def _result(app: Holdfast, workflow: Any, params: Any = None) -> Any:
    async with app:
        return await (await app.start(workflow, params)).result(timeout=60)


async def test_statements_commit_with_the_step(app: Holdfast, rows: Rows) -> None:
    @app.step
    async def add(name: str, tx: StepTx) -> str:
        tx.execute("INSERT INTO item VALUES (?, ?)", name, 1)
        tx.execute("UPDATE item SET n = n + 1 WHERE name = ?", name)
        return name

    @app.workflow
    async def flow(ctx: Context) -> list[str]:
        return [await add("a"), await add("b")]

    assert await _result(app, flow) == ["a", "b"]
    assert rows() == [("a", 2), ("b", 2)]


async def test_any_parameter_of_a_step_may_be_the_transaction(app: Holdfast, rows: Rows) -> None:
    @app.step
    async def first(tx: StepTx, name: str) -> None:
        tx.execute("INSERT INTO item VALUES (?, 1)", name)

    @app.step
    def last(name: str, *, tx: StepTx) -> None:
        tx.execute("INSERT INTO item VALUES (?, 2)", name)

    def inline(tx: StepTx) -> None:
        tx.execute("INSERT INTO item VALUES ('c', 3)")

    @app.workflow
    async def flow(ctx: Context) -> None:
        await first("a")
        await last("b")
        await ctx.do("inline", inline)

    await _result(app, flow)
    assert rows() == [("a", 1), ("b", 2), ("c", 3)]


@pytest.mark.promise("at-least-once-steps")
async def test_statements_do_not_run_on_replay(app: Holdfast, rows: Rows) -> None:
    @app.step
    async def add(tx: StepTx) -> None:
        tx.execute("INSERT INTO item VALUES ('a', 1)")

    @app.workflow
    async def flow(ctx: Context) -> str:
        await add()
        await ctx.wait_for_event("go", type="go")
        return "done"

    async with app:
        run = await app.start(flow, id="one")
        from driving import until_status

        await until_status(run, "waiting")
    async with app:
        run = await app.get(flow, "one")
        await run.send_event("go")
        assert await run.result(timeout=60) == "done"
    assert rows() == [("a", 1)]


@pytest.mark.promise("at-least-once-steps")
async def test_statements_of_a_failed_attempt_are_dropped(app: Holdfast, rows: Rows) -> None:
    attempts: list[int] = []

    @app.step(retry=Retry(1, 0))
    async def add(tx: StepTx) -> None:
        attempts.append(1)
        tx.execute("INSERT INTO item VALUES (?, ?)", f"attempt {len(attempts)}", len(attempts))
        if len(attempts) == 1:
            raise OSError("after the statement")

    @app.workflow
    async def flow(ctx: Context) -> None:
        await add()

    await _result(app, flow)
    assert rows() == [("attempt 2", 2)]


@pytest.mark.parametrize("persist", ["step", "task"])
async def test_a_unique_violation_fails_the_step_without_retries_or_partial_rows(
    app: Holdfast, rows: Rows, persist: Any
) -> None:
    calls: list[str] = []

    @app.step
    async def add(name: str, tx: StepTx) -> str:
        calls.append(name)
        tx.execute("INSERT INTO item VALUES (?, 1)", f"{name} first")
        tx.execute("INSERT INTO item VALUES (?, 2)", name)
        return name

    @app.workflow(persist=persist)
    async def flow(ctx: Context) -> list[Any]:
        await add("taken")
        before = await ctx.do("before", lambda: "kept")
        try:
            await ctx.do("again", add, "taken")
        except UniqueConstraintError as error:
            return [before, error.step, error.code, error.retryable, error.attempts, await add("free")]
        return []

    result = await _result(app, flow)
    assert result == ["kept", "again", "STEP_UNIQUE_CONSTRAINT_VIOLATION", False, 1, "free"]
    assert calls == ["taken", "taken", "free"]
    assert [name for name, _ in rows()] == ["taken first", "taken", "free first", "free"]


async def test_any_other_database_error_fails_the_attempt(app: Holdfast, rows: Rows) -> None:
    attempts: list[int] = []

    @app.step(retry=Retry(2, 0))
    async def add(tx: StepTx) -> str:
        attempts.append(1)
        tx.execute("INSERT INTO item VALUES ('a', 1)")
        tx.execute("INSERT INTO nowhere VALUES (1)" if len(attempts) < 3 else "SELECT 1")
        return "third time"

    @app.workflow
    async def flow(ctx: Context) -> str:
        return await add()

    assert await _result(app, flow) == "third time"
    assert rows() == [("a", 1)]
    assert len(attempts) == 3


async def test_a_database_error_in_every_attempt_fails_the_step(app: Holdfast, rows: Rows) -> None:
    @app.step(retry=Retry(limit=0))
    async def add(tx: StepTx) -> None:
        tx.execute("INSERT INTO nowhere VALUES (1)")

    @app.workflow
    async def flow(ctx: Context) -> None:
        await add()

    with pytest.raises(RunFailedError, match="nowhere"):
        await _result(app, flow)


async def test_a_refused_parallel_step_does_not_affect_the_others(app: Holdfast, rows: Rows) -> None:
    import asyncio

    @app.step
    async def add(name: str, tx: StepTx) -> str:
        tx.execute("INSERT INTO item VALUES (?, 1)", name)
        return name

    @app.workflow
    async def flow(ctx: Context) -> list[str]:
        results = await asyncio.gather(*(add(name) for name in ("a", "b", "a", "c")), return_exceptions=True)
        return sorted(result if isinstance(result, str) else type(result).__name__ for result in results)

    assert await _result(app, flow) == ["UniqueConstraintError", "a", "b", "c"]
    assert sorted(name for name, _ in rows()) == ["a", "b", "c"]


async def test_a_statement_cannot_end_the_engines_transaction(app: Holdfast, rows: Rows) -> None:
    @app.step(retry=Retry(limit=0))
    async def evil(sql: str, tx: StepTx) -> None:
        tx.execute("INSERT INTO item VALUES (?, 1)", sql)
        tx.execute(sql)

    @app.workflow
    async def flow(ctx: Context) -> list[str]:
        failed = []
        for sql in ("COMMIT", "ROLLBACK", "BEGIN"):
            try:
                await evil(sql)
            except Exception as error:
                failed.append(type(error).__name__)
        return failed

    assert len(await _result(app, flow)) == 3
    assert rows() == []


async def test_a_run_started_in_a_transaction_is_created_with_the_result_of_the_step(app: Holdfast) -> None:
    @app.workflow
    async def child(ctx: Context, n: int) -> int:
        return n * 2

    @app.step(retry=Retry(1, 0))
    async def hand_over(n: int, tx: StepTx) -> str:
        pid = tx.start(child, n, id=f"child-{n}")
        tx.send(pid, "hello", {"n": n})
        if not attempts:
            attempts.append(1)
            raise OSError("the first attempt starts nothing")
        return pid

    @app.workflow
    async def parent(ctx: Context) -> str:
        return await hand_over(21)

    attempts: list[int] = []
    async with app:
        assert await (await app.start(parent)).result(timeout=60) == "child/child-21"
        run = await app.get(child, "child-21")
        assert await run.result(timeout=60) == 42
        assert [(e.type, e.payload) for e in (await run.history()).events] == [("hello", {"n": 21})]


async def test_an_event_sent_in_a_transaction_wakes_the_other_run() -> None:
    app = Holdfast("sqlite://")

    @app.workflow
    async def waiting(ctx: Context) -> Any:
        return (await ctx.wait_for_event("go", type="go")).payload

    @app.workflow
    async def sending(ctx: Context, pid: str) -> None:
        def send(tx: StepTx) -> None:
            tx.send(pid, "go", "from a step")

        await ctx.do("send", send)

    async with Harness(app) as h:
        run = await h.start(waiting)
        await h.run_until_idle()
        await finish(h, sending, run.pid)
        await h.run_until_idle()
        assert await run.result() == "from a step"


async def test_an_empty_statement_is_refused(app: Holdfast) -> None:
    @app.step(retry=Retry(limit=0))
    async def empty(tx: StepTx) -> None:
        tx.execute("  ")

    @app.workflow
    async def flow(ctx: Context) -> str:
        try:
            await empty()
        except InputError as error:
            return str(error)
        return "?"

    assert "SQL" in await _result(app, flow)


async def test_a_run_started_in_a_transaction_begins_without_a_poll() -> None:
    app = Holdfast("sqlite://", worker=WorkerConfig(poll="1 hour"))

    @app.workflow
    async def child(ctx: Context) -> str:
        return "began"

    @app.workflow
    async def parent(ctx: Context) -> str:
        def hand_over(tx: StepTx) -> str:
            return tx.start(child, id="child")

        return str(await ctx.do("hand over", hand_over))

    async with app:
        await (await app.start(parent)).result(timeout=60)
        assert await (await app.get(child, "child")).result(timeout=1) == "began"


async def test_an_event_received_before_a_refused_step_is_kept() -> None:
    app = Holdfast("sqlite://")

    @app.step(retry=Retry(limit=0))
    async def collide(tx: StepTx) -> None:
        tx.execute("INSERT INTO missing_table VALUES (1)")

    @app.workflow
    async def flow(ctx: Context) -> str:
        await ctx.wait_for_event("begin", type="begin")
        try:
            await collide()
        except StepError:
            return str((await ctx.wait_for_event("go", type="go")).payload)
        return "the statement worked"

    async with Harness(app) as h:
        run = await h.start(flow)
        await h.run_until_idle()
        await run.send_event("go", "kept")
        await run.send_event("begin")
        await h.run_until_idle()

        assert await run.result(timeout=60) == "kept"
