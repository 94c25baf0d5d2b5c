"""Steps with an open transaction: what they wrote and their result are both there, once, or neither is."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import apsw
import pytest

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
)
from holdfast.store.protocol import Commit, Committed, Verdict
from holdfast.store.sqlite import SqliteStore
from holdfast.store.sqlite.live import Live
from holdfast.testing import Harness

from .driving import finish, until_status

NO_RETRY = Retry(limit=0)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A database with a table of the user's own."""
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


def reserving(app: Holdfast, **options: Any) -> Any:
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
    order = reserving(shop)
    async with shop:
        assert await (await shop.start(order, 1)).result(timeout=5) == 2
    assert left(file) == 2


@pytest.mark.parametrize("persist", ["step", "task"])
async def test_with_either_way_to_persist(shop: Holdfast, file: Path, persist: str) -> None:
    order = reserving(shop, persist=persist)
    async with shop:
        assert await (await shop.start(order, 1)).result(timeout=5) == 2
    assert left(file) == 2


async def test_an_attempt_that_fails_leaves_nothing(shop: Holdfast, file: Path) -> None:
    order = reserving(shop)
    async with shop:
        with pytest.raises(RunFailedError, match="two is not sold"):
            await (await shop.start(order, 2)).result(timeout=5)
        assert await (await shop.start(order, 1)).result(timeout=5) == 2
    assert left(file) == 2


async def test_a_result_that_cannot_be_stored_leaves_nothing(shop: Holdfast, file: Path) -> None:
    @shop.step(retry=NO_RETRY)
    async def sell(tx: Transaction) -> Any:
        await tx.execute("UPDATE stock SET left = 0")
        return {1, 2}

    @shop.workflow
    async def order(_ctx: Context) -> Any:
        return await sell()

    async with shop:
        with pytest.raises(RunFailedError):
            await (await shop.start(order)).result(timeout=5)
    assert left(file) == 3


async def test_a_broken_constraint_fails_the_attempt_and_leaves_nothing(shop: Holdfast, file: Path) -> None:
    order = reserving(shop)
    async with shop:
        with pytest.raises(RunFailedError, match="CHECK"):
            await (await shop.start(order, 5)).result(timeout=5)
    assert left(file) == 3


async def test_an_attempt_that_takes_too_long_leaves_nothing_and_holds_up_nobody(shop: Holdfast, file: Path) -> None:
    entered = asyncio.Event()

    @shop.step(retry=NO_RETRY, timeout="50 ms")
    async def hang(tx: Transaction) -> None:
        await tx.execute("UPDATE stock SET left = 0")
        entered.set()
        await asyncio.sleep(60)

    @shop.workflow
    async def hanging(_ctx: Context) -> None:
        await hang()

    order = reserving(shop)
    async with shop:
        slow = await shop.start(hanging)
        await entered.wait()
        quick = await shop.start(order, 1)
        with pytest.raises(RunFailedError, match="50 ms"):
            await slow.result(timeout=5)
        assert await quick.result(timeout=5) == 2


async def test_many_at_once_are_done_one_after_the_other(shop: Holdfast, file: Path) -> None:
    order = reserving(shop)
    async with shop:
        runs = [await shop.start(order, 1) for _ in range(3)]
        assert sorted([await run.result(timeout=10) for run in runs]) == [0, 1, 2]
    assert left(file) == 0


async def test_what_it_sends_and_starts_goes_with_it(shop: Holdfast, file: Path) -> None:
    @shop.workflow
    async def other(ctx: Context) -> Any:
        return (await ctx.wait_for_event("news", type="news")).payload

    @shop.step(retry=NO_RETRY)
    async def tell(tx: Transaction, fail: bool) -> str:
        pid = tx.start(other, id="failed" if fail else "told")
        tx.send(pid, "news", "hello")
        await tx.execute("UPDATE stock SET left = left - 1")
        if fail:
            raise ValueError("no")
        return pid

    @shop.workflow
    async def telling(_ctx: Context, fail: bool) -> str:
        return await tell(fail)

    async with shop:
        assert await (await shop.start(telling, False)).result(timeout=5) == "other/told"
        with pytest.raises(RunFailedError):
            await (await shop.start(telling, True)).result(timeout=5)
        assert await (await shop.get(other, "told")).result(timeout=5) == "hello"
        assert [item.id for item in (await shop.list(other)).items] == ["told"]
    assert left(file) == 2


async def test_a_pause_keeps_the_step_in_flight(shop: Holdfast, file: Path) -> None:
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
        assert await run.result(timeout=5) == 1
    assert left(file) == 2


async def test_a_step_that_the_code_gives_up_leaves_nothing_and_holds_up_nobody(shop: Holdfast, file: Path) -> None:
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
        run = await shop.start(order)
        await entered.wait()
        with pytest.raises(RunFailedError, match="TimeoutError"):
            await run.result(timeout=5)
        go_on.set()
    assert left(file) == 3


