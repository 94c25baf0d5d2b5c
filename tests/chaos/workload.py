"""The workload of the storm: every feature, each run with a result that is known beforehand.

The tables ``ledger`` and ``account`` belong to the user: rows that a step's transaction writes there must exist once,
together with the step's result. Each execution of a step is first recorded in a side file, as in ``tests/crash``.
"""

from __future__ import annotations

import asyncio
import zlib
from pathlib import Path
from typing import Any

from crash.workload import PATIENT, Planned, SideFile, Work
from holdfast import (
    Context,
    Holdfast,
    StepTx,
    Transaction,
    UniqueConstraintError,
    WaitForEventTimeoutError,
    WorkerConfig,
)

ACCOUNTS = 20
TABLES = f"""
CREATE TABLE ledger (run TEXT NOT NULL, entry TEXT NOT NULL, n BIGINT NOT NULL);
CREATE TABLE taken (name TEXT PRIMARY KEY);
INSERT INTO taken VALUES ('taken');
CREATE TABLE account (id INT PRIMARY KEY, balance BIGINT NOT NULL);
INSERT INTO account SELECT n, 0 FROM generate_series(0, {ACCOUNTS - 1}) AS n;
"""


def make_app(url: str, side: Path, **worker: Any) -> Holdfast:
    app = Holdfast(url, worker=WorkerConfig(**worker))
    work = Work(SideFile(side))
    _register_plain(app, work)
    _register_waits(app, work)
    _register_transactions(app, work)
    return app


def plan(copies: int) -> list[Planned]:
    """``copies`` copies of the workload, 10 runs each."""
    return [planned for n in range(copies) for planned in copy_of(n)]


def copy_of(n: int) -> list[Planned]:
    i = f"{n:04}"
    go = (("go", n), ("go", n + 1))
    return [
        Planned("sequence", f"sequence-{i}", n, [n + 1, 2 * n + 2, 2 * n + 3]),
        Planned("retries", f"retries-{i}", n, [n, n + 1]),
        Planned("timers", f"timers-{i}", n, [n, "slept"]),
        Planned("events", f"events-{i}", n, [n, n + 1], go),
        Planned("deadline", f"deadline-{i}", n, ["late", n]),
        Planned("buffered", f"buffered-{i}", n, [n, n + 1, n + 2], buffered=True),
        Planned("book", f"book-{i}", n, ["refused", n], ledger=("in", "out")),
        Planned("child", f"child-{i}", n, n, (("told", n),), ledger=("child",), started_by=f"book-{i}"),
        Planned("transfer", f"transfer-{i}", n, [n, 1], ledger=("live", "later")),
        Planned("parallel", f"parallel-{i}", n, [n, n + 1, 2 * n + 5]),
    ]


def account_of(run: str) -> int:
    return zlib.crc32(run.encode()) % ACCOUNTS


def _register_plain(app: Holdfast, work: Work) -> None:
    async def take_time(value: int, *needs: str) -> int:
        """Take long enough that a step is in flight whenever a worker dies."""
        work.side.ran(needs)
        await asyncio.sleep(0.3)
        return value

    @app.workflow
    async def sequence(ctx: Context, n: int) -> list[int]:
        a = await ctx.do("a", work.value, n + 1, retry=PATIENT)
        ctx.log.info("between a and b", data={"a": a})
        b = await ctx.do("b", take_time, 2 * a, "a", retry=PATIENT)
        return [a, b, await ctx.do("c", work.value, b + 1, "a", "b", retry=PATIENT)]

    @app.workflow
    async def parallel(ctx: Context, n: int) -> list[int]:
        left, right = await asyncio.gather(
            ctx.do("left", work.value, n, retry=PATIENT), ctx.do("right", work.in_thread, n + 1, retry=PATIENT)
        )
        return [left, right, await ctx.do("sum", work.value, left + right + 4, "left", "right", retry=PATIENT)]

    @app.workflow
    async def retries(ctx: Context, n: int) -> list[int]:
        first = await ctx.do("first", work.flaky, n, 2, retry=PATIENT)
        return [first, await ctx.do("second", work.flaky, n + 1, 1, "first", retry=PATIENT)]

    @app.workflow(persist="task")
    async def buffered(ctx: Context, n: int) -> list[int]:
        one = await ctx.do("one", work.value, n, retry=PATIENT)
        two = await ctx.do("two", work.in_thread, n + 1, retry=PATIENT)
        await ctx.sleep("pause", 0.03)
        return [one, two, await ctx.do("three", work.flaky, n + 2, 1, retry=PATIENT)]


