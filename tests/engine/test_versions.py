"""Changed code under open runs: which version of a change a run goes by."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Context, Holdfast
from holdfast.testing import Harness

from .driving import finish, step_keys


def versioned(app: Holdfast, least: int, most: int, *, asks: bool = True, name: str = "flow") -> Any:
    """The same workflow as different releases of a program have it."""

    @app.workflow(name=name)
    async def flow(ctx: Context) -> list[Any]:
        await ctx.do("before", lambda: None)
        chosen = ctx.version("payment", least, most) if asks else 0
        await ctx.sleep("a while", "1 hour")
        again = ctx.version("payment", least, most) if asks else 0
        return [chosen, again]

    return flow


def release(app: Holdfast, *args: Any, **options: Any) -> None:
    """The next release of the program: open runs go on with it."""
    del app.registry._by_name["flow"]
    versioned(app, *args, **options)


async def after_an_hour(h: Harness, run: Any) -> Any:
    await h.advance("1 hour")
    return await run.result(timeout=5)


async def test_a_new_run_goes_by_the_newest(app: Holdfast, h: Harness) -> None:
    run = await h.start(versioned(app, 1, 3))
    await h.run_until_idle()
    assert await after_an_hour(h, run) == [3, 3]


async def test_it_stays_with_what_is_recorded(app: Holdfast, h: Harness) -> None:
    run = await h.start(versioned(app, 1, 2))
    await h.run_until_idle()
    await h.restart()
    release(app, 1, 5)
    assert await after_an_hour(h, run) == [2, 2]


async def test_a_run_that_had_passed_the_place_goes_by_the_oldest(app: Holdfast, h: Harness) -> None:
    @app.workflow(name="flow")
    async def flow(ctx: Context) -> list[Any]:
        await ctx.do("before", lambda: None)
        await ctx.do("behind", lambda: None)
        await ctx.sleep("a while", "1 hour")
        return []

    run = await h.start(flow)
    await h.run_until_idle()
    await h.restart()
    release(app, 1, 2)
    assert await after_an_hour(h, run) == [1, 1]
    assert "#version payment" in await step_keys(run)


async def test_a_run_that_had_not_come_to_the_place_goes_by_the_newest(app: Holdfast, h: Harness) -> None:
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


async def test_what_it_was_given_outlives_the_oldest_supported(app: Holdfast, h: Harness) -> None:
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


async def test_it_is_in_the_history(app: Holdfast, h: Harness) -> None:
    run = await h.start(versioned(app, 1, 2))
    await h.run_until_idle()
    [step] = [step for step in (await run.history()).steps if step.type == "version"]
    assert (step.name, step.status, step.result) == ("payment", "completed", 2)


async def test_it_survives_every_crash(app: Holdfast, h: Harness) -> None:
    assert await h.crash_everywhere(versioned(app, 1, 2)) == [2, 2]


@pytest.mark.above_the_store
@pytest.mark.parametrize(
    "arguments",
    [("", 1, 2), (None, 1, 2), ("x" * 300, 1, 2), ("a", 2, 1), ("a", "1", 2), ("a", 1, True), ("a", 1, 2**40)],
)
async def test_bad_arguments_are_refused(app: Holdfast, h: Harness, arguments: tuple[Any, ...]) -> None:
    @app.workflow
    async def wrong(ctx: Context) -> str:
        try:
            ctx.version(*arguments)
        except Exception as error:
            return type(error).__name__
        return "taken"

    assert await finish(h, wrong) == "InvalidOptionError"
