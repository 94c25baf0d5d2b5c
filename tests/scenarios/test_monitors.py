"""Monitors: one exit event for the end of a watched run, before or after that end, also with lost workers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from apps import MakeApp
from driving import finish
from holdfast import Channel, Context, Exit, Handle, Holdfast, InstanceNotFoundError, InvalidInstanceIdError, select
from holdfast.testing import Harness

from .observations import at, has_received, observe_with_crashes


@pytest.fixture
def worker(app: Holdfast) -> Any:
    """A workflow that ends as the payload of its ``end`` event says."""

    @app.workflow
    async def worker(ctx: Context, n: int = 0) -> Any:
        told = (await ctx.wait_for_event("end", type="end", timeout="30 days")).payload
        if told == "fail":
            raise ValueError("as told")
        return told

    return worker


def shape(event: Any) -> list[Any]:
    if isinstance(event, Exit):
        return ["exit", event.pid, event.result, event.error and [event.error.status, event.error.type]]
    return [type(event).__name__.lower()]


async def test_a_parent_receives_an_exit_event_when_its_child_ends(app: Holdfast, h: Harness, worker: Any) -> None:
    @app.workflow
    async def parent(ctx: Context) -> Any:
        child = await ctx.spawn(worker, id="w")
        await ctx.send(child.pid, "end", {"all": "well"})
        return shape(await ctx.events.receive())

    assert await h.crash_everywhere(parent) == ["exit", "worker/w", {"all": "well"}, None]


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("complete", ["exit", "worker/w", "fine", None]),
        ("fail", ["exit", "worker/w", None, ["errored", "ValueError"]]),
        ("terminate", ["exit", "worker/w", None, ["terminated", "Terminated"]]),
        ("cancel", ["exit", "worker/w", None, ["cancelled", "CancelledError"]]),
    ],
)
async def test_the_exit_event_shows_how_the_run_ended(
    app: Holdfast, h: Harness, worker: Any, how: str, expected: Any
) -> None:
    @app.workflow
    async def watcher(ctx: Context, how: str) -> Any:
        await ctx.spawn(worker, id="w")
        match how:
            case "complete" | "fail":
                await ctx.send("worker/w", "end", {"complete": "fine"}.get(how, how))
            case "terminate":
                await ctx.terminate("worker/w")
            case _:
                await ctx.cancel("worker/w")
        return shape(await ctx.events.receive())

    assert await h.crash_everywhere(watcher, how) == expected


async def _watch_unrelated_run(h: Harness, worker: Any, watcher: Any, told: Any = "done") -> Any:
    """Start a run without a parent and its watcher, end the run, and return the watcher's result."""
    watched = await h.start(worker, id="w")
    run = await h.start(watcher)
    await h.run_until_idle()
    await h.restart()
    await watched.send_event("end", told)
    await h.run_until_idle()
    return await run.result(timeout=60)


async def test_any_run_can_be_monitored(app: Holdfast, h: Harness, worker: Any) -> None:
    @app.workflow
    async def watcher(ctx: Context) -> Any:
        await ctx.monitor("worker/w")
        return shape(await ctx.events.receive())

    assert await _watch_unrelated_run(h, worker, watcher, {"x": 1}) == ["exit", "worker/w", {"x": 1}, None]


async def test_monitoring_a_run_twice_gives_one_exit_event(app: Holdfast, h: Harness, worker: Any) -> None:
    @app.workflow
    async def watcher(ctx: Context) -> Any:
        await ctx.monitor("worker/w")
        await ctx.monitor("worker/w")
        first = await ctx.events.receive()
        await ctx.sleep("for another", "1 hour")
        return [shape(first)[0], len(ctx.events)]

    watched = await h.start(worker, id="w")
    run = await h.start(watcher)
    await h.run_until_idle()
    await watched.send_event("end")
    await h.advance("1 hour")
    assert await run.result(timeout=60) == ["exit", 0]


