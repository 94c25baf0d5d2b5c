"""Search attributes, by which runs are listed, and memos, which ``describe`` shows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from enum import StrEnum
from typing import Any

import pytest

from apps import MakeApp
from driving import finish
from holdfast import (
    Context,
    Handle,
    Holdfast,
    InvalidOptionError,
    NotSerializableError,
    PayloadTooLargeError,
    Workflow,
)
from holdfast.testing import Harness
from scenarios import observations
from scenarios.message_drives import MIB, crash_everywhere, number_of_instances

NOON = datetime(2030, 5, 1, 12, tzinfo=UTC)


@pytest.fixture
def tagged(app: Holdfast) -> Workflow[Any]:
    """A workflow that sets the search attributes in its params."""

    @app.workflow
    async def tagged(ctx: Context, values: dict[str, Any]) -> None:
        ctx.set_search(**values)
        await ctx.sleep("nap", "1 day")

    return tagged


async def found(h: Harness, **search: Any) -> list[str]:
    return sorted(one.id for one in (await h.app.list(search=search)).items)


# --- setting


async def test_attributes_of_every_type_are_shown(app: Holdfast, h: Harness) -> None:
    class Colour(StrEnum):
        RED = "red"

    @app.workflow
    async def flow(ctx: Context) -> None:
        ctx.set_search(text="a", number=7, price=1.5, urgent=True, due=NOON, tags=["x", "y"], colour=Colour.RED)
        await ctx.sleep("nap", "1 day")

    run = await h.start(flow)
    await h.run_until_idle()

    assert (await run.describe()).search == {
        "text": "a",
        "number": 7,
        "price": 1.5,
        "urgent": True,
        "due": "2030-05-01T12:00:00.000Z",
        "tags": ["x", "y"],
        "colour": "red",
    }


async def test_attributes_are_merged_and_the_last_value_wins(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> None:
        ctx.set_search(state="new", n=1)
        ctx.set_memo(a=1, b={"c": [1]})
        await ctx.sleep("nap", "1 hour")
        ctx.set_search(state="old")
        ctx.set_memo(b=None, d="\x00")

    run = await h.start(flow, search={"customer": "c-1", "n": 0}, memo={"z": 9})
    await h.run_until_idle()
    description = await run.describe()
    assert description.search == {"customer": "c-1", "state": "new", "n": 1}
    assert description.memo == {"z": 9, "a": 1, "b": {"c": [1]}}
    await h.advance("1 hour")

    description = await run.describe()
    assert description.search == {"customer": "c-1", "state": "old", "n": 1}
    assert description.memo == {"z": 9, "a": 1, "b": None, "d": "\x00"}
    assert await found(h, state="new") == []
    assert await found(h, state="old") == [run.id]


async def test_attributes_of_the_start_are_visible_before_the_run_begins(h: Harness, tagged: Workflow[Any]) -> None:
    run = await h.start(tagged, {}, id="one", search={"customer": "c-1"}, memo={"m": 1}, start_delay="1 hour")

    description = await run.describe()
    assert (description.search, description.memo) == ({"customer": "c-1"}, {"m": 1})
    assert await found(h, customer="c-1") == ["one"]


async def test_attributes_stay_when_the_run_has_ended(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> None:
        ctx.set_search(state="done")
        ctx.set_memo(m=1)

    run = await h.start(flow, id="one")
    await h.run_until_idle()
    await run.result(timeout=60)

    assert await found(h, state="done") == ["one"]
    assert (await run.describe()).memo == {"m": 1}


async def test_attributes_stay_when_the_run_fails(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> None:
        ctx.set_search(state="failing")
        raise ValueError("broken")

    await h.start(flow, id="one")
    await h.run_until_idle()

    assert await found(h, state="failing") == ["one"]


async def test_a_replay_sets_the_same_attributes(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> None:
        for n in range(4):
            ctx.set_search(n=n, at=ctx.now())
            ctx.set_memo(**{f"m{n}": n})
            await ctx.sleep(f"nap {n}", "1 hour")

    warm, cold = await h.start(flow, id="warm"), await h.start(flow, id="cold")
    for n in range(4):
        await h.run_until_idle()
        await h.restart()
        one, two = await warm.describe(), await cold.describe()
        assert (one.search, one.memo) == (two.search, two.memo)
        assert one.search["n"] == n
        assert one.memo == {f"m{k}": k for k in range(n + 1)}
        await h.advance("1 hour")


async def test_attributes_are_the_same_after_a_crash_at_any_commit(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> None:
        ctx.set_search(state="new")
        await ctx.sleep("nap", "1 hour")
        ctx.set_search(state="old", n=ctx.info.run_number)
        ctx.set_memo(n=1)
        await ctx.sleep("nap 2", "1 hour")
        ctx.set_memo(last=True)

    async def observe(inner: Harness, run: Handle[Any]) -> list[Any]:
        description = await run.describe()
        return [description.search, description.memo, await found(inner, state="old"), await found(inner, state="new")]

    seen = await observations.observe_with_crashes(h, flow, observe=observe, search={"given": 1}, memo={"z": 0})

    assert seen == [{"given": 1, "state": "old", "n": 0}, {"z": 0, "n": 1, "last": True}, ["everywhere"], []]


@pytest.mark.above_the_store
async def test_setting_no_attributes_changes_nothing(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> str:
        ctx.set_search()
        ctx.set_memo()
        return "fine"

    assert await crash_everywhere(h, flow) == "fine"


async def test_a_continued_run_keeps_its_attributes(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context, n: int) -> None:
        if n == 0:
            ctx.set_search(state="first")
            ctx.set_memo(m=1)
            raise ctx.continue_as_new(1)
        ctx.set_search(more=True)
        await ctx.sleep("nap", "1 hour")

    run = await h.start(flow, 0, id="one", search={"given": 1})
    await h.run_until_idle()

    description = await run.describe()
    assert (description.search, description.memo) == ({"given": 1, "state": "first", "more": True}, {"m": 1})
    assert await found(h, state="first", more=True) == ["one"]


async def test_a_restarted_run_has_the_attributes_of_its_start(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> None:
        if ctx.info.run_number == 0:
            ctx.set_search(state="first")
        await ctx.sleep("nap", "1 hour")

    run = await h.start(flow, id="one", search={"given": 1})
    await h.run_until_idle()
    await run.restart()
    await h.run_until_idle()

    assert (await run.describe()).search == {"given": 1}
    assert await found(h, state="first") == []
    assert await found(h, given=1) == ["one"]


async def test_children_have_their_own_attributes(app: Holdfast, h: Harness, tagged: Workflow[Any]) -> None:
    @app.workflow
    async def parent(ctx: Context) -> None:
        ctx.set_search(who="parent")
        await ctx.spawn(tagged, {"who": "child"}, id="c", search={"given": 1}, memo={"m": 1}, summary="small")
        await ctx.sleep("nap", "1 hour")

    await h.start(parent, id="p")
    await h.run_until_idle()

    assert (await found(h, who="parent"), await found(h, who="child"), await found(h, given=1)) == (["p"], ["c"], ["c"])
    child = await (await h.app.get(tagged, "c")).describe()
    assert (child.memo, child.summary, child.parent) == ({"m": 1}, "small", "parent/p")


# --- filters


async def test_filters_compare_numbers(h: Harness, tagged: Workflow[Any]) -> None:
    for one, total in {"a": 5, "b": 10, "c": 10.5, "d": -3, "e": 2**53}.items():
        await h.start(tagged, {}, id=one, search={"total": total})

    assert await found(h, total=10) == ["b"]
    assert await found(h, total=10.0) == ["b"]
    assert await found(h, total=("=", 10)) == ["b"]
    assert await found(h, total=(">", 10)) == ["c", "e"]
    assert await found(h, total=(">=", 10)) == ["b", "c", "e"]
    assert await found(h, total=("<", 10)) == ["a", "d"]
    assert await found(h, total=("<=", 5)) == ["a", "d"]
    assert await found(h, total=2**53) == ["e"]


async def test_filters_compare_strings(h: Harness, tagged: Workflow[Any]) -> None:
    for one, name in {"a": "ann", "b": "Bob", "c": "", "d": "\u00e9ric", "e": "ann "}.items():
        await h.start(tagged, {}, id=one, search={"name": name})

    assert await found(h, name="ann") == ["a"]
    assert await found(h, name="ANN") == []
    assert await found(h, name="") == ["c"]
    assert await found(h, name="\u00e9ric") == ["d"]
    assert await found(h, name=(">=", "ann")) == ["a", "d", "e"]
    assert await found(h, name=("<", "a")) == ["b", "c"]


async def test_filters_compare_datetimes(h: Harness, tagged: Workflow[Any]) -> None:
    for one, hours in {"a": 0, "b": 1, "c": 30}.items():
        await h.start(tagged, {}, id=one, search={"due": NOON + timedelta(hours=hours)})

    elsewhere = NOON.astimezone(timezone(timedelta(hours=9)))
    assert await found(h, due=NOON) == ["a"]
    assert await found(h, due=elsewhere) == ["a"]
    assert await found(h, due=(">", NOON)) == ["b", "c"]
    assert await found(h, due=("<=", NOON + timedelta(hours=1))) == ["a", "b"]


async def test_filters_compare_booleans(h: Harness, tagged: Workflow[Any]) -> None:
    for one, urgent in {"a": True, "b": False}.items():
        await h.start(tagged, {}, id=one, search={"urgent": urgent})

    assert (await found(h, urgent=True), await found(h, urgent=False)) == (["a"], ["b"])
    assert (await found(h, urgent=1), await found(h, urgent=(">=", 0))) == (["a"], ["a", "b"])


async def test_a_list_matches_each_of_its_strings(h: Harness, tagged: Workflow[Any]) -> None:
    await h.start(tagged, {}, id="a", search={"tags": ["red", "big", "red"]})
    await h.start(tagged, {}, id="b", search={"tags": ["blue", "big"]})
    await h.start(tagged, {}, id="c", search={"tags": []})

    assert (await found(h, tags="red"), await found(h, tags="big"), await found(h, tags="x")) == (["a"], ["a", "b"], [])
    assert await found(h, tags=(">=", "a")) == ["a", "b"]


async def test_numbers_and_strings_are_never_equal(h: Harness, tagged: Workflow[Any]) -> None:
    await h.start(tagged, {}, id="number", search={"v": 5})
    await h.start(tagged, {}, id="text", search={"v": "5"})

    assert (await found(h, v=5), await found(h, v="5")) == (["number"], ["text"])
    assert (await found(h, v=(">=", 0)), await found(h, v=(">=", ""))) == (["number"], ["text"])


async def test_a_run_must_match_all_filters(h: Harness, tagged: Workflow[Any]) -> None:
    await h.start(tagged, {}, id="a", search={"customer": "c-1", "total": 5})
    await h.start(tagged, {}, id="b", search={"customer": "c-1", "total": 50})
    await h.start(tagged, {}, id="c", search={"customer": "c-2", "total": 50})
    await h.start(tagged, {}, id="d", search={"customer": "c-1"})

    assert await found(h, customer="c-1", total=(">=", 10)) == ["b"]
    assert await found(h, customer="c-1") == ["a", "b", "d"]
    assert await found(h, customer="c-3", total=5) == []
    assert await found(h) == ["a", "b", "c", "d"]


async def test_filters_combine_with_workflow_and_status(app: Holdfast, h: Harness, tagged: Workflow[Any]) -> None:
    @app.workflow
    async def other(ctx: Context) -> None: ...

    await h.start(tagged, {}, id="a", search={"s": 1})
    await h.start(other, id="b", search={"s": 1})
    await h.start(other, id="c", search={"s": 2})
    await h.run_until_idle()

    async def ids(*args: Any, **options: Any) -> list[str]:
        return sorted(one.id for one in (await h.app.list(*args, search={"s": 1}, **options)).items)

    assert await ids() == ["a", "b"]
    assert await ids(other) == ["b"]
    assert await ids("tagged", status="waiting") == ["a"]
    assert await ids(status="complete") == ["b"]
    assert await ids(other, status="errored") == []


async def test_a_filtered_list_is_paged(h: Harness, tagged: Workflow[Any]) -> None:
    for n in range(25):
        await h.start(tagged, {}, id=f"r{n:02}", search={"even": n % 2 == 0, "n": n})

    ids, cursor = [], None
    while True:
        page = await h.app.list(tagged, search={"even": True, "n": (">=", 4)}, limit=4, cursor=cursor)
        ids += [one.id for one in page.items]
        assert len(page.items) <= 4
        if (cursor := page.cursor) is None:
            break

    assert ids == [f"r{n:02}" for n in range(24, 3, -2)]  # the newest first


async def test_a_filter_finds_runs_of_an_app_with_workers(make_app: MakeApp) -> None:
    app = make_app()

    @app.workflow
    async def flow(ctx: Context, n: int) -> int:
        ctx.set_search(n=n, half=n / 2)
        return n

    async with app:
        for n in range(10):
            await (await app.start(flow, n)).result(timeout=60)
        page = await app.list(flow, search={"n": (">", 6), "half": ("<=", 4)})
        assert sorted([one.details.output for one in page.items]) == [7, 8]


# --- bad input

BAD_VALUES: list[Any] = [
    None,
    {"a": 1},
    [1, 2],
    ["a", None],
    b"bytes",
    float("nan"),
    float("inf"),
    2**53 + 1,
    -(2**60),
    "x" * 1001,
    datetime(2030, 1, 1),  # noqa: DTZ001
    object(),
    {"a"},
]
BAD_KEYS = ["", "1a", "-a", "a b", "a/b", "x" * 65, "\u00e9", "@a"]


@pytest.mark.above_the_store
@pytest.mark.parametrize("value", BAD_VALUES, ids=lambda one: str(type(one).__name__))
async def test_a_bad_value_is_refused(app: Holdfast, h: Harness, tagged: Workflow[Any], value: Any) -> None:
    @app.workflow
    async def flow(ctx: Context) -> str:
        ctx.set_search(fine=1)
        try:
            ctx.set_search(also=2, key=value)
        except InvalidOptionError as error:
            return str(error)
        return "taken"

    with pytest.raises(InvalidOptionError, match="search attribute 'key'"):
        await h.start(tagged, {}, search={"key": value})
    assert await number_of_instances(h) == 0
    run = await h.start(flow)
    await h.run_until_idle()
    assert "'key'" in await run.result(timeout=60)
    assert (await run.describe()).search == {"fine": 1}


@pytest.mark.above_the_store
@pytest.mark.parametrize("key", BAD_KEYS)
async def test_a_bad_key_is_refused(app: Holdfast, h: Harness, tagged: Workflow[Any], key: str) -> None:
    @app.workflow
    async def flow(ctx: Context) -> str:
        try:
            ctx.set_search(**{key: 1})
        except InvalidOptionError as error:
            return error.code
        return "taken"

    with pytest.raises(InvalidOptionError, match="search"):
        await h.start(tagged, {}, search={key: 1})
    with pytest.raises(InvalidOptionError, match="search"):
        await h.app.list(search={key: 1})
    assert await finish(h, flow) == "INVALID_OPTION"


@pytest.mark.above_the_store
async def test_too_many_attributes_are_refused(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> list[str]:
        refused = []
        ctx.set_search(**{f"k{n}": n for n in range(100)})
        for more in ({"one_more": 1}, {f"l{n}": n for n in range(101)}):
            try:
                ctx.set_search(**more)
            except InvalidOptionError as error:
                refused.append(error.code)
        ctx.set_search(k0="changed")
        return refused

    run = await h.start(flow)
    await h.run_until_idle()

    assert await run.result(timeout=60) == ["INVALID_OPTION"] * 2
    search = (await run.describe()).search
    assert (len(search), search["k0"]) == (100, "changed")


@pytest.mark.above_the_store
@pytest.mark.parametrize(
    "asked",
    [
        None,
        [[1]],
        [(">=", 1), None],
        {"a": 1},
        ("!=", 1),
        (">=",),
        (">=", 1, 2),
        (">=", [1]),
        (">=", None),
        (),
        ("like", "a%"),
        b"x",
        (1, 2),
    ],
    ids=str,
)
async def test_a_bad_filter_is_refused(h: Harness, tagged: Workflow[Any], asked: Any) -> None:
    with pytest.raises(InvalidOptionError, match="search"):
        await h.app.list(search={"key": asked})


async def test_a_run_must_match_all_filters_of_one_attribute(h: Harness, tagged: Workflow[Any]) -> None:
    for n in range(6):
        await h.start(tagged, {}, id=f"n{n}", search={"n": n})

    page = await h.app.list(tagged, search={"n": [(">=", 2), ("<", 5)]})

    assert [one.id for one in page.items] == ["n4", "n3", "n2"]


@pytest.mark.above_the_store
@pytest.mark.parametrize("search", [[("a", 1)], "a=1", 5, {1: 2}], ids=str)
async def test_filters_that_are_not_a_mapping_are_refused(h: Harness, tagged: Workflow[Any], search: Any) -> None:
    with pytest.raises(InvalidOptionError, match="search"):
        await h.app.list(search=search)


async def test_a_memo_takes_only_values_that_can_be_stored(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> list[str]:
        refused = []
        for value in (object(), float("nan"), "x" * MIB):
            try:
                ctx.set_memo(key=value)
            except (NotSerializableError, PayloadTooLargeError) as error:
                refused.append(error.code)
        ctx.set_memo(nested={"a": [None, 1.5, "\ud800"]}, when=NOON)
        return refused

    run = await h.start(flow)
    await h.run_until_idle()

    assert await run.result(timeout=60) == ["NOT_SERIALIZABLE", "NOT_SERIALIZABLE", "PAYLOAD_TOO_LARGE"]
    memo = (await run.describe()).memo
    assert memo["nested"] == {"a": [None, 1.5, "\ud800"]}
    assert str(memo["when"]).startswith("2030-05-01T12:00:00")


async def test_any_string_can_be_searched_for(h: Harness, tagged: Workflow[Any]) -> None:
    for n, text in enumerate(["\x00", "a\x00b", "\ud800", "\U0001f600", "' OR 1=1 --", "%", "_"]):
        await h.start(tagged, {}, id=f"r{n}", search={"t": text})
        assert await found(h, t=text) == [f"r{n}"]
