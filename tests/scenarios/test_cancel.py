"""Cancellation: requested, raised where the code waits, followed by cleanup, and enforced at the deadline."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

import pytest

from apps import MakeApp
from driving import finish, lose_worker, until_status
from holdfast import (
    Cancel,
    Channel,
    Context,
    Handle,
    Holdfast,
    InstanceNotFoundError,
    InstanceTerminalError,
    InvalidOptionError,
    Retry,
    RunCancelledError,
    RunTerminatedError,
    select,
)
from holdfast.testing import Harness

from .observations import at, cancel_once, end_of, has_received, observe_with_crashes, statuses
from .test_pause import Gate


async def enough(_h: Harness, run: Handle[Any]) -> None:
    """A drive that cancels the run once."""
    await cancel_once(run, "enough")


CANCELLED = ("cancelled", None, "CancelledError", "enough")


@pytest.fixture
def waits(app: Holdfast) -> Any:
    @app.workflow
    async def waits(ctx: Context) -> str:
        return str((await ctx.wait_for_event("go", type="go", timeout="30 days")).payload)

    return waits


@pytest.fixture
def stubborn(app: Holdfast) -> Any:
    """A workflow that ignores cancellation."""

    @app.workflow
    async def stubborn(ctx: Context) -> str:
        while True:
            try:
                await asyncio.sleep(30 * 86400)
            except asyncio.CancelledError:
                ctx.log.info("not now")

    return stubborn


# --- as an exception


async def test_cancellation_is_raised_where_the_code_waits(h: Harness, waits: Any) -> None:
    assert await observe_with_crashes(h, waits, observe=end_of, drive=enough) == CANCELLED


async def test_the_result_of_a_cancelled_run_raises_with_the_reason(h: Harness, waits: Any) -> None:
    run = await h.start(waits)
    await h.run_until_idle()
    await run.cancel("enough")
    await h.run_until_idle()
    with pytest.raises(RunCancelledError, match="enough") as caught:
        await run.result(timeout=60)
    assert (caught.value.error.name, caught.value.error.message) == ("CancelledError", "enough")


@pytest.mark.above_the_store
async def test_cancellation_without_a_reason_has_a_default_message(h: Harness, waits: Any) -> None:
    async def drive(harness: Harness, run: Handle[Any]) -> None:
        await cancel_once(run)

    assert await observe_with_crashes(h, waits, observe=end_of, drive=drive) == (
        "cancelled", None, "CancelledError", "no reason given",
    )  # fmt: skip


async def test_cleanup_may_run_steps_and_sleep(app: Holdfast, h: Harness) -> None:
    cleaned: list[str] = []

    @app.workflow
    async def tidy(ctx: Context) -> None:
        try:
            await ctx.sleep("a while", "30 days")
        finally:
            await ctx.do("clean", cleaned.append, "cleaned")
            await ctx.sleep("dry", "1 hour")
            await ctx.do("polish", cleaned.append, "polished")

    async def observe(harness: Harness, run: Handle[Any]) -> Any:
        steps = {step.step_key: step.status for step in (await run.history()).steps}
        return await end_of(harness, run), steps

    assert await observe_with_crashes(h, tidy, observe=observe, drive=enough) == (
        CANCELLED,
        {"a while": "errored", "clean": "completed", "dry": "completed", "polish": "completed"},
    )
    assert set(cleaned) == {"cleaned", "polished"}


@pytest.mark.above_the_store
async def test_a_run_that_handles_the_cancellation_and_returns_is_complete(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def handles(ctx: Context) -> str:
        try:
            await ctx.sleep("a while", "30 days")
        except asyncio.CancelledError:
            await ctx.sleep("and on", "1 hour")
            return "handled"
        return "slept"

    assert await h.crash_everywhere(handles, drive=enough) == "handled"


@pytest.mark.above_the_store
async def test_a_run_that_fails_in_its_cleanup_is_errored(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def fails(ctx: Context) -> None:
        try:
            await ctx.sleep("a while", "30 days")
        finally:
            raise ValueError("broke while cleaning")

    assert await observe_with_crashes(h, fails, observe=end_of, drive=enough) == (
        "errored", None, "ValueError", "broke while cleaning",
    )  # fmt: skip


async def test_cancellation_abandons_a_step_in_flight(app: Holdfast, h: Harness) -> None:
    gate = Gate()
    cleaned: list[int] = []

    @app.workflow
    async def works(ctx: Context) -> None:
        try:
            await ctx.do("long", gate)
        finally:
            await ctx.do("clean", cleaned.append, 1)

    run = await h.start(works)
    await h.tick()
    await gate.began.wait()
    await run.cancel("enough")
    await h.run_until_idle()
    assert await end_of(h, run) == CANCELLED
    assert cleaned == [1]
    assert {s.step_key: s.status for s in (await run.history()).steps} == {"long": "errored", "clean": "completed"}


async def test_a_cancelled_wait_leaves_its_event_to_the_next_wait(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def handles(ctx: Context) -> Any:
        try:
            await ctx.wait_for_event("first", type="go", timeout="30 days")
        except asyncio.CancelledError:
            return (await ctx.wait_for_event("second", type="go", timeout="30 days")).payload

    async def drive(harness: Harness, run: Handle[Any]) -> None:
        if not await has_received(run, "@cancel"):
            await run.cancel()
            await harness.run_until_idle()
        await run.send_event("go", "for the second", id="go")

    assert await h.crash_everywhere(handles, drive=drive) == "for the second"


# --- where it can be raised


@pytest.mark.above_the_store
async def test_cancellation_is_raised_in_every_task_of_a_task_group(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def grouped(ctx: Context) -> list[str]:
        log: list[str] = []

        async def part(name: str) -> None:
            try:
                await ctx.sleep(name, "30 days")
            except asyncio.CancelledError:
                await ctx.sleep(f"tidy {name}", "1 minute")
                log.append(name)
                raise

        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(part("a"))
                group.create_task(part("b"))
        except asyncio.CancelledError:
            return sorted(log)
        return ["not cancelled"]

    assert await h.crash_everywhere(grouped, drive=enough) == ["a", "b"]


@pytest.mark.above_the_store
async def test_cancellation_is_raised_in_gather(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def gathers(ctx: Context) -> str:
        try:
            await asyncio.gather(ctx.sleep("a", "30 days"), ctx.sleep("b", "30 days"))
        except asyncio.CancelledError:
            return "cancelled"
        return "slept"

    assert await h.crash_everywhere(gathers, drive=enough) == "cancelled"


@pytest.mark.above_the_store
async def test_cancellation_is_raised_in_select_and_loses_no_value(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def selects(ctx: Context) -> list[Any]:
        own: Channel[int] = Channel()
        words = ctx.listen("word")
        try:
            await select(own, words, ctx.after("30 days"))
        except asyncio.CancelledError:
            asyncio.get_running_loop().create_task(own.send(1))
            return [await own.receive(), await words.receive()]
        return []

    async def drive(harness: Harness, run: Handle[Any]) -> None:
        if not await has_received(run, "@cancel"):
            await run.cancel()
            await harness.run_until_idle()
        await run.send_event("word", "kept", id="word")

    assert await h.crash_everywhere(selects, drive=drive) == [1, "kept"]


@pytest.mark.above_the_store
async def test_a_shielded_task_continues_after_cancellation(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def shields(ctx: Context) -> list[str]:
        log: list[str] = []

        async def important() -> None:
            await ctx.sleep("important", "2 hours")
            log.append("important")

        task = asyncio.ensure_future(important())
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            log.append("cancelled")
            await task
        return log

    assert await h.crash_everywhere(shields, drive=enough) == ["cancelled", "important"]


@pytest.mark.above_the_store
@pytest.mark.parametrize("inside", ["timeout", "wait_for"])
async def test_cancellation_inside_a_timeout_is_not_reported_as_a_timeout(
    app: Holdfast, h: Harness, inside: str
) -> None:
    @app.workflow
    async def limited(ctx: Context, inside: str) -> None:
        if inside == "timeout":
            async with asyncio.timeout(86400):
                await ctx.sleep("a while", "30 days")
        else:
            await asyncio.wait_for(ctx.sleep("a while", "30 days"), 86400)

    assert await observe_with_crashes(h, limited, inside, observe=end_of, drive=enough) == CANCELLED


@pytest.mark.above_the_store
async def test_cancellation_in_a_saga_runs_the_compensations(app: Holdfast, h: Harness) -> None:
    undone: list[str] = []

    @app.workflow
    async def books(ctx: Context) -> None:
        async with ctx.saga() as saga:
            for what in ("hotel", "flight"):
                await ctx.do(f"book {what}", str, what)
                saga.add(undone.append, what)
            await ctx.sleep("a while", "30 days")

    async def observe(harness: Harness, run: Handle[Any]) -> Any:
        undo = [(s.step_key, s.status) for s in (await run.history()).steps if s.step_key.startswith("append")]
        return await end_of(harness, run), undo

    found = await observe_with_crashes(h, books, observe=observe, drive=enough)
    assert found == (CANCELLED, [("append", "completed"), ("append#2", "completed")])
    assert undone[:2] == ["flight", "hotel"]


@pytest.mark.above_the_store
async def test_cancellation_interrupts_only_the_main_task(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def two(ctx: Context) -> list[str]:
        log: list[str] = []

        async def beside() -> None:
            await ctx.sleep("beside", "2 hours")
            log.append("beside")

        task = asyncio.ensure_future(beside())
        try:
            await ctx.sleep("main", "30 days")
        except asyncio.CancelledError:
            log.append("main")
        await task
        return log

    assert await h.crash_everywhere(two, drive=enough) == ["main", "beside"]


async def test_an_awaited_child_is_cancelled_with_its_parent(app: Holdfast, h: Harness, waits: Any) -> None:
    @app.workflow
    async def parent(ctx: Context) -> None:
        await ctx.run(waits, id="w", parent_close="abandon")

    async def observe(harness: Harness, run: Handle[Any]) -> Any:
        return await end_of(harness, run), (await end_of(harness, await at(harness, "waits/w")))

    own, childs = await observe_with_crashes(h, parent, observe=observe, drive=enough)
    assert own == CANCELLED
    assert childs == ("cancelled", None, "CancelledError", "the parent that awaited this run was cancelled")


# --- as an event


@pytest.mark.parametrize("deadline", [None, "10 days"])
async def test_the_cancel_event_has_reason_and_deadline(app: Holdfast, h: Harness, deadline: str | None) -> None:
    @app.workflow(cancel="event")
    async def told(ctx: Context) -> Any:
        event = await ctx.events.receive()
        assert isinstance(event, Cancel)
        if event.deadline is None:
            return [event.reason, None]
        assert event.deadline.tzinfo is not None
        return [event.reason, round((event.deadline - ctx.now()) / timedelta(days=1))]

    async def drive(harness: Harness, run: Handle[Any]) -> None:
        await cancel_once(run, "enough", deadline)

    assert await h.crash_everywhere(told, drive=drive) == ["enough", 10 if deadline else None]


@pytest.mark.above_the_store
async def test_with_cancel_event_the_code_is_not_interrupted(app: Holdfast, h: Harness) -> None:
    @app.workflow(cancel="event")
    async def told(ctx: Context) -> list[Any]:
        await ctx.sleep("a while", "2 hours")
        chosen = await select(ctx.events, default=True)
        return [isinstance(chosen.value, Cancel), getattr(chosen.value, "reason", None)]

    assert await h.crash_everywhere(told, drive=enough) == [True, "enough"]


@pytest.mark.above_the_store
async def test_cancellation_is_raised_and_also_an_event(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def both(ctx: Context) -> Any:
        try:
            await ctx.sleep("a while", "30 days")
        except asyncio.CancelledError:
            event = await ctx.events.receive()
            return [type(event).__name__, getattr(event, "reason", None)]

    assert await h.crash_everywhere(both, drive=enough) == ["Cancel", "enough"]


@pytest.mark.above_the_store
async def test_a_supervisor_receives_cancel_events_and_exit_events(app: Holdfast, h: Harness, waits: Any) -> None:
    @app.workflow(cancel="event")
    async def supervisor(ctx: Context) -> list[str]:
        await ctx.spawn(waits, id="w")
        log = []
        for _ in range(2):
            event = await ctx.events.receive()
            log.append(type(event).__name__)
            if isinstance(event, Cancel):
                await ctx.cancel("waits/w", event.reason)
        return log

    assert await h.crash_everywhere(supervisor, drive=enough) == ["Cancel", "Exit"]


# --- the deadline


async def test_a_run_that_has_not_ended_at_the_deadline_is_terminated(h: Harness, stubborn: Any) -> None:
    async def drive(harness: Harness, run: Handle[Any]) -> None:
        await cancel_once(run, "enough", "1 hour")

    assert await observe_with_crashes(h, stubborn, observe=end_of, drive=drive) == ("terminated", None, None, None)


async def test_a_run_is_terminated_exactly_at_the_deadline(h: Harness, stubborn: Any) -> None:
    run = await h.start(stubborn)
    await h.run_until_idle()
    await run.cancel(deadline="1 hour")
    await h.advance("59 minutes")
    assert (await run.status()).status == "waiting"
    await h.advance("1 minute")
    with pytest.raises(RunTerminatedError, match="the run had not ended at the deadline"):
        await run.result(timeout=60)


async def test_a_run_that_cleans_up_before_the_deadline_is_cancelled(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def tidy(ctx: Context) -> None:
        try:
            await ctx.sleep("a while", "30 days")
        finally:
            await ctx.sleep("tidy up", "30 minutes")

    async def drive(harness: Harness, run: Handle[Any]) -> None:
        await cancel_once(run, "enough", "1 hour")

    assert await observe_with_crashes(h, tidy, observe=end_of, drive=drive) == CANCELLED


async def test_the_deadline_terminates_a_run_that_is_paused_after_the_cancellation(h: Harness, stubborn: Any) -> None:
    run = await h.start(stubborn)
    await h.run_until_idle()
    await run.cancel(deadline="1 hour")
    await h.run_until_idle()
    await run.pause()
    await h.advance("59 minutes")
    assert (await run.status()).status == "paused"
    await h.advance("1 minute")
    assert (await run.status()).status == "terminated"


async def test_the_deadline_terminates_a_run_that_was_paused_before_the_cancellation(h: Harness, waits: Any) -> None:
    run = await h.start(waits)
    await h.run_until_idle()
    await run.pause()
    await run.cancel(deadline="1 hour")
    await h.advance("1 hour")
    assert (await run.status()).status == "terminated"


async def test_a_deadline_that_passes_without_a_worker_is_enforced_by_the_next_worker(h: Harness, waits: Any) -> None:
    run = await h.start(waits)
    await h.run_until_idle()
    await lose_worker(h)
    await run.cancel(deadline="1 hour")
    await h.advance("2 hours", run=False)
    assert (await run.status()).status in ("active", "waiting")
    await h.run_until_idle()
    assert (await run.status()).status == "terminated"


async def test_the_deadline_is_enforced_by_a_worker_that_does_not_know_the_workflow(make_app: MakeApp) -> None:
    here = make_app()
    far = here.remote("far", params=int, result=int)
    async with here:
        run = await here.start(far, 1)
        await run.cancel(deadline="50 ms")
        assert await until_status(run, "terminated") == "terminated"


async def test_a_step_in_flight_does_not_delay_the_deadline(app: Holdfast, h: Harness) -> None:
    gate = Gate()

    @app.workflow
    async def works(ctx: Context) -> Any:
        try:
            await ctx.sleep("a while", "30 days")
        except asyncio.CancelledError:
            return await ctx.do("long", gate)

    run = await h.start(works)
    await h.run_until_idle()
    await run.cancel(deadline="1 minute")
    await h.tick()
    await gate.began.wait()
    await h.advance("1 minute")
    assert (await run.status()).status == "terminated"


async def test_the_earliest_deadline_wins(h: Harness, stubborn: Any) -> None:
    run = await h.start(stubborn)
    await h.run_until_idle()
    await run.cancel(deadline="2 hours")
    await run.cancel(deadline="1 hour")
    await run.cancel(deadline="3 hours")
    await h.advance("1 hour")
    assert (await run.status()).status == "terminated"


async def test_a_deadline_applies_to_the_successor(app: Holdfast, h: Harness) -> None:
    """A workflow cannot evade its deadline with ``continue_as_new``."""

    @app.workflow
    async def evades(ctx: Context, n: int = 0) -> None:
        try:
            await ctx.sleep("a while", "30 days")
        except asyncio.CancelledError:
            raise ctx.continue_as_new(n + 1) from None

    async def drive(harness: Harness, run: Handle[Any]) -> None:
        if (await run.describe()).run_number == 0:
            await cancel_once(run, "enough", "1 hour")

    async def observe(harness: Harness, run: Handle[Any]) -> Any:
        return (await run.status()).status, (await run.describe()).run_number

    assert await observe_with_crashes(h, evades, observe=observe, drive=drive) == ("terminated", 1)


async def test_watchers_receive_an_exit_when_the_deadline_passes(app: Holdfast, h: Harness, stubborn: Any) -> None:
    @app.workflow
    async def parent(ctx: Context) -> list[Any]:
        await ctx.spawn(stubborn, id="s")
        await ctx.sleep("until it is under way", "1 minute")
        await ctx.cancel("stubborn/s", deadline="1 hour")
        event: Any = await ctx.events.receive()
        return [event.error.status, event.error.message]

    async def observe(harness: Harness, run: Handle[Any]) -> Any:
        return await run.result(timeout=60)

    assert await observe_with_crashes(h, parent, observe=observe) == [
        "terminated", "the run was terminated (cancellation was requested, and the run had not ended at the deadline)",
    ]  # fmt: skip


# --- before the run begins, repeated, after its end


@pytest.mark.parametrize("delay", [None, "1 hour"])
async def test_a_run_cancelled_before_it_begins_runs_no_code(app: Holdfast, h: Harness, delay: str | None) -> None:
    ran: list[int] = []

    @app.workflow
    async def never(ctx: Context) -> None:
        await ctx.do("run", ran.append, 1)

    run = await h.start(never, start_delay=delay)
    await run.cancel("enough")
    await h.run_until_idle()
    assert await end_of(h, run) == CANCELLED
    assert ran == []


async def test_a_cancel_event_sent_before_the_run_begins_is_received(app: Holdfast, h: Harness) -> None:
    @app.workflow(cancel="event")
    async def told(ctx: Context) -> Any:
        return getattr(await ctx.events.receive(), "reason", None)

    run = await h.start(told, start_delay="1 hour")
    await run.cancel("enough")
    await h.advance("1 hour")
    assert await run.result(timeout=60) == "enough"


async def test_a_second_cancellation_does_not_interrupt_the_cleanup(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def tidy(ctx: Context) -> list[Any]:
        try:
            await ctx.sleep("a while", "30 days")
        except asyncio.CancelledError:
            await ctx.sleep("tidy up", "1 hour")
        return [getattr(await ctx.events.receive(), "reason", None) for _ in range(2)]

    async def drive(harness: Harness, run: Handle[Any]) -> None:
        for n in range(2):
            if sum(event.type == "@cancel" for event in (await run.history()).events) == n:
                await run.cancel(f"reason {n}")
                await harness.run_until_idle()

    assert await h.crash_everywhere(tidy, drive=drive) == ["reason 0", "reason 1"]


@pytest.mark.parametrize("how", ["complete", "terminated", "cancelled"])
async def test_cancelling_an_ended_run_raises_and_keeps_its_status(h: Harness, waits: Any, how: str) -> None:
    run = await h.start(waits)
    await h.run_until_idle()
    await {"complete": lambda: run.send_event("go"), "terminated": run.terminate, "cancelled": run.cancel}[how]()
    await h.run_until_idle()
    assert (await run.status()).status == how
    with pytest.raises(InstanceTerminalError) as caught:
        await run.cancel()
    assert caught.value.code == "INSTANCE_TERMINAL"
    assert (await run.status()).status == how


async def test_cancelling_an_unknown_run_raises(app: Holdfast, h: Harness, waits: Any) -> None:
    run = await h.start(waits, id="here")
    run.id = "nowhere"
    with pytest.raises(InstanceNotFoundError):
        await run.cancel()


@pytest.mark.above_the_store
@pytest.mark.parametrize(
    ("options", "named"),
    [({"reason": 5}, "reason"), ({"deadline": "soon"}, "deadline"), ({"deadline": -1}, "deadline")],
)
async def test_a_bad_reason_or_deadline_is_refused(
    app: Holdfast, h: Harness, waits: Any, options: Any, named: str
) -> None:
    @app.workflow
    async def cancels(ctx: Context, options: Any) -> str:
        try:
            await ctx.cancel("waits/w", **options)
        except InvalidOptionError as error:
            return str(error)
        return "cancelled"

    run = await h.start(waits, id="w")
    with pytest.raises(InvalidOptionError, match=named):
        await run.cancel(**options)
    assert named in await h.crash_everywhere(cancels, options)
    assert (await h.app.get(waits, "w")) is not None


async def test_a_paused_run_is_cancelled_when_it_is_resumed(h: Harness, waits: Any) -> None:
    run = await h.start(waits)
    await h.run_until_idle()
    await run.pause()
    await run.cancel("enough")
    await h.run_until_idle()
    assert (await run.status()).status == "paused"
    await run.resume()
    await h.run_until_idle()
    assert await end_of(h, run) == CANCELLED


@pytest.mark.parametrize("behind", [600, 1200])
async def test_a_full_mailbox_does_not_hide_a_cancellation(h: Harness, waits: Any, behind: int) -> None:
    run = await h.start(waits)
    await h.run_until_idle()
    for n in range(behind):
        await run.send_event("unread", n)
    await run.cancel("enough")
    await h.run_until_idle()
    assert await end_of(h, run) == CANCELLED


# --- with retries and schedules


async def test_a_cancelled_workflow_is_not_retried(h: Harness, waits: Any) -> None:
    found = await observe_with_crashes(h, waits, observe=end_of, drive=enough, retry=Retry(5, "1 minute"))
    assert found == CANCELLED


async def test_a_workflow_can_be_cancelled_between_two_attempts(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def fails(ctx: Context) -> None:
        raise ValueError("not yet")

    run = await h.start(fails, retry=Retry(5, "1 hour"))
    await h.run_until_idle()
    assert (await run.status()).status == "waiting"
    await run.cancel("enough")
    await h.run_until_idle()
    assert await end_of(h, run) == CANCELLED


async def test_cancel_ends_a_schedule(app: Holdfast, h: Harness) -> None:
    ticks: list[int] = []

    @app.workflow
    async def ticking(ctx: Context) -> None:
        await ctx.do("tick", ticks.append, ctx.info.run_number)

    run = await h.start(ticking, cron="0 * * * *")
    await h.advance("3 hours")
    await run.cancel("enough")
    await h.advance("3 hours")
    assert await end_of(h, run) == CANCELLED
    assert ticks == [0, 1, 2]


# --- by another run


async def test_a_run_can_cancel_another_run(app: Holdfast, h: Harness, waits: Any) -> None:
    @app.workflow
    async def cancels(ctx: Context) -> list[Any]:
        child = await ctx.spawn(waits, id="w")
        await ctx.cancel(child.pid, "by my parent")
        event: Any = await ctx.events.receive()
        return [event.error.status, event.error.message]

    assert await h.crash_everywhere(cancels) == ["cancelled", "by my parent"]


async def test_cancelling_an_ended_or_unknown_run_raises_in_the_code(app: Holdfast, h: Harness, waits: Any) -> None:
    @app.workflow
    async def cancels(ctx: Context) -> list[str]:
        await ctx.run(waits, id="w", messages=[("go", 1)])
        found = []
        for pid in ("waits/w", "waits/nobody"):
            try:
                await ctx.cancel(pid)
            except (InstanceTerminalError, InstanceNotFoundError) as error:
                found.append(error.code)
        return found

    assert await h.crash_everywhere(cancels) == ["INSTANCE_TERMINAL", "INSTANCE_NOT_FOUND"]


async def test_a_run_can_cancel_itself(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def own(ctx: Context) -> None:
        await ctx.cancel(ctx.info.pid, "enough")
        await ctx.sleep("a while", "30 days")

    assert await observe_with_crashes(h, own, observe=end_of) == CANCELLED


async def test_cancelling_the_root_cancels_the_whole_tree(app: Holdfast, h: Harness) -> None:
    """Each run waits for the cleanup of its children before it ends."""

    @app.workflow
    async def node(ctx: Context, depth: int) -> None:
        if depth:
            async with asyncio.TaskGroup() as group:
                for side in "lr"[depth - 1 :]:
                    name = f"{ctx.info.instance_id}{side}"
                    group.create_task(ctx.run("node", depth - 1, id=name, wait_for_cancellation=True))
        await ctx.sleep("a while", "30 days")

    async def observe(harness: Harness, run: Handle[Any]) -> Any:
        items = (await harness.app.list(node, limit=100)).items
        return len(items), {item.details.status for item in items}

    assert await observe_with_crashes(h, node, 2, observe=observe, drive=enough) == (4, {"cancelled"})


async def test_cleanup_and_deadline_work_with_a_real_worker(make_app: MakeApp) -> None:
    """One run cleans up; another run does not end and is terminated at the deadline."""
    app = make_app()
    cleaned: list[datetime] = []

    @app.workflow
    async def tidy(ctx: Context, stubborn: bool) -> None:
        try:
            await ctx.sleep("a while", "1 hour")
        except asyncio.CancelledError:
            await ctx.do("clean", cleaned.append, ctx.now())
            if stubborn:
                await ctx.sleep("and on", "1 hour")
            raise

    async with app:
        good, bad = await app.start(tidy, False), await app.start(tidy, True)
        for run, patience in ((good, "30 seconds"), (bad, "1 second")):
            await until_status(run, "waiting")
            await run.cancel("enough", patience)
        with pytest.raises(RunCancelledError):
            await good.result(timeout=60)
        with pytest.raises(RunTerminatedError):
            await bad.result(timeout=60)
    assert len(cleaned) == 2


async def test_children_of_a_cancelled_run_end_as_their_policies_say(app: Holdfast, h: Harness, waits: Any) -> None:
    @app.workflow
    async def parent(ctx: Context) -> None:
        await ctx.spawn(waits, id="t")
        await ctx.spawn(waits, id="c", parent_close="request_cancel")
        await ctx.spawn(waits, id="a", parent_close="abandon")
        await ctx.sleep("a while", "30 days")

    async def observe(harness: Harness, run: Handle[Any]) -> Any:
        return await statuses(harness, "waits/t", "waits/c", "waits/a")

    assert await observe_with_crashes(h, parent, observe=observe, drive=enough) == {
        "waits/t": "terminated",
        "waits/c": "cancelled",
        "waits/a": "waiting",
    }


async def test_cancelling_a_complete_run_raises(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def quick(ctx: Context) -> str:
        return "done"

    assert await finish(h, quick, id="q") == "done"
    with pytest.raises(InstanceTerminalError):
        await (await at(h, "quick/q")).cancel()
