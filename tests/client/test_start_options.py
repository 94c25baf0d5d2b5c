"""Start options: the effect of each, its default, and the error for a wrong value, which starts nothing."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

import pytest

from apps import MakeApp
from driving import finish, until
from holdfast import (
    Channel,
    Context,
    Handle,
    Holdfast,
    InstanceTerminalError,
    InvalidEventTypeError,
    InvalidInstanceIdError,
    InvalidOptionError,
    NotSerializableError,
    PayloadTooLargeError,
    Retry,
    RunFailedError,
    WorkerConfig,
    Workflow,
    context_values,
)
from holdfast.store.protocol import NewRun
from holdfast.testing import Harness
from scenarios.message_drives import MIB, crash_everywhere, launcher, number_of_instances


@pytest.fixture
def idle(app: Holdfast) -> Workflow[Any]:
    @app.workflow
    async def idle(ctx: Context) -> Any:
        return (await ctx.wait_for_event("go", type="go", timeout="365 days")).payload

    return idle


# --- defaults


async def test_without_options_a_run_has_the_defaults(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> list[Any]:
        info = ctx.info
        return [info.queue, info.attempt, info.run_number, info.parent, dict(ctx.values)]

    run = await h.start(flow)
    await h.run_until_idle()

    assert await run.result(timeout=60) == ["default", 1, 0, None, {}]
    description = await run.describe()
    assert (description.memo, description.search, description.summary, description.attempt) == ({}, {}, None, 1)


async def test_a_run_without_timeouts_is_never_timed_out(app: Holdfast, h: Harness, idle: Workflow[Any]) -> None:
    run = await h.start(idle)
    await h.advance("300 days")
    await run.send_event("go", "at last")
    await h.run_until_idle()

    assert await run.result(timeout=60) == "at last"


@pytest.mark.above_the_store
async def test_an_option_of_none_has_its_default(h: Harness, idle: Workflow[Any]) -> None:
    names = ["id", "start_delay", "execution_timeout", "run_timeout", "task_timeout", "retry", "cron"]
    names += ["memo", "search", "context", "summary"]

    run = await h.start(idle, **dict.fromkeys(names))
    await run.send_event("go", 1)
    await h.run_until_idle()

    assert await run.result(timeout=60) == 1


# --- wrong values

WRONG: list[tuple[str, Any]] = [
    ("on_conflict", "replace"),
    ("on_conflict", None),
    ("on_conflict", 5),
    ("on_conflict", ["fail"]),
    ("on_reuse", "terminate_existing"),
    ("on_reuse", None),
    ("on_reuse", True),
    ("queue", ""),
    ("queue", None),
    ("queue", 5),
    ("queue", b"default"),
    ("execution_timeout", 0),
    ("execution_timeout", "soon"),
    ("execution_timeout", -1),
    ("execution_timeout", True),
    ("run_timeout", "0s"),
    ("run_timeout", float("nan")),
    ("run_timeout", []),
    ("task_timeout", 0),
    ("task_timeout", float("inf")),
    ("task_timeout", "1 fortnight"),
    ("retry", 3),
    ("retry", {"limit": 3}),
    ("retry", Retry),
    ("cron", 5),
    ("cron", ""),
    ("cron", "* * *"),
    ("start_delay", -1),
    ("start_delay", "tomorrow"),
    ("start_delay", "101 years"),
    ("start_delay", False),
    ("memo", [1]),
    ("memo", "text"),
    ("memo", {1: 2}),
    ("search", [("a", 1)]),
    ("search", {1: 2}),
    ("search", {"": 2}),
    ("search", {"a": None}),
    ("search", {"a": {"b": 1}}),
    ("context", ["a"]),
    ("context", {1: 2}),
    ("context", "a=b"),
    ("messages", "go"),
    ("messages", {"go": 1}),
    ("messages", ["go"]),
    ("messages", [("go",)]),
    ("messages", [("go", 1, 2)]),
    ("messages", 5),
    ("messages", None),
    ("messages", ""),
    ("messages", 0),
    ("messages", {}),
    ("priority", "1"),
    ("priority", 1.5),
    ("priority", True),
    ("priority", None),
    ("priority", 2**40),
    ("eager", 1),
    ("eager", None),
    ("eager", "yes"),
    ("summary", 5),
    ("summary", "x" * 1001),
]


@pytest.mark.promise("clear-errors")
@pytest.mark.above_the_store
@pytest.mark.parametrize(("name", "value"), WRONG, ids=lambda one: str(one)[:20])
async def test_a_wrong_option_is_named_and_nothing_is_started(
    h: Harness, idle: Workflow[Any], name: str, value: Any
) -> None:
    with pytest.raises(InvalidOptionError, match=name) as caught:
        await h.start(idle, **{name: value})

    assert caught.value.code == "INVALID_OPTION"
    assert await number_of_instances(h) == 0


@pytest.mark.above_the_store
@pytest.mark.parametrize(("name", "value"), WRONG, ids=lambda one: str(one)[:20])
async def test_a_wrong_option_of_a_child_is_an_error_in_the_code(
    app: Holdfast, h: Harness, idle: Workflow[Any], name: str, value: Any
) -> None:
    @app.workflow
    async def parent(ctx: Context) -> list[str]:
        found = []
        for start in (ctx.spawn, ctx.run):
            try:
                await start(idle, None, **{name: value})
            except InvalidOptionError as error:
                found.append(str(error))
        return found

    messages = await finish(h, parent)

    assert len(messages) == 2
    assert all(name in message for message in messages)
    assert await number_of_instances(h) == 1


@pytest.mark.above_the_store
@pytest.mark.parametrize(
    ("name", "value"),
    [("parent_close", "orphan"), ("parent_close", None), ("parent_close", 5), ("wait_for_cancellation", "yes")],
)
async def test_wrong_options_for_children_are_refused(
    app: Holdfast, h: Harness, idle: Workflow[Any], name: str, value: Any
) -> None:
    @app.workflow
    async def parent(ctx: Context) -> str:
        try:
            await ctx.run(idle, None, **{name: value})
        except InvalidOptionError as error:
            return str(error)
        return "started"

    assert name in await finish(h, parent)
    assert await number_of_instances(h) == 1


@pytest.mark.above_the_store
@pytest.mark.parametrize("name", ["parent_close", "wait_for_cancellation", "timeout", "onConflict", "link", "name"])
async def test_an_unknown_option_is_a_type_error(h: Harness, idle: Workflow[Any], name: str) -> None:
    with pytest.raises(TypeError, match=name):
        await h.start(idle, **{name: "terminate"})
    assert await number_of_instances(h) == 0


@pytest.mark.above_the_store
async def test_an_unknown_option_of_a_child_is_a_type_error(app: Holdfast, h: Harness, idle: Workflow[Any]) -> None:
    unknown: Any = {"colour": "red"}

    @app.workflow
    async def parent(ctx: Context) -> list[str]:
        found = []
        for start in (ctx.spawn, ctx.run):
            try:
                await start(idle, None, **unknown)
            except TypeError as error:
                found.append(str(error))
        return found

    messages = await finish(h, parent)
    assert len(messages) == 2
    assert all("colour" in message for message in messages)


@pytest.mark.above_the_store
@pytest.mark.parametrize("id", ["", "a/b", "-a", "a b", "x" * 101, 5])
async def test_a_bad_id_is_refused(h: Harness, idle: Workflow[Any], id: Any) -> None:
    with pytest.raises(InvalidInstanceIdError):
        await h.start(idle, id=id)
    assert await number_of_instances(h) == 0


@pytest.mark.above_the_store
@pytest.mark.parametrize("name", ["memo", "context"])
async def test_values_that_cannot_be_stored_are_refused(h: Harness, idle: Workflow[Any], name: str) -> None:
    for value in (object(), float("nan"), {1, "a"}, print):
        options: dict[str, Any] = {name: {"key": value}}
        with pytest.raises(NotSerializableError, match=name):
            await h.start(idle, **options)
    options = {name: {"key": "x" * MIB}}
    with pytest.raises(PayloadTooLargeError, match=name):
        await h.start(idle, **options)
    assert await number_of_instances(h) == 0


@pytest.mark.above_the_store
@pytest.mark.parametrize("topic", ["", "@exit", "a b", None, 5])
async def test_a_start_with_one_bad_message_starts_nothing(h: Harness, idle: Workflow[Any], topic: Any) -> None:
    with pytest.raises(InvalidEventTypeError):
        await h.start(idle, messages=[("go", 1), (topic, 2)])
    assert await number_of_instances(h) == 0


# --- start_delay


async def test_a_run_with_a_start_delay_begins_after_the_delay(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> str:
        return ctx.info.started_at.isoformat()

    before = h.now()
    run = await h.start(flow, start_delay="90 minutes")
    await h.advance("89 minutes")
    description = await run.describe()
    assert description.started_at is None
    assert description.why == "waiting for its start at 2030-01-01 01:30:00 UTC"
    await h.advance("1 minute")

    assert (before.isoformat(), await run.result(timeout=60)) == (
        "2030-01-01T00:00:00+00:00",
        "2030-01-01T01:30:00+00:00",
    )


async def test_a_run_with_a_start_delay_has_the_status_waiting(h: Harness, idle: Workflow[Any]) -> None:
    run = await h.start(idle, start_delay="1 hour")
    await h.run_until_idle()
    assert (await run.status()).status == "waiting"


@pytest.mark.above_the_store
async def test_a_start_delay_of_zero_is_no_delay(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> int:
        return 1

    assert await finish(h, flow, start_delay=0) == 1


async def test_a_delayed_run_can_be_ended_before_it_begins(h: Harness, idle: Workflow[Any]) -> None:
    run = await h.start(idle, start_delay="1 hour")
    await run.terminate()
    await h.advance("2 hours")
    assert (await run.describe()).started_at is None


async def test_a_child_can_have_a_start_delay(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def child(ctx: Context) -> str:
        return ctx.now().isoformat()

    @app.workflow
    async def parent(ctx: Context) -> bool:
        before = ctx.now()
        after = await ctx.run(child, start_delay="1 hour")
        return after >= before.replace(hour=before.hour + 1).isoformat()

    assert await crash_everywhere(h, parent) is True


# --- queue, priority, eager, summary


async def test_the_lower_priority_number_starts_first(app: Holdfast, h: Harness) -> None:
    order: list[str] = []

    @app.workflow
    async def flow(ctx: Context) -> None:
        order.append(ctx.info.instance_id)

    priorities = {"last": 7, "second": None, "third": 0, "first": -3}
    for one, priority in priorities.items():
        await h.start(flow, id=one, **({} if priority is None else {"priority": priority}))
        await h.advance(0.01, run=False)
    for _ in range(4):
        await h._the_worker().claim_due(1)
        await h._settle()

    assert order == ["first", "second", "third", "last"]


async def test_a_run_is_claimed_only_by_workers_that_serve_its_queue(make_app: MakeApp) -> None:
    app, other = make_app(), make_app(worker=WorkerConfig(queues=("gpu",)))

    async def where(ctx: Context) -> str:
        return ctx.info.queue

    workflow = app.workflow(where)
    other.workflow(where)
    async with app:
        run = await app.start(workflow, queue="gpu")
        usual = await app.start(workflow)
        assert await usual.result(timeout=60) == "default"
        assert "queue 'gpu'" in (await run.describe()).why
        async with other:
            assert await run.result(timeout=60) == "gpu"


@pytest.mark.parametrize("eager", [True, False])
async def test_a_run_completes_with_and_without_eager(make_app: MakeApp, eager: bool) -> None:
    app = make_app()

    @app.workflow
    async def flow(ctx: Context) -> int:
        return 1

    async with app:
        assert await (await app.start(flow, eager=eager)).result(timeout=60) == 1


async def test_only_an_eager_run_begins_without_the_queue(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    app = make_app()
    reserved: list[str] = []

    def refuse(new: NewRun) -> int:
        reserved.append(new.workflow)
        return 0

    @app.workflow
    async def flow(ctx: Context) -> int:
        return 1

    async with app:
        worker = app._opened().worker
        assert worker is not None
        monkeypatch.setattr(worker, "reserve", refuse)
        await (await app.start(flow, eager=False)).result(timeout=60)
        assert reserved == []
        await (await app.start(flow)).result(timeout=60)
        assert reserved == ["flow"]


async def test_describe_shows_the_summary(h: Harness, idle: Workflow[Any]) -> None:
    run = await h.start(idle, summary="Order 7 of Ann, \u20ac 125")
    assert (await run.describe()).summary == "Order 7 of Ann, \u20ac 125"


# --- messages


async def test_messages_of_the_start_come_before_all_others(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def counter(ctx: Context, initial: int) -> list[Any]:
        return [initial, *[[m.topic, m.payload, m.sender] for m in [await ctx.inbox.receive() for _ in range(3)]]]

    run = await h.start(counter, 5, messages=[("add", 2), ["sub", {"n": 1}]])
    await run.send_event("later", 0)
    await h.run_until_idle()

    assert await run.result(timeout=60) == [5, ["add", 2, None], ["sub", {"n": 1}, None], ["later", 0, None]]


async def test_messages_of_a_start_are_received_once_with_a_crash_at_any_commit(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def counter(ctx: Context, params: Any) -> int:
        increments = ctx.listen("increment")
        return sum([await increments.receive() for _ in range(3)])

    launch = launcher(app, counter, messages=[("increment", 2), ("increment", 1), ("increment", 4)])

    assert await crash_everywhere(h, launch) == 7


async def test_messages_of_a_child_start_name_the_parent_as_sender(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def child(ctx: Context, params: Any) -> Any:
        return (await ctx.inbox.receive()).sender

    assert await crash_everywhere(h, launcher(app, child, messages=[("a", 1)])) == "launcher/crash-everywhere"


async def test_messages_of_a_start_are_sent_to_an_existing_run(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def counter(ctx: Context, initial: int) -> list[int]:
        increments = ctx.listen("increment")
        return [initial, await increments.receive(), await increments.receive()]

    first = await h.start(counter, 0, id="c", messages=[("increment", 3)])
    await h.run_until_idle()
    second = await h.start(counter, 999, id="c", messages=[("increment", 2)])
    await h.run_until_idle()

    assert first.pid == second.pid
    assert await first.result(timeout=60) == await second.result(timeout=60) == [0, 3, 2]


async def test_messages_of_two_starts_of_one_child_are_all_received(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def counter(ctx: Context, initial: int) -> int:
        increments: Channel[int] = ctx.listen("increment")
        return initial + sum([await increments.receive() for _ in range(2)])

    @app.workflow
    async def parent(ctx: Context) -> list[Any]:
        one = await ctx.spawn(counter, 0, id="c", messages=[("increment", 3)])
        two = await ctx.spawn(counter, 999, id="c", messages=[("increment", 2)])
        return [one.pid == two.pid, await one.result(), await two.result()]

    assert await crash_everywhere(h, parent) == [True, 5, 5]


async def test_messages_for_a_finished_run_are_refused(h: Harness, idle: Workflow[Any]) -> None:
    run = await h.start(idle, id="over", messages=[("go", 1)])
    await h.run_until_idle()

    with pytest.raises(InstanceTerminalError) as caught:
        await h.start(idle, id="over", messages=[("go", 2)])

    assert caught.value.code == "INSTANCE_TERMINAL"
    assert await run.result(timeout=60) == 1
    again = await h.start(idle, id="over")  # a start without messages returns the ended run
    assert await again.result(timeout=60) == 1


async def test_a_child_start_with_messages_for_a_finished_run_is_refused(
    app: Holdfast, h: Harness, idle: Workflow[Any]
) -> None:
    @app.workflow
    async def parent(ctx: Context) -> str:
        await ctx.run(idle, id="over", messages=[("go", 1)])
        try:
            await ctx.spawn(idle, id="over", messages=[("go", 2)])
        except InstanceTerminalError as error:
            return error.code
        return "sent"

    assert await crash_everywhere(h, parent) == "INSTANCE_TERMINAL"


async def test_messages_go_to_the_new_run_if_one_is_started(h: Harness, idle: Workflow[Any]) -> None:
    await h.start(idle, id="over", messages=[("go", 1)])
    await h.run_until_idle()
    run = await h.start(idle, id="over", on_reuse="allow", messages=[("go", 2)])
    await h.run_until_idle()

    assert await run.result(timeout=60) == 2


@pytest.mark.above_the_store
async def test_messages_may_be_any_iterable(h: Harness, idle: Workflow[Any]) -> None:
    run = await h.start(idle, messages=(("go", n) for n in range(2)))
    await h.run_until_idle()
    assert await run.result(timeout=60) == 0


# --- context


@pytest.fixture
def shown(app: Holdfast) -> Workflow[Any]:
    """Return the context as seen by the code, an async step, a step in a thread, and a thread of the code."""

    @app.step
    async def in_task() -> dict[str, Any]:
        return dict(await asyncio.create_task(_values()))

    @app.step
    def in_thread() -> list[Any]:
        with ThreadPoolExecutor(1) as pool:
            deeper = pool.submit(copy_context().run, context_values).result()
        return [dict(context_values()), dict(deeper), threading.current_thread() is threading.main_thread()]

    @app.workflow
    async def shown(ctx: Context) -> list[Any]:
        return [dict(ctx.values), await in_task(), await in_thread()]

    return shown


async def _values() -> Any:
    return context_values()


async def test_the_context_reaches_code_steps_and_threads(app: Holdfast, h: Harness, shown: Workflow[Any]) -> None:
    values = {"user": "u-1", "nested": {"a": [1, None]}}

    assert await finish(h, shown, context=values) == [values, values, [values, values, False]]


async def test_the_context_survives_a_crash_at_any_commit(app: Holdfast, h: Harness, shown: Workflow[Any]) -> None:
    @app.workflow
    async def parent(ctx: Context) -> Any:
        return await ctx.run(shown, context={"user": "u-1"})

    values = {"user": "u-1"}
    assert await crash_everywhere(h, parent) == [values, values, [values, values, False]]


@pytest.mark.above_the_store
async def test_the_context_is_empty_by_default(h: Harness, shown: Workflow[Any]) -> None:
    assert await finish(h, shown) == [{}, {}, [{}, {}, False]]
    assert dict(context_values()) == {}


@pytest.mark.above_the_store
async def test_the_context_is_read_only(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> str:
        try:
            ctx.values["user"] = "other"  # type: ignore[index]
        except TypeError:
            return str(ctx.values["user"])
        return "changed"

    assert await finish(h, flow, context={"user": "u-1"}) == "u-1"


async def test_children_inherit_the_context_and_may_change_it_for_themselves(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def leaf(ctx: Context) -> dict[str, Any]:
        return dict(ctx.values)

    @app.workflow
    async def middle(ctx: Context) -> list[Any]:
        return [dict(ctx.values), await ctx.run(leaf), await ctx.run(leaf, context={"b": 3, "c": 4})]

    @app.workflow
    async def top(ctx: Context) -> list[Any]:
        found = await ctx.run(middle, context={"a": 1, "b": 2})
        return [*found, dict(ctx.values)]

    ab = {"a": 1, "b": 2}
    assert await crash_everywhere(h, top) == [ab, ab, {"a": 1, "b": 3, "c": 4}, {}]


async def test_the_context_is_carried_over_to_successors(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context, n: int) -> list[Any]:
        if ctx.info.attempt == 1 and n == 0:
            raise ValueError("try again")
        if n == 0:
            raise ctx.continue_as_new(1)
        return [n, dict(ctx.values)]

    launch = launcher(app, flow, context={"user": "u-1"}, retry=Retry(limit=1, delay="1s"))
    assert await crash_everywhere(h, launch, 0) == [1, {"user": "u-1"}]


async def test_a_restarted_run_keeps_its_context(h: Harness, shown: Workflow[Any]) -> None:
    run = await h.start(shown, context={"user": "u-1"})
    await h.run_until_idle()
    await run.restart()
    await h.run_until_idle()

    assert (await run.result(timeout=60))[0] == {"user": "u-1"}


async def test_concurrent_runs_have_their_own_contexts(make_app: MakeApp) -> None:
    app = make_app()

    @app.step
    def mine() -> Any:
        return context_values().get("n")

    @app.workflow
    async def flow(ctx: Context) -> Any:
        return [await mine() for _ in range(3)]

    async with app:
        runs: list[Handle[Any]] = [await app.start(flow, context={"n": n}) for n in range(10)]
        assert [await run.result(timeout=60) for run in runs] == [[n] * 3 for n in range(10)]


# --- combinations


async def test_a_start_that_finds_an_existing_run_does_not_change_it(h: Harness, idle: Workflow[Any]) -> None:
    run = await h.start(idle, id="one", memo={"a": 1}, search={"s": 1}, summary="first", context={"c": 1})
    await h.start(idle, id="one", memo={"a": 2}, search={"s": 2}, summary="second", run_timeout=1)
    await h.advance("1 hour")

    description = await run.describe()
    assert (description.memo, description.search, description.summary) == ({"a": 1}, {"s": 1}, "first")
    assert description.status == "waiting"


async def test_all_options_can_be_combined(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context, params: str) -> list[Any]:
        message = await ctx.inbox.receive()
        return [params, message.payload, dict(ctx.values), ctx.info.attempt]

    run = await h.start(
        flow, "in", id="all", on_conflict="fail", on_reuse="reject", queue="default", execution_timeout="1 day",
        run_timeout="1 hour", task_timeout="10 seconds", retry=Retry(limit=2), start_delay="1 minute",
        memo={"m": 1}, search={"s": 2}, context={"c": 3}, messages=[("go", 4)], priority=5, eager=False, summary="all",
    )  # fmt: skip
    await h.advance("1 minute")

    assert await run.result(timeout=60) == ["in", 4, {"c": 3}, 1]
    description = await run.describe()
    assert (description.memo, description.search, description.summary) == ({"m": 1}, {"s": 2}, "all")


async def test_a_run_with_options_fails_with_its_error(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def broken(ctx: Context) -> None:
        raise KeyError("no")

    with pytest.raises(RunFailedError):
        await finish(h, broken, memo={"m": 1}, context={"c": 1})


async def test_a_worker_starts_a_delayed_run_when_it_is_due(make_app: MakeApp) -> None:
    app = make_app(worker=WorkerConfig(poll="1 hour"))

    @app.workflow
    async def flow(ctx: Context) -> int:
        return 1

    async with app:
        run = await app.start(flow, start_delay="100 ms")
        assert (await run.status()).status == "waiting"

        async def complete() -> bool:
            return (await run.status()).status == "complete"

        await until(complete)