async def test_several_runs_can_monitor_the_same_run(app: Holdfast, h: Harness, worker: Any) -> None:
    @app.workflow
    async def watcher(ctx: Context) -> Any:
        await ctx.monitor("worker/w")
        return shape(await ctx.events.receive())

    watched = await h.start(worker, id="w")
    runs = [await h.start(watcher) for _ in range(20)]
    await h.run_until_idle()
    await watched.send_event("end", 7)
    await h.run_until_idle()
    assert [await run.result(timeout=60) for run in runs] == [["exit", "worker/w", 7, None]] * 20


@pytest.mark.parametrize("told", ["fine", "fail"])
async def test_monitoring_an_ended_run_gives_an_exit_event_at_once(
    app: Holdfast, h: Harness, worker: Any, told: str
) -> None:
    @app.workflow
    async def late(ctx: Context, told: str) -> Any:
        await ctx.monitor("worker/w")
        return shape(await ctx.events.receive())

    @app.workflow
    async def both(ctx: Context, told: str) -> Any:
        await ctx.spawn(worker, id="w", messages=[("end", told)])
        await ctx.events.receive()
        return await ctx.run(late, told)

    ended = ["fine", None] if told == "fine" else [None, ["errored", "ValueError"]]
    assert await h.crash_everywhere(both, told) == ["exit", "worker/w", *ended]


async def test_a_child_of_ctx_run_can_be_monitored_afterwards(app: Holdfast, h: Harness, worker: Any) -> None:
    """``ctx.run`` alone sends no exit event; ``ctx.monitor`` after it does."""

    @app.workflow
    async def parent(ctx: Context) -> Any:
        await ctx.run(worker, id="w", messages=[("end", "done")])
        before = len(ctx.events)
        await ctx.monitor("worker/w")
        return [before, shape(await ctx.events.receive())]

    assert await h.crash_everywhere(parent) == [0, ["exit", "worker/w", "done", None]]


@pytest.mark.above_the_store
async def test_ctx_run_sends_no_exit_event(app: Holdfast, h: Harness, worker: Any) -> None:
    @app.workflow
    async def parent(ctx: Context) -> int:
        for _ in range(2):
            await ctx.run(worker, messages=[("end", None)])
        return len(ctx.events)

    assert await h.crash_everywhere(parent) == 0


@pytest.mark.parametrize("pid", ["worker/nobody", "nowhere/nobody"])
async def test_watching_an_unknown_run_raises(app: Holdfast, h: Harness, worker: Any, pid: str) -> None:
    @app.workflow
    async def watcher(ctx: Context, pid: str) -> list[Any]:
        found: list[Any] = []
        for watch in (ctx.monitor, ctx.link):
            try:
                await watch(pid)
            except InstanceNotFoundError as error:
                found.append(error.code)
        await ctx.unmonitor(pid)
        await ctx.unlink(pid)
        return found

    assert await h.crash_everywhere(watcher, pid) == ["INSTANCE_NOT_FOUND", "INSTANCE_NOT_FOUND"]


@pytest.mark.above_the_store
@pytest.mark.parametrize("pid", ["", "nothing", None, 5, "worker/", "/x", "worker/a b/c?"])
async def test_watching_a_bad_pid_raises(app: Holdfast, h: Harness, pid: Any) -> None:
    @app.workflow
    async def watcher(ctx: Context, pid: Any) -> list[str]:
        found = []
        for watch in (ctx.monitor, ctx.unmonitor, ctx.link, ctx.unlink):
            try:
                await watch(pid)
            except Exception as error:
                found.append(type(error).__module__.split(".")[0])
        return found

    assert await h.crash_everywhere(watcher, pid) == ["holdfast"] * 4
    assert issubclass(InvalidInstanceIdError, Exception)


