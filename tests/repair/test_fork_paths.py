"""Forks whose code takes another path than that of the origin, and forks that have to take the same path."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from holdfast import Context, Exit, Holdfast, InstanceNotFoundError, Retry
from repair.conftest import Open
from repair.test_retry import Calls


async def test_a_fork_keeps_the_version_that_its_recorded_results_belong_to(opened: Open) -> None:
    app, calls = Holdfast("sqlite://"), Calls()
    calls.failing = {"slow"}

    @app.workflow(name="flow")
    async def flow(ctx: Context) -> int:
        slow = asyncio.create_task(ctx.do("slow", calls.call, "slow", retry=Retry(delay="1 hour")))
        await ctx.sleep("nap", "1 minute")
        slow.cancel()
        version = ctx.version("change", 1, 2)
        await ctx.do(f"step of version {version}", calls.call, "step")
        return version

    async with opened(app) as h:
        run = await h.start("flow")
        await h.advance("2 minutes")
        assert await run.result(timeout=60) == 2
        calls.clear()
        fork = await run.fork(before="slow")
        await h.run_until_idle()

        assert await fork.result(timeout=60) == 2
        assert calls == []


async def test_a_fork_with_a_step_before_version_uses_the_newest_version(opened: Open) -> None:
    app, calls, newest = Holdfast("sqlite://"), Calls(), [1]

    @app.workflow(name="flow")
    async def flow(ctx: Context) -> int:
        await ctx.do("first", calls.call, "first")
        await ctx.sleep("nap", "1 minute")
        return ctx.version("change", 1, newest[0])

    async with opened(app) as h:
        run = await h.start("flow")
        await h.advance("2 minutes")
        assert await run.result(timeout=60) == 1
        newest[0] = 2
        fork = await run.fork(before="first")
        await h.advance("2 minutes")

        assert await fork.result(timeout=60) == 2


def _with_child(calls: Calls, *, spawns: bool) -> Holdfast:
    """An app whose workflow calls one more step before it starts its child if the first step returns "edited"."""
    app = Holdfast("sqlite://")

    @app.workflow(name="child")
    async def child(ctx: Context) -> str:
        await ctx.sleep("nap", "1 minute")
        return "child"

    @app.workflow(name="flow")
    async def flow(ctx: Context) -> list[Any]:
        if await ctx.do("first", calls.call, "first") == "edited":
            await ctx.do("more", calls.call, "more")
        if not spawns:
            result = await ctx.run("child")
            await ctx.do("last", calls.call, "last")
            return [result, len(ctx.events)]
        started = await ctx.spawn("child")
        await ctx.do("last", calls.call, "last")
        result, ended = await started.result(), await ctx.events.receive()
        assert isinstance(ended, Exit)
        return [result, ended.result]

    return app


async def test_a_fork_receives_the_recorded_end_of_a_child_that_its_code_starts_later(opened: Open) -> None:
    calls = Calls()

    async with opened(_with_child(calls, spawns=False)) as h:
        run = await h.start("flow")
        await h.advance("2 minutes")
        assert await run.result(timeout=60) == ["child", 0]
        calls.clear()
        fork = await run.fork(before="last", outputs={"first": "edited"})
        await h.run_until_idle()

        assert await fork.result(timeout=60) == ["child", 0]
        assert calls == ["more", "last"]


async def test_a_fork_receives_the_new_end_of_a_child_that_its_code_starts_later(opened: Open) -> None:
    calls = Calls()

    async with opened(_with_child(calls, spawns=True)) as h:
        run = await h.start("flow")
        await h.advance("2 minutes")
        assert await run.result(timeout=60) == ["child", "child"]
        calls.clear()
        calls.failing = {"more"}
        fork = await run.fork(before="last", outputs={"first": "edited"})
        await h.run_until_idle()
        await h.restart()
        calls.failing.clear()
        await h.advance("1 hour")

        assert await fork.result(timeout=60) == ["child", "child"]
        assert [item.id for item in (await h.app.list("child")).items] == [
            child.pid.partition("/")[2] for child in (await run.describe()).children
        ]


@pytest.mark.parametrize("answer", ["yes", None], ids=["reply", "end without reply"])
async def test_a_fork_receives_the_recorded_reply_to_an_ask_that_its_code_sends_later(
    opened: Open, answer: str | None
) -> None:
    app, calls = Holdfast("sqlite://"), Calls()

    @app.workflow(name="clerk")
    async def clerk(ctx: Context) -> None:
        message = await ctx.inbox.receive()
        if answer is not None:
            await message.reply(answer)

    @app.workflow(name="flow")
    async def flow(ctx: Context) -> str | None:
        if await ctx.do("first", calls.call, "first") == "edited":
            await ctx.do("more", calls.call, "more")
        with suppress(InstanceNotFoundError):
            reply: str = await ctx.ask("clerk/c", "question")
            await ctx.do("last", calls.call, "last")
            return reply
        await ctx.do("last", calls.call, "last")
        return None

    async with opened(app) as h:
        await h.start("clerk", id="c")
        run = await h.start("flow")
        await h.run_until_idle()
        assert await run.result(timeout=60) == answer
        calls.clear()
        fork = await run.fork(before="last", outputs={"first": "edited"})
        await h.run_until_idle()

        assert await fork.result(timeout=60) == answer
        assert calls == ["more", "last"]
