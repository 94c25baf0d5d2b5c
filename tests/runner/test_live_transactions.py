"""Steps with a live transaction: their writes and their result are stored together, once, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import apsw
import pytest

from driving import finish, until_status
from holdfast import (
    Context,
    Holdfast,
    InvalidOptionError,
    Retry,
    RunFailedError,
    StepTx,
    StoreUnavailableError,
    Transaction,
    WorkerConfig,
    step_info,
)
from holdfast.store.protocol import Commit, Committed, FactState, Verdict
from holdfast.store.sqlite import SqliteStore
from holdfast.store.sqlite.live import Live
from holdfast.testing import Harness

NO_RETRY = Retry(limit=0)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A database file with a table of the user."""
    path = tmp_path / "work.db"
    connection = apsw.Connection(str(path))
    connection.execute("CREATE TABLE stock (item TEXT PRIMARY KEY, left INTEGER CHECK (left >= 0))")
    connection.execute("INSERT INTO stock VALUES ('apple', 3)")
    connection.close()
    return path


@pytest.fixture
def shop(file: Path) -> Holdfast:
    return Holdfast(f"sqlite:///{file}", worker=WorkerConfig(poll="20 ms"))


def left(file: Path) -> int:
    connection = apsw.Connection(str(file))
    try:
        return int(connection.execute("SELECT left FROM stock").get)
    finally:
        connection.close()


def define_order(app: Holdfast, **options: Any) -> Any:
    @app.step(retry=NO_RETRY)
    async def reserve(tx: Transaction, count: int) -> int:
        [row] = await tx.fetch("SELECT left FROM stock WHERE item = ?", "apple")
        changed = await tx.execute("UPDATE stock SET left = left - ? WHERE item = ?", count, "apple")
        assert changed == 1
        if count == 2:
            raise ValueError("two is not sold")
        return int(row["left"]) - count

    @app.workflow(**options)
    async def order(_ctx: Context, count: int) -> int:
        return await reserve(count)

    return order


async def test_a_step_reads_and_writes_in_its_transaction(shop: Holdfast, file: Path) -> None:
    order = define_order(shop)
    async with shop:
        assert await (await shop.start(order, 1)).result(timeout=60) == 2
    assert left(file) == 2


@pytest.mark.parametrize("persist", ["step", "task"])
async def test_a_live_transaction_works_in_both_persist_modes(shop: Holdfast, file: Path, persist: str) -> None:
    order = define_order(shop, persist=persist)
    async with shop:
        assert await (await shop.start(order, 1)).result(timeout=60) == 2
    assert left(file) == 2


@pytest.mark.promise("at-least-once-steps")
async def test_a_failed_attempt_writes_nothing(shop: Holdfast, file: Path) -> None:
    order = define_order(shop)
    async with shop:
        with pytest.raises(RunFailedError, match="two is not sold"):
            await (await shop.start(order, 2)).result(timeout=60)
        assert await (await shop.start(order, 1)).result(timeout=60) == 2
    assert left(file) == 2


async def test_an_attempt_whose_result_cannot_be_stored_writes_nothing(shop: Holdfast, file: Path) -> None:
    @shop.step(retry=NO_RETRY)
    async def sell(tx: Transaction) -> Any:
        await tx.execute("UPDATE stock SET left = 0")
        return {1, 2}

    @shop.workflow
    async def order(_ctx: Context) -> Any:
        return await sell()

    async with shop:
        with pytest.raises(RunFailedError):
            await (await shop.start(order)).result(timeout=60)
    assert left(file) == 3


async def test_a_violated_constraint_fails_the_attempt_which_writes_nothing(shop: Holdfast, file: Path) -> None:
    order = define_order(shop)
    async with shop:
        with pytest.raises(RunFailedError, match="CHECK"):
            await (await shop.start(order, 5)).result(timeout=60)
    assert left(file) == 3


@pytest.mark.promise("isolation-of-runs")
async def test_an_attempt_that_times_out_writes_nothing_and_blocks_no_other_run(shop: Holdfast, file: Path) -> None:
    entered = asyncio.Event()

    @shop.step(retry=NO_RETRY, timeout="50 ms")
    async def hang(tx: Transaction) -> None:
        await tx.execute("UPDATE stock SET left = 0")
        entered.set()
        await asyncio.sleep(60)

    @shop.workflow
    async def hanging(_ctx: Context) -> None:
        await hang()

    order = define_order(shop)
    async with shop:
        slow = await shop.start(hanging)
        await entered.wait()
        quick = await shop.start(order, 1)
        with pytest.raises(RunFailedError, match="50 ms"):
            await slow.result(timeout=60)
        assert await quick.result(timeout=60) == 2