def test_a_plain_function_cannot_have_one(shop: Holdfast) -> None:
    with pytest.raises(InvalidOptionError, match="async def"):

        @shop.step
        def sell(tx: Transaction) -> None: ...


def test_a_step_has_one_transaction(shop: Holdfast) -> None:
    with pytest.raises(InvalidOptionError, match="one transaction"):

        @shop.step
        async def sell(one: Transaction, two: StepTx) -> None: ...


async def test_in_the_harness(h: Harness, app: Holdfast) -> None:
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


# --- beside other work of the same run


async def test_who_waits_hears_of_an_end_whose_commit_is_written_and_cut_off(
    shop: Holdfast, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, cut = SqliteStore.commit, list[bool]()

    async def cut_off(store: SqliteStore, commits: Sequence[Commit]) -> list[Committed]:
        done = await commit(store, commits)
        if any(one.observed.transaction is not None for one in commits) and not cut:
            cut.append(True)
            raise StoreUnavailableError("the line broke")
        return done

    monkeypatch.setattr(SqliteStore, "commit", cut_off)

    @shop.step
    async def sell(tx: Transaction) -> int:
        return await tx.execute("UPDATE stock SET left = left - 1")

    @shop.workflow
    async def order(_ctx: Context) -> int:
        return await sell()

    async with shop:
        assert await (await shop.start(order)).result(timeout=10) == 1
    assert cut == [True]
    assert left(file) == 2


async def test_a_step_beside_it_ends_first(shop: Holdfast, file: Path) -> None:
    entered, go_on, calls = asyncio.Event(), asyncio.Event(), list[str]()

    @shop.step
    async def sell(tx: Transaction) -> int:
        entered.set()
        await go_on.wait()
        return await tx.execute("UPDATE stock SET left = left - 1")

    @shop.step
    async def beside(name: str) -> str:
        await entered.wait()
        calls.append(name)
        go_on.set()
        return name

    @shop.workflow
    async def order(_ctx: Context) -> list[Any]:
        async def chain() -> list[str]:
            return [await beside("first"), await beside("second")]

        return [*await asyncio.gather(sell(), chain())]

    async with shop:
        assert await (await shop.start(order)).result(timeout=10) == [1, ["first", "second"]]
    assert calls == ["first", "second"]
    assert left(file) == 2


async def test_a_timer_beside_it_is_due_meanwhile(shop: Holdfast, file: Path) -> None:
    @shop.step
    async def sell(tx: Transaction) -> int:
        await asyncio.sleep(0.8)  # longer than it takes to note steps that take long
        return await tx.execute("UPDATE stock SET left = left - 1")

    @shop.workflow
    async def order(ctx: Context) -> list[Any]:
        async def chain() -> str:
            await asyncio.sleep(0.05)
            await ctx.sleep("a moment", 0.05)
            return await ctx.do("then", lambda: "done")

        return [*await asyncio.gather(sell(), chain())]

    async with shop:
        assert await (await shop.start(order)).result(timeout=10) == [1, "done"]
    assert left(file) == 2


async def test_other_transactions_beside_it(shop: Holdfast, file: Path) -> None:
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
        assert await (await shop.start(order)).result(timeout=10) == [1, "also", 1]
    assert left(file) == 0


async def test_what_ended_beside_one_that_is_refused_is_kept(shop: Holdfast, file: Path) -> None:
    calls, go_on = list[str](), asyncio.Event()

    @shop.step(retry=NO_RETRY)
    async def sell(tx: Transaction) -> None:
        await go_on.wait()
        tx.send("order/nobody", "news")
        await tx.execute("UPDATE stock SET left = 0")

    @shop.step
    async def beside() -> str:
        calls.append("beside")
        go_on.set()
        return "kept"

    @shop.workflow
    async def order(_ctx: Context) -> list[Any]:
        done = await asyncio.gather(sell(), beside(), return_exceptions=True)
        return [type(done[0]).__name__, done[1]]

    async with shop:
        assert await (await shop.start(order)).result(timeout=10) == ["StepError", "kept"]
    assert calls == ["beside"]
    assert left(file) == 3


async def test_a_retry_beside_it_waits_until_the_failure_is_written(shop: Holdfast, file: Path) -> None:
    """Or a worker that dies then has made two attempts, and one is counted."""
    failed, recorded = asyncio.Event(), list[list[str]]()

    @shop.step
    async def sell(tx: Transaction) -> int:
        await failed.wait()
        await asyncio.sleep(0.2)  # the retry is due, and not made
        return await tx.execute("UPDATE stock SET left = left - 1")

    @shop.step(retry=Retry(limit=3, delay="1 ms"))
    async def beside() -> str:
        if not failed.is_set():
            failed.set()
            raise ValueError("once")
        connection = apsw.Connection(str(file))
        recorded.append([key for (key,) in connection.execute("SELECT key FROM holdfast_fact WHERE state = 2")])
        connection.close()
        return "done"

    @shop.workflow
    async def order(_ctx: Context) -> list[Any]:
        return [*await asyncio.gather(sell(), beside())]

    async with shop:
        assert await (await shop.start(order)).result(timeout=10) == [1, "done"]
    assert recorded == [["beside"]]


def cut_off_next_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Roll back the next commit of a live transaction, as after a lost connection; later commits work."""
    commit = Live.commit

    async def cut_off(live: Live, _one: Commit) -> Committed:
        monkeypatch.setattr(Live, "commit", commit)
        await live.rollback()
        raise StoreUnavailableError("the line broke")

    monkeypatch.setattr(Live, "commit", cut_off)


async def test_what_ended_beside_one_that_is_cut_off_is_not_called_again(
    shop: Holdfast, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, go_on = list[str](), asyncio.Event()

    cut_off_next_commit(monkeypatch)

    @shop.step
    async def sell(tx: Transaction) -> int:
        calls.append("sell")
        await go_on.wait()
        return await tx.execute("UPDATE stock SET left = left - 1")

    @shop.step
    async def beside() -> str:
        calls.append("beside")
        go_on.set()
        return "kept"

    @shop.workflow
    async def order(_ctx: Context) -> list[Any]:
        return [*await asyncio.gather(sell(), beside())]

    async with shop:
        assert await (await shop.start(order)).result(timeout=10) == [1, "kept"]
    assert sorted(calls) == ["beside", "sell", "sell"]
    assert left(file) == 2


async def test_a_step_that_a_commit_which_is_cut_off_would_cancel_is_not_called_again(
    shop: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, began = list[str](), asyncio.Event()

    cut_off_next_commit(monkeypatch)

    @shop.step
    async def sell(tx: Transaction) -> int:
        calls.append("sell")
        await began.wait()
        return await tx.execute("UPDATE stock SET left = left - 1")

    @shop.step
    async def beside() -> None:
        calls.append("beside")
        began.set()
        await asyncio.Event().wait()

    @shop.workflow
    async def order(_ctx: Context) -> int:
        task = asyncio.ensure_future(beside())
        sold = await sell()
        task.cancel()
        return sold

    async with shop:
        assert await (await shop.start(order)).result(timeout=10) == 1
    assert sorted(calls) == ["beside", "sell", "sell"]


async def test_a_retry_that_waits_for_it_is_not_called_once_the_code_has_cancelled_it(shop: Holdfast) -> None:
    calls, go_on = list[str](), asyncio.Event()

    @shop.step
    async def sell(tx: Transaction) -> int:
        await go_on.wait()
        await asyncio.sleep(0.05)  # the retry is due, and put off
        return await tx.execute("UPDATE stock SET left = left - 1")

    @shop.step(retry=Retry(limit=1, delay="1 ms", backoff="constant"))
    async def beside() -> None:
        calls.append("beside")
        go_on.set()
        raise ValueError("once more")

    @shop.step
    async def after() -> str:
        return "done"

    @shop.workflow
    async def order(_ctx: Context) -> str:
        task = asyncio.ensure_future(beside())
        await sell()
        task.cancel()
        return await after()

    async with shop:
        assert await (await shop.start(order)).result(timeout=10) == "done"
    assert calls == ["beside"]


async def test_what_the_code_does_to_others_beside_it_is_heard_of(shop: Holdfast, file: Path) -> None:
    asked = asyncio.Event()

    @shop.step
    async def sell(tx: Transaction) -> int:
        await asked.wait()
        await asyncio.sleep(0.05)  # the message is sent, and not written yet
        return await tx.execute("UPDATE stock SET left = left - 1")

    @shop.step
    async def beside() -> None:
        asked.set()

    @shop.workflow
    async def listener(ctx: Context) -> Any:
        return (await ctx.wait_for_event("news", type="news")).payload

    @shop.workflow
    async def order(ctx: Context) -> list[Any]:
        async def tell() -> str:
            await beside()
            await ctx.send("listener/l", "news", "sold")
            return "told"

        return [*await asyncio.gather(sell(), tell())]

    async with shop:
        listening = await shop.start(listener, id="l")
        assert await (await shop.start(order)).result(timeout=10) == [1, "told"]
        assert await listening.result(timeout=10) == "sold"
    assert left(file) == 2


@pytest.mark.kind_settings("another worker has the run for as long as a lease lasts")
async def test_who_was_cut_off_looks_whether_the_run_is_still_his_before_he_calls_anything(
    shop: Holdfast, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, lost, committing = list[str](), asyncio.Event(), SqliteStore.commit

    async def cut_off(live: Live, _one: Commit) -> Committed:
        await live.rollback()
        connection = apsw.Connection(str(file))
        connection.execute("UPDATE holdfast_task SET owner = 'another', epoch = epoch + 1")
        connection.close()
        raise StoreUnavailableError("the line broke")

    async def commit(store: SqliteStore, commits: Sequence[Commit]) -> list[Committed]:
        done = await committing(store, commits)
        if done[0].verdict is Verdict.LOST:
            lost.set()
        return done

    monkeypatch.setattr(Live, "commit", cut_off)
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
        await asyncio.wait_for(lost.wait(), 10)
    assert calls == ["sell"]
    assert left(file) == 3
