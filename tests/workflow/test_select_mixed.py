"""``select`` over messages, events of other runs, timers and the run's own channels."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from driving import finish
from holdfast import Cancel, Channel, ChannelClosed, Context, Exit, Handle, Holdfast, InvalidOptionError, select
from holdfast.testing import Harness
from holdfast.testing.harness import Drive
from scenarios.observations import cancel_once


def sends(*messages: tuple[str, Any]) -> Drive:
    """A drive that sends each message once."""

    async def drive(_h: Harness, run: Handle[Any]) -> None:
        for n, (topic, payload) in enumerate(messages):
            await run.send_event(topic, payload, id=f"m{n}")

    return drive


@pytest.fixture
def quick(app: Holdfast) -> Any:
    @app.workflow
    async def quick(ctx: Context, n: int = 0) -> int:
        return n

    return quick


async def test_select_returns_the_message_or_the_timer_that_comes_first(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def waits(ctx: Context) -> list[Any]:
        words, log = ctx.listen("word"), []
        for _ in range(2):
            chosen = await select(words, ctx.after("1 hour"))
            log.append(chosen.value if chosen.channel is words else "timer")
        return log

    assert await h.crash_everywhere(waits, drive=sends(("word", "hello"))) == ["hello", "timer"]


async def test_a_message_that_came_in_time_wins_although_no_worker_ran(app: Holdfast, h: Harness) -> None:
    """The times of message and timer decide, not the order in which a worker reads them."""

    @app.workflow
    async def waits(ctx: Context, minutes: int) -> Any:
        words = ctx.listen("word")
        chosen = await select(ctx.after(f"{minutes} minutes"), words)
        return "message" if chosen.channel is words else "timer"

    early, late = await h.start(waits, 90), await h.start(waits, 30)
    await h.run_until_idle()
    await h.advance("1 hour", run=False)
    for run in (early, late):
        await run.send_event("word")
    await h.advance("1 hour", run=False)
    await h.restart()
    await h.run_until_idle()
    assert [await run.result(timeout=60) for run in (early, late)] == ["message", "timer"]


@pytest.mark.above_the_store
async def test_the_first_listed_of_several_ready_channels_wins(app: Holdfast, h: Harness, quick: Any) -> None:
    @app.workflow
    async def ready(ctx: Context) -> list[str]:
        own: Channel[str] = Channel(1)
        await own.send("own")
        words, timer = ctx.listen("word"), ctx.after("1 minute")
        await (await ctx.spawn(quick)).result()
        await ctx.sleep("until all are ready", "1 hour")
        names = {id(own): "own", id(words): "words", id(timer): "timer", id(ctx.events): "events"}
        log = []
        for _ in range(4):
            chosen = await select(timer, ctx.events, own, words)
            log.append(names[id(chosen.channel)])
        return log

    found = await h.crash_everywhere(ready, drive=sends(("word", 1)))
    assert found == ["timer", "events", "own", "words"]


@pytest.mark.above_the_store
async def test_two_topics_keep_their_own_order(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def jobs(ctx: Context) -> dict[str, Any]:
        todo, stop = ctx.listen("job"), ctx.listen("exit")
        done: list[Any] = []
        while True:
            chosen = await select(todo, stop)
            if chosen.channel is stop:
                return {"done": done, "why": chosen.value}
            done.append(chosen.value)

    messages = [*(("job", n) for n in range(4)), ("exit", "enough")]
    assert await h.crash_everywhere(jobs, drive=sends(*messages)) == {"done": [0, 1, 2, 3], "why": "enough"}


async def test_cases_that_lose_a_select_lose_no_value(app: Holdfast, h: Harness) -> None:
    """A message that was not chosen stays once in its channel; a send that was not chosen sends nothing."""

    @app.workflow
    async def races(ctx: Context) -> list[Any]:
        a, b = ctx.listen("a"), ctx.listen("b")
        full: Channel[str] = Channel(1)
        await full.send("full")
        first = await select(a, b, full.sending("never"))
        second = await select(a, b)
        left = [await full.receive(), (await select(full, default=True)).channel is None]
        rest = await select(a, b, default=True)
        return [sorted([first.value, second.value]), left, rest.channel is None]

    assert await h.crash_everywhere(races, drive=sends(("a", 1), ("b", 2))) == [[1, 2], ["full", True], True]


async def test_a_wait_receives_an_event_that_a_select_did_not_take(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def both(ctx: Context) -> list[Any]:
        words = ctx.listen("word")
        chosen = await select(words, ctx.after("1 day"))
        ctx.unlisten(words)
        event = await ctx.wait_for_event("the next", type="word")
        return [chosen.value, event.payload]

    assert await h.crash_everywhere(both, drive=sends(("word", 1), ("word", 2))) == [1, 2]


@pytest.mark.above_the_store
async def test_select_returns_the_default_when_no_channel_is_ready(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def looks(ctx: Context) -> list[Any]:
        cases: list[Channel[Any]] = [ctx.listen("word"), ctx.inbox, ctx.events, ctx.after("1 hour"), Channel()]
        chosen = await select(*cases, default=True)
        return [chosen.channel is None, chosen.value, chosen.ok]

    assert await h.crash_everywhere(looks) == [True, None, False]


@pytest.mark.above_the_store
async def test_a_closed_channel_is_always_ready(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def closes(ctx: Context) -> list[Any]:
        own: Channel[int] = Channel(2)
        await own.send(1)
        own.close()
        first = await select(ctx.listen("word"), own)
        second = await select(ctx.listen("word"), own)
        sent = await select(own.sending(2), ctx.after("1 hour"))
        return [[c.value, c.ok, c.channel is own] for c in (first, second, sent)]

    assert await h.crash_everywhere(closes) == [[1, True, True], [None, False, True], [None, False, True]]


@pytest.mark.above_the_store
async def test_unlisten_wakes_a_select(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def leaves(ctx: Context) -> list[Any]:
        words = ctx.listen("word")

        async def later() -> None:
            await ctx.sleep("later", "1 hour")
            ctx.unlisten(words)

        task = asyncio.ensure_future(later())
        chosen = await select(words, ctx.after("1 day"))
        await task
        try:
            await words.receive()
        except ChannelClosed:
            return [chosen.channel is words, chosen.ok, "closed"]
        return []

    assert await h.crash_everywhere(leaves) == [True, False, "closed"]


@pytest.mark.above_the_store
async def test_the_inbox_receives_topics_without_a_listener(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def sorts(ctx: Context) -> list[Any]:
        words, inbox = ctx.listen("word"), ctx.inbox
        log = []
        for _ in range(4):
            chosen = await select(words, inbox)
            log.append(["word", chosen.value] if chosen.channel is words else ["inbox", chosen.value.payload])
        return sorted(log)

    messages = [("word", 1), ("other", 2), ("word", 3), ("more", 4)]
    assert await h.crash_everywhere(sorts, drive=sends(*messages)) == [
        ["inbox", 2], ["inbox", 4], ["word", 1], ["word", 3],
    ]  # fmt: skip


@pytest.mark.above_the_store
async def test_one_select_can_send_and_receive(app: Holdfast, h: Harness) -> None:
    """The workflow forwards messages to its own channel and receives only while the channel has room."""

    @app.workflow
    async def pump(ctx: Context) -> list[Any]:
        source, work = ctx.listen("job"), Channel[Any]()
        done: list[Any] = []

        async def worker() -> None:
            async for job in work:
                await ctx.sleep(f"work on {job}", "1 minute")
                done.append(job * 10)

        task = asyncio.ensure_future(worker())
        waiting: list[Any] = []
        sent = 0
        while sent < 4:
            cases: list[Any] = [source]
            if waiting:
                cases.append(work.sending(waiting[0]))
            chosen = await select(*cases)
            if chosen.channel is source:
                waiting.append(chosen.value)
            else:
                waiting.pop(0)
                sent += 1
        work.close()
        await task
        return done

    assert await h.crash_everywhere(pump, drive=sends(*(("job", n) for n in range(4)))) == [0, 10, 20, 30]


@pytest.mark.above_the_store
async def test_a_timer_that_is_stopped_stays_stopped(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def stops(ctx: Context) -> list[Any]:
        words, timer = ctx.listen("word"), ctx.timer("1 hour")
        first = await select(words, timer)
        stopped = timer.stop()
        second = await select(timer, ctx.after("10 days"))
        return [first.value, stopped, second.channel is timer, timer.stop()]

    assert await h.crash_everywhere(stops, drive=sends(("word", "stop"))) == ["stop", True, False, False]


@pytest.mark.above_the_store
async def test_a_timer_can_be_reset_by_each_message(app: Holdfast, h: Harness) -> None:
    """A debounce: the run ends an hour after the last message."""

    @app.workflow
    async def debounce(ctx: Context) -> list[Any]:
        words, timer = ctx.listen("word"), ctx.timer("1 hour")
        seen: list[Any] = []
        began = ctx.now()
        while (chosen := await select(words, timer)).channel is words:
            seen.append(chosen.value)
            timer.reset("1 hour")
        return [*seen, (ctx.now() - began).total_seconds() >= 3600]

    run = await h.start(debounce)
    for n in range(3):
        await h.advance("40 minutes")
        await run.send_event("word", n)
    await h.restart()
    await h.advance("59 minutes")
    assert (await run.status()).status == "waiting"
    await h.advance("1 minute")
    assert await run.result(timeout=60) == [0, 1, 2, True]
    assert await h.crash_everywhere(debounce, drive=sends(("word", 1))) == [1, True]


async def test_select_waits_for_a_child_a_message_and_a_cancellation(app: Holdfast, h: Harness, quick: Any) -> None:
    @app.workflow(cancel="event")
    async def supervises(ctx: Context) -> list[str]:
        words = ctx.listen("word")
        log: list[str] = []
        await ctx.spawn(quick, 5)
        while True:
            chosen = await select(ctx.events, words, ctx.after("30 days"))
            match chosen.value:
                case Exit(result=result):
                    log.append(f"exit {result}")
                case Cancel(reason=reason):
                    return [*log, f"cancel {reason}"]
                case word:
                    log.append(f"word {word}")

    async def drive(harness: Harness, run: Handle[Any]) -> None:
        await run.send_event("word", "w", id="w")
        await harness.run_until_idle()
        if not harness._store.dropped:
            await cancel_once(run, "enough")

    assert await h.crash_everywhere(supervises, drive=drive) == ["exit 5", "word w", "cancel enough"]


@pytest.mark.above_the_store
async def test_each_message_of_a_shared_channel_goes_to_one_task(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def pool(ctx: Context) -> list[Any]:
        words = ctx.listen("word")
        got: list[Any] = []

        async def worker(name: str) -> None:
            while (chosen := await select(words, ctx.after("30 days"))).value != "stop":
                got.append(chosen.value)
            ctx.log.info(f"{name} has stopped")

        await asyncio.gather(worker("a"), worker("b"))
        return sorted(got)

    messages = [("word", 1), ("word", 2), ("word", 3), ("word", 4), ("word", "stop"), ("word", "stop")]
    assert await h.crash_everywhere(pool, drive=sends(*messages)) == [1, 2, 3, 4]


@pytest.mark.above_the_store
async def test_a_receiver_that_is_cancelled_loses_nothing(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def gives_up(ctx: Context) -> list[Any]:
        words = ctx.listen("word")
        with suppress(TimeoutError):
            await asyncio.wait_for(select(words), 60)
        await ctx.sleep("a while", "1 hour")
        return [await words.receive(), await words.receive()]

    run = await h.start(gives_up)
    await h.advance("2 minutes")
    await run.send_event("word", 1)
    await run.send_event("word", 2)
    await h.restart()
    await h.advance("1 hour")
    assert await run.result(timeout=60) == [1, 2]


@pytest.mark.above_the_store
async def test_select_receives_messages_and_ticks_of_another_task(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def ticks(ctx: Context) -> list[Any]:
        words, beats = ctx.listen("word"), Channel[str]()

        async def ticker() -> None:
            async for _ in ctx.every("1 hour"):
                await beats.send("tick")

        task = asyncio.ensure_future(ticker())
        log: list[Any] = []
        while log.count("tick") < 3:
            log.append((await select(beats, words)).value)
        task.cancel()
        return log

    found = await h.crash_everywhere(ticks, drive=sends(("word", "hello")))
    assert sorted(found) == ["hello", "tick", "tick", "tick"]


@pytest.mark.above_the_store
async def test_a_request_and_its_reply_can_be_plain_messages_with_a_timeout(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def server(ctx: Context) -> None:
        async for message in ctx.listen("get", messages=True):
            if message.payload == "stop":
                return
            await ctx.send(message.sender or "", "got", message.payload * 2)

    @app.workflow
    async def client(ctx: Context) -> list[Any]:
        serving = await ctx.spawn(server)
        got = ctx.listen("got")
        answers = []
        for n in range(3):
            await ctx.send(serving.pid, "get", n)
            chosen = await select(got, ctx.after("1 day"))
            answers.append(chosen.value if chosen.channel is got else None)
        await ctx.send(serving.pid, "get", "stop")
        await serving.result()
        return answers

    assert await h.crash_everywhere(client) == [0, 2, 4]


@pytest.mark.above_the_store
@pytest.mark.parametrize("wrong", ["text", None, 5])
async def test_a_case_that_is_not_a_channel_is_refused(app: Holdfast, h: Harness, wrong: Any) -> None:
    @app.workflow
    async def selects(ctx: Context, wrong: Any) -> str:
        try:
            await select(ctx.listen("word"), wrong)
        except InvalidOptionError as error:
            return error.code
        return "selected"

    assert await h.crash_everywhere(selects, wrong) == "INVALID_OPTION"


@pytest.mark.above_the_store
async def test_sending_into_a_message_channel_raises(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def sends_there(ctx: Context) -> list[str]:
        found = []
        channels: list[Channel[Any]] = [ctx.listen("word"), ctx.inbox]
        for channel in channels:
            try:
                await channel.send("x")
            except ChannelClosed as error:
                found.append(type(error).__name__)
        return found

    assert await finish(h, sends_there) == ["ChannelClosed", "ChannelClosed"]