def _register_waits(app: Holdfast, work: Work) -> None:
    @app.workflow
    async def timers(ctx: Context, n: int) -> list[Any]:
        await ctx.sleep("nap", 0.2)
        await asyncio.sleep(0.05)
        a, _ = await asyncio.gather(ctx.do("a", work.value, n, "nap", retry=PATIENT), asyncio.sleep(0.02))
        await ctx.sleep("long", 3)  # longer than a worker is stopped
        return [a, await ctx.do("b", work.value, "slept", "long", retry=PATIENT)]

    @app.workflow
    async def events(ctx: Context, n: int) -> list[int]:
        first = await ctx.wait_for_event("first", type="go", timeout="1 hour", payload=int)
        await ctx.do("between", work.value, n, "first", retry=PATIENT)
        second = await ctx.wait_for_event("second", type="go", timeout="1 hour", payload=int)
        return [first.payload, second.payload]

    @app.workflow
    async def deadline(ctx: Context, n: int) -> list[Any]:
        try:
            await ctx.wait_for_event("never", type="never", timeout=1)
        except WaitForEventTimeoutError:
            return ["late", await ctx.do("after", work.value, n, "never", retry=PATIENT)]
        return ["never", n]


def _register_transactions(app: Holdfast, work: Work) -> None:
    async def pay(n: int, run: str, tx: StepTx) -> int:
        work.side.ran(())
        tx.execute("INSERT INTO ledger VALUES ($1, 'in', $2)", run, n)
        tx.execute("INSERT INTO ledger VALUES ($1, 'out', $2)", run, n)
        child = tx.start("child", n, id=run.replace("book", "child"))
        tx.send(child, "told", n)
        return n

    async def take(run: str, tx: StepTx) -> None:
        work.side.ran(("pay",))
        tx.execute("INSERT INTO ledger VALUES ($1, 'never', 0)", run)
        tx.execute("INSERT INTO taken VALUES ('taken')")

    async def enter(n: int, run: str, tx: StepTx) -> None:
        work.side.ran(("told",))
        tx.execute("INSERT INTO ledger VALUES ($1, 'child', $2)", run, n)

    async def move(n: int, run: str, tx: Transaction) -> int:
        """Move money; returns the number of earlier executions that were committed, which must be 0."""
        work.side.ran(())
        [account] = await tx.fetch("SELECT balance FROM account WHERE id = $1 FOR UPDATE", account_of(run))
        [before] = await tx.fetch("SELECT count(*) AS times FROM ledger WHERE run = $1", run)
        balance = int(account["balance"]) + n
        await tx.execute("UPDATE account SET balance = $1 WHERE id = $2", balance, account_of(run))
        await tx.execute("INSERT INTO ledger VALUES ($1, 'live', $2)", run, n)
        return int(before["times"])

    async def later(n: int, run: str, tx: Transaction) -> int:
        work.side.ran(("move",))
        await tx.execute("INSERT INTO ledger VALUES ($1, 'later', $2)", run, n)
        [row] = await tx.fetch("SELECT count(*) AS times FROM ledger WHERE run = $1 AND entry = 'later'", run)
        return int(row["times"])

    @app.workflow
    async def book(ctx: Context, n: int) -> list[Any]:
        paid = await ctx.do("pay", pay, n, ctx.info.instance_id, retry=PATIENT)
        try:
            await ctx.do("take", take, ctx.info.instance_id, retry=PATIENT)
        except UniqueConstraintError:
            return ["refused", paid]
        return ["taken", paid]

    @app.workflow
    async def child(ctx: Context, n: int) -> int:
        told = await ctx.wait_for_event("told", type="told", timeout="1 hour", payload=int)
        await ctx.do("enter", enter, n, ctx.info.instance_id, retry=PATIENT)
        return told.payload

    @app.workflow
    async def transfer(ctx: Context, n: int) -> list[int]:
        before = await ctx.do("move", move, n, ctx.info.instance_id, retry=PATIENT)
        await ctx.sleep("pause", 0.03)
        times = await ctx.do("later", later, n, ctx.info.instance_id, retry=PATIENT)
        return [n + before, times]
