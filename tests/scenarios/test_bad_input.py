"""Bad input to each method that concerns other runs raises a clear error and has no effect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from driving import finish
from holdfast import (
    Channel,
    Context,
    DefinitionError,
    Holdfast,
    HoldfastError,
    InputError,
    InvalidDurationError,
    InvalidEventTypeError,
    InvalidInstanceIdError,
    InvalidNameError,
    InvalidOptionError,
    StepTx,
    Workflow,
    WorkflowNotFoundError,
    select,
)
from holdfast.testing import Harness

from .message_drives import crash_everywhere, number_of_instances

BAD_TOPICS = [
    "",
    "@",
    "@exit",
    "@cancel",
    "@reply",
    "*",
    " ",
    "a b",
    "a\n",
    "-a",
    ".a",
    "\u00e9",
    "x" * 101,
    None,
    5,
    b"a",
]

IN_CODE: dict[str, Callable[[Context, Any], Any]] = {
    "send": lambda ctx, topic: ctx.send(ctx.info.pid, topic),
    "ask": lambda ctx, topic: ctx.ask(ctx.info.pid, topic, timeout=1),
    "wait_for_event": lambda ctx, topic: ctx.wait_for_event("w", type=topic),
    "spawn": lambda ctx, topic: ctx.spawn(ctx.info.workflow, messages=[(topic, 1)]),
    "run": lambda ctx, topic: ctx.run(ctx.info.workflow, messages=[(topic, 1)]),
}


@pytest.fixture
def idle(app: Holdfast) -> Workflow[Any]:
    @app.workflow
    async def idle(ctx: Context) -> None:
        await ctx.inbox.receive()

    return idle


# --- topics


@pytest.mark.above_the_store
@pytest.mark.parametrize("topic", BAD_TOPICS, ids=repr)
async def test_bad_topics_are_refused_by_every_context_method(app: Holdfast, h: Harness, topic: Any) -> None:
    @app.workflow
    async def flow(ctx: Context) -> list[str]:
        refused = []
        for name, call in IN_CODE.items():
            try:
                await call(ctx, topic)
            except InvalidEventTypeError:
                refused.append(name)
        try:
            ctx.listen(topic)
        except InvalidEventTypeError:
            refused.append("listen")
        return refused

    run = await h.start(flow)
    await h.run_until_idle()

    assert await run.result(timeout=60) == [*IN_CODE, "listen"]
    assert (await run.history()).events == []
    assert await number_of_instances(h) == 1


@pytest.mark.above_the_store
@pytest.mark.parametrize("topic", BAD_TOPICS, ids=repr)
async def test_bad_topics_are_refused_by_send_event_ask_and_start(h: Harness, idle: Workflow[Any], topic: Any) -> None:
    run = await h.start(idle)

    with pytest.raises(InvalidEventTypeError) as caught:
        await run.send_event(topic)
    assert caught.value.code == "INVALID_EVENT_TYPE"
    with pytest.raises(InvalidEventTypeError):
        await run.ask(topic, timeout=1)
    with pytest.raises(InvalidEventTypeError):
        await h.start(idle, messages=[("fine", 0), (topic, 1)])
    assert (await run.history()).events == []
    assert await number_of_instances(h) == 1


@pytest.mark.parametrize("topic", ["", "@exit", "a b", None])
async def test_bad_topics_are_refused_in_a_steps_transaction(app: Holdfast, h: Harness, topic: Any) -> None:
    @app.step
    async def send(tx: StepTx, pid: str) -> str:
        try:
            tx.send(pid, topic)
        except InvalidEventTypeError as error:
            return error.code
        return "sent"

    @app.workflow
    async def flow(ctx: Context) -> str:
        return await send(ctx.info.pid)

    assert await finish(h, flow) == "INVALID_EVENT_TYPE"


@pytest.mark.above_the_store
@pytest.mark.parametrize("topic", ["a", "A.b-c_d", "0", "x" * 100, "_", "exit", "cancel", "inbox"])
async def test_good_topics_are_accepted(app: Holdfast, h: Harness, topic: str) -> None:
    @app.workflow
    async def flow(ctx: Context) -> Any:
        await ctx.send(ctx.info.pid, topic, 1)
        return await ctx.listen(topic).receive()

    assert await crash_everywhere(h, flow) == 1


# --- pids

BAD_PIDS = [
    "",
    "x",
    "/",
    "flow/",
    "/x",
    "flow/a b",
    "flow/-a",
    "flow/@x",
    "fl ow/x",
    "x" * 65 + "/x",
    "flow/" + "x" * 101,
]
BAD_PIDS += [None, 5, b"flow/x", ("flow", "x")]  # type: ignore[list-item]

ON_PIDS: dict[str, Callable[[Context, Any], Any]] = {
    "send": lambda ctx, pid: ctx.send(pid, "a"),
    "ask": lambda ctx, pid: ctx.ask(pid, "a", timeout=1),
    "monitor": lambda ctx, pid: ctx.monitor(pid),
    "unmonitor": lambda ctx, pid: ctx.unmonitor(pid),
    "link": lambda ctx, pid: ctx.link(pid),
    "unlink": lambda ctx, pid: ctx.unlink(pid),
    "cancel": lambda ctx, pid: ctx.cancel(pid),
    "terminate": lambda ctx, pid: ctx.terminate(pid),
}


@pytest.mark.above_the_store
@pytest.mark.parametrize("pid", BAD_PIDS, ids=lambda one: repr(one)[:20])
async def test_bad_pids_are_refused_by_every_context_method(app: Holdfast, h: Harness, pid: Any) -> None:
    @app.workflow
    async def flow(ctx: Context) -> list[str]:
        refused = []
        for name, call in ON_PIDS.items():
            try:
                await call(ctx, pid)
            except (InvalidInstanceIdError, InvalidNameError):
                refused.append(name)
        return refused

    run = await h.start(flow)
    await h.run_until_idle()

    assert await run.result(timeout=60) == [*ON_PIDS]
    assert (await run.history()).steps == []


# --- channels


@pytest.mark.above_the_store
@pytest.mark.parametrize("case", [None, "a", 5, [], frozenset()], ids=str)
async def test_select_refuses_values_that_are_not_channels(app: Holdfast, h: Harness, case: Any) -> None:
    @app.workflow
    async def flow(ctx: Context) -> str:
        try:
            await select(ctx.inbox, case)
        except InvalidOptionError as error:
            return error.code
        return "taken"

    assert await finish(h, flow) == "INVALID_OPTION"


@pytest.mark.above_the_store
async def test_unlisten_leaves_a_channel_that_holds_no_messages_open(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> list[Any]:
        own: Channel[int] = Channel(1)
        ctx.unlisten(own)
        await own.send(1)
        return [own.closed, await own.receive()]

    assert await crash_everywhere(h, flow) == [False, 1]


# --- durations, reasons, ids


@pytest.mark.above_the_store
@pytest.mark.parametrize("deadline", ["soon", -1, True, float("nan"), []], ids=str)
async def test_a_bad_deadline_is_refused(app: Holdfast, h: Harness, idle: Workflow[Any], deadline: Any) -> None:
    @app.workflow
    async def flow(ctx: Context) -> str:
        try:
            await ctx.cancel("idle/one", deadline=deadline)
        except (InvalidOptionError, InvalidDurationError) as error:
            return str(error)
        return "cancelled"

    run = await h.start(idle, id="one")
    await h.run_until_idle()
    with pytest.raises((InvalidOptionError, InvalidDurationError), match="deadline"):
        await run.cancel(deadline=deadline)
    assert "deadline" in await finish(h, flow)
    assert (await run.status()).status == "waiting"


@pytest.mark.above_the_store
@pytest.mark.parametrize("reason", [5, ["a"], b"a", {"a": 1}], ids=str)
async def test_a_reason_that_is_not_a_string_is_refused(
    app: Holdfast, h: Harness, idle: Workflow[Any], reason: Any
) -> None:
    @app.workflow
    async def flow(ctx: Context) -> list[str]:
        found = []
        for end in (ctx.cancel, ctx.terminate):
            try:
                await end("idle/one", reason)
            except InvalidOptionError as error:
                found.append(str(error))
        return found

    run = await h.start(idle, id="one")
    await h.run_until_idle()
    for end in (run.cancel, run.terminate):
        with pytest.raises(InvalidOptionError, match="reason"):
            await end(reason)
    messages = await finish(h, flow)
    assert len(messages) == 2
    assert all("reason" in message for message in messages)
    assert (await run.status()).status == "waiting"


@pytest.mark.above_the_store
@pytest.mark.parametrize("timeout", ["soon", -1, True, []], ids=str)
async def test_an_ask_with_a_bad_timeout_sends_nothing(app: Holdfast, h: Harness, timeout: Any) -> None:
    @app.workflow
    async def flow(ctx: Context) -> str:
        try:
            await ctx.ask(ctx.info.pid, "q", timeout=timeout)
        except InvalidDurationError as error:
            return error.code
        return "asked"

    run = await h.start(flow)
    await h.run_until_idle()

    assert await run.result(timeout=60) == "INVALID_DURATION"
    assert (await run.history()).events == []


@pytest.mark.above_the_store
@pytest.mark.parametrize("id", ["", "x" * 201, 5, b"a"], ids=repr)
async def test_a_bad_message_id_is_refused(h: Harness, idle: Workflow[Any], id: Any) -> None:
    run = await h.start(idle)
    with pytest.raises(InvalidOptionError):
        await run.send_event("a", id=id)
    assert (await run.history()).events == []


# --- workflows


@pytest.mark.above_the_store
@pytest.mark.parametrize("child", ["no-such-workflow", "", None, 5, print], ids=str)
async def test_starting_a_child_of_an_unknown_workflow_raises(app: Holdfast, h: Harness, child: Any) -> None:
    @app.workflow
    async def flow(ctx: Context) -> list[str]:
        found = []
        for start in (ctx.spawn, ctx.run):
            try:
                await start(child)
            except WorkflowNotFoundError as error:
                found.append(error.code)
        return found

    assert await crash_everywhere(h, flow) == ["WORKFLOW_NOT_FOUND"] * 2


@pytest.mark.parametrize(
    "options",
    [
        {"cancel": "maybe"},
        {"cancel": None},
        {"persist": "never"},
        {"retry": 3},
        {"timeout": "soon"},
        {"trap_links": "no"},
    ],
    ids=str,
)
def test_bad_workflow_options_are_refused(options: dict[str, Any]) -> None:
    app = Holdfast("sqlite://")
    with pytest.raises((InputError, DefinitionError)):

        @app.workflow(**options)
        async def flow(ctx: Context) -> None: ...


@pytest.mark.above_the_store
async def test_trap_links_is_false_until_it_is_set(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> list[Any]:
        before = ctx.trap_links
        ctx.trap_links = True
        return [before, ctx.trap_links]

    assert await crash_everywhere(h, flow) == [False, True]


# --- after an error


@pytest.mark.promise("clear-errors")
async def test_a_run_continues_after_bad_input(app: Holdfast, h: Harness) -> None:
    """A refused call has no effect: the same call with good arguments works and replays."""

    @app.workflow
    async def flow(ctx: Context) -> list[Any]:
        refused = 0
        for pid, topic, payload in (("x", "a", 1), (ctx.info.pid, "@a", 1), (ctx.info.pid, "a", frozenset())):
            try:
                await ctx.send(pid, topic, payload)
            except HoldfastError:
                refused += 1
            await ctx.send(ctx.info.pid, "a", refused)
        channel = ctx.listen("a")
        return [refused, [await channel.receive() for _ in range(3)]]

    assert await crash_everywhere(h, flow) == [3, [1, 2, 3]]


async def test_a_run_that_never_reads_keeps_the_messages_of_two_hundred_senders(
    app: Holdfast, h: Harness, idle: Workflow[Any]
) -> None:
    @app.workflow
    async def deaf(ctx: Context) -> str:
        await ctx.sleep("nap", "1 day")
        return "slept"

    @app.workflow
    async def sender(ctx: Context, to: str) -> int:
        for n in range(5):
            await ctx.send(to, f"topic-{n}", n)
        return 5

    run = await h.start(deaf)
    senders = [await h.start(sender, run.pid) for _ in range(200)]
    await h.run_until_idle()
    assert sum([await one.result(timeout=60) for one in senders]) == 1000
    events = (await run.history()).events
    assert len(events) == 1000
    assert {event.delivered_at for event in events} == {None}
    await h.advance("1 day")
    assert await run.result(timeout=60) == "slept"