async def test_simultaneous_transactions_run_one_after_the_other(shop: Holdfast, file: Path) -> None:
    order = define_order(shop)
    async with shop:
        runs = [await shop.start(order, 1) for _ in range(3)]
        assert sorted([await run.result(timeout=60) for run in runs]) == [0, 1, 2]
    assert left(file) == 0


async def test_sends_and_starts_are_written_with_the_transaction(shop: Holdfast, file: Path) -> None:
    @shop.workflow
    async def other(ctx: Context) -> Any:
        return (await ctx.wait_for_event("news", type="news")).payload

    @shop.step(retry=NO_RETRY)
    async def notify(tx: Transaction, fail: bool) -> str:
        pid = tx.start(other, id="failed" if fail else "notified")
        tx.send(pid, "news", "hello")
        await tx.execute("UPDATE stock SET left = left - 1")
        if fail:
            raise ValueError("no")
        return pid

    @shop.workflow
    async def notifying(_ctx: Context, fail: bool) -> str:
        return await notify(fail)

    async with shop:
        assert await (await shop.start(notifying, False)).result(timeout=60) == "other/notified"
        with pytest.raises(RunFailedError):
            await (await shop.start(notifying, True)).result(timeout=60)
        assert await (await shop.get(other, "notified")).result(timeout=60) == "hello"
        assert [item.id for item in (await shop.list(other)).items] == ["notified"]
    assert left(file) == 2


async def test_a_pause_lets_the_step_in_flight_commit(shop: Holdfast, file: Path) -> None:
    entered, go_on, asked = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @shop.step
    async def sell(tx: Transaction) -> int:
        await tx.fetch("SELECT 1")
        entered.set()
        await go_on.wait()
        return await tx.execute("UPDATE stock SET left = left - 1")

    @shop.workflow
    async def order(ctx: Context) -> int:
        first = await sell()
        await ctx.do("then", asked.wait)
        return first

    async with shop:
        run = await shop.start(order)
        await entered.wait()
        pausing = asyncio.ensure_future(run.pause())  # waits for the lock that the step holds
        go_on.set()
        await pausing
        asked.set()
        await until_status(run, "paused", "complete")
        await run.resume()
        assert await run.result(timeout=60) == 1
    assert left(file) == 2


async def test_a_step_that_the_code_cancels_writes_nothing(shop: Holdfast, file: Path) -> None:
    entered, go_on = asyncio.Event(), asyncio.Event()

    @shop.step
    async def sell(tx: Transaction) -> None:
        entered.set()
        await go_on.wait()
        await tx.execute("UPDATE stock SET left = 0")

    @shop.workflow
    async def order(_ctx: Context) -> None:
        await asyncio.wait_for(sell(), 0.05)

    async with shop:
        while not entered.is_set():  # on a busy machine the time may pass before the step is called
            run = await shop.start(order)
            with pytest.raises(RunFailedError, match="TimeoutError"):
                await run.result(timeout=60)
        go_on.set()
    assert left(file) == 3


def test_a_plain_function_cannot_have_a_live_transaction(shop: Holdfast) -> None:
    with pytest.raises(InvalidOptionError, match="async def"):

        @shop.step
        def sell(tx: Transaction) -> None: ...


def test_a_step_cannot_have_two_transactions(shop: Holdfast) -> None:
    with pytest.raises(InvalidOptionError, match="one transaction"):

        @shop.step
        async def sell(one: Transaction, two: StepTx) -> None: ...


async def test_live_transactions_work_in_the_harness(h: Harness, app: Holdfast) -> None:
    @app.step
    async def make(tx: Transaction) -> int:
        await tx.execute("CREATE TABLE own (n INTEGER)")
        return await tx.execute("INSERT INTO own VALUES (1), (2)")

    @app.step
    async def count(tx: Transaction) -> int:
        [row] = await tx.fetch("SELECT count(*) AS n FROM own")
        return int(row["n"])

    @app.workflow
    async def own(_ctx: Context) -> list[int]:
        return [await make(), await count()]

    assert await finish(h, own) == [2, 2]


# --- concurrent steps of the same run


