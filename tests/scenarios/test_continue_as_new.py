"""``continue_as_new``: a successor with the same id and an empty history; everything else is carried over."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from apps import MakeApp
from driving import finish
from holdfast import (
    Context,
    Handle,
    Holdfast,
    NotSerializableError,
    ParamsInvalidError,
    Retry,
    RunFailedError,
    WorkflowError,
    context_values,
)
from holdfast.testing import Harness

from .observations import cancel_once, end_of, observe_with_crashes


@dataclass
class State:
    round: int
    seen: list[Any]


async def test_continue_as_new_creates_a_run_of_the_same_id(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def continuing(ctx: Context, n: int = 0) -> list[Any]:
        if n < 3:
            await ctx.do("step", str, n)
            raise ctx.continue_as_new(n + 1)
        return [n, ctx.info.run_number, ctx.info.instance_id, ctx.info.attempt]

    assert await h.crash_everywhere(continuing) == [3, 3, "crash-everywhere", 1]


async def test_a_successor_has_its_own_history(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def continuing(ctx: Context, n: int = 0) -> list[int]:
        before = ctx.info.history_length
        for i in range(5):
            await ctx.do(f"step {n}.{i}", str, i)
        if n < 2:
            raise ctx.continue_as_new(n + 1)
        return [before, ctx.info.history_length]

    async def observe(harness: Harness, run: Handle[Any]) -> Any:
        keys = [[step.step_key for step in (await run.history(n)).steps] for n in range(3)]
        return await run.result(timeout=60), keys

    assert await observe_with_crashes(h, continuing, observe=observe) == (
        [0, 5],
        [[f"step {n}.{i}" for i in range(5)] for n in range(3)],
    )


async def test_a_workflow_can_continue_a_hundred_times(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def continuing(ctx: Context, n: int = 0) -> int:
        if n < 100:
            raise ctx.continue_as_new(n + 1)
        return ctx.info.run_number

    run = await h.start(continuing)
    await h.run_until_idle()
    assert await run.result(timeout=60) == 100
    assert (await run.describe()).run_number == 100


async def test_a_handle_follows_to_the_last_run(make_app: MakeApp) -> None:
    """This includes a handle that waits already, and a handle of another app on the same database."""
    app, other = make_app(), make_app()

    @app.workflow
    async def continuing(ctx: Context, n: int = 0) -> str:
        await ctx.wait_for_event("go", type="go")
        if n < 3:
            raise ctx.continue_as_new(n + 1)
        return f"run {ctx.info.run_number}"

    other.remote("continuing", params=int, result=str)
    async with app, other.connect():
        run = await app.start(continuing, id="g")
        waiting = [asyncio.ensure_future(run.result(timeout=60))]
        waiting.append(asyncio.ensure_future((await app.get(continuing, "g")).result(timeout=60)))
        waiting.append(asyncio.ensure_future((await other.get("continuing", "g")).result(timeout=60)))
        for _ in range(4):
            await run.send_event("go")
        assert await asyncio.gather(*waiting) == ["run 3"] * 3
        assert await run.result(timeout=60) == "run 3"


async def test_a_handle_follows_a_workflow_that_is_retried(make_app: MakeApp) -> None:
    app, other = make_app(), make_app()

    @app.workflow
    async def flaky(ctx: Context) -> int:
        if ctx.info.attempt < 3:
            raise WorkflowError("not yet")
        return ctx.info.attempt

    other.remote("flaky", params=None, result=int)
    async with app, other.connect():
        run = await app.start(flaky, id="f", retry=Retry(5, "20 ms", "constant"))
        elsewhere: Handle[int] = await other.get("flaky", "f")
        assert list(await asyncio.gather(run.result(timeout=60), elsewhere.result(timeout=60))) == [3, 3]


async def test_a_failure_of_the_last_run_is_raised_by_result(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def continuing(ctx: Context, n: int = 0) -> None:
        if n < 2:
            raise ctx.continue_as_new(n + 1)
        raise ValueError("at last")

    assert await observe_with_crashes(h, continuing, observe=end_of) == ("errored", None, "ValueError", "at last")
    run = await h.start(continuing)
    await h.run_until_idle()
    with pytest.raises(RunFailedError, match="at last"):
        await run.result(timeout=60)


async def test_several_workers_share_the_successive_runs(make_app: MakeApp) -> None:
    apps = [make_app(), make_app()]
    for app in apps:

        @app.workflow
        async def continuing(ctx: Context, n: int = 0) -> int:
            if n < 20:
                raise ctx.continue_as_new(n + 1)
            return ctx.info.run_number

    async with apps[0], apps[1]:
        runs = [await apps[n % 2].start("continuing") for n in range(6)]
        assert [await run.result(timeout=60) for run in runs] == [20] * 6


# --- params


@pytest.mark.above_the_store
async def test_params_are_decoded_by_the_annotation(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def continuing(ctx: Context, state: State) -> list[Any]:
        if state.round < 3:
            raise ctx.continue_as_new(State(state.round + 1, [*state.seen, state.round]))
        return state.seen

    assert await h.crash_everywhere(continuing, State(0, [])) == [0, 1, 2]


@pytest.mark.above_the_store
async def test_params_that_do_not_fit_are_refused_where_they_are_made(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def continuing(ctx: Context, n: int = 0) -> list[str]:
        found = []
        for wrong in ("many", float("nan"), object()):
            try:
                ctx.continue_as_new(wrong)
            except (ParamsInvalidError, NotSerializableError) as error:
                found.append(type(error).__name__)
        return found

    found = await h.crash_everywhere(continuing)
    assert len(found) == 3


@pytest.mark.above_the_store
async def test_continue_as_new_without_params_uses_the_default_of_the_parameter(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def continuing(ctx: Context, n: int = 7) -> list[int]:
        if ctx.info.run_number == 0:
            raise ctx.continue_as_new()
        return [n, ctx.info.run_number]

    assert await h.crash_everywhere(continuing, 1) == [7, 1]


# --- raising it


@pytest.mark.above_the_store
async def test_code_that_catches_exceptions_does_not_swallow_it(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def careful(ctx: Context, n: int = 0) -> str:
        try:
            if n == 0:
                raise ctx.continue_as_new(1)
        except Exception:
            return "swallowed"
        return "went on"

    assert await h.crash_everywhere(careful) == "went on"


@pytest.mark.above_the_store
async def test_continue_as_new_can_be_raised_in_a_nested_call(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def deep(ctx: Context, n: int = 0) -> int:
        async def inner(level: int) -> None:
            if level:
                await inner(level - 1)
            raise ctx.continue_as_new(n + 1)

        if n < 2:
            try:
                await inner(5)
            finally:
                await ctx.do("on the way out", str, n)
        return n

    assert await h.crash_everywhere(deep) == 2


@pytest.mark.above_the_store
async def test_continue_as_new_does_nothing_unless_it_is_raised(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def forgets(ctx: Context, n: int = 0) -> int:
        ctx.continue_as_new(n + 1)
        return n

    assert await h.crash_everywhere(forgets) == 0


@pytest.mark.above_the_store
async def test_continue_as_new_in_a_saga_runs_no_compensation(app: Holdfast, h: Harness) -> None:
    undone: list[int] = []

    @app.workflow
    async def books(ctx: Context, n: int = 0) -> str:
        if n:
            return "done"
        async with ctx.saga() as saga:
            saga.add(undone.append, 1)
            raise ctx.continue_as_new(1)

    assert await h.crash_everywhere(books) == "done"
    assert undone == []


@pytest.mark.above_the_store
async def test_continue_as_new_abandons_steps_in_flight(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def hurries(ctx: Context, n: int = 0) -> int:
        if n == 0:
            beside = asyncio.ensure_future(ctx.sleep("beside", "30 days"))
            await ctx.sleep("a while", "1 hour")
            assert not beside.done()
            raise ctx.continue_as_new(1)
        return n

    assert await h.crash_everywhere(hurries) == 1


# --- the mailbox


@pytest.mark.promise("messages-once-in-order")
async def test_undelivered_messages_are_carried_over_in_order(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def eater(ctx: Context, seen: list[Any]) -> list[Any]:
        words = ctx.listen("word")
        seen = [*seen, await words.receive()]
        if len(seen) < 5:
            raise ctx.continue_as_new(seen)
        return seen

    async def drive(harness: Harness, run: Handle[Any]) -> None:
        if (await run.describe()).run_number == 0:
            for n in range(5):
                await run.send_event("word", n, id=f"word-{n}")

    assert await h.crash_everywhere(eater, [], drive=drive) == [0, 1, 2, 3, 4]


async def test_messages_left_in_a_channel_are_carried_over(app: Holdfast, h: Harness) -> None:
    """Messages in a channel are in the run's memory and still undelivered in its mailbox."""

    @app.workflow
    async def lets_lie(ctx: Context, n: int = 0) -> Any:
        words, inbox = ctx.listen("word"), ctx.inbox
        if n == 0:
            await ctx.sleep("let them come", "1 hour")
            taken = [len(words), len(inbox), await words.receive()]
            ctx.log.info("taken", taken)
            raise ctx.continue_as_new(1)
        return [await words.receive(), await words.receive(), [(await inbox.receive()).payload for _ in range(2)]]

    messages = [("word", 0), ("other", "x"), ("word", 1), ("word", 2), ("other", "y")]
    run = await h.start(lets_lie, messages=messages)
    await h.run_until_idle()
    await h.restart()
    await h.advance("1 hour")
    assert await run.result(timeout=60) == [1, 2, ["x", "y"]]


