"""``ctx.version``: the version of a code change that an open run uses."""

from __future__ import annotations

from typing import Any

import pytest

from driving import finish, step_keys
from holdfast import Context, Holdfast
from holdfast.testing import Harness


def versioned(app: Holdfast, minimum: int, maximum: int, *, asks: bool = True, name: str = "flow") -> Any:
    """Define the workflow as a release that supports these versions has it."""

    @app.workflow(name=name)
    async def flow(ctx: Context) -> list[Any]:
        await ctx.do("before", lambda: None)
        chosen = ctx.version("payment", minimum, maximum) if asks else 0
        await ctx.sleep("a while", "1 hour")
        again = ctx.version("payment", minimum, maximum) if asks else 0
        return [chosen, again]

    return flow


def release(app: Holdfast, *args: Any, **options: Any) -> None:
    """Replace the workflow by that of another release, with which open runs continue."""
    del app.registry._by_name["flow"]
    versioned(app, *args, **options)


async def after_an_hour(h: Harness, run: Any) -> Any:
    await h.advance("1 hour")
    return await run.result(timeout=60)


async def test_a_new_run_uses_the_newest_version(app: Holdfast, h: Harness) -> None:
    run = await h.start(versioned(app, 1, 3))
    await h.run_until_idle()
    assert await after_an_hour(h, run) == [3, 3]


async def test_a_run_keeps_its_recorded_version(app: Holdfast, h: Harness) -> None:
    run = await h.start(versioned(app, 1, 2))
    await h.run_until_idle()
    await h.restart()
    release(app, 1, 5)
    assert await after_an_hour(h, run) == [2, 2]


async def test_a_run_that_had_passed_the_version_call_uses_the_oldest_version(app: Holdfast, h: Harness) -> None:
    @app.workflow(name="flow")
    async def flow(ctx: Context) -> list[Any]:
        await ctx.do("before", lambda: None)
        await ctx.do("passed", lambda: None)
        await ctx.sleep("a while", "1 hour")
        return []

    run = await h.start(flow)
    await h.run_until_idle()
    await h.restart()
    release(app, 1, 2)
    assert await after_an_hour(h, run) == [1, 1]
    assert "#version payment" in await step_keys(run)


async def test_a_run_that_had_not_reached_the_version_call_uses_the_newest_version(app: Holdfast, h: Harness) -> None:
    @app.workflow(name="flow")
    async def flow(ctx: Context) -> list[Any]:
        await ctx.do("before", lambda: None)
        await ctx.sleep("long before", "30 minutes")
        return []

    run = await h.start(flow)
    await h.run_until_idle()
    await h.restart()
    del app.registry._by_name["flow"]

    @app.workflow(name="flow")
    async def changed(ctx: Context) -> list[Any]:
        await ctx.do("before", lambda: None)
        await ctx.sleep("long before", "30 minutes")
        return [ctx.version("payment", 1, 2)]

    assert await after_an_hour(h, run) == [2]


async def test_a_run_whose_recorded_version_is_no_longer_supported_fails(app: Holdfast, h: Harness) -> None:
    run = await h.start(versioned(app, 1, 2))
    await h.run_until_idle()
    await h.restart()
    release(app, 3, 4)
    await h.advance("1 hour")
    status = await run.status()
    assert status.status == "errored"
    assert status.error is not None
    assert status.error.name == "VersionUnsupportedError"
    assert "version 2 of 'payment'" in status.error.message


async def test_the_version_is_in_the_history(app: Holdfast, h: Harness) -> None:
    run = await h.start(versioned(app, 1, 2))
    await h.run_until_idle()
    [step] = [step for step in (await run.history()).steps if step.type == "version"]
    assert (step.name, step.status, step.result) == ("payment", "completed", 2)


@pytest.mark.promise("exact-replay")
async def test_a_crash_at_any_commit_does_not_change_the_version(app: Holdfast, h: Harness) -> None:
    assert await h.crash_everywhere(versioned(app, 1, 2)) == [2, 2]


@pytest.mark.above_the_store
@pytest.mark.parametrize(
    "arguments",
    [("", 1, 2), (None, 1, 2), ("x" * 300, 1, 2), ("a", 2, 1), ("a", "1", 2), ("a", 1, True), ("a", 1, 2**40)],
)
async def test_bad_arguments_of_version_are_refused(app: Holdfast, h: Harness, arguments: tuple[Any, ...]) -> None:
    @app.workflow
    async def wrong(ctx: Context) -> str:
        try:
            ctx.version(*arguments)
        except Exception as error:
            return type(error).__name__
        return "taken"

    assert await finish(h, wrong) == "InvalidOptionError"