def lose_reply_of_next_live_commit(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Let the next commit of a live transaction be written without a reply; the list is then not empty."""
    commit, failed = SqliteStore.commit, list[bool]()

    async def commit_without_reply(store: SqliteStore, commits: Sequence[Commit]) -> list[Committed]:
        done = await commit(store, commits)
        if any(commit.observed.transaction is not None for commit in commits) and not failed:
            failed.append(True)
            raise StoreUnavailableError("the line broke")
        return done

    monkeypatch.setattr(SqliteStore, "commit", commit_without_reply)
    return failed


@pytest.mark.parametrize("persist", ["step", "task"])
async def test_the_streams_of_a_step_are_settled_once_although_the_reply_of_their_commit_is_lost(
    shop: Holdfast, monkeypatch: pytest.MonkeyPatch, persist: Any
) -> None:
    written, begun, reported = asyncio.Event(), asyncio.Event(), asyncio.Event()
    failed = lose_reply_of_next_live_commit(monkeypatch)

    @shop.step
    async def report() -> str:
        await step_info().stream("progress").write("begun")
        written.set()
        await begun.wait()
        reported.set()
        return "reported"

    @shop.step
    async def wait_for_item() -> None:
        await written.wait()

    @shop.step
    async def sell(tx: Transaction) -> int:
        begun.set()
        await reported.wait()
        for _ in range(20):  # the turn receives the outcome of the other step first, and writes it with this one
            await asyncio.sleep(0)
        return await tx.execute("UPDATE stock SET left = left - 1")

    @shop.workflow(persist=persist)
    async def order(_ctx: Context) -> list[Any]:
        reporting = asyncio.ensure_future(report())
        await wait_for_item()
        results = [await sell(), await reporting]
        await wait_for_item()
        return results

    async with shop:
        run = await shop.start(order)
        assert await run.result(timeout=60) == [1, "reported"]
        assert [item.value async for item in run.stream("progress")] == ["begun"]
    assert failed == [True]


@pytest.mark.promise("liveness")
async def test_result_returns_for_an_end_whose_commit_was_written_without_a_reply(
    shop: Holdfast, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = lose_reply_of_next_live_commit(monkeypatch)

    @shop.step
    async def sell(tx: Transaction) -> int:
        return await tx.execute("UPDATE stock SET left = left - 1")

    @shop.workflow
    async def order(_ctx: Context) -> int:
        return await sell()

    async with shop:
        assert await (await shop.start(order)).result(timeout=60) == 1
    assert failed == [True]
    assert left(file) == 2


async def test_a_concurrent_step_may_end_before_the_transaction(shop: Holdfast, file: Path) -> None:
    entered, go_on, calls = asyncio.Event(), asyncio.Event(), list[str]()

    @shop.step
    async def sell(tx: Transaction) -> int:
        entered.set()
        await go_on.wait()
        return await tx.execute("UPDATE stock SET left = left - 1")

    @shop.step
    async def concurrent(name: str) -> str:
        await entered.wait()
        calls.append(name)
        go_on.set()
        return name

    @shop.workflow
    async def order(_ctx: Context) -> list[Any]:
        async def chain() -> list[str]:
            return [await concurrent("first"), await concurrent("second")]

        return [*await asyncio.gather(sell(), chain())]

    async with shop:
        assert await (await shop.start(order)).result(timeout=60) == [1, ["first", "second"]]
    assert calls == ["first", "second"]
    assert left(file) == 2


async def test_a_timer_may_fire_while_a_transaction_is_open(shop: Holdfast, file: Path) -> None:
    @shop.step
    async def sell(tx: Transaction) -> int:
        await asyncio.sleep(0.8)  # longer than the time after which long steps are recorded
        return await tx.execute("UPDATE stock SET left = left - 1")

    @shop.workflow
    async def order(ctx: Context) -> list[Any]:
        async def chain() -> str:
            await asyncio.sleep(0.05)
            await ctx.sleep("a moment", 0.05)
            return await ctx.do("then", lambda: "done")

        return [*await asyncio.gather(sell(), chain())]

    async with shop:
        assert await (await shop.start(order)).result(timeout=60) == [1, "done"]
    assert left(file) == 2


async def test_concurrent_steps_of_a_run_may_each_have_a_transaction(shop: Holdfast, file: Path) -> None:
    @shop.step
    async def sell(tx: Transaction, seconds: float) -> int:
        await asyncio.sleep(seconds)
        return await tx.execute("UPDATE stock SET left = left - 1")

    @shop.step
    async def also(tx: StepTx) -> str:
        tx.execute("UPDATE stock SET left = left - 1")
        return "also"

    @shop.workflow
    async def order(_ctx: Context) -> list[Any]:
        return [*await asyncio.gather(sell(0.2), also(), sell(0.0))]

    async with shop:
        assert await (await shop.start(order)).result(timeout=60) == [1, "also", 1]
    assert left(file) == 0


async def test_the_result_of_a_concurrent_step_is_kept_when_a_transaction_is_refused(
    shop: Holdfast, file: Path
) -> None:
    calls, go_on = list[str](), asyncio.Event()

    @shop.step(retry=NO_RETRY)
    async def sell(tx: Transaction) -> None:
        await go_on.wait()
        tx.send("order/nobody", "news")
        await tx.execute("UPDATE stock SET left = 0")

    @shop.step
    async def concurrent() -> str:
        calls.append("concurrent")
        go_on.set()
        return "kept"

    @shop.workflow
    async def order(_ctx: Context) -> list[Any]:
        done = await asyncio.gather(sell(), concurrent(), return_exceptions=True)
        return [type(done[0]).__name__, done[1]]

    async with shop:
        assert await (await shop.start(order)).result(timeout=60) == ["StepError", "kept"]
    assert calls == ["concurrent"]
    assert left(file) == 3


async def test_the_retry_of_a_concurrent_step_waits_until_the_failure_is_written(shop: Holdfast, file: Path) -> None:
    """Otherwise a worker that dies then would have made two attempts of which one is counted."""
    failed, recorded = asyncio.Event(), list[list[str]]()

    @shop.step
    async def sell(tx: Transaction) -> int:
        await failed.wait()
        await asyncio.sleep(0.2)  # the retry is due, but deferred
        return await tx.execute("UPDATE stock SET left = left - 1")

    @shop.step(retry=Retry(limit=3, delay="1 ms"))
    async def concurrent() -> str:
        if not failed.is_set():
            failed.set()
            raise ValueError("once")
        connection = apsw.Connection(str(file))
        recorded.append([key for (key,) in connection.execute("SELECT key FROM holdfast_fact WHERE state = 2")])
        connection.close()
        return "done"

    @shop.workflow
    async def order(_ctx: Context) -> list[Any]:
        return [*await asyncio.gather(sell(), concurrent())]

    async with shop:
        assert await (await shop.start(order)).result(timeout=60) == [1, "done"]
    assert recorded == [["concurrent"]]


def fail_next_live_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Roll back the next commit of a live transaction, as after a lost connection; later commits work."""
    commit = Live.commit

    async def roll_back(live: Live, _commit: Commit) -> Committed:
        monkeypatch.setattr(Live, "commit", commit)
        await live.rollback()
        raise StoreUnavailableError("connection lost")

    monkeypatch.setattr(Live, "commit", roll_back)


async def test_a_concurrent_step_that_ended_is_not_called_again_after_a_failed_commit(
    shop: Holdfast, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, go_on = list[str](), asyncio.Event()

    fail_next_live_commit(monkeypatch)

    @shop.step
    async def sell(tx: Transaction) -> int:
        calls.append("sell")
        await go_on.wait()
        return await tx.execute("UPDATE stock SET left = left - 1")

    @shop.step
    async def concurrent() -> str:
        calls.append("concurrent")
        go_on.set()
        return "kept"

    @shop.workflow
    async def order(_ctx: Context) -> list[Any]:
        return [*await asyncio.gather(sell(), concurrent())]

    async with shop:
        assert await (await shop.start(order)).result(timeout=60) == [1, "kept"]
    assert sorted(calls) == ["concurrent", "sell", "sell"]
    assert left(file) == 2


@pytest.mark.kind_settings("exactly one commit of a live transaction fails")
async def test_a_step_that_a_failed_commit_would_cancel_is_not_called_again(
    shop: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, began = list[str](), asyncio.Event()

    fail_next_live_commit(monkeypatch)

    @shop.step
    async def sell(tx: Transaction) -> int:
        calls.append("sell")
        await began.wait()
        return await tx.execute("UPDATE stock SET left = left - 1")

    @shop.step
    async def concurrent() -> None:
        calls.append("concurrent")
        began.set()
        await asyncio.Event().wait()

    @shop.workflow
    async def order(_ctx: Context) -> int:
        task = asyncio.ensure_future(concurrent())
        sold = await sell()
        task.cancel()
        return sold

    async with shop:
        assert await (await shop.start(order)).result(timeout=60) == 1
    assert sorted(calls) == ["concurrent", "sell", "sell"]


async def test_a_deferred_retry_is_not_made_after_the_code_cancelled_the_step(shop: Holdfast) -> None:
    calls, go_on = list[str](), asyncio.Event()

    @shop.step
    async def sell(tx: Transaction) -> int:
        await go_on.wait()
        await asyncio.sleep(0.05)  # the retry is due, but deferred
        return await tx.execute("UPDATE stock SET left = left - 1")

    @shop.step(retry=Retry(limit=1, delay="1 ms", backoff="constant"))
    async def concurrent() -> None:
        calls.append("concurrent")
        go_on.set()
        raise ValueError("once more")

    @shop.step
    async def after() -> str:
        return "done"

    @shop.workflow
    async def order(_ctx: Context) -> str:
        task = asyncio.ensure_future(concurrent())
        await sell()
        task.cancel()
        return await after()

    async with shop:
        assert await (await shop.start(order)).result(timeout=60) == "done"
    assert calls == ["concurrent"]


async def test_a_message_sent_during_a_transaction_wakes_its_receiver(shop: Holdfast, file: Path) -> None:
    asked = asyncio.Event()

    @shop.step
    async def sell(tx: Transaction) -> int:
        await asked.wait()
        await asyncio.sleep(0.05)  # the message is sent, but not written yet
        return await tx.execute("UPDATE stock SET left = left - 1")

    @shop.step
    async def concurrent() -> None:
        asked.set()

    @shop.workflow
    async def listener(ctx: Context) -> Any:
        return (await ctx.wait_for_event("news", type="news")).payload

    @shop.workflow
    async def order(ctx: Context) -> list[Any]:
        async def notify() -> str:
            await concurrent()
            await ctx.send("listener/l", "news", "sold")
            return "notified"

        return [*await asyncio.gather(sell(), notify())]

    async with shop:
        listening = await shop.start(listener, id="l")
        assert await (await shop.start(order)).result(timeout=60) == [1, "notified"]
        assert await listening.result(timeout=60) == "sold"
    assert left(file) == 2


@pytest.mark.kind_settings("another worker owns the run for the time of a lease")
async def test_a_worker_checks_its_ownership_after_a_failed_commit_before_it_calls_a_step(
    shop: Holdfast, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, lost, committing = list[str](), asyncio.Event(), SqliteStore.commit

    async def lose_ownership(live: Live, _commit: Commit) -> Committed:
        await live.rollback()
        connection = apsw.Connection(str(file))
        connection.set_busy_timeout(10_000)  # the worker may write at the same time
        connection.execute("UPDATE holdfast_task SET owner = 'another', epoch = epoch + 1")
        connection.close()
        raise StoreUnavailableError("the line broke")

    async def commit(store: SqliteStore, commits: Sequence[Commit]) -> list[Committed]:
        done = await committing(store, commits)
        if done[0].verdict is Verdict.LOST:
            lost.set()
        return done

    monkeypatch.setattr(Live, "commit", lose_ownership)
    monkeypatch.setattr(SqliteStore, "commit", commit)

    @shop.step
    async def sell(tx: Transaction) -> int:
        calls.append("sell")
        return await tx.execute("UPDATE stock SET left = left - 1")

    @shop.workflow
    async def order(_ctx: Context) -> int:
        return await sell()

    async with shop:
        await shop.start(order)
        await asyncio.wait_for(lost.wait(), 60)
    assert calls == ["sell"]
    assert left(file) == 3


async def test_a_transaction_does_not_overtake_buffered_results_that_are_being_written(
    shop: Holdfast, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused, committing = asyncio.Event(), SqliteStore.commit

    async def refuse_record(store: SqliteStore, commits: Sequence[Commit]) -> list[Committed]:
        records = [fact for one in commits for fact in one.observed.facts if fact.state == FactState.START]
        if records and not refused.is_set():
            refused.set()
            raise StoreUnavailableError("the record of the running step is written later")
        return await committing(store, commits)

    monkeypatch.setattr(SqliteStore, "commit", refuse_record)

    @shop.step
    async def count() -> int:
        return 1

    @shop.step
    async def wait() -> None:
        await refused.wait()

    @shop.step
    async def sell(tx: Transaction, number: int) -> int:
        return await tx.execute("UPDATE stock SET left = left - ?", number)

    @shop.workflow(persist="task")
    async def order(_ctx: Context) -> int:
        number = await count()
        await wait()
        return await sell(number)

    async with shop:
        run = await shop.start(order)
        assert await run.result(timeout=60) == 1
        assert [step.step_key for step in (await run.history()).steps] == ["count", "wait", "sell"]
    assert left(file) == 2
