"""Asks: messages whose sender waits for a reply, sent by clients and by other runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from typing import Any

import pytest

from apps import MakeApp
from driving import until_status
from holdfast import (
    Context,
    Handle,
    Holdfast,
    InstanceNotFoundError,
    InstanceTerminalError,
    InvalidDurationError,
    InvalidEventTypeError,
    NotAskedError,
    NotSerializableError,
    PayloadTooLargeError,
    Rejected,
    WorkerConfig,
    Workflow,
    select,
)
from holdfast.testing import Harness

from .message_drives import MIB, crash_everywhere


def clerk(app: Holdfast) -> Workflow[Any]:
    """A workflow that replies to each ask until it receives a ``stop``."""

    @app.workflow
    async def clerk(ctx: Context) -> int:
        answered = 0
        questions, stop = ctx.listen("question", messages=True), ctx.listen("stop")
        while (chosen := await select(questions, stop)).channel is questions:
            message = chosen.value
            if message.payload == "refuse":
                await message.reject({"why": "not that"})
            elif message.payload != "ignore":
                await message.reply({"you said": message.payload, "from": message.sender})
            answered += 1
        return answered

    return clerk


async def answered(h: Harness, asking: Awaitable[Any]) -> Any:
    """Run the worker until an ask from outside has its reply, and return the reply."""
    task = asyncio.ensure_future(asking)
    await asyncio.sleep(0)
    while not task.done():
        await h.run_until_idle()
        await asyncio.wait([task], timeout=0.002)
    return await task


# --- asks of clients


@pytest.mark.parametrize("payload", ["hello", 5, None, [1, {"a": None}], "\x00\ud800"])
async def test_ask_returns_the_reply(app: Holdfast, h: Harness, payload: Any) -> None:
    run = await h.start(clerk(app))

    assert await answered(h, run.ask("question", payload, timeout=5)) == {"you said": payload, "from": None}


@pytest.mark.above_the_store
async def test_a_reply_may_be_none(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def brief(ctx: Context) -> None:
        await (await ctx.inbox.receive()).reply()

    run = await h.start(brief)

    assert await answered(h, run.ask("any", timeout=5)) is None


async def test_a_rejected_ask_raises(app: Holdfast, h: Harness) -> None:
    run = await h.start(clerk(app), id="one")

    with pytest.raises(Rejected, match="clerk/one rejected 'question'") as caught:
        await answered(h, run.ask("question", "refuse", timeout=5))

    assert (caught.value.reason, caught.value.code) == ({"why": "not that"}, "REJECTED")


async def test_ask_raises_when_no_reply_arrives_in_time(app: Holdfast, h: Harness) -> None:
    run = await h.start(clerk(app))
    await h.run_until_idle()

    with pytest.raises(TimeoutError):
        await run.ask("question", "hello", timeout="20 ms")

    await h.run_until_idle()  # the late reply is dropped without an error
    await run.send_event("stop")
    await h.run_until_idle()
    assert await run.result(timeout=60) == 1


async def test_asking_an_ended_run_raises(app: Holdfast, h: Harness) -> None:
    run = await h.start(clerk(app))
    await run.send_event("stop")
    await h.run_until_idle()

    with pytest.raises(InstanceTerminalError):
        await run.ask("question", timeout=5)


async def test_asking_an_unknown_run_raises(app: Holdfast, h: Harness) -> None:
    run = await h.start(clerk(app))
    nobody = type(run)(run._client, run._definition, "nobody")

    with pytest.raises(InstanceNotFoundError):
        await nobody.ask("question", timeout=5)


@pytest.mark.parametrize("end", ["returns", "fails", "is terminated"])
async def test_ask_raises_when_the_run_ends_without_a_reply(app: Holdfast, h: Harness, end: str) -> None:
    @app.workflow
    async def rude(ctx: Context) -> None:
        await ctx.listen("question").receive()
        if end == "fails":
            raise ValueError("no")
        if end == "is terminated":
            await ctx.sleep("long", "1 day")

    run = await h.start(rude)
    asking = asyncio.create_task(run.ask("question", timeout=5))
    await asyncio.sleep(0.01)
    await h.run_until_idle()
    if end == "is terminated":
        await run.terminate()

    with pytest.raises(InstanceTerminalError, match="without a reply"):
        await asking


async def test_a_reply_written_with_the_end_of_the_run_is_received(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def last_words(ctx: Context) -> str:
        message = await ctx.inbox.receive()
        await message.reply("goodbye")
        return "over"

    run = await h.start(last_words)

    assert await answered(h, run.ask("any", timeout=5)) == "goodbye"
    assert await run.result(timeout=60) == "over"


async def test_each_of_several_concurrent_asks_gets_its_own_reply(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def backwards(ctx: Context) -> None:
        questions = ctx.listen("q", messages=True)
        for message in reversed([await questions.receive() for _ in range(3)]):
            await message.reply(message.payload * 10)

    run = await h.start(backwards)
    asking = asyncio.gather(*(run.ask("q", n, timeout=5) for n in (1, 2, 3)))

    assert await answered(h, asking) == [10, 20, 30]


async def test_an_ask_waits_for_a_late_reply_across_a_worker_restart(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def slow(ctx: Context) -> None:
        message = await ctx.listen("q", messages=True).receive()
        await ctx.sleep("think", "1 hour")
        await message.reply("42")

    run = await h.start(slow)
    asking = asyncio.create_task(run.ask("q"))
    await asyncio.sleep(0.01)
    await h.run_until_idle()
    await h.restart()
    await h.advance("1 hour")

    assert await asyncio.wait_for(asking, 60) == "42"


@pytest.mark.above_the_store
async def test_the_inbox_receives_asks(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def reader(ctx: Context) -> None:
        message = await ctx.inbox.receive()
        await message.reply([message.topic, message.payload])

    run = await h.start(reader)

    assert await answered(h, run.ask("anything", 1, timeout=5)) == ["anything", 1]


@pytest.mark.above_the_store
@pytest.mark.parametrize("topic", ["", "@reply", "a b", None, 5])
async def test_a_bad_topic_is_refused(app: Holdfast, h: Harness, topic: Any) -> None:
    run = await h.start(clerk(app))

    with pytest.raises(InvalidEventTypeError):
        await run.ask(topic, timeout=5)
    assert (await run.history()).events == []


@pytest.mark.above_the_store
@pytest.mark.parametrize("timeout", [-1, "soon", True])
async def test_a_bad_timeout_is_refused_before_anything_is_sent(app: Holdfast, h: Harness, timeout: Any) -> None:
    run = await h.start(clerk(app))

    with pytest.raises(InvalidDurationError):
        await run.ask("question", timeout=timeout)
    assert (await run.history()).events == []


@pytest.mark.above_the_store
async def test_asking_with_a_payload_that_cannot_be_stored_raises(app: Holdfast, h: Harness) -> None:
    run = await h.start(clerk(app))

    with pytest.raises(NotSerializableError):
        await run.ask("question", object(), timeout=5)


async def test_a_client_in_another_app_can_ask(make_app: MakeApp) -> None:
    app, outside = make_app(worker=WorkerConfig(poll="1 hour")), make_app()
    workflow = clerk(app)
    outside.remote("clerk")
    async with app, outside.connect():
        run = await app.start(workflow, id="one")
        await until_status(run, "waiting")
        there: Handle[Any] = await outside.get("clerk", "one")

        assert await there.ask("question", "hello", timeout=10) == {"you said": "hello", "from": None}
        with pytest.raises(Rejected):
            await there.ask("question", "refuse", timeout=10)
        with pytest.raises(TimeoutError):
            await there.ask("question", "ignore", timeout=0.1)


async def test_ask_in_another_app_raises_when_the_run_ends_without_a_reply(make_app: MakeApp) -> None:
    app, outside = make_app(), make_app()

    @app.workflow
    async def rude(ctx: Context) -> None:
        await ctx.listen("question").receive()

    outside.remote("rude")
    async with app, outside.connect():
        await app.start(rude, id="one")
        there: Handle[Any] = await outside.get("rude", "one")
        with pytest.raises(InstanceTerminalError, match="without a reply"):
            await there.ask("question", timeout=10)


async def test_fifty_concurrent_asks_to_a_worker_are_all_replied_to(make_app: MakeApp) -> None:
    app = make_app()
    workflow = clerk(app)
    async with app:
        run = await app.start(workflow)
        answers = await asyncio.gather(*(run.ask("question", n, timeout=20) for n in range(50)))
        assert [answer["you said"] for answer in answers] == [*range(50)]


# --- replies that are not expected


async def test_replying_to_a_message_that_is_no_ask_raises(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def eager(ctx: Context) -> list[str]:
        message = await ctx.inbox.receive()
        found = []
        for answer in (message.reply, message.reject):
            try:
                await answer("here")
            except NotAskedError as error:
                found.append(error.code)
        return found

    assert await crash_everywhere(h, eager, None, ("note", 1)) == ["NOT_ASKED"] * 2


@pytest.mark.parametrize("first", ["reply", "reject"])
async def test_a_second_reply_to_an_ask_raises(app: Holdfast, h: Harness, first: str) -> None:
    @app.workflow
    async def twice(ctx: Context) -> list[str]:
        message = await ctx.inbox.receive()
        await getattr(message, first)("first")
        found = []
        for again in (message.reply, message.reject):
            try:
                await again("second")
            except NotAskedError as error:
                found.append(str(error))
        return found

    @app.workflow
    async def asker(ctx: Context) -> list[Any]:
        child = await ctx.spawn(twice)
        try:
            answer = await ctx.ask(child.pid, "q")
        except Rejected as error:
            answer = error.reason
        return [answer, await child.result()]

    assert await crash_everywhere(h, asker) == ["first", ["message 'q' has a reply already"] * 2]


# --- asks of runs


async def test_a_run_can_ask_another_run(app: Holdfast, h: Harness) -> None:
    workflow = clerk(app)

    @app.workflow
    async def asker(ctx: Context) -> list[Any]:
        child = await ctx.spawn(workflow)
        answers = [await ctx.ask(child.pid, "question", n) for n in range(3)]
        await ctx.send(child.pid, "stop")
        return [answers, await child.result()]

    me = "asker/crash-everywhere"
    assert await crash_everywhere(h, asker) == [[{"you said": n, "from": me} for n in range(3)], 3]


async def test_a_rejection_raises_in_the_asking_run(app: Holdfast, h: Harness) -> None:
    workflow = clerk(app)

    @app.workflow
    async def asker(ctx: Context) -> list[Any]:
        child = await ctx.spawn(workflow, id="c")
        try:
            await ctx.ask(child.pid, "question", "refuse")
        except Rejected as error:
            return [error.reason, error.code]
        return []

    assert await crash_everywhere(h, asker) == [{"why": "not that"}, "REJECTED"]


async def test_an_ask_of_a_run_times_out_after_its_timeout(app: Holdfast, h: Harness) -> None:
    workflow = clerk(app)

    @app.workflow
    async def asker(ctx: Context) -> list[Any]:
        child = await ctx.spawn(workflow)
        before = ctx.now()
        try:
            await ctx.ask(child.pid, "question", "ignore", timeout="10 minutes")
        except TimeoutError as error:
            return [(ctx.now() - before).total_seconds() >= 600, "did not reply to 'question' in time" in str(error)]
        return []

    assert await crash_everywhere(h, asker) == [True, True]


async def test_a_reply_after_the_timeout_is_ignored(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def slow(ctx: Context) -> str:
        message = await ctx.listen("q", messages=True).receive()
        await ctx.sleep("think", "1 hour")
        await message.reply("late")
        return "answered"

    @app.workflow
    async def asker(ctx: Context) -> list[Any]:
        inbox = ctx.inbox
        child = await ctx.spawn(slow)
        with suppress(TimeoutError):
            await ctx.ask(child.pid, "q", timeout="1 minute")
        result = await child.result()
        await ctx.sleep("nap", "1 minute")
        return [result, len(inbox)]

    assert await crash_everywhere(h, asker) == ["answered", 0]


async def test_replying_to_an_ended_run_raises_nothing(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def asker(ctx: Context, pid: str) -> str:
        try:
            await ctx.ask(pid, "q", timeout="1 minute")
        except TimeoutError:
            return "gave up"
        return "answered"

    @app.workflow
    async def slow(ctx: Context) -> list[str]:
        child = await ctx.spawn(asker, ctx.info.pid)
        message = await ctx.listen("q", messages=True).receive()
        given_up = await child.result()
        await message.reply("too late")
        return [given_up, "went on"]

    assert await crash_everywhere(h, slow) == ["gave up", "went on"]


async def test_an_ask_of_a_run_raises_when_the_asked_run_ends_without_a_reply(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def rude(ctx: Context) -> None:
        await ctx.inbox.receive()

    @app.workflow
    async def asker(ctx: Context) -> list[Any]:
        child = await ctx.spawn(rude, id="r")
        before = ctx.now()
        try:
            await ctx.ask(child.pid, "q", timeout="5 days")
        except InstanceNotFoundError as error:
            await child.result()
            return [str(error), (ctx.now() - before).days]
        return []

    assert await crash_everywhere(h, asker) == ["run rude/r has ended without a reply to 'q'", 0]


async def test_an_ask_of_a_run_to_an_ended_or_unknown_run_raises(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def short(ctx: Context) -> None: ...

    @app.workflow
    async def asker(ctx: Context) -> list[str]:
        child = await ctx.spawn(short, id="short-1")
        await child.result()
        found = []
        for pid in (child.pid, "short/never"):
            try:
                await ctx.ask(pid, "q", timeout="1 minute")
            except InstanceNotFoundError as error:
                found.append(str(error))
        return found

    assert await crash_everywhere(h, asker) == ["run short/short-1 has ended", "run short/never does not exist"]


@pytest.mark.above_the_store
async def test_a_run_can_ask_itself(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def thinker(ctx: Context) -> Any:
        async def answer() -> None:
            message = await ctx.listen("q", messages=True).receive()
            await message.reply(message.payload + 1)

        answering = asyncio.create_task(answer())
        found = await ctx.ask(ctx.info.pid, "q", 1, timeout="1 minute")
        await answering
        return found

    assert await crash_everywhere(h, thinker) == 2


@pytest.mark.above_the_store
async def test_a_run_can_ask_several_runs_at_once(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def adder(ctx: Context, n: int) -> None:
        message = await ctx.inbox.receive()
        await ctx.sleep("think", 10 - n)
        await message.reply(message.payload + n)

    @app.workflow
    async def asker(ctx: Context) -> list[int]:
        children = [await ctx.spawn(adder, n) for n in range(3)]
        answers = await asyncio.gather(*(ctx.ask(child.pid, "add", 100) for child in children))
        for child in children:
            await child.result()
        return answers

    assert await crash_everywhere(h, asker) == [100, 101, 102]


async def test_an_ask_of_a_run_is_carried_over_to_the_successor(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def forgetful(ctx: Context, n: int) -> None:
        if n < 2:
            await ctx.sleep("nap", "1 hour")
            raise ctx.continue_as_new(n + 1)
        message = await ctx.inbox.receive()
        await message.reply([message.payload, n])

    @app.workflow
    async def asker(ctx: Context) -> Any:
        child = await ctx.spawn(forgetful, 0)
        answer = await ctx.ask(child.pid, "q", "still there?", timeout="1 day")
        await child.result()
        return answer

    assert await crash_everywhere(h, asker) == ["still there?", 2]


async def test_an_ask_of_a_client_is_carried_over_to_the_successor(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def forgetful(ctx: Context, n: int) -> None:
        if n < 2:
            await ctx.sleep("nap", "1 hour")
            raise ctx.continue_as_new(n + 1)
        message = await ctx.inbox.receive()
        await message.reply([message.payload, n])

    run = await h.start(forgetful, 0)
    asking = asyncio.create_task(run.ask("q", "still there?", timeout=10))
    await asyncio.sleep(0.01)
    await h.advance("2 hours")

    assert await asking == ["still there?", 2]


@pytest.mark.above_the_store
async def test_a_run_can_ask_one_run_twice_at_once(app: Holdfast, h: Harness) -> None:
    workflow = clerk(app)

    @app.workflow
    async def asker(ctx: Context) -> list[Any]:
        child = await ctx.spawn(workflow)
        answers = await asyncio.gather(*(ctx.ask(child.pid, "question", n) for n in range(4)))
        return [answer["you said"] for answer in answers]

    assert await crash_everywhere(h, asker) == [0, 1, 2, 3]


@pytest.mark.above_the_store
async def test_a_reply_that_is_too_large_raises_in_the_replying_run(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def talker(ctx: Context) -> str:
        message = await ctx.inbox.receive()
        try:
            await message.reply("x" * MIB)
        except PayloadTooLargeError as error:
            await message.reply("short")
            return error.code
        return "sent"

    @app.workflow
    async def asker(ctx: Context) -> list[Any]:
        child = await ctx.spawn(talker)
        return [await ctx.ask(child.pid, "q"), await child.result()]

    assert await crash_everywhere(h, asker) == ["short", "PAYLOAD_TOO_LARGE"]


async def test_the_history_shows_asks_and_replies(app: Holdfast, h: Harness) -> None:
    workflow = clerk(app)

    @app.workflow
    async def asker(ctx: Context) -> None:
        await ctx.ask("clerk/c", "question", 1)

    other = await h.start(workflow, id="c")
    run = await h.start(asker)
    await h.run_until_idle()
    await run.result(timeout=60)

    [step] = (await run.history()).steps
    assert (step.type, step.status, step.name) == ("ask", "completed", "question of clerk/c")
    [step] = (await other.history()).steps
    assert (step.type, step.status) == ("reply", "completed")


async def test_a_run_that_waits_for_a_reply_has_the_status_waiting(app: Holdfast, h: Harness) -> None:
    workflow = clerk(app)

    @app.workflow
    async def asker(ctx: Context) -> None:
        await ctx.ask("clerk/c", "question", "ignore", timeout="1 hour")

    await h.start(workflow, id="c")
    run = await h.start(asker)
    await h.run_until_idle()

    description = await run.describe()
    assert description.status == "waiting"
    assert "clerk/c" in description.why
