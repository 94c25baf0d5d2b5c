"""The workload of the crash tests: every feature, each run with a result that is known beforehand.

Each execution of a step first appends a line to a side file (one write, O_APPEND), so that the checker can count the
executions. The line also names the steps whose results must be durable before this step may begin.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast import (
    Context,
    Holdfast,
    Retry,
    StepTx,
    UniqueConstraintError,
    WaitForEventTimeoutError,
    WorkerConfig,
)
from holdfast.kernel.attempt import current_attempt

# Each killed worker costs an attempt: repeated kills must not use up the attempts.
PATIENT = Retry(limit=math.inf, delay="20 ms", backoff="constant")

TABLES = """
CREATE TABLE ledger (run TEXT NOT NULL, entry TEXT NOT NULL);
CREATE TABLE taken (name TEXT PRIMARY KEY);
INSERT INTO taken VALUES ('taken');
"""


class SideFile:
    """The side file: executions of steps, and acknowledged calls of clients, each with the pid of its process."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def ran(self, needs: tuple[str, ...]) -> int:
        attempt = current_attempt.get()
        assert attempt is not None
        line = {"run": attempt.pid.partition("/")[2], "key": attempt.key, "attempt": attempt.number, "needs": needs}
        self.write(line)
        return attempt.number

    def write(self, line: dict[str, Any]) -> None:
        stamped = {**line, "pid": os.getpid(), "ms": time.time_ns() // 1_000_000}
        fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(fd, (json.dumps(stamped) + "\n").encode())
        os.close(fd)


@dataclass(frozen=True, slots=True)
class Planned:
    """A run of the workload, and its expected end."""

    workflow: str
    id: str
    n: int
    expected: Any
    events: tuple[tuple[str, Any], ...] = ()
    ledger: tuple[str, ...] = ()
    early: bool = False
    """Its events are sent before the first worker starts."""
    by_worker: bool = False
    """The worker process starts the run, and sends its events."""
    started_by: str | None = None
    """The id of the run that starts it."""
    buffered: bool = False


def make_app(database: str, side: str, **worker: Any) -> Holdfast:
    app = Holdfast(f"sqlite:///{database}", worker=WorkerConfig(**worker))
    register(app, SideFile(Path(side)))
    return app


def plan(copies: int) -> list[Planned]:
    """``copies`` copies of the workload, 13 runs each."""
    return [planned for i in range(copies) for planned in _copy(f"{i:03}", i)]


def _copy(i: str, n: int) -> list[Planned]:
    go = (("go", {"n": n}), ("go", {"n": n + 1}))
    return [
        Planned("sequence", f"sequence-{i}", n, [n + 1, 2 * n + 2, 2 * n + 3]),
        Planned("parallel", f"parallel-{i}", n, [n, n + 1, n + 2, 2 * n + 7]),
        Planned("retries", f"retries-{i}", n, [n, n + 1, n + 2]),
        Planned("timers", f"timers-{i}", n, [n, "slept"]),
        Planned("events", f"events-{i}", n, [n, n + 1], go),
        Planned("events", f"early-{i}", n, [n, n + 1], go, early=True),
        Planned("deadline", f"deadline-{i}", n, ["late", n]),
        Planned("ledger", f"ledger-{i}", n, ["refused", n], ledger=("in", "out")),
        Planned("child", f"child-{i}", n, n, (("told", n),), ledger=("child",), started_by=f"ledger-{i}"),
        Planned("buffered", f"buffered-{i}", n, [n, n + 1, n + 2, n + 3], buffered=True),
        Planned("race", f"race-{i}", n, [n, "first"], (("start", n),)),
        Planned("chance", f"chance-{i}", n, [True, True]),
        Planned("events", f"own-{i}", n, [n, n + 1], go, by_worker=True),
    ]


@dataclass(slots=True)
class Work:
    """The step functions, bound to the side file."""

    side: SideFile
    retry: Retry = field(default=PATIENT)

    async def value(self, value: Any, *needs: str) -> Any:
        self.side.ran(needs)
        await asyncio.sleep(0)
        return value

    def in_thread(self, value: Any, *needs: str) -> Any:
        self.side.ran(needs)
        time.sleep(0.002)
        return value

    async def flaky(self, value: Any, failures: int, *needs: str) -> Any:
        if self.side.ran(needs) <= failures:
            raise ConnectionError("not yet")
        return value

    async def slow(self, value: Any, *needs: str) -> Any:
        self.side.ran(needs)
        await asyncio.sleep(30)
        return value


def register(app: Holdfast, side: SideFile) -> None:
    work = Work(side)
    _register_plain(app, work)
    _register_waits(app, work)
    _register_transactions(app, work)


def _register_plain(app: Holdfast, work: Work) -> None:
    value = app.step(name="value", retry=PATIENT)(work.value)

    @app.workflow
    async def sequence(ctx: Context, n: int) -> list[int]:
        a = await ctx.do("a", work.value, n + 1, retry=PATIENT)
        ctx.log.info("between a and b", data={"a": a})
        b = await ctx.do("b", work.in_thread, 2 * a, "a", retry=PATIENT)
        c = await value(b + 1, "a", "b")
        return [a, b, c]

    @app.workflow
    async def parallel(ctx: Context, n: int) -> list[int]:
        results = await asyncio.gather(*(value(n + i) for i in range(3)))
        async with asyncio.TaskGroup() as group:
            left = group.create_task(ctx.do("left", work.value, n + 3, "value", "value#2", retry=PATIENT))
            right = group.create_task(ctx.do("right", work.in_thread, n + 4, "value#3", retry=PATIENT))
        total = await ctx.do("sum", work.value, left.result() + right.result(), "left", "right", retry=PATIENT)
        return [*results, total]

    @app.workflow
    async def retries(ctx: Context, n: int) -> list[int]:
        first = await ctx.do("first", work.flaky, n, 2, retry=PATIENT)
        rest = await asyncio.gather(
            ctx.do("second", work.flaky, n + 1, 1, "first", retry=PATIENT),
            ctx.do("third", work.flaky, n + 2, 3, "first", retry=PATIENT),
        )
        return [first, *rest]

    @app.workflow(persist="task")
    async def buffered(ctx: Context, n: int) -> list[int]:
        one = await ctx.do("one", work.value, n, retry=PATIENT)
        two = await ctx.do("two", work.in_thread, n + 1, retry=PATIENT)
        await ctx.sleep("rest", 0.03)
        both = await asyncio.gather(
            ctx.do("three", work.value, n + 2, retry=PATIENT),
            ctx.do("four", work.flaky, n + 3, 1, retry=PATIENT),
        )
        return [one, two, *both]

    @app.workflow
    async def chance(ctx: Context, n: int) -> list[bool]:
        number, name = ctx.random.random(), str(ctx.uuid4())
        kept = await ctx.do("keep", work.value, [number, name], retry=PATIENT)
        await ctx.sleep("rest", 0.02)
        again = await ctx.do("more", work.value, [ctx.random.random(), ctx.now().isoformat()], "keep", retry=PATIENT)
        return [kept == [number, name], len(again) == 2]


def _register_waits(app: Holdfast, work: Work) -> None:
    @app.workflow
    async def timers(ctx: Context, n: int) -> list[Any]:
        await ctx.sleep("nap", 0.05)
        await asyncio.sleep(0.03)
        a, _ = await asyncio.gather(ctx.do("a", work.value, n, "nap", retry=PATIENT), asyncio.sleep(0.02))
        async with asyncio.timeout(60):
            await ctx.do("b", work.value, n, "a", retry=PATIENT)
        return [a, "slept"]

    @app.workflow
    async def events(ctx: Context, n: int) -> list[int]:
        first = await ctx.wait_for_event("first", type="go", timeout="1 hour")
        await ctx.do("between", work.value, n, "first", retry=PATIENT)
        second = await ctx.wait_for_event("second", type="go", timeout="1 hour")
        return [first.payload["n"], second.payload["n"]]

    @app.workflow
    async def deadline(ctx: Context, n: int) -> list[Any]:
        try:
            await ctx.wait_for_event("never", type="never", timeout=1)
        except WaitForEventTimeoutError:
            return ["late", await ctx.do("after", work.value, n, "never", retry=PATIENT)]
        return ["never", n]

    @app.workflow
    async def race(ctx: Context, n: int) -> list[Any]:
        with suppress(TimeoutError):
            await asyncio.wait_for(ctx.wait_for_event("too early", type="other"), 0.02)
        event = await ctx.wait_for_event("start", type="start", timeout="1 hour")
        first = asyncio.ensure_future(ctx.do("fast", work.value, "first", "start", retry=PATIENT))
        second = asyncio.ensure_future(ctx.do("slow", work.slow, "second", "start", retry=PATIENT))
        done, _ = await asyncio.wait([first, second], return_when=asyncio.FIRST_COMPLETED)
        second.cancel()
        return [event.payload, done.pop().result()]


def _register_transactions(app: Holdfast, work: Work) -> None:
    async def pay(n: int, run: str, tx: StepTx) -> int:
        work.side.ran(())
        tx.execute("INSERT INTO ledger VALUES (?, 'in')", run)
        tx.execute("INSERT INTO ledger VALUES (?, 'out')", run)
        child = tx.start("child", n, id=run.replace("ledger", "child"))
        tx.send(child, "told", n)
        return n

    async def take(run: str, tx: StepTx) -> None:
        work.side.ran(("pay",))
        tx.execute("INSERT INTO ledger VALUES (?, 'never')", run)
        tx.execute("INSERT INTO taken VALUES ('taken')")

    async def enter(run: str, tx: StepTx) -> None:
        work.side.ran(("told",))
        tx.execute("INSERT INTO ledger VALUES (?, 'child')", run)

    @app.workflow
    async def ledger(ctx: Context, n: int) -> list[Any]:
        paid = await ctx.do("pay", pay, n, ctx.info.instance_id, retry=PATIENT)
        try:
            await ctx.do("take", take, ctx.info.instance_id, retry=PATIENT)
        except UniqueConstraintError:
            return ["refused", paid]
        return ["taken", paid]

    @app.workflow
    async def child(ctx: Context, n: int) -> int:
        told = await ctx.wait_for_event("told", type="told", timeout="1 hour", payload=int)
        await ctx.do("enter", enter, ctx.info.instance_id, retry=PATIENT)
        return told.payload
