"""Values between runs are unchanged on every path and on every replay."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import pytest

from apps import MakeApp
from driving import finish
from holdfast import (
    Context,
    EventInvalidError,
    Holdfast,
    InvalidOptionError,
    NotSerializableError,
    ParamsInvalidError,
    select,
)
from holdfast.testing import Harness

from .message_drives import crash_everywhere, send_one_by_one

PLAIN: dict[str, Any] = {
    "nothing": None,
    "false": False,
    "zero": 0,
    "large": 2**200,
    "small": -(10**30),
    "float": 0.1 + 0.2,
    "tiny": 5e-324,
    "empty text": "",
    "text": "NUL \x00, lone \ud800 and \udfff, \u00fcn\u00efcode \U0001f980, \"'\\ \n\r\t\x7f\u2028",
    "empty list": [],
    "empty object": {},
    "nested": {"a": [{"b": [None, True, [1.5, "x"]]}], "": {"\x00": "\ud83d"}},
    "like an event": {"type": "@exit", "payload": None, "sender": "x/y"},
    "wide": [*range(1000)],
    "deep": [[[[[[[[[[1]]]]]]]]]],
}


class Colour(Enum):
    RED = "red"


@dataclass
class Order:
    id: UUID
    total: Decimal
    due: datetime
    colour: Colour
    blob: bytes
    note: str | None = None


ORDER = Order(UUID(int=7), Decimal("12.50"), datetime(2030, 1, 2, 3, tzinfo=UTC), Colour.RED, b"\x00\xff")
ORDER_AS_JSON = {
    "id": "00000000-0000-0000-0000-000000000007",
    "total": "12.50",
    "due": "2030-01-02T03:00:00+00:00",
    "colour": "red",
    "blob": "AP8=",
    "note": None,
}


@pytest.mark.promise("clear-errors")
@pytest.mark.parametrize("value", [None, False, "", [], PLAIN["text"], PLAIN], ids=lambda one: repr(one)[:8])
async def test_a_value_is_unchanged_on_every_path_between_runs(app: Holdfast, h: Harness, value: Any) -> None:
    @app.workflow
    async def mirror(ctx: Context, params: Any) -> Any:
        message = await ctx.listen("startup", messages=True).receive()
        question = await ctx.listen("ask", messages=True).receive()
        await question.reply(question.payload)
        assert message.sender is not None
        await ctx.send(message.sender, "back", message.payload)
        return [params, ctx.values["value"]]

    @app.workflow
    async def sender(ctx: Context) -> list[bool]:
        child = await ctx.spawn(mirror, value, context={"value": value}, messages=[("startup", value)])
        answer = await ctx.ask(child.pid, "ask", value)
        back = await ctx.listen("back").receive()
        params, context = await child.result()
        await ctx.send(ctx.info.pid, "self", value)
        own = (await ctx.wait_for_event("self", type="self")).payload
        return [answer == value, back == value, params == value, context == value, own == value]

    assert await crash_everywhere(h, sender) == [True] * 5


@pytest.mark.promise("clear-errors")
@pytest.mark.parametrize("name", PLAIN)
async def test_a_value_is_unchanged_on_every_path_from_a_client(app: Holdfast, h: Harness, name: str) -> None:
    value = PLAIN[name]

    @app.workflow
    async def flow(ctx: Context, params: Any) -> list[Any]:
        startup, sent = (await ctx.inbox.receive()).payload, (await ctx.inbox.receive()).payload
        question = await ctx.inbox.receive()
        await question.reply(question.payload)
        return [params, startup, sent, ctx.values["value"]]

    run = await h.start(flow, value, context={"value": value}, memo={"value": value}, messages=[("m", value)])
    await run.send_event("m", value)
    asking = asyncio.create_task(run.ask("m", value, timeout=5))
    await asyncio.sleep(0.01)
    await h.run_until_idle()

    assert await asking == value
    assert await run.result(timeout=60) == [value] * 4
    assert (await run.describe()).memo == {"value": value}
    assert [event.payload for event in (await run.history()).events] == [value] * 3


@pytest.mark.above_the_store
async def test_params_and_results_of_children_are_decoded_by_their_annotations(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def child(ctx: Context, order: Order) -> Order:
        assert isinstance(order.total, Decimal)
        order.note = "seen"
        return order

    @app.workflow
    async def parent(ctx: Context) -> list[Any]:
        one = await ctx.run(child, ORDER)
        two = await (await ctx.spawn(child, ORDER)).result()
        return [one.note, one.due == ORDER.due, one == two, type(one).__name__, one.blob == ORDER.blob]

    assert await crash_everywhere(h, parent) == ["seen", True, True, "Order", True]


@pytest.mark.above_the_store
async def test_a_child_is_not_started_with_params_that_do_not_fit_its_annotation(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def child(ctx: Context, order: Order) -> None: ...

    @app.workflow
    async def parent(ctx: Context) -> list[str]:
        found = []
        for params in (None, {"id": 5}, "text", object()):
            try:
                await ctx.spawn(child, params)
            except (ParamsInvalidError, NotSerializableError) as error:
                found.append(error.code)
        return found

    expected = ["WORKFLOW_PARAMS_INVALID"] * 3 + ["NOT_SERIALIZABLE"]
    assert await finish(h, parent) == expected
    assert len((await h.app.list()).items) == 1


@pytest.mark.above_the_store
async def test_messages_are_plain_values_and_a_wait_decodes_them(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> list[Any]:
        for _ in range(3):
            await ctx.send(ctx.info.pid, "order", ORDER)
        plain = await ctx.listen("order").receive()
        message = await ctx.listen("order").receive()
        event = await ctx.wait_for_event("order", type="order", payload=Order)
        return [plain, message == plain, event.payload == ORDER]

    assert await crash_everywhere(h, flow) == [ORDER_AS_JSON, True, True]


@pytest.mark.above_the_store
async def test_a_receiver_that_changes_a_payload_changes_only_its_own_copy(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> list[Any]:
        value = {"n": [1]}
        await ctx.send(ctx.info.pid, "a", value)
        value["n"].append(2)
        await ctx.send(ctx.info.pid, "a", value)
        channel = ctx.listen("a")
        first = await channel.receive()
        first["n"].append("mine")
        return [first, await channel.receive(), value]

    assert await crash_everywhere(h, flow) == [{"n": [1, "mine"]}, {"n": [1, 2]}, {"n": [1, 2]}]


def _kind(value: Any) -> str:
    return type(value).__name__


@pytest.mark.above_the_store
@pytest.mark.parametrize("value", [float("nan"), [float("inf")], {1, 2}, object(), {"a": print}, 10**5000], ids=_kind)
async def test_a_value_that_cannot_be_stored_is_refused_by_every_method(app: Holdfast, h: Harness, value: Any) -> None:
    @app.workflow
    async def flow(ctx: Context) -> list[str]:
        found = []
        question = await ctx.listen("q", messages=True).receive()
        attempts: list[Callable[[], Coroutine[Any, Any, Any]]] = [
            lambda: ctx.send(ctx.info.pid, "a", value),
            lambda: ctx.ask(ctx.info.pid, "a", value),
            lambda: ctx.spawn("flow", None, messages=[("a", value)]),
            lambda: ctx.spawn("flow", None, context={"a": value}),
            lambda: ctx.spawn("flow", None, memo={"a": value}),
            lambda: question.reply(value),
            lambda: question.reject(value),
        ]
        for attempt in attempts:
            try:
                await attempt()
            except NotSerializableError as error:
                found.append(error.code)
        await question.reply("after all")
        return found

    run = await h.start(flow)
    with pytest.raises(NotSerializableError):
        await run.send_event("q", value)
    asking = asyncio.create_task(run.ask("q", timeout=5))
    await asyncio.sleep(0.01)
    await h.run_until_idle()

    assert await asking == "after all"
    assert await run.result(timeout=60) == ["NOT_SERIALIZABLE"] * 7
    assert len((await h.app.list()).items) == 1


@pytest.mark.above_the_store
async def test_ctx_info_is_the_same_on_every_replay(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> list[Any]:
        seen: list[Any] = []
        messages = ctx.listen("n")
        for _ in range(4):
            chosen = await select(messages, ctx.after("1 hour"))
            info = ctx.info
            seen.append(
                [chosen.value if chosen.channel is messages else "late", info.history_length, info.history_size]
            )
        return [*seen, info.pid, info.run_number, info.attempt, info.parent, info.queue, info.workflow]

    sent = [("n", 1), ("n", {"a": "x" * 50}), ("n", None)]
    *seen, pid, number, attempt, parent, queue, workflow = await h.crash_everywhere(flow, drive=send_one_by_one(*sent))

    assert [one[0] for one in seen] == [1, {"a": "x" * 50}, None, "late"]
    assert [one[1] for one in seen] == sorted(one[1] for one in seen)
    assert (pid, number, attempt, parent) == ("flow/crash-everywhere", 0, 1, None)
    assert (queue, workflow) == ("default", "flow")


async def test_a_client_in_another_app_reads_the_same_values(make_app: MakeApp) -> None:
    app, outside = make_app(), make_app()

    @app.workflow
    async def mirror(ctx: Context, order: Order) -> Order:
        question = await ctx.inbox.receive()
        await question.reply([question.payload, order])
        return order

    there = outside.remote("mirror", params=Order, result=Order)
    async with app, outside.connect():
        run = await outside.start(there, ORDER, memo={"order": ORDER})
        assert await run.ask("q", PLAIN["text"], timeout=10) == [PLAIN["text"], ORDER_AS_JSON]
        assert await run.result(timeout=60) == ORDER
        assert (await run.describe()).memo == {"order": ORDER_AS_JSON}


@dataclass
class Reading:
    sensor: str
    value: int


async def test_listen_decodes_payloads_to_its_type(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> list[Any]:
        readings = ctx.listen("reading", payload=Reading)
        assert ctx.listen("reading", payload=Reading) is readings
        first = await readings.receive()
        chosen = await select(readings, ctx.after("1 hour"))
        assert isinstance(first, Reading)
        return [first.value, chosen.value == Reading("b", 2)]

    sent = [("reading", {"sensor": "a", "value": 1}), ("reading", {"sensor": "b", "value": 2})]

    assert await h.crash_everywhere(flow, drive=send_one_by_one(*sent)) == [1, True]


@pytest.mark.above_the_store
async def test_a_payload_that_does_not_fit_the_type_of_listen_fails_that_receive_only(
    app: Holdfast, h: Harness
) -> None:
    @app.workflow
    async def flow(ctx: Context) -> list[Any]:
        readings, found = ctx.listen("reading", payload=Reading), []
        for _ in range(2):
            try:
                found.append((await readings.receive()).value)
            except EventInvalidError as error:
                found.append(str(error))
        return found

    sent = [("reading", {"sensor": "a", "value": "much"}), ("reading", {"sensor": "b", "value": 2})]
    refused, value = await h.crash_everywhere(flow, drive=send_one_by_one(*sent))

    assert "the payload of event 'reading' is not valid" in refused
    assert value == 2


@pytest.mark.above_the_store
@pytest.mark.parametrize("options", [{}, {"payload": int}, {"messages": True}])
async def test_a_topic_has_one_payload_type_at_a_time(app: Holdfast, h: Harness, options: Any) -> None:
    @app.workflow
    async def flow(ctx: Context) -> str:
        channel = ctx.listen("reading", payload=Reading)
        try:
            ctx.listen("reading", **options)
        except InvalidOptionError as error:
            ctx.unlisten(channel)
            ctx.listen("reading", **options)
            return str(error)
        return ""

    assert "is listened to already, with other values of messages= or payload=" in await finish(h, flow)


@pytest.mark.above_the_store
async def test_whole_messages_are_not_decoded_to_a_type(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> str:
        try:
            ctx.listen("reading", messages=True, payload=Reading)
        except InvalidOptionError as error:
            return str(error)
        return ""

    assert "leave out payload=" in await finish(h, flow)
