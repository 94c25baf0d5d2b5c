"""Durable log lines of workflow code and steps, stored also for failed attempts and runs."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from apps import MakeApp
from driving import finish, until
from holdfast import Context, Holdfast, InvalidLogError, InvalidOptionError, Retry, RunFailedError
from holdfast.testing import Harness


async def test_a_line_has_level_category_message_and_data(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> None:
        ctx.log.debug("d")
        ctx.log.info("i", {"n": 1}, category="payments")
        ctx.log.warning("w", [1, 2])
        ctx.log.error("e", "text")

    run = await h.start(flow)
    await h.run_until_idle()
    lines = await run.logs()
    assert [(one.level, one.category, one.message, one.data) for one in lines] == [
        ("debug", "workflow", "d", None),
        ("info", "payments", "i", {"n": 1}),
        ("warn", "workflow", "w", [1, 2]),
        ("error", "workflow", "e", "text"),
    ]
    assert all(one.step_key is None and one.attempt is None and not one.is_replay for one in lines)
    assert len({one.id for one in lines}) == 4


async def test_lines_can_be_filtered_by_level_and_category(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> None:
        ctx.log.info("a", category="x")
        ctx.log.warning("b", category="x")
        ctx.log.warning("c", category="y")

    run = await h.start(flow)
    await h.run_until_idle()

    async def read(**filters: str) -> list[str]:
        return [line.message for line in await run.logs(**filters)]

    assert await read(level="warn") == await read(level="warning") == ["b", "c"]
    assert await read(category="x") == ["a", "b"]
    assert await read(level="warn", category="y") == ["c"]
    with pytest.raises(InvalidOptionError, match="level"):
        await run.logs(level="loud")


@pytest.mark.above_the_store
@pytest.mark.parametrize("category", ["system", "", "x" * 65, None])
async def test_a_reserved_or_bad_category_is_refused(app: Holdfast, h: Harness, category: Any) -> None:
    @app.workflow
    async def flow(ctx: Context) -> None:
        ctx.log.info("hello", category=category)

    with pytest.raises(RunFailedError) as caught:
        await finish(h, flow)
    assert caught.value.error.name == "InvalidLogError"


async def test_a_message_longer_than_the_limit_is_truncated(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> None:
        ctx.log.info("x" * 2048)
        ctx.log.info("y" * 2049)
        ctx.log.info(4711)  # type: ignore[arg-type]

    run = await h.start(flow)
    await h.run_until_idle()
    fits, truncated, number = [line.message for line in await run.logs()]
    assert fits == "x" * 2048
    assert truncated == "y" * 2047 + "…"
    assert number == "4711"


@pytest.mark.above_the_store
async def test_data_that_cannot_be_stored_is_refused(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> None:
        ctx.log.info("hello", {1, 2})

    with pytest.raises(RunFailedError) as caught:
        await finish(h, flow)
    assert caught.value.error.name == "NotSerializableError"
    assert "log data" in caught.value.error.message


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "thread"])
async def test_a_line_from_a_step_carries_its_key_and_attempt(app: Holdfast, h: Harness, is_async: bool) -> None:
    attempts: list[int] = []

    @app.workflow
    async def flow(ctx: Context) -> None:
        def work() -> None:
            attempts.append(1)
            ctx.log.info(f"try {len(attempts)}", category="work")
            if len(attempts) == 1:
                raise OSError("first")

        async def work_async() -> None:
            await asyncio.sleep(0)
            work()

        ctx.log.info("before")
        await ctx.do("work", work_async if is_async else work, retry=Retry(1, 1))
        ctx.log.info("after")

    run = await h.start(flow)
    await h.advance("5s")
    await run.result()
    found = [(one.message, one.step_key, one.attempt) for one in await run.logs() if not one.is_replay]
    assert found == [("before", None, None), ("try 1", "work", 1), ("try 2", "work", 2), ("after", None, None)]


async def test_lines_of_failed_attempts_and_failed_runs_are_kept(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> None:
        def work() -> None:
            ctx.log.error("about to break")
            raise OSError("broken")

        ctx.log.info("hello")
        await ctx.do("work", work, retry=Retry(limit=0))

    run = await h.start(flow)
    await h.run_until_idle()
    assert (await run.status()).status == "errored"
    assert [line.message for line in await run.logs()] == ["hello", "about to break"]


async def test_a_line_that_a_replay_writes_again_is_marked(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> None:
        ctx.log.info("one")
        await ctx.do("a", lambda: ctx.log.info("in a step"))
        ctx.log.info("two")
        await ctx.sleep("nap", 60)
        ctx.log.info("three")

    run = await h.start(flow)
    await h.run_until_idle()
    await h.restart()
    await h.advance(60)
    await run.result()
    lines = [(line.message, line.is_replay) for line in await run.logs()]
    assert [one for one in lines if not one[1]] == [
        ("one", False),
        ("in a step", False),
        ("two", False),
        ("three", False),
    ]
    assert [one for one in lines if one[1]] == [("one", True), ("two", True)]


@pytest.mark.kind_settings("a run that is kept in memory")
async def test_a_warm_run_writes_no_line_twice(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> None:
        for n in range(3):
            ctx.log.info(f"{n}")
            await ctx.sleep(f"nap {n}", 1)

    run = await h.start(flow)
    await h.advance("10s")
    assert [(line.message, line.is_replay) for line in await run.logs()] == [(f"{n}", False) for n in range(3)]


async def test_the_log_of_a_run_cannot_be_written_outside_its_code(app: Holdfast, h: Harness) -> None:
    contexts: list[Context] = []

    @app.workflow
    async def flow(ctx: Context) -> None:
        contexts.append(ctx)
        await ctx.sleep("nap", 60)

    await h.start(flow)
    await h.run_until_idle()
    with pytest.raises(InvalidLogError, match="belongs to a run"):
        contexts[0].log.info("from outside")


async def test_logs_belong_to_their_run_after_a_restart(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> None:
        ctx.log.info(f"run {ctx.info.run_number}")

    run = await h.start(flow)
    await h.run_until_idle()
    await run.restart()
    await h.run_until_idle()
    [line] = await run.logs()
    assert (line.message, line.run_number, line.is_replay) == ("run 1", 1, False)


async def test_follow_logs_yields_every_line_and_ends_with_the_run(make_app: MakeApp) -> None:
    app = make_app()

    @app.workflow
    async def flow(ctx: Context) -> None:
        for n in range(20):
            ctx.log.info(f"{n}")
            await ctx.do(f"s{n}", lambda: None)
        await ctx.wait_for_event("end", type="end")
        ctx.log.info("last")

    async with app:
        run = await app.start(flow)
        seen: list[str] = []

        async def follow() -> None:
            async for line in run.follow_logs():
                if not line.is_replay:
                    seen.append(line.message)  # noqa: PERF401  (one at a time, as they arrive)

        async with asyncio.timeout(60):
            following = asyncio.create_task(follow())
            await until(lambda: _async_bool(len(seen) == 20))
            await run.send_event("end")
            await following
        assert seen == [*(f"{n}" for n in range(20)), "last"]


async def test_follow_logs_of_an_ended_run_yields_all_its_lines(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> None:
        for n in range(3):
            ctx.log.info(f"{n}")

    run = await h.start(flow)
    await h.run_until_idle()
    assert [line.message async for line in run.follow_logs()] == ["0", "1", "2"]


async def test_lines_of_a_long_step_are_visible_while_it_runs(make_app: MakeApp) -> None:
    app = make_app()
    release = threading.Event()

    @app.workflow
    async def flow(ctx: Context) -> None:
        def slow() -> None:
            ctx.log.info("working on it")
            release.wait(60)
            ctx.log.info("done")

        await ctx.do("slow", slow)

    async with app:
        run = await app.start(flow)
        try:
            [line] = await until(run.logs)
            assert (line.message, line.step_key, line.attempt) == ("working on it", "slow", 1)
        finally:
            release.set()
        await run.result(timeout=60)
        assert [line.message for line in await run.logs()] == ["working on it", "done"]


async def _async_bool(value: bool) -> bool:
    return value


async def test_a_repeated_step_name_with_other_arguments_is_a_warning_in_both_logs(
    app: Holdfast, h: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    @app.workflow
    async def flow(ctx: Context) -> list[int]:
        first = await ctx.do("add", int, 1)
        await ctx.sleep("nap", 60)
        return [first, await ctx.do("add", int, 2)]

    run = await h.start(flow, id="a")
    await h.run_until_idle()
    await h.restart()
    with caplog.at_level("WARNING", "holdfast"):
        await h.advance("1 minute")
    assert await run.result(timeout=60) == [1, 1]
    [line] = await run.logs(level="warn", category="system")
    assert "'add'" in line.message
    assert "other arguments" in line.message
    assert caplog.messages == [f"flow/a (run 0): {line.message}"]