async def test_unmonitor_prevents_the_exit_event(app: Holdfast, h: Harness, worker: Any) -> None:
    @app.workflow
    async def watcher(ctx: Context) -> int:
        await ctx.monitor("worker/w")
        await ctx.unmonitor("worker/w")
        await ctx.sleep("a while", "1 hour")
        return len(ctx.events)

    watched = await h.start(worker, id="w")
    run = await h.start(watcher)
    await h.run_until_idle()
    await watched.send_event("end")
    await h.advance("1 hour")
    assert await run.result(timeout=60) == 0


async def test_a_child_that_is_no_longer_monitored_still_gives_its_result(
    app: Holdfast, h: Harness, worker: Any
) -> None:
    @app.workflow
    async def parent(ctx: Context) -> list[Any]:
        child = await ctx.spawn(worker, id="w")
        await ctx.unmonitor(child.pid)
        await ctx.send(child.pid, "end", "done")
        return [await child.result(), len(ctx.events)]

    assert await h.crash_everywhere(parent) == ["done", 0]


async def test_a_run_can_be_monitored_again_after_unmonitor(app: Holdfast, h: Harness, worker: Any) -> None:
    @app.workflow
    async def parent(ctx: Context) -> list[Any]:
        child = await ctx.spawn(worker, id="w")
        await ctx.unmonitor(child.pid)
        await ctx.monitor(child.pid)
        await ctx.send(child.pid, "end", "done")
        first = await ctx.events.receive()
        return [shape(first), len(ctx.events)]

    assert await h.crash_everywhere(parent) == [["exit", "worker/w", "done", None], 0]


async def test_unmonitor_of_a_run_that_is_not_monitored_does_nothing(app: Holdfast, h: Harness, worker: Any) -> None:
    @app.workflow
    async def watcher(ctx: Context) -> str:
        await ctx.spawn(worker, id="w")
        for _ in range(2):
            await ctx.unmonitor("worker/w")
            await ctx.unlink("worker/w")
        return "fine"

    assert await h.crash_everywhere(watcher) == "fine"


