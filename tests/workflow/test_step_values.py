"""Values: a replay returns the same value as the live step; a value that cannot be stored is refused at once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, NotRequired, TypedDict
from uuid import UUID

import pytest
from pydantic import BaseModel, Field

from apps import MakeApp
from driving import finish
from holdfast import (
    Context,
    Holdfast,
    Limits,
    NotSerializableError,
    ParamsInvalidError,
    PayloadTooLargeError,
    RunFailedError,
)
from holdfast.testing import Harness

WILD_TEXT = "NUL \x00, lone \ud800 surrogates \udfff, ünïcode 🦀, quotes \"'\\ and \n newlines"


@dataclass
class Order:
    id: str
    total: int
    tags: list[str]


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Customer(BaseModel):
    name: str
    since: date
    limit: Decimal = Decimal("1.50")
    nick: str | None = Field(default=None, alias="nickName")


class Row(TypedDict):
    id: UUID
    at: datetime
    note: NotRequired[str]


VALUES: dict[str, tuple[Any, Any]] = {
    "dataclass": (Order, Order("o-1", 125, ["a"])),
    "pydantic": (Customer, Customer(name="ann", since=date(2020, 2, 29), nickName="a")),
    "enum": (Colour, Colour.BLUE),
    "datetime": (datetime, datetime(2024, 2, 29, 12, 30, 1, 5, tzinfo=UTC)),
    "naive datetime": (datetime, datetime(2024, 2, 29, 12, 30)),  # noqa: DTZ001
    "timedelta": (timedelta, timedelta(days=-1, microseconds=5)),
    "UUID": (UUID, UUID(int=5)),
    "Decimal": (Decimal, Decimal("0.10")),
    "bytes": (bytes, bytes(range(256))),
    "TypedDict": (Row, {"id": UUID(int=7), "at": datetime(2024, 1, 1, tzinfo=UTC)}),
    "list of dataclasses": (list[Order], [Order("a", 1, []), Order("b", 2, ["x"])]),
    "tuple": (tuple[int, str], (1, "a")),
    "dict by enum": (dict[Colour, int], {Colour.RED: 1}),
    "optional": (Order | None, None),
    "large int": (int, 2**200),
    "wild text": (str, WILD_TEXT),
    "plain": (Any, {"a": [1, 2.5, None, True, "x"], "": {}}),
}
REFUSED: dict[str, tuple[Any, str]] = {
    "NaN": (math.nan, "nan"),
    "infinity": ({"a": [math.inf]}, "inf"),
    "set": ({"a": {1, 2}}, "set"),
    "object": (object(), "object"),
    "function": ([print], "builtin_function_or_method"),
}


def _circular() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


def _deep() -> Any:
    value: list[Any] = []
    for _ in range(300):
        value = [value]
    return value


REFUSED["circular"] = (_circular(), "contains itself")
REFUSED["deep"] = (_deep(), "200 levels")


@pytest.mark.promise("exact-replay")
@pytest.mark.parametrize("kind", VALUES)
async def test_a_result_is_the_same_typed_value_live_and_on_replay(app: Holdfast, h: Harness, kind: str) -> None:
    annotation, value = VALUES[kind]
    seen: list[Any] = []

    async def make() -> Any:
        return value

    make.__annotations__["return"] = annotation

    @app.workflow
    async def flow(ctx: Context) -> None:
        seen.append(await ctx.do("make", make))
        await ctx.sleep("nap", "1 hour")

    run = await h.start(flow)
    await h.run_until_idle()
    await h.restart()
    await h.advance("1 hour")
    await run.result()
    assert seen == [value, value]
    assert type(seen[0]) is type(seen[1]) is type(value)


@pytest.mark.above_the_store
@pytest.mark.parametrize("kind", [k for k in VALUES if k != "optional"])
async def test_params_and_output_are_typed_by_their_annotations(app: Holdfast, h: Harness, kind: str) -> None:
    annotation, value = VALUES[kind]
    seen: list[Any] = []

    async def flow(ctx: Context, params: Any) -> Any:
        seen.append(params)
        return params

    flow.__annotations__.update({"params": annotation, "return": annotation})
    result = await finish(h, app.workflow(flow), value)
    assert seen == [value]
    assert result == value
    assert type(result) is type(value)


@pytest.mark.above_the_store
async def test_functions_made_by_one_factory_keep_their_own_annotations(app: Holdfast, h: Harness) -> None:
    def make_step(kind: type[Any], value: Any) -> Any:
        async def make() -> Any:
            return value

        make.__annotations__["return"] = kind
        return make

    seen: list[Any] = []

    @app.workflow
    async def flow(ctx: Context) -> None:
        seen.append(await ctx.do("order", make_step(Order, Order("o", 1, []))))
        seen.append(await ctx.do("colour", make_step(Colour, Colour.RED)))

    await finish(h, flow)
    assert seen == [Order("o", 1, []), Colour.RED]


async def test_a_result_without_an_annotation_is_plain_json_live_too(app: Holdfast, h: Harness) -> None:
    seen: list[Any] = []

    @app.workflow
    async def flow(ctx: Context) -> None:
        seen.append(await ctx.do("make", lambda: (Order("o", 1, []), Colour.RED, Decimal("1.0"))))

    await finish(h, flow)
    assert seen == [[{"id": "o", "total": 1, "tags": []}, "red", "1.0"]]


@pytest.mark.above_the_store
async def test_changing_a_live_result_does_not_change_the_recorded_one(app: Holdfast, h: Harness) -> None:
    kept = {"n": 1}

    @app.workflow
    async def flow(ctx: Context) -> list[Any]:
        first = await ctx.do("make", lambda: kept)
        first["n"] = 99
        kept["n"] = 98
        return [first, await ctx.do("make", lambda: kept)]

    assert await finish(h, flow) == [{"n": 99}, {"n": 1}]


@pytest.mark.above_the_store
@pytest.mark.parametrize("kind", REFUSED)
async def test_a_result_that_cannot_be_stored_is_refused_at_once(app: Holdfast, h: Harness, kind: str) -> None:
    value, named = REFUSED[kind]
    calls: list[int] = []

    def make() -> Any:
        calls.append(1)
        return value

    @app.workflow
    async def flow(ctx: Context) -> str:
        try:
            await ctx.do("make it", make)
        except NotSerializableError as error:
            return str(error)
        return "?"

    message = await finish(h, flow)
    assert "'make it'" in message
    assert named in message
    assert calls == [1]


@pytest.mark.above_the_store
@pytest.mark.parametrize("kind", REFUSED)
async def test_params_and_payloads_that_cannot_be_stored_are_refused_at_once(
    app: Holdfast, h: Harness, kind: str
) -> None:
    value, named = REFUSED[kind]

    @app.workflow
    async def flow(ctx: Context, params: Any) -> None:
        await ctx.wait_for_event("go", type="go")

    with pytest.raises(NotSerializableError, match=named):
        await h.start(flow, value)
    assert (await h.app.list()).items == []
    run = await h.start(flow, 1)
    with pytest.raises(NotSerializableError, match=named):
        await run.send_event("go", value)
    assert (await run.history()).events == []


@pytest.mark.above_the_store
async def test_an_output_that_cannot_be_stored_fails_the_run(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> Any:
        return {1, 2}

    with pytest.raises(RunFailedError) as caught:
        await finish(h, flow)
    assert caught.value.error.name == "NotSerializableError"
    assert "'flow'" in caught.value.error.message


@pytest.mark.promise("clear-errors")
async def test_a_value_that_is_too_large_is_refused_at_once_by_name(make_app: MakeApp) -> None:
    app = make_app(limits=Limits(params=100, result=100, event_payload=100))
    calls: list[int] = []

    def make(size: int) -> str:
        calls.append(1)
        return "x" * size

    @app.workflow
    async def flow(ctx: Context, size: int) -> Any:
        try:
            return await ctx.do("make", make, size)
        except PayloadTooLargeError as error:
            return str(error)

    async with Harness(app) as h:
        assert await finish(h, flow, 98) == "x" * 98
        message = await finish(h, flow, 99)
        assert "'make'" in message
        assert "101 bytes" in message
        assert calls == [1, 1]
        with pytest.raises(PayloadTooLargeError, match="params"):
            await h.start(flow, int("9" * 101))
        run = await h.start(flow, 1)
        with pytest.raises(PayloadTooLargeError, match="payload"):
            await run.send_event("go", "x" * 200)


async def test_the_default_limit_is_one_mebibyte(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context, params: str) -> int:
        return len(params)

    assert await finish(h, flow, "x" * (1024 * 1024 - 2)) == 1024 * 1024 - 2
    with pytest.raises(PayloadTooLargeError):
        await h.start(flow, "x" * (1024 * 1024 - 1))


@pytest.mark.promise("clear-errors")
async def test_text_with_unusual_characters_is_stored_unchanged(app: Holdfast, h: Harness) -> None:
    seen: list[Any] = []

    @app.step
    async def echo(text: str) -> str:
        return text

    @app.workflow
    async def flow(ctx: Context, params: str) -> str:
        seen.append(params)
        seen.append(await echo(params))
        seen.append(await ctx.do(params, lambda: params))
        ctx.log.info(params, {params: params})
        seen.append((await ctx.wait_for_event("wait " + params, type="go", payload=str)).payload)
        return params

    run = await h.start(flow, WILD_TEXT)
    await run.send_event("go", WILD_TEXT)
    await h.run_until_idle()
    await h.restart()
    assert await run.result() == WILD_TEXT
    assert seen == [WILD_TEXT] * 4
    history = await run.history()
    assert {s.step_key for s in history.steps} == {"echo", WILD_TEXT, "wait " + WILD_TEXT}
    assert history.events[0].payload == WILD_TEXT
    assert history.events[0].consumed_by_step_key == "wait " + WILD_TEXT
    [line] = await run.logs()
    assert (line.message, line.data) == (WILD_TEXT, {WILD_TEXT: WILD_TEXT})
    assert (await run.describe()).params == WILD_TEXT


async def test_an_error_message_with_unusual_characters_is_stored_unchanged(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> None:
        raise ValueError(WILD_TEXT)

    run = await h.start(flow)
    await h.run_until_idle()
    error = (await run.status()).error
    assert error is not None
    assert error.message == WILD_TEXT


@pytest.mark.promise("clear-errors")
@pytest.mark.above_the_store
async def test_params_that_do_not_fit_the_annotation_start_nothing(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context, order: Order) -> None: ...

    with pytest.raises(ParamsInvalidError) as caught:
        await h.start(flow, {"id": "o", "total": "many", "tags": []})
    assert caught.value.code == "WORKFLOW_PARAMS_INVALID"
    assert caught.value.issues[0]["path"] == ["total"]
    assert (await h.app.list()).items == []


@pytest.mark.above_the_store
async def test_a_workflow_without_params_refuses_them_and_a_default_may_replace_them(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def none(ctx: Context) -> None: ...

    @app.workflow
    async def default(ctx: Context, n: int = 5) -> int:
        return n

    with pytest.raises(ParamsInvalidError):
        await h.start(none, 1)
    assert await finish(h, default) == 5
    assert await finish(h, default, 6) == 6


@pytest.mark.above_the_store
async def test_a_step_result_that_does_not_fit_its_annotation_is_refused(app: Holdfast, h: Harness) -> None:
    async def wrong() -> int:
        return "not a number"  # type: ignore[return-value]

    @app.workflow
    async def flow(ctx: Context) -> Any:
        try:
            return await ctx.do("wrong", wrong)
        except NotSerializableError as error:
            return str(error)

    message = await finish(h, flow)
    assert "'wrong'" in message
    assert "annotation" in message
