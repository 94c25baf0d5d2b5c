"""Streams, from the code that writes them to the reader."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast import (
    ChainTask,
    Context,
    Handle,
    Holdfast,
    InvalidOptionError,
    Limits,
    PayloadTooLargeError,
    Retention,
    Retry,
    StateError,
    StepError,
    StreamItem,
    Transaction,
    WorkflowCodeError,
    step_info,
)
from holdfast.errors import StreamFullError, StreamRateError
from holdfast.kernel.streams import AttemptStream, Stream
from holdfast.runner.turn_writer import TurnWriter
from holdfast.store.protocol import Commit, Committed, FactState, TaskRef
from holdfast.store.protocol.streams import StreamWritten, WriteVerdict
from streams.conftest import Open

TWICE = Retry(limit=1, delay="1 second", backoff="constant")


@pytest.fixture
def app() -> Holdfast:
    return Holdfast("sqlite://")


async def read(run: Handle[Any], name: str = "out", **options: Any) -> list[Any]:
    return [item.value async for item in run.stream(name, **options)]


async def collect(items: AsyncIterator[StreamItem], found: list[StreamItem]) -> None:
    async for item in items:
        found += [item]


async def write_all(*values: Any, name: str = "out") -> None:
    async with step_info().stream(name) as out:
        for value in values:
            await out.write(value)


@pytest.mark.interpreted("replaces a method that a compiled build calls directly")
async def test_an_attempt_that_ends_while_its_cancellation_is_written_is_settled_once(
    app: Holdfast, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrote, may_end = asyncio.Event(), asyncio.Event()

    @app.step
    async def writer() -> None:
        await write_all("lost")
        wrote.set()
        await may_end.wait()

    @app.step
    async def winner() -> str:
        await wrote.wait()
        return "won"

    @app.workflow
    async def race(ctx: Context) -> str:
        writing = asyncio.create_task(writer())
        result = await winner()
        writing.cancel()
        return await after(result)

    @app.step
    async def after(result: str) -> str:
        return result

    async def write(self: TurnWriter, commit: Commit, machine: Any) -> Committed | None:
        if any(fact.state == FactState.SETTLEMENT for fact in commit.observed.facts):
            may_end.set()
            while self._calls.running:
                await asyncio.sleep(0)
        return await original(self, commit, machine)

    original = TurnWriter.write
    monkeypatch.setattr(TurnWriter, "write", write)
    async with opened(app) as h:
        run = await h.start(race)
        await h.run_until_idle()

        assert await run.result(timeout=60) == "won"
        assert may_end.is_set()
        assert await read(run) == []


async def test_a_reader_gets_the_items_of_steps_and_workflow_code_in_order(app: Holdfast, opened: Open) -> None:
    @app.step
    async def tokens(text: str) -> str:
        await write_all(*text)
        return text

    @app.workflow
    async def talk(ctx: Context) -> None:
        progress = ctx.stream("out")
        await progress.write({"began": True})
        await tokens("ab")
        await progress.write(None)
        await ctx.sleep("pause", "1 hour")
        await tokens("c")

    async with opened(app) as h:
        run = await h.start(talk)
        await h.run_until_idle()
        await h.restart()
        await h.advance("1 hour")

        items = [item async for item in run.stream("out")]
        assert [item.value for item in items] == [{"began": True}, "a", "b", None, "c"]
        assert [(item.offset, item.step_key, item.attempt) for item in items[:2]] == [(1, None, None), (2, "tokens", 1)]
        assert await read(run, after=items[2].offset) == [None, "c"]


async def test_a_replay_writes_no_item_again(app: Holdfast, opened: Open) -> None:
    @app.workflow
    async def counted(ctx: Context) -> None:
        for n in range(5):
            await ctx.stream("out").write(n)
            await ctx.sleep(f"s{n}", "1 minute")
        await ctx.stream("out").close()

    async with opened(app) as h:
        run = await h.start(counted)
        for _ in range(6):
            await h.run_until_idle()
            await h.restart()
            await h.advance("1 minute")

        assert await read(run) == list(range(5))
        [info] = await run.streams()
        assert (info.name, info.items, info.closed) == ("out", 6, True)


async def test_items_of_a_failed_attempt_are_left_out_or_marked(app: Holdfast, opened: Open) -> None:
    @app.step(retry=TWICE)
    async def flaky() -> None:
        await write_all(f"a{step_info().attempt}", "b")
        if step_info().attempt == 1:
            await step_info().stream("out").close()
            raise ValueError("no")

    @app.workflow
    async def work(ctx: Context) -> None:
        await flaky()

    async with opened(app) as h:
        run = await h.start(work)
        await h.advance("1 second")

        assert await read(run) == ["a2", "b"]
        items = [(item.value, item.attempt, item.failed) async for item in run.stream("out", attempts="all")]
        assert items == [("a1", 1, True), ("b", 1, True), ("a2", 2, False), ("b", 2, False)]


async def test_a_reader_of_successful_attempts_waits_for_the_outcome_and_keeps_the_order() -> None:
    app = Holdfast("sqlite://")
    wrote, finish = asyncio.Event(), asyncio.Event()

    @app.step
    async def slow() -> None:
        await write_all("slow")
        wrote.set()
        await finish.wait()

    @app.step
    async def fast() -> None:
        await wrote.wait()
        await write_all("fast")

    @app.workflow
    async def both(ctx: Context) -> None:
        await asyncio.gather(slow(), fast())

    async with app:
        run = await app.start(both)
        live = run.stream("out", attempts="all")
        assert [(await anext(live)).value, (await anext(live)).value] == ["slow", "fast"]
        found: list[StreamItem] = []
        reading = asyncio.create_task(collect(run.stream("out"), found))
        while "completed" not in {step.status for step in (await run.history()).steps}:
            await asyncio.sleep(0.001)
        assert found == []

        finish.set()
        await reading

        assert [item.value for item in found] == ["slow", "fast"]


async def test_a_closed_stream_ends_its_readers_and_refuses_writes(app: Holdfast, opened: Open) -> None:
    @app.step
    async def last() -> None:
        out = step_info().stream("out")
        await out.write(1)
        await out.close()
        with pytest.raises(StateError, match=r"stream 'out' of run .* is closed"):
            await out.write(2)

    @app.step(retry=Retry(limit=0))
    async def late() -> None:
        await step_info().stream("out").write(3)

    @app.workflow
    async def work(ctx: Context) -> list[str]:
        await last()
        errors = []
        for write in (late, lambda: ctx.stream("out").write(4)):
            try:
                await write()
            except (StateError, StepError) as error:
                errors.append(str(error))
        await ctx.wait_for_event("stay", type="go")
        return errors

    async with opened(app) as h:
        run = await h.start(work, id="w")
        await h.run_until_idle()
        assert await read(run) == [1]

        await h.restart()
        await run.send_event("go")
        await h.run_until_idle()

        assert await run.result() == ["stream 'out' of run work/w is closed"] * 2
        assert await read(run, attempts="all") == [1]


async def test_leaving_the_context_of_a_stream_does_not_close_it(app: Holdfast, opened: Open) -> None:
    @app.workflow
    async def work(ctx: Context) -> None:
        for n in range(2):
            async with ctx.stream("out") as out:
                await out.write(n)

    async with opened(app) as h:
        run = await h.start(work)
        await h.run_until_idle()

        assert await read(run) == [0, 1]
        assert [info.closed for info in await run.streams()] == [False]


async def test_a_plain_step_writes_from_its_thread() -> None:
    app = Holdfast("sqlite://")

    @app.step
    def tokens() -> int:
        out = step_info().stream("out")
        for n in range(300):
            out.write(n)
        return 300

    @app.workflow
    async def work(ctx: Context) -> int:
        return await tokens()

    async with app:
        run = await app.start(work)
        assert await run.result() == 300
        assert await read(run) == list(range(300))


async def test_a_reader_that_stops_reading_does_not_delay_the_writer() -> None:
    app = Holdfast("sqlite://")

    @app.step
    async def tokens() -> int:
        await write_all(*range(3000))
        return 3000

    @app.workflow
    async def work(ctx: Context) -> int:
        return await tokens()

    async with app:
        run = await app.start(work)
        items = run.stream("out", attempts="all")
        first = (await anext(items)).value
        assert await run.result(timeout="20 seconds") == 3000

        assert [first, *[item.value async for item in items]] == list(range(3000))


async def test_chains_and_graphs_write_to_streams(app: Holdfast, opened: Open) -> None:
    chain = app.chain("line")
    graph = app.graph("net")

    @chain.step("ONE", max_attempts=2)
    async def one(task: ChainTask) -> int:
        await write_all(f"one{task.attempt}")
        if task.attempt == 1:
            raise ValueError("no")
        return 1

    @graph.node(retry=TWICE)
    async def left() -> int:
        await write_all(f"left{step_info().attempt}")
        if step_info().attempt == 1:
            raise ValueError("no")
        return 1

    @graph.node(after=[left])
    async def right(left: int) -> int:
        await write_all("right")
        return left

    async with opened(app) as h:
        line, net = await h.start(chain), await h.start(graph)
        await h.advance("1 hour")

        assert await read(line) == ["one2"]
        assert await read(line, attempts="all") == ["one1", "one2"]
        assert await read(net) == ["left2", "right"]


async def test_a_paused_run_keeps_the_items_of_its_steps_and_continues(app: Holdfast) -> None:
    app = Holdfast("sqlite://")
    wrote, finish = asyncio.Event(), asyncio.Event()

    @app.step
    async def slow() -> None:
        await write_all(1)
        wrote.set()
        await finish.wait()

    @app.workflow
    async def work(ctx: Context) -> None:
        await slow()
        await ctx.stream("out").write(2)

    async with app:
        run = await app.start(work)
        await wrote.wait()
        await run.pause()
        finish.set()
        items = run.stream("out")
        assert (await anext(items)).value == 1
        await run.resume()

        assert [item.value async for item in items] == [2]


async def test_a_restarted_or_retried_run_begins_new_streams(app: Holdfast, opened: Open) -> None:
    fail = True

    @app.step
    async def first() -> None:
        await write_all("first")

    @app.step(retry=Retry(limit=0))
    async def second() -> None:
        if fail:
            raise ValueError("no")
        await write_all("second")

    @app.workflow
    async def work(ctx: Context) -> None:
        await ctx.stream("out").write("code")
        await first()
        await second()

    async with opened(app) as h:
        run = await h.start(work)
        await h.run_until_idle()
        before = await read(run)
        fail = False
        await run.retry()
        await h.run_until_idle()
        retried = await read(run)
        await run.restart()
        await h.run_until_idle()

        assert before == ["code", "first"]
        assert retried == ["code", "second"]
        assert await read(run) == ["code", "first", "second"]
        assert await read(run, run_number=0) == before


async def test_limits_of_streams_are_reported_by_the_write(opened: Open) -> None:
    app = Holdfast("sqlite://", limits=Limits(stream_item=10, stream_items=3, stream_bytes=200))

    @app.step(retry=Retry(limit=0))
    async def fill(value: str) -> None:
        await write_all(*[value] * 4)

    @app.workflow
    async def work(ctx: Context, value: str) -> list[str]:
        errors = []
        for write in (lambda: fill(value), lambda: ctx.stream("code").write("x" * 20), lambda: fill("x" * 20)):
            try:
                await write()
            except PayloadTooLargeError:
                errors.append("code")
            except StepError as error:
                errors.append(error.type)
        return errors

    async with opened(app) as h:
        run = await h.start(work, "a")
        await h.run_until_idle()

        assert await run.result() == ["StreamFullError", "code", "code"]
        assert await read(run, attempts="all") == ["a"] * 3


async def test_a_writer_that_exceeds_the_rate_gets_an_error_and_may_continue_a_second_later(opened: Open) -> None:
    app = Holdfast("sqlite://", limits=Limits(stream_rate=3))

    @app.step(retry=Retry(limit=0), raises=(StreamRateError,))
    async def fill(count: int) -> None:
        await write_all(*range(count))

    @app.workflow
    async def work(ctx: Context) -> list[str]:
        errors = []
        for count in (3, 4):
            try:
                await fill(count)
            except StreamRateError as error:
                errors.append(str(error))
        out = ctx.stream("code")
        for n in range(6):
            if n == 3:
                await ctx.sleep("pause", "1 second")
            await out.write(n)
        try:
            await out.write(6)
        except StreamRateError as error:
            errors.append(str(error))
        return errors

    async with opened(app) as h:
        run = await h.start(work, id="w")
        await h.run_until_idle()
        await h.restart()
        await h.advance("1 second")

        errors = await run.result()
        assert await read(run) == [0, 1, 2]
        assert await read(run, "code") == [0, 1, 2, 3, 4, 5]
    assert errors == [
        f"too many items for stream '{name}' of run work/w: 3 in a second are allowed (Limits.stream_rate)"
        for name in ("out", "code")
    ]


async def test_a_step_with_a_transaction_cannot_write_to_streams(app: Holdfast, opened: Open) -> None:
    @app.step(retry=Retry(limit=0))
    async def pay(tx: Transaction) -> None:
        await step_info().stream("out").write(1)

    @app.workflow
    async def work(ctx: Context) -> str:
        try:
            await pay()
        except StepError as error:
            return str(error)
        return ""

    async with opened(app) as h:
        run = await h.start(work)
        await h.run_until_idle()

        assert "has a Transaction" in await run.result()


async def test_a_stream_of_workflow_code_is_refused_inside_a_step(app: Holdfast, opened: Open) -> None:
    @app.workflow
    async def work(ctx: Context) -> str:
        out = ctx.stream("out")

        async def step() -> None:
            await out.write(1)

        try:
            await ctx.do("step", step, retry=Retry(limit=0), raises=(WorkflowCodeError,))
        except WorkflowCodeError:
            return "refused"
        return ""

    async with opened(app) as h:
        run = await h.start(work)
        await h.run_until_idle()

        assert await run.result() == "refused"


async def test_wrong_arguments_of_a_reader_are_refused(app: Holdfast, opened: Open) -> None:
    @app.workflow
    async def work(ctx: Context) -> None: ...

    async with opened(app) as h:
        run = await h.start(work)
        await h.run_until_idle()
        for options in ({"after": -1}, {"after": 1.5}, {"attempts": "some"}, {"name": "a b"}):
            with pytest.raises((InvalidOptionError, ValueError)):
                await read(run, **options)


async def test_streams_have_a_retention_of_their_own(opened: Open) -> None:
    app = Holdfast("sqlite://", retention=Retention(complete="30 days", streams="1 hour"))

    @app.workflow
    async def work(ctx: Context) -> None:
        await ctx.stream("out").write(1)

    async with opened(app) as h:
        run = await h.start(work)
        await h.run_until_idle()
        assert await read(run) == [1]
        await h.advance("2 hours")

        assert await read(run) == []
        assert await run.streams() == []
        assert (await run.status()).status == "complete"


async def test_streams_survive_a_crash_after_every_commit(app: Holdfast) -> None:
    @app.step
    async def tokens(n: int) -> int:
        await write_all(*range(n))
        return n

    @app.workflow
    async def work(ctx: Context) -> list[int]:
        await ctx.stream("out").write("begin")
        done = await asyncio.gather(tokens(2), tokens(3))
        await ctx.sleep("s", "1 minute")
        await ctx.stream("out").write("end")
        return done

    from holdfast.testing import Harness

    async with Harness(app, seed=7) as h:
        assert await h.crash_everywhere(work, None) == [2, 3]


async def test_items_whose_write_has_no_reply_yet_count_for_the_limits() -> None:
    items = AttemptStream("work/a", TaskRef(1, 0, "w", 1), "tokens", "fill", 1)
    port: Any = SimpleNamespace(
        limits=Limits(stream_items=3), now_ms=lambda: 0, sink=SimpleNamespace(put=lambda items: None)
    )
    stream = Stream(items, port, None)
    stream.write("a")
    stream.write("b")
    write = items.take()
    stream.write("c")

    with pytest.raises(StreamFullError):
        stream.write("d")
    items.written(write, StreamWritten(WriteVerdict.WRITTEN, 2, 10))
    with pytest.raises(StreamFullError):
        stream.write("d")