async def test_a_run_can_monitor_itself(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def alone(ctx: Context) -> str:
        await ctx.monitor(ctx.info.pid)
        await ctx.link(ctx.info.pid)
        return "fine"

    assert await h.crash_everywhere(alone) == "fine"


async def test_two_runs_monitor_each_other(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def second(ctx: Context, first: str) -> str:
        await ctx.monitor(first)
        return "done"

    @app.workflow
    async def first(ctx: Context) -> Any:
        await ctx.spawn(second, ctx.info.pid, id="s")
        return shape(await ctx.events.receive())

    assert await h.crash_everywhere(first) == ["exit", "second/s", "done", None]


async def test_exit_events_are_kept_in_order_until_they_are_received(app: Holdfast, h: Harness, worker: Any) -> None:
    @app.workflow
    async def parent(ctx: Context) -> list[Any]:
        for name in ("a", "b", "c"):
            child = await ctx.spawn(worker, id=name)
            await ctx.send(child.pid, "end", name)
            await child.result()
        await ctx.sleep("a while", "1 hour")
        return [shape(await ctx.events.receive()) for _ in range(3)]

    assert await h.crash_everywhere(parent) == [["exit", f"worker/{n}", n, None] for n in "abc"]


@pytest.mark.above_the_store
async def test_events_is_always_the_same_channel(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def looks(ctx: Context) -> list[bool]:
        return [ctx.events is ctx.events, isinstance(ctx.events, Channel)]

    assert await finish(h, looks) == [True, True]


@pytest.mark.above_the_store
async def test_events_can_be_iterated(app: Holdfast, h: Harness, worker: Any) -> None:
    @app.workflow
    async def parent(ctx: Context) -> list[Any]:
        for n in range(3):
            await ctx.spawn(worker, n, id=f"w{n}", messages=[("end", n)])
        found: list[Any] = []
        async for event in ctx.events:
            found.append(getattr(event, "result", None))
            if len(found) == 3:
                break
        return sorted(found)

    assert await h.crash_everywhere(parent) == [0, 1, 2]


async def test_monitors_survive_a_worker_restart(app: Holdfast, h: Harness, worker: Any) -> None:
    @app.workflow
    async def watcher(ctx: Context) -> list[Any]:
        await ctx.monitor("worker/a")
        await ctx.monitor("worker/b")
        return [shape(await ctx.events.receive()), shape(await ctx.events.receive())]

    first, second = await h.start(worker, id="a"), await h.start(worker, id="b")
    run = await h.start(watcher)
    for watched, told in ((first, 1), (second, 2)):
        await h.run_until_idle()
        await h.restart()
        await watched.send_event("end", told)
    await h.run_until_idle()
    assert await run.result(timeout=60) == [["exit", "worker/a", 1, None], ["exit", "worker/b", 2, None]]


async def test_monitors_are_carried_over_to_the_watchers_successor(app: Holdfast, h: Harness, worker: Any) -> None:
    @app.workflow
    async def watcher(ctx: Context, n: int = 0) -> Any:
        if n == 0:
            await ctx.spawn(worker, id="w")
        if n < 3:
            raise ctx.continue_as_new(n + 1)
        await ctx.send("worker/w", "end", "done")
        return shape(await ctx.events.receive())

    assert await h.crash_everywhere(watcher) == ["exit", "worker/w", "done", None]


async def test_a_removed_monitor_is_not_carried_over_to_the_successor(app: Holdfast, h: Harness, worker: Any) -> None:
    @app.workflow
    async def watcher(ctx: Context, n: int = 0) -> int:
        if n == 0:
            child = await ctx.spawn(worker, id="w")
            await ctx.unmonitor(child.pid)
            raise ctx.continue_as_new(1)
        await ctx.send("worker/w", "end")
        await ctx.sleep("a while", "1 hour")
        return len(ctx.events)

    assert await h.crash_everywhere(watcher) == 0


async def test_monitors_follow_a_run_that_continues(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def continuing(ctx: Context, n: int) -> str:
        await ctx.sleep("nap", "1 minute")
        if n:
            raise ctx.continue_as_new(n - 1)
        return f"the end of run {ctx.info.run_number}"

    @app.workflow
    async def watcher(ctx: Context) -> Any:
        await ctx.spawn(continuing, 3, id="g")
        return shape(await ctx.events.receive())

    assert await h.crash_everywhere(watcher) == ["exit", "continuing/g", "the end of run 3", None]


async def test_monitors_follow_a_run_that_is_restarted(app: Holdfast, h: Harness, worker: Any) -> None:
    @app.workflow
    async def watcher(ctx: Context) -> Any:
        await ctx.spawn(worker, id="w")
        first = shape(await ctx.events.receive())
        return [first, len(ctx.events)]

    async def drive(harness: Harness, run: Handle[Any]) -> None:
        watched = await at(harness, "worker/w")
        if (await watched.describe()).run_number == 0:
            await watched.restart()
        elif not await has_received(watched, "end"):
            await watched.send_event("end", "second life")

    async def observe(harness: Harness, run: Handle[Any]) -> Any:
        return await run.result(timeout=60)

    assert await observe_with_crashes(h, watcher, observe=observe, drive=drive) == [
        ["exit", "worker/w", "second life", None],
        0,
    ]


async def test_an_exit_event_left_in_the_channel_is_carried_over(app: Holdfast, h: Harness, worker: Any) -> None:
    """The event was in an open channel and was not received, so it is still undelivered."""

    @app.workflow
    async def watcher(ctx: Context, n: int = 0) -> Any:
        events = ctx.events
        if n == 0:
            child = await ctx.spawn(worker, id="w", messages=[("end", "done")])
            await child.result()
            raise ctx.continue_as_new(1)
        return shape(await events.receive())

    assert await h.crash_everywhere(watcher) == ["exit", "worker/w", "done", None]


async def test_an_exit_event_is_carried_over_if_the_channel_was_never_opened(
    app: Holdfast, h: Harness, worker: Any
) -> None:
    @app.workflow
    async def watcher(ctx: Context, n: int = 0) -> Any:
        if n == 0:
            await ctx.spawn(worker, id="w", messages=[("end", "done")])
            await ctx.sleep("a while", "1 hour")
            raise ctx.continue_as_new(1)
        return shape(await ctx.events.receive())

    assert await h.crash_everywhere(watcher) == ["exit", "worker/w", "done", None]


async def test_hundreds_of_exit_events_are_all_received(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def quick(ctx: Context, n: int) -> int:
        return n

    @app.workflow
    async def parent(ctx: Context, count: int) -> int:
        children = await asyncio.gather(*(ctx.spawn(quick, n) for n in range(count)))
        await asyncio.gather(*(child.result() for child in children))
        found = [await ctx.events.receive() for _ in range(count)]
        return sum(event.result for event in found if isinstance(event, Exit))

    assert await finish(h, parent, 600) == sum(range(600))


async def test_hundreds_of_unreceived_exit_events_do_not_hide_the_next_one(
    app: Holdfast, h: Harness, worker: Any
) -> None:
    @app.workflow
    async def quick(ctx: Context, n: int) -> int:
        return n

    @app.workflow
    async def parent(ctx: Context, count: int) -> Any:
        events = ctx.events
        await asyncio.gather(*(ctx.spawn(quick, n) for n in range(count)))
        last = await ctx.spawn(worker, id="w")
        result = await last.result()
        return [result, len(events)]

    run = await h.start(parent, 600)
    await h.run_until_idle()
    await (await at(h, "worker/w")).send_event("end", "the last")
    await h.run_until_idle()
    assert await run.result(timeout=60) == ["the last", 601]


@pytest.mark.above_the_store
async def test_select_waits_for_a_timer_and_the_end_of_a_child(app: Holdfast, h: Harness, worker: Any) -> None:
    @app.workflow
    async def supervisor(ctx: Context) -> list[Any]:
        await ctx.spawn(worker, id="w")
        log = []
        for _ in range(2):
            timer = ctx.after("1 hour")
            chosen = await select(ctx.events, timer)
            log.append("child" if chosen.channel is ctx.events else "timer")
            if log[-1] == "timer":
                await ctx.send("worker/w", "end", "hurry")
        return log

    assert await h.crash_everywhere(supervisor) == ["timer", "child"]


@pytest.mark.above_the_store
async def test_a_supervisor_can_start_a_failed_child_again(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def shaky(ctx: Context) -> int:
        if ctx.info.run_number < 2:
            raise ValueError("shaky")
        return ctx.info.run_number

    @app.workflow
    async def supervisor(ctx: Context) -> list[Any]:
        log = []
        await ctx.spawn(shaky, id="s")
        async for event in ctx.events:
            assert isinstance(event, Exit)
            log.append(event.result if event.error is None else event.error.type)
            if event.error is None:
                break
            await ctx.spawn(shaky, id="s", on_reuse="allow")
        return log

    assert await h.crash_everywhere(supervisor) == ["ValueError", "ValueError", 2]


async def test_a_run_of_another_app_can_be_monitored(make_app: MakeApp) -> None:
    here, there = make_app(), make_app()
    here.remote("far", params=None, result=str)

    @there.workflow
    async def far(ctx: Context) -> str:
        return str((await ctx.wait_for_event("end", type="end")).payload)

    @here.workflow
    async def watcher(ctx: Context) -> Any:
        await ctx.monitor("far/f")
        await ctx.send("far/f", "end", "done")
        return shape(await ctx.events.receive())

    async with here, there:
        await there.start(far, id="f")
        run = await here.start(watcher)
        assert await run.result(timeout=60) == ["exit", "far/f", "done", None]