async def test_new_messages_come_after_the_messages_carried_over(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def collects(ctx: Context, n: int = 0) -> list[Any]:
        if n == 0:
            await ctx.wait_for_event("go", type="go")
            raise ctx.continue_as_new(1)
        inbox = ctx.inbox
        return [(await inbox.receive()).payload for _ in range(4)]

    async def drive(harness: Harness, run: Handle[Any]) -> None:
        if (await run.describe()).run_number == 0:
            for n in range(2):
                await run.send_event("word", n, id=f"word-{n}")
            await run.send_event("go", id="go")
            await harness.run_until_idle()
        else:
            for n in range(2, 4):
                await run.send_event("word", n, id=f"word-{n}")

    assert await h.crash_everywhere(collects, drive=drive) == [0, 1, 2, 3]


async def test_messages_carried_over_keep_their_senders(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def reads(ctx: Context, n: int = 0) -> Any:
        if n < 2:
            raise ctx.continue_as_new(n + 1)
        message = await ctx.inbox.receive()
        return [message.topic, message.payload, message.sender]

    @app.workflow
    async def parent(ctx: Context) -> Any:
        return await ctx.run(reads, messages=[("hello", 1)])

    assert await h.crash_everywhere(parent) == ["hello", 1, "parent/crash-everywhere"]


async def test_an_ask_that_was_carried_over_can_be_replied_to(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def answers(ctx: Context, n: int = 0) -> None:
        if n < 2:
            raise ctx.continue_as_new(n + 1)
        message = await ctx.inbox.receive()
        await message.reply(f"run {ctx.info.run_number}")

    @app.workflow
    async def asks(ctx: Context) -> Any:
        child = await ctx.spawn(answers)
        return await ctx.ask(child.pid, "which")

    assert await h.crash_everywhere(asks) == "run 2"


@pytest.mark.promise("messages-once-in-order")
async def test_a_received_message_is_not_carried_over(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def once(ctx: Context, n: int = 0) -> list[Any]:
        if n == 0:
            await ctx.inbox.receive()
            await ctx.wait_for_event("go", type="go")
            raise ctx.continue_as_new(1)
        await ctx.sleep("a while", "1 hour")
        ctx.inbox  # noqa: B018  (opens it)
        await ctx.sleep("and on", "1 hour")
        return [len(ctx.inbox)]

    async def drive(harness: Harness, run: Handle[Any]) -> None:
        if (await run.describe()).run_number == 0:
            await run.send_event("word", 1, id="word")
            await run.send_event("go", id="go")

    assert await h.crash_everywhere(once, drive=drive) == [0]


async def test_a_thousand_messages_over_many_runs_are_received_once_in_order(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def eater(ctx: Context, so_far: list[int]) -> list[int]:
        first, total = so_far
        words = ctx.listen("word")
        for _ in range(100):
            word = await words.receive()
            assert word == first
            first, total = first + 1, total + word
        if first < 1000:
            raise ctx.continue_as_new([first, total])
        return [ctx.info.run_number, total]

    assert await finish(h, eater, [0, 0], messages=[("word", n) for n in range(1000)]) == [9, sum(range(1000))]


# --- other values that are carried over


async def test_context_memo_and_search_attributes_are_carried_over(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def continuing(ctx: Context, n: int = 0) -> list[Any]:
        ctx.set_search(round=n)
        if n == 0:
            ctx.set_memo(first="kept")
        if n < 2:
            raise ctx.continue_as_new(n + 1)
        ctx.set_memo(last="added")
        return [dict(ctx.values), await ctx.do("look", _tenant)]

    async def observe(harness: Harness, run: Handle[Any]) -> Any:
        found = await run.describe()
        listed = [item.id for item in (await harness.app.list(search={"round": 2, "customer": "c-1"})).items]
        gone = (await harness.app.list(search={"round": 0})).items
        return await run.result(timeout=60), found.memo, found.search, found.summary, listed, gone

    options: dict[str, Any] = {
        "context": {"tenant": "t-1"}, "memo": {"note": "x"}, "search": {"customer": "c-1"}, "summary": "continues",
    }  # fmt: skip
    assert await observe_with_crashes(h, continuing, observe=observe, **options) == (
        [{"tenant": "t-1"}, "t-1"],
        {"note": "x", "first": "kept", "last": "added"},
        {"customer": "c-1", "round": 2},
        "continues",
        ["everywhere"],
        [],
    )


def _tenant() -> Any:
    return context_values()["tenant"]


@pytest.mark.parametrize("looks", [False, True])
async def test_an_undelivered_cancel_event_is_carried_over(app: Holdfast, h: Harness, looks: bool) -> None:
    @app.workflow(cancel="event")
    async def continuing(ctx: Context, n: int = 0) -> Any:
        if n == 0:
            if looks:
                ctx.events  # noqa: B018  (opens it)
            await ctx.sleep("a while", "1 hour")
            raise ctx.continue_as_new(1)
        return getattr(await ctx.events.receive(), "reason", None)

    async def drive(harness: Harness, run: Handle[Any]) -> None:
        if (await run.describe()).run_number == 0:
            await cancel_once(run, "enough")

    assert await h.crash_everywhere(continuing, drive=drive) == "enough"


@pytest.mark.parametrize("looks", [False, True])
async def test_a_cancellation_that_was_raised_is_not_carried_over(app: Holdfast, h: Harness, looks: bool) -> None:
    @app.workflow
    async def evades(ctx: Context, n: int = 0) -> list[int]:
        if looks:
            ctx.events  # noqa: B018  (opens it)
        try:
            await ctx.sleep("a while", "1 hour")
        except asyncio.CancelledError:
            raise ctx.continue_as_new(n + 1) from None
        return [n, len(ctx.events)]

    async def drive(harness: Harness, run: Handle[Any]) -> None:
        if (await run.describe()).run_number == 0:
            await cancel_once(run, "enough")

    assert await h.crash_everywhere(evades, drive=drive) == [1, 0]


async def test_a_successor_keeps_its_parent(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def continuing(ctx: Context, n: int = 0) -> Any:
        if n < 2:
            raise ctx.continue_as_new(n + 1)
        return [ctx.info.parent, ctx.info.queue]

    @app.workflow
    async def parent(ctx: Context) -> Any:
        return await ctx.run(continuing)

    assert await h.crash_everywhere(parent) == ["parent/crash-everywhere", "default"]


async def test_a_run_timeout_applies_to_each_run(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def continuing(ctx: Context, n: int = 0) -> int:
        await ctx.sleep("nap", "40 minutes")
        if n < 3:
            raise ctx.continue_as_new(n + 1)
        return n

    async def observe(harness: Harness, run: Handle[Any]) -> Any:
        return await end_of(harness, run)

    assert await observe_with_crashes(h, continuing, observe=observe, run_timeout="1 hour") == (
        "complete",
        3,
        None,
        None,
    )


async def test_an_execution_timeout_covers_all_runs(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def continuing(ctx: Context, n: int = 0) -> None:
        await ctx.sleep("nap", "40 minutes")
        raise ctx.continue_as_new(n + 1)

    async def observe(harness: Harness, run: Handle[Any]) -> Any:
        return (await end_of(harness, run))[::2], (await run.describe()).run_number

    assert await observe_with_crashes(h, continuing, observe=observe, execution_timeout="3 hours") == (
        ("errored", "RunTimeoutError"),
        4,
    )


async def test_attempts_are_counted_from_one_in_each_run(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flaky(ctx: Context, n: int = 0) -> list[int]:
        if ctx.info.attempt == 1:
            raise WorkflowError("not at first")
        if n < 2:
            raise ctx.continue_as_new(n + 1)
        return [ctx.info.run_number, ctx.info.attempt]

    @app.workflow
    async def parent(ctx: Context) -> Any:
        return await ctx.run(flaky, 0, retry=Retry(1, "1 minute"))

    assert await h.crash_everywhere(parent) == [5, 2]


@pytest.mark.above_the_store
async def test_each_run_has_its_own_random_numbers(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def draws(ctx: Context, seen: list[Any]) -> list[Any]:
        seen = [*seen, [ctx.random.random(), str(ctx.uuid4())]]
        if len(seen) < 4:
            raise ctx.continue_as_new(seen)
        return seen

    seen = await h.crash_everywhere(draws, [])
    assert len({tuple(one) for one in seen}) == 4


async def test_logs_and_histories_of_earlier_runs_stay_readable(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def continuing(ctx: Context, n: int = 0) -> int:
        ctx.log.info(f"round {n}")
        if n < 2:
            raise ctx.continue_as_new(n + 1)
        return n

    run = await h.start(continuing)
    await h.run_until_idle()
    assert [line.message for line in await run.logs()] == ["round 2"]
    assert [(await run.history(n)).run_number for n in range(3)] == [0, 1, 2]


async def test_a_paused_run_continues_as_new_after_it_is_resumed(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def continuing(ctx: Context, n: int = 0) -> int:
        await ctx.sleep("nap", "1 hour")
        if n < 1:
            raise ctx.continue_as_new(n + 1)
        return n

    run = await h.start(continuing)
    await h.run_until_idle()
    await run.pause()
    await h.advance("2 hours")
    assert (await run.describe()).run_number == 0
    await run.resume()
    await h.advance("2 hours")
    assert await run.result(timeout=60) == 1


async def test_a_continued_run_can_be_restarted(app: Holdfast, h: Harness) -> None:
    """A restart begins with the params of the last run."""

    @app.workflow
    async def continuing(ctx: Context, n: int = 0) -> list[int]:
        if n < 2:
            raise ctx.continue_as_new(n + 1)
        return [n, ctx.info.run_number]

    run = await h.start(continuing)
    await h.run_until_idle()
    assert await run.result(timeout=60) == [2, 2]
    await run.restart()
    await h.run_until_idle()
    assert await run.result(timeout=60) == [2, 3]
