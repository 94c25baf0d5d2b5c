"""Termination by a run: immediate and final, without running code of the run; its watchers are notified."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from apps import MakeApp
from driving import until_status
from holdfast import (
    ChildError,
    Context,
    Exit,
    Handle,
    Holdfast,
    InstanceNotFoundError,
    InstanceTerminalError,
    InvalidOptionError,
    Retry,
    RunTerminatedError,
)
from holdfast.testing import Harness

from .observations import at, end_of, observe_with_crashes, statuses
from .test_pause import Gate


@pytest.fixture
def tidy(app: Holdfast) -> Any:
    """A workflow that runs a cleanup step when it is cancelled."""

    @app.workflow
    async def tidy(ctx: Context) -> None:
        try:
            await ctx.sleep("a while", "30 days")
        finally:
            await ctx.do("clean", str)

    return tidy


async def test_terminate_ends_a_run_at_once_without_cleanup(app: Holdfast, h: Harness, tidy: Any) -> None:
    @app.workflow
    async def ends(ctx: Context) -> list[Any]:
        child = await ctx.spawn(tidy, id="t")
        await ctx.terminate(child.pid, "not needed")
        try:
            await child.result()
        except ChildError as error:
            return [error.status, error.type, error.message]
        return []

    async def observe(harness: Harness, run: Handle[Any]) -> Any:
        child = await at(harness, "tidy/t")
        cleaned = any(step.step_key == "clean" for step in (await child.history()).steps)
        return await run.result(timeout=60), await end_of(harness, child), cleaned, (await child.describe()).why

    assert await observe_with_crashes(h, ends, observe=observe) == (
        ["terminated", "Terminated", "the run was terminated (not needed)"],
        ("terminated", None, None, None),
        False,
        "terminated: not needed",
    )


async def test_a_watcher_receives_an_exit_with_an_error(app: Holdfast, h: Harness, tidy: Any) -> None:
    @app.workflow
    async def ends(ctx: Context) -> list[Any]:
        child = await ctx.spawn(tidy)
        await ctx.terminate(child.pid)
        event = await ctx.events.receive()
        assert isinstance(event, Exit)
        assert event.error is not None
        return [event.pid == child.pid, event.result, event.error.status, event.error.kind, event.error.retryable]

    assert await h.crash_everywhere(ends) == [True, None, "terminated", "Terminated", False]


async def test_a_run_can_terminate_itself(app: Holdfast, h: Harness) -> None:
    went_on: list[int] = []

    @app.workflow
    async def own(ctx: Context) -> str:
        await ctx.terminate(ctx.info.pid, "by myself")
        await ctx.do("continue", went_on.append, 1)
        return "went on"

    async def observe(harness: Harness, run: Handle[Any]) -> Any:
        return await end_of(harness, run), (await run.describe()).why

    assert await observe_with_crashes(h, own, observe=observe) == (
        ("terminated", None, None, None),
        "terminated: by myself",
    )
    assert went_on == []


async def test_a_parent_receives_the_reason_of_a_child_that_terminates_itself(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def own(ctx: Context) -> None:
        await ctx.terminate(ctx.info.pid, "by myself")

    @app.workflow
    async def parent(ctx: Context) -> str:
        try:
            await ctx.run(own)
        except ChildError as error:
            return error.message
        return ""

    assert await h.crash_everywhere(parent) == "the run was terminated (by myself)"


async def test_a_child_that_terminates_its_parent_ends_with_it(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def rebel(ctx: Context) -> None:
        assert ctx.info.parent is not None
        await ctx.terminate(ctx.info.parent, "a rebellion")
        await ctx.sleep("a while", "30 days")

    @app.workflow
    async def parent(ctx: Context) -> None:
        await ctx.run(rebel, id="r")

    async def observe(harness: Harness, run: Handle[Any]) -> Any:
        return (await run.describe()).why, (await (await at(harness, "rebel/r")).describe()).why

    assert await observe_with_crashes(h, parent, observe=observe) == (
        "terminated: a rebellion", "terminated: its parent parent/everywhere has ended",
    )  # fmt: skip


async def test_terminating_an_ended_or_unknown_run_raises(app: Holdfast, h: Harness, tidy: Any) -> None:
    @app.workflow
    async def quick(ctx: Context) -> None: ...

    @app.workflow
    async def ends(ctx: Context) -> list[str]:
        await ctx.run(quick, id="q")
        found = []
        for pid in ("quick/q", "tidy/nobody", "nowhere/n"):
            try:
                await ctx.terminate(pid)
            except (InstanceTerminalError, InstanceNotFoundError) as error:
                found.append(error.code)
        return found

    assert await h.crash_everywhere(ends) == ["INSTANCE_TERMINAL", "INSTANCE_NOT_FOUND", "INSTANCE_NOT_FOUND"]


@pytest.mark.above_the_store
async def test_a_reason_that_is_not_a_string_is_refused(app: Holdfast, h: Harness, tidy: Any) -> None:
    @app.workflow
    async def ends(ctx: Context) -> str:
        reason: Any = 5
        child = await ctx.spawn(tidy)
        try:
            await ctx.terminate(child.pid, reason)
        except InvalidOptionError as error:
            return str(error)
        return "terminated"

    assert "reason" in await h.crash_everywhere(ends)


async def test_terminating_a_run_twice_raises_and_keeps_the_first_reason(app: Holdfast, h: Harness, tidy: Any) -> None:
    @app.workflow
    async def ends(ctx: Context) -> list[Any]:
        child = await ctx.spawn(tidy, id="t")
        await ctx.terminate(child.pid, "first")
        try:
            await ctx.terminate(child.pid, "second")
        except InstanceTerminalError as error:
            event: Any = await ctx.events.receive()
            return [error.code, event.error.message, len(ctx.events)]
        return []

    assert await h.crash_everywhere(ends) == ["INSTANCE_TERMINAL", "the run was terminated (first)", 0]


async def test_terminate_ends_all_descendants(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def line(ctx: Context, n: int) -> None:
        if n:
            await ctx.spawn("line", n - 1, id=f"l{n - 1}")
        await ctx.sleep("a while", "30 days")

    @app.workflow
    async def ends(ctx: Context) -> str:
        child = await ctx.spawn(line, 3, id="l3", parent_close="abandon")
        await ctx.sleep("until all are there", "1 hour")
        await ctx.terminate(child.pid)
        return "ended"

    async def observe(harness: Harness, run: Handle[Any]) -> Any:
        return set((await statuses(harness, *(f"line/l{n}" for n in range(4)))).values())

    assert await observe_with_crashes(h, ends, observe=observe) == {"terminated"}


async def test_a_run_terminated_before_it_begins_runs_no_code(app: Holdfast, h: Harness) -> None:
    ran: list[int] = []

    @app.workflow
    async def late(ctx: Context) -> None:
        await ctx.do("run", ran.append, 1)

    @app.workflow
    async def ends(ctx: Context) -> str:
        await ctx.spawn(late, id="l", start_delay="1 hour")
        await ctx.terminate("late/l")
        await ctx.sleep("a while", "2 hours")
        return "ended"

    async def observe(harness: Harness, run: Handle[Any]) -> Any:
        return await statuses(harness, "late/l")

    assert await observe_with_crashes(h, ends, observe=observe) == {"late/l": "terminated"}
    assert ran == []


async def test_a_paused_run_can_be_terminated(app: Holdfast, h: Harness, tidy: Any) -> None:
    @app.workflow
    async def ends(ctx: Context) -> None:
        await ctx.terminate("tidy/t")

    run = await h.start(tidy, id="t")
    await h.run_until_idle()
    await run.pause()
    await h.start(ends)
    await h.run_until_idle()
    assert (await run.status()).status == "terminated"


@pytest.mark.promise("finality")
async def test_a_step_in_flight_does_not_change_a_terminated_run(app: Holdfast, h: Harness) -> None:
    gate = Gate()

    @app.workflow
    async def works(ctx: Context) -> Any:
        return await ctx.do("long", gate)

    @app.workflow
    async def ends(ctx: Context) -> None:
        await ctx.terminate("works/w")

    run = await h.start(works, id="w")
    await h.tick()
    await gate.began.wait()
    await h.start(ends)
    await h.tick()
    assert (await run.status()).status == "terminated"
    gate.open.set()
    await h.run_until_idle()
    assert (await run.status()).status == "terminated"
    assert [step.status for step in (await run.history()).steps if step.status == "completed"] == []


async def test_a_terminated_workflow_is_not_retried(app: Holdfast, h: Harness, tidy: Any) -> None:
    @app.workflow
    async def ends(ctx: Context) -> str:
        await ctx.spawn(tidy, id="t", retry=Retry(5, "1 minute"))
        await ctx.terminate("tidy/t")
        await ctx.sleep("a while", "1 hour")
        return "ended"

    async def observe(harness: Harness, run: Handle[Any]) -> Any:
        child = await (await at(harness, "tidy/t")).describe()
        return child.status, child.run_number

    assert await observe_with_crashes(h, ends, observe=observe) == ("terminated", 0)


@pytest.mark.above_the_store
async def test_a_task_besides_the_main_task_can_terminate_a_run(app: Holdfast, h: Harness, tidy: Any) -> None:
    @app.workflow
    async def ends(ctx: Context) -> str:
        child = await ctx.spawn(tidy)

        async def later() -> None:
            await ctx.sleep("later", "1 hour")
            await ctx.terminate(child.pid, "by the task beside")

        beside = asyncio.ensure_future(later())
        try:
            await child.result()
        except ChildError as error:
            await beside
            return error.message
        return ""

    assert await h.crash_everywhere(ends) == "the run was terminated (by the task beside)"


async def test_the_owner_of_a_run_terminated_by_another_worker_stops_at_once(make_app: MakeApp) -> None:
    here, there = make_app(), make_app()
    gate = Gate()

    @there.workflow
    async def works(ctx: Context) -> Any:
        return await ctx.do("long", gate)

    @here.workflow
    async def ends(ctx: Context) -> str:
        await ctx.terminate("works/w", "enough")
        return "ended"

    async with there, here:
        run = await there.start(works, id="w")
        await gate.began.wait()
        assert await (await here.start(ends)).result(timeout=60) == "ended"
        assert await until_status(run, "terminated") == "terminated"
        with pytest.raises(RunTerminatedError, match="enough"):
            await run.result(timeout=60)
