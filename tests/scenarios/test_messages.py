"""Messages: each run has one mailbox, which loses no message, whenever it is sent or listened for."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import pytest

from apps import MakeApp
from driving import finish, until, until_status
from holdfast import (
    ChannelClosed,
    Context,
    Handle,
    Holdfast,
    InstanceNotFoundError,
    InstanceTerminalError,
    InvalidInstanceIdError,
    InvalidNameError,
    Message,
    PayloadTooLargeError,
    WaitForEventTimeoutError,
    WorkerConfig,
    select,
)
from holdfast.testing import Harness

from .message_drives import MIB, crash_everywhere, send_at_once, send_one_by_one

# --- the inbox


async def test_the_inbox_receives_every_message_in_the_order_sent(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def reader(ctx: Context) -> list[Any]:
        return [[m.topic, m.payload, m.sender] for m in [await ctx.inbox.receive() for _ in range(4)]]

    sent = [("a", 1), ("b", {"x": [2]}), ("a", None), ("c.d-e_f", "text")]

    assert await crash_everywhere(h, reader, None, *sent) == [[topic, payload, None] for topic, payload in sent]


async def test_the_inbox_receives_messages_that_came_before_it_was_opened(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def late(ctx: Context) -> list[Any]:
        await ctx.sleep("nap", "1 hour")
        return [(await ctx.inbox.receive()).payload for _ in range(3)]

    assert await crash_everywhere(h, late, None, ("a", 1), ("b", 2), ("a", 3)) == [1, 2, 3]


async def test_a_message_has_its_time_of_sending_and_a_unique_id(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def reader(ctx: Context) -> list[Any]:
        first, second = await ctx.inbox.receive(), await ctx.inbox.receive()
        return [(second.sent_at - first.sent_at).total_seconds(), first.id != second.id, bool(first.id)]

    run = await h.start(reader)
    await run.send_event("a")
    await h.advance("90 seconds")
    await run.send_event("a")
    await h.run_until_idle()

    assert await run.result(timeout=60) == [90, True, True]


@pytest.mark.above_the_store
async def test_a_message_is_an_immutable_record(app: Holdfast, h: Harness) -> None:
    seen: list[Message] = []

    @app.workflow
    async def reader(ctx: Context) -> None:
        seen.append(await ctx.inbox.receive())

    run = await h.start(reader, messages=[("a", {"n": 1})])
    await h.run_until_idle()
    await run.result(timeout=60)

    [message] = seen
    assert (message.topic, message.payload, message.sender) == ("a", {"n": 1}, None)
    assert abs(message.sent_at - h.now()) < timedelta(seconds=1)
    with pytest.raises(AttributeError):
        message.topic = "b"  # type: ignore[misc]


# --- listening


async def test_a_listener_receives_only_the_payloads_of_its_topic(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> list[Any]:
        jobs, end = ctx.listen("job"), ctx.listen("end")
        seen = []
        while (chosen := await select(jobs, end)).channel is jobs:
            seen.append(chosen.value)
        return [*seen, chosen.value]

    sent = [("job", 1), ("jobs", "no"), ("job.x", "no"), ("Job", "no"), ("job", 2), ("end", "over")]

    assert await h.crash_everywhere(flow, drive=send_one_by_one(*sent)) == [1, 2, "over"]


@pytest.mark.above_the_store
async def test_a_listener_can_receive_whole_messages(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> list[Any]:
        message = await ctx.listen("job", messages=True).receive()
        return [message.topic, message.payload, message.sender]

    assert await crash_everywhere(h, flow, None, ("job", [1, 2])) == ["job", [1, 2], None]


async def test_messages_before_the_listener_are_kept_for_it(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def late(ctx: Context) -> list[Any]:
        await ctx.sleep("nap", "1 hour")
        jobs = ctx.listen("job")
        return [await jobs.receive() for _ in range(3)]

    assert await crash_everywhere(h, late, None, ("job", 1), ("other", 0), ("job", 2), ("job", 3)) == [1, 2, 3]


@pytest.mark.above_the_store
async def test_the_same_topic_is_the_same_channel(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> list[bool]:
        jobs, inbox = ctx.listen("job"), ctx.inbox
        same = [ctx.listen("job") is jobs, ctx.listen("other") is jobs, ctx.inbox is inbox]
        ctx.unlisten(jobs)
        ctx.unlisten(inbox)
        return [*same, ctx.listen("job") is jobs, ctx.inbox is inbox]

    assert await crash_everywhere(h, flow) == [True, False, True, False, False]


@pytest.mark.above_the_store
async def test_a_topic_with_a_listener_never_reaches_the_inbox(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> list[Any]:
        inbox, jobs = ctx.inbox, ctx.listen("job")
        rest = [(await inbox.receive()).topic for _ in range(2)]
        return [rest, [await jobs.receive() for _ in range(2)]]

    sent = [("job", 1), ("a", 0), ("job", 2), ("b", 0)]

    assert await crash_everywhere(h, flow, None, *sent) == [["a", "b"], [1, 2]]


@pytest.mark.above_the_store
async def test_a_listener_receives_later_messages_of_its_topic_instead_of_the_inbox(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> list[Any]:
        first = (await ctx.inbox.receive()).payload
        jobs = ctx.listen("job")
        return [first, await jobs.receive(), (await ctx.inbox.receive()).payload]

    sent = [("job", 1), ("other", 2), ("job", 3)]

    assert await h.crash_everywhere(flow, drive=send_one_by_one(*sent)) == [1, 3, 2]


@pytest.mark.above_the_store
async def test_receivers_of_one_channel_are_served_in_turn(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> list[Any]:
        jobs = ctx.listen("job")
        return await asyncio.gather(*(jobs.receive() for _ in range(3)))

    assert await h.crash_everywhere(flow, drive=send_one_by_one(("job", "a"), ("job", "b"), ("job", "c"))) == [
        "a",
        "b",
        "c",
    ]


@pytest.mark.above_the_store
async def test_a_receive_that_is_cancelled_loses_nothing(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> list[Any]:
        jobs = ctx.listen("job")
        try:
            await asyncio.wait_for(jobs.receive(), 5)
        except TimeoutError:
            await ctx.sleep("nap", "1 minute")
        return [await jobs.receive(), await jobs.receive()]

    run = await h.start(flow)
    await h.advance("10 seconds")
    for n in (1, 2):
        await run.send_event("job", n)
    await h.restart()
    await h.advance("2 minutes")

    assert await run.result(timeout=60) == [1, 2]


# --- unlisten


@pytest.mark.above_the_store
async def test_unlisten_leaves_unread_messages_to_the_next_listener(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> list[Any]:
        jobs = ctx.listen("job")
        first = await jobs.receive()
        await asyncio.sleep(60)  # the other messages arrive during this sleep
        ctx.unlisten(jobs)
        again = ctx.listen("job", messages=True)
        return [first, *[(await again.receive()).payload for _ in range(2)]]

    assert await crash_everywhere(h, flow, None, ("job", 1), ("job", 2), ("job", 3)) == [1, 2, 3]


@pytest.mark.above_the_store
async def test_unread_messages_go_to_the_inbox_in_order_after_unlisten(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> list[Any]:
        one, two = ctx.listen("one"), ctx.listen("two")
        await asyncio.sleep(60)
        ctx.unlisten(two)
        ctx.unlisten(one)
        return [(await ctx.inbox.receive()).payload for _ in range(4)]

    assert await crash_everywhere(h, flow, None, ("one", 1), ("two", 2), ("one", 3), ("two", 4)) == [1, 2, 3, 4]


@pytest.mark.above_the_store
async def test_a_closed_inbox_leaves_its_messages_to_listeners(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> list[Any]:
        inbox = ctx.inbox
        await asyncio.sleep(60)
        ctx.unlisten(inbox)
        jobs = ctx.listen("job")
        return [await jobs.receive(), await jobs.receive(), (await ctx.inbox.receive()).payload]

    assert await crash_everywhere(h, flow, None, ("job", 1), ("other", 2), ("job", 3)) == [1, 3, 2]


@pytest.mark.above_the_store
async def test_unlisten_wakes_blocked_receivers(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> list[Any]:
        jobs = ctx.listen("job")

        async def wait() -> str:
            try:
                return str(await jobs.receive())
            except ChannelClosed as error:
                return error.code

        waiting = [asyncio.create_task(wait()) for _ in range(2)]
        await ctx.sleep("nap", "1 minute")
        ctx.unlisten(jobs)
        ctx.unlisten(jobs)
        return [await asyncio.gather(*waiting), jobs.closed, (await select(jobs)).ok]

    assert await crash_everywhere(h, flow) == [["CHANNEL_CLOSED"] * 2, True, False]


@pytest.mark.above_the_store
async def test_closing_a_message_channel_stops_listening(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> list[Any]:
        jobs = ctx.listen("job")
        await asyncio.sleep(60)
        jobs.close()
        jobs.close()
        return [len(jobs), (await ctx.wait_for_event("job", type="job")).payload]

    assert await crash_everywhere(h, flow, None, ("job", 1)) == [0, 1]


@pytest.mark.above_the_store
async def test_iteration_ends_with_the_channel(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> list[Any]:
        jobs = ctx.listen("job")
        seen = []
        async for job in jobs:
            seen.append(job)
            if job == 3:
                ctx.unlisten(jobs)
        return seen

    assert await crash_everywhere(h, flow, None, ("job", 1), ("job", 2), ("job", 3), ("job", 4)) == [1, 2, 3]


@pytest.mark.above_the_store
async def test_sending_into_a_message_channel_raises(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> str:
        try:
            await ctx.listen("job").send(1)
        except ChannelClosed as error:
            return str(error)
        return "sent"

    assert "ctx.send" in await finish(h, flow)


# --- waits for events use the same mailbox


async def test_a_wait_consumes_a_message_that_its_listener_has_not_received(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> list[Any]:
        jobs = ctx.listen("job")
        await asyncio.sleep(60)
        event = await ctx.wait_for_event("first", type="job")
        return [event.payload, await jobs.receive()]

    assert await crash_everywhere(h, flow, None, ("job", 1), ("job", 2)) == [1, 2]


async def test_a_wait_consumes_an_event_that_the_inbox_has_not_received(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> list[Any]:
        inbox = ctx.inbox
        await asyncio.sleep(60)
        event = await ctx.wait_for_event("b", type="b")
        return [event.payload, (await inbox.receive()).payload, (await inbox.receive()).payload]

    assert await crash_everywhere(h, flow, None, ("a", 1), ("b", 2), ("c", 3)) == [2, 1, 3]


async def test_a_message_of_a_run_ends_a_wait(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def waiter(ctx: Context) -> Any:
        return (await ctx.wait_for_event("go", type="go")).payload

    @app.workflow
    async def sender(ctx: Context) -> Any:
        child = await ctx.spawn(waiter)
        await ctx.send(child.pid, "go", {"by": ctx.info.pid})
        return await child.result()

    assert await crash_everywhere(h, sender) == {"by": "sender/crash-everywhere"}


async def test_a_wait_times_out_although_other_messages_arrive(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> list[Any]:
        noise = ctx.listen("noise")
        try:
            await ctx.wait_for_event("go", type="go", timeout="1 minute")
        except WaitForEventTimeoutError:
            return [await noise.receive(), await noise.receive()]
        return []

    assert await crash_everywhere(h, flow, None, ("noise", 1), ("noise", 2)) == [1, 2]


# --- select


async def test_select_waits_for_messages_and_a_timer(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> list[Any]:
        jobs, inbox, timeout = ctx.listen("job"), ctx.inbox, ctx.after("1 hour")
        seen: list[Any] = []
        while (chosen := await select(jobs, inbox, timeout)).channel is not timeout:
            seen.append(chosen.value if chosen.channel is jobs else chosen.value.payload)
        return seen

    assert await h.crash_everywhere(flow, drive=send_one_by_one(("job", 1), ("x", 2), ("job", 3))) == [1, 2, 3]


@pytest.mark.above_the_store
async def test_select_prefers_the_channel_listed_first(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> list[Any]:
        low, high = ctx.listen("low"), ctx.listen("high")
        await asyncio.sleep(60)
        return [(await select(high, low)).value for _ in range(3)]

    assert await crash_everywhere(h, flow, None, ("low", 1), ("high", 2), ("high", 3)) == [2, 3, 1]


@pytest.mark.above_the_store
async def test_select_with_a_default_does_not_wait(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> list[Any]:
        jobs = ctx.listen("job")
        nothing = await select(jobs, default=True)
        await asyncio.sleep(60)
        something = await select(jobs, default=True)
        return [nothing.channel is None, nothing.ok, something.channel is jobs, something.value]

    run = await h.start(flow)
    await h.run_until_idle()
    await run.send_event("job", 1)
    await h.advance("1 minute")

    assert await run.result(timeout=60) == [True, False, True, 1]


@pytest.mark.above_the_store
async def test_select_leaves_the_messages_it_did_not_choose(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> list[Any]:
        a, b = ctx.listen("a"), ctx.listen("b")
        first = await select(a, b)
        return [first.value, await (b if first.channel is a else a).receive()]

    assert await crash_everywhere(h, flow, None, ("b", 1), ("a", 2)) == [1, 2]


async def test_a_message_sent_before_a_timer_was_due_wins_although_no_worker_ran(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> list[str]:
        jobs, timeout = ctx.listen("job"), ctx.after("10 seconds")
        return ["timer" if (await select(timeout, jobs)).channel is timeout else "message" for _ in range(2)]

    early, late = await h.start(flow), await h.start(flow)
    await h.run_until_idle()
    await h.advance("9 seconds", run=False)
    await early.send_event("job")
    await h.advance("9 seconds", run=False)
    await late.send_event("job")
    await h.restart()
    await h.run_until_idle()

    assert await early.result(timeout=60) == ["message", "timer"]
    assert await late.result(timeout=60) == ["timer", "message"]


@pytest.mark.above_the_store
@pytest.mark.parametrize("persist", ["step", "task"])
async def test_messages_work_the_same_with_each_persist_mode(app: Holdfast, h: Harness, persist: Any) -> None:
    @app.step
    async def double(n: int) -> int:
        return 2 * n

    @app.workflow(persist=persist)
    async def flow(ctx: Context) -> list[int]:
        jobs = ctx.listen("job")
        found = [await double(await jobs.receive()) for _ in range(2)]
        await ctx.send(ctx.info.pid, "job", 9)
        return [*found, await double(await jobs.receive()), await double(await jobs.receive())]

    assert await crash_everywhere(h, flow, None, ("job", 1), ("job", 2), ("job", 3)) == [2, 4, 6, 18]


# --- between runs


async def test_a_message_names_the_run_that_sent_it(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def echo(ctx: Context) -> None:
        message = await ctx.inbox.receive()
        assert message.sender is not None
        await ctx.send(message.sender, "echo", [message.topic, message.payload, message.sender])

    @app.workflow
    async def caller(ctx: Context) -> list[Any]:
        child = await ctx.spawn(echo)
        await ctx.send(child.pid, "hello", {"n": 1})
        answer = await ctx.listen("echo", messages=True).receive()
        return [answer.payload, answer.sender == child.pid]

    assert await crash_everywhere(h, caller) == [["hello", {"n": 1}, "caller/crash-everywhere"], True]


async def test_a_run_can_send_a_message_to_itself(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> list[Any]:
        for n in range(3):
            await ctx.send(ctx.info.pid, "note", n)
        notes = [await ctx.listen("note", messages=True).receive() for _ in range(3)]
        return [[note.payload, note.sender == ctx.info.pid] for note in notes]

    assert await crash_everywhere(h, flow) == [[0, True], [1, True], [2, True]]


@pytest.mark.promise("messages-once-in-order")
async def test_each_senders_messages_keep_their_order(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def sender(ctx: Context, target: str) -> None:
        for n in range(3):
            await ctx.send(target, "n", n)
            await asyncio.sleep(1)

    @app.workflow
    async def receiver(ctx: Context) -> dict[str, list[int]]:
        children = [await ctx.spawn(sender, ctx.info.pid, id=f"s{n}") for n in range(2)]
        numbers = ctx.listen("n", messages=True)
        seen: dict[str, list[int]] = {child.pid: [] for child in children}
        for _ in range(6):
            message = await numbers.receive()
            seen[message.sender or ""].append(message.payload)
        for child in children:
            await child.result()
        return seen

    assert await crash_everywhere(h, receiver) == {f"sender/s{n}": [0, 1, 2] for n in range(2)}


async def test_messages_sent_at_once_keep_their_order(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> list[Any]:
        await asyncio.gather(*(ctx.send(ctx.info.pid, "n", n) for n in range(10)))
        numbers = ctx.listen("n")
        return [await numbers.receive() for _ in range(10)]

    assert await crash_everywhere(h, flow) == [*range(10)]


@pytest.mark.promise("messages-once-in-order")
async def test_a_message_is_delivered_once_with_a_crash_at_any_commit(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def counter(ctx: Context) -> int:
        total = 0
        more, stop = ctx.listen("more"), ctx.listen("stop")
        while (chosen := await select(more, stop)).channel is more:
            total += chosen.value
        return total

    @app.workflow
    async def sender(ctx: Context) -> int:
        child = await ctx.spawn(counter)
        for n in range(1, 4):
            await ctx.send(child.pid, "more", n)
            await ctx.sleep(f"nap {n}", "1 second")
        await ctx.send(child.pid, "stop")
        return await child.result()

    assert await crash_everywhere(h, sender) == 6


async def test_two_runs_exchange_messages_in_turn(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def pong(ctx: Context) -> int:
        balls = ctx.listen("ping", messages=True)
        async for ball in balls:
            assert ball.sender is not None
            await ctx.send(ball.sender, "pong", ball.payload + 1)
            if ball.payload >= 4:
                break
        return ball.payload  # type: ignore[no-any-return]

    @app.workflow
    async def ping(ctx: Context) -> list[int]:
        other = await ctx.spawn(pong)
        back = ctx.listen("pong")
        ball = 0
        while ball < 5:
            await ctx.send(other.pid, "ping", ball)
            ball = await back.receive() + 1
        return [ball, await other.result()]

    assert await crash_everywhere(h, ping) == [6, 4]


# --- ended and unknown receivers


async def test_sending_to_an_ended_run_raises_in_the_code(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def short(ctx: Context) -> None: ...

    @app.workflow
    async def flow(ctx: Context) -> list[str]:
        child = await ctx.spawn(short, id="short-1")
        await child.result()
        try:
            await ctx.send(child.pid, "go")
        except InstanceNotFoundError as error:
            return [error.code, str(error)]
        return []

    assert await crash_everywhere(h, flow) == ["INSTANCE_NOT_FOUND", "run short/short-1 has ended"]


async def test_sending_to_an_unknown_run_raises_in_the_code(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> list[str]:
        found = []
        for pid in ("flow/nobody", "no-such-workflow/x"):
            try:
                await ctx.send(pid, "go")
            except InstanceNotFoundError as error:
                found.append(str(error))
        return found

    assert await crash_everywhere(h, flow) == [
        "run flow/nobody does not exist",
        "run no-such-workflow/x does not exist",
    ]


@pytest.mark.above_the_store
async def test_an_uncaught_send_error_fails_the_run(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> None:
        await ctx.send("flow/nobody", "go")

    run = await h.start(flow)
    await h.run_until_idle()

    status = await run.status()
    assert (status.status, status.error and status.error.name) == ("errored", "InstanceNotFoundError")


@pytest.mark.above_the_store
@pytest.mark.parametrize("pid", ["", "nobody", "/", "flow/", "/x", "flow/a b", "flow/a/b", "-flow/x", None, 5, b"a/b"])
async def test_a_bad_pid_is_refused(app: Holdfast, h: Harness, pid: Any) -> None:
    @app.workflow
    async def flow(ctx: Context) -> str:
        try:
            await ctx.send(pid, "go")
        except (InvalidInstanceIdError, InvalidNameError) as error:
            return error.code
        return "sent"

    assert await crash_everywhere(h, flow) in ("INVALID_INSTANCE_ID", "INVALID_NAME")


async def test_sending_through_the_handle_of_an_ended_run_raises(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def short(ctx: Context) -> None: ...

    run = await h.start(short)
    await h.run_until_idle()

    with pytest.raises(InstanceTerminalError) as caught:
        await run.send_event("go")
    assert caught.value.code == "INSTANCE_TERMINAL"


# --- many and large messages


async def test_a_full_mailbox_does_not_delay_another_topic(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def busy(ctx: Context) -> list[Any]:
        work, urgent = ctx.listen("work"), ctx.listen("urgent")
        seen = [(await urgent.receive()) for _ in range(3)]
        return [seen, [await work.receive() for _ in range(3)]]

    run = await h.start(busy, messages=[("work", n) for n in range(20_000)])
    await h.run_until_idle()
    for n in range(3):
        begun = time.process_time()
        await run.send_event("urgent", n)
        await h.restart()
        await h.run_until_idle()
        assert time.process_time() - begun < 5

    assert await run.result(timeout=60) == [[0, 1, 2], [0, 1, 2]]


async def test_more_messages_than_a_channel_holds_come_out_in_order(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def reader(ctx: Context, count: int) -> bool:
        numbers = ctx.listen("n")
        await asyncio.sleep(1)
        return [await numbers.receive() for _ in range(count)] == [*range(count)]

    run = await h.start(reader, 3500, messages=[("n", n) for n in range(3500)])
    await h.run_until_idle()
    await h.restart()
    await h.advance("1 second")

    assert await run.result(timeout=60)


async def test_a_run_is_not_slowed_by_a_full_mailbox_without_a_listener(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def deaf(ctx: Context) -> str:
        await ctx.sleep("nap", "1 hour")
        return str((await ctx.wait_for_event("go", type="go")).payload)

    run = await h.start(deaf, messages=[("noise", n) for n in range(20_000)])
    await run.send_event("go", "on")
    begun = time.process_time()
    await h.advance("1 hour")

    assert await run.result(timeout=60) == "on"
    assert time.process_time() - begun < 10


async def test_the_history_shows_undelivered_messages(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def picky(ctx: Context) -> Any:
        return await ctx.listen("good").receive()

    run = await h.start(picky)
    for topic, payload in (("bad", 1), ("good", 2), ("good", 3)):
        await run.send_event(topic, payload)
    await h.run_until_idle()

    assert await run.result(timeout=60) == 2
    events = (await run.history()).events
    assert [(e.type, e.payload, e.delivered_at is not None) for e in events] == [
        ("bad", 1, False),
        ("good", 2, True),
        ("good", 3, False),
    ]
    assert [e.sender for e in events] == [None] * 3


async def test_the_history_shows_sender_and_receiver_of_a_message(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> None:
        await ctx.send(ctx.info.pid, "note", 1)
        await ctx.send(ctx.info.pid, "events", 2)
        await ctx.listen("note").receive()
        await ctx.inbox.receive()

    run = await h.start(flow, id="one")
    await h.run_until_idle()
    history = await run.history()

    assert [(e.type, e.sender, e.consumed_by_step_key) for e in history.events] == [
        ("note", "flow/one", "listen note"),
        ("events", "flow/one", "inbox"),
    ]
    assert [(s.type, s.status) for s in history.steps] == [("send", "completed")] * 2


async def test_the_same_id_twice_is_one_message(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> list[Any]:
        return [(await ctx.inbox.receive()).payload for _ in range(2)]

    run = await h.start(flow)
    for payload in ("first", "again"):
        await run.send_event("a", payload, id="one")
    await h.run_until_idle()
    assert (await run.status()).status == "waiting"
    await run.send_event("a", "other", id="two")
    await h.run_until_idle()

    assert await run.result(timeout=60) == ["first", "other"]


async def test_messages_up_to_the_size_limit_are_accepted(app: Holdfast, h: Harness) -> None:
    fits, too_long = "x" * (MIB - 2), "x" * (MIB - 1)  # JSON adds two quotes

    @app.workflow
    async def flow(ctx: Context) -> list[Any]:
        sizes: list[Any] = [len(await ctx.listen("a").receive())]
        try:
            await ctx.send(ctx.info.pid, "a", too_long)
        except PayloadTooLargeError as error:
            sizes.append(error.code)
        await ctx.send(ctx.info.pid, "a", fits)
        return [*sizes, len(await ctx.listen("a").receive())]

    run = await h.start(flow)
    with pytest.raises(PayloadTooLargeError):
        await run.send_event("a", too_long)
    with pytest.raises(PayloadTooLargeError):
        await h.start(flow, messages=[("a", too_long)])
    assert await crash_everywhere(h, flow, None, ("a", fits)) == [MIB - 2, "PAYLOAD_TOO_LARGE", MIB - 2]


# --- runs that are delayed, paused or replayed


async def test_messages_to_a_run_that_has_not_begun_are_kept(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def reader(ctx: Context) -> list[Any]:
        return [(await ctx.inbox.receive()).payload for _ in range(2)]

    run = await h.start(reader, start_delay="1 hour")
    await run.send_event("a", 1)
    await h.run_until_idle()
    assert (await run.describe()).started_at is None
    await run.send_event("a", 2)
    await h.advance("1 hour")

    assert await run.result(timeout=60) == [1, 2]


async def test_messages_to_a_paused_run_are_received_after_the_resume(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def reader(ctx: Context) -> list[Any]:
        return [(await ctx.inbox.receive()).payload for _ in range(2)]

    run = await h.start(reader)
    await h.run_until_idle()
    await run.pause()
    for n in (1, 2):
        await run.send_event("a", n)
    await h.run_until_idle()
    assert (await run.status()).status == "paused"
    await run.resume()
    await h.run_until_idle()

    assert await run.result(timeout=60) == [1, 2]


async def test_why_names_the_message_that_a_run_waits_for(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context, inbox: bool) -> None:
        await (ctx.inbox if inbox else ctx.listen("approve")).receive()

    for inbox, expected in ((False, "waiting for message 'approve' (3 h so far)"), (True, "waiting for a message (")):
        run = await h.start(flow, inbox)
        await h.advance("3 hours")
        assert (await run.status()).status == "waiting"
        assert expected in (await run.describe()).why


@pytest.mark.promise("exact-replay")
async def test_a_run_survives_a_cold_replay_between_any_two_messages(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> list[Any]:
        a, inbox = ctx.listen("a"), ctx.inbox
        seen: list[Any] = []
        for _ in range(6):
            chosen = await select(a, inbox)
            seen.append(chosen.value if chosen.channel is a else chosen.value.topic)
        return seen

    run = await h.start(flow)
    for topic, payload in (("a", 1), ("b", 2), ("a", 3), ("c", 4), ("a", 5), ("b", 6)):
        await h.run_until_idle()
        await h.restart()
        await run.send_event(topic, payload)
    await h.run_until_idle()

    assert await run.result(timeout=60) == [1, "b", 3, "c", 5, "b"]


# --- with a real worker


async def test_messages_wake_runs_without_a_poll(make_app: MakeApp) -> None:
    app = make_app(worker=WorkerConfig(poll="1 hour"))

    @app.workflow
    async def echo(ctx: Context) -> None:
        async for message in ctx.listen("ping", messages=True):
            assert message.sender is not None
            await ctx.send(message.sender, "pong", message.payload)
            if message.payload == "last":
                return

    @app.workflow
    async def caller(ctx: Context, to: str) -> list[Any]:
        back = ctx.listen("pong")
        answers = []
        for word in ("first", "last"):
            await ctx.send(to, "ping", word)
            answers.append(await back.receive())
        return answers

    async with app:
        other = await app.start(echo)
        await until_status(other, "waiting")
        run = await app.start(caller, other.pid)
        assert await run.result(timeout=60) == ["first", "last"]
        await other.result(timeout=60)


async def test_a_client_in_another_app_wakes_a_run(make_app: MakeApp) -> None:
    app, outside = make_app(worker=WorkerConfig(poll="1 hour")), make_app()

    @app.workflow
    async def reader(ctx: Context) -> list[Any]:
        message = await ctx.inbox.receive()
        return [message.topic, message.payload, message.sender]

    outside.remote("reader")
    async with app, outside.connect():
        run = await app.start(reader, id="one")
        await until_status(run, "waiting")
        await (await outside.get("reader", "one")).send_event("go", 1)
        assert await run.result(timeout=60) == ["go", 1, None]


async def test_many_senders_at_once_lose_nothing(make_app: MakeApp) -> None:
    app = make_app()

    @app.workflow
    async def sum_up(ctx: Context, count: int) -> int:
        numbers = ctx.listen("n")
        return sum([await numbers.receive() for _ in range(count)])

    async with app:
        run = await app.start(sum_up, 200)
        await asyncio.gather(*(run.send_event("n", n) for n in range(200)))
        assert await run.result(timeout=60) == sum(range(200))

        async def all_delivered() -> bool:
            return all(event.delivered_at for event in (await run.history()).events)

        await until(all_delivered)


@pytest.mark.promise("messages-once-in-order")
@pytest.mark.parametrize("workers", [1, 2])
async def test_runs_that_all_send_to_each_other_lose_no_message(make_app: MakeApp, workers: int) -> None:
    async def member(ctx: Context, others: list[str]) -> list[str]:
        await ctx.listen("begin").receive()
        await asyncio.gather(*(ctx.send(pid, "hello", n) for pid in others for n in range(3)))
        hellos = ctx.listen("hello", messages=True)
        heard = [await hellos.receive() for _ in range(3 * len(others))]
        for pid in others:
            assert [one.payload for one in heard if one.sender == pid] == [0, 1, 2]
        return sorted({one.sender or "" for one in heard})

    apps = [make_app(worker=WorkerConfig(poll="1 hour", concurrency=5)) for _ in range(workers)]
    for app in apps:
        app.workflow(member)
    pids = [f"member/m{n}" for n in range(8)]
    async with AsyncExitStack() as stack:
        for app in apps:
            await stack.enter_async_context(app)
        runs: list[Handle[Any]] = []
        for pid in pids:
            others = [one for one in pids if one != pid]
            runs.append(await apps[0].start("member", others, id=pid.partition("/")[2]))
        for run in runs:
            await run.send_event("begin")
        for run, pid in zip(runs, pids, strict=True):
            assert await run.result(timeout=60) == [one for one in pids if one != pid]


async def test_a_received_message_survives_a_crash_before_the_next_commit(app: Holdfast, h: Harness) -> None:
    @app.step
    async def work(n: int) -> int:
        return n * 2

    @app.workflow
    async def flow(ctx: Context) -> list[int]:
        jobs = ctx.listen("job")
        return [await work(await jobs.receive()) for _ in range(3)]

    assert await h.crash_everywhere(flow, drive=send_at_once(("job", 1), ("job", 2), ("job", 3))) == [2, 4, 6]
