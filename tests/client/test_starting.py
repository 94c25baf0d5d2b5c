"""Starting and listing runs: ids, options, batches, pages. A refused start creates nothing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from driving import finish
from holdfast import (
    Context,
    Holdfast,
    InstanceExistsError,
    InvalidCursorError,
    InvalidDurationError,
    InvalidInstanceIdError,
    InvalidNameError,
    InvalidOptionError,
    ParamsInvalidError,
    Start,
    WorkflowAlreadyRegisteredError,
    WorkflowNotFoundError,
)
from holdfast.errors import DefinitionError
from holdfast.testing import Harness


@pytest.fixture
def echo(app: Holdfast) -> Any:
    @app.workflow
    async def echo(ctx: Context, n: int = 0) -> int:
        if n < 0:
            await ctx.wait_for_event("go", type="go")
        return n

    return echo


async def _count(h: Harness) -> int:
    return len((await h.app.list(limit=100)).items)


async def test_a_run_can_be_started_by_name(h: Harness, echo: Any) -> None:
    assert await finish(h, "echo", 5) == 5


async def test_generated_ids_are_unique(h: Harness, echo: Any) -> None:
    runs = [await h.start(echo, n) for n in range(3)]
    assert len({run.id for run in runs}) == 3


@pytest.mark.parametrize("live", [True, False], ids=["live", "ended"])
async def test_a_start_with_an_existing_id_returns_the_existing_run(h: Harness, echo: Any, live: bool) -> None:
    await h.start(echo, -1 if live else 1, id="same")
    await h.run_until_idle()
    again = await h.start(echo, 2, id="same")
    await h.run_until_idle()
    assert (await again.describe()).params == (-1 if live else 1)
    assert (await again.describe()).run_number == 0
    assert await _count(h) == 1


async def test_on_conflict_fail_refuses_the_id_of_an_open_run(h: Harness, echo: Any) -> None:
    await h.start(echo, -1, id="same")
    with pytest.raises(InstanceExistsError, match="'same'") as caught:
        await h.start(echo, 2, id="same", on_conflict="fail")
    assert caught.value.code == "INSTANCE_ID_ALREADY_EXISTS"
    await h.start(echo, 2, id="same", on_reuse="reject")


async def test_on_reuse_reject_refuses_the_id_of_an_ended_run(h: Harness, echo: Any) -> None:
    await finish(h, echo, 1, id="same")
    with pytest.raises(InstanceExistsError, match="complete"):
        await h.start(echo, 2, id="same", on_reuse="reject")
    await h.start(echo, 2, id="same", on_conflict="fail")


async def test_the_same_id_may_belong_to_two_workflows(app: Holdfast, h: Harness, echo: Any) -> None:
    @app.workflow
    async def other(ctx: Context) -> str:
        return "other"

    assert await finish(h, echo, 1, id="same") == 1
    assert await finish(h, other, id="same") == "other"


async def test_a_batch_starts_new_ids_and_skips_existing_ones(h: Harness, echo: Any) -> None:
    await h.start(echo, 9, id="b")
    runs = await h.app.start_many(echo, [Start("a", 1), Start("b", 2), Start("c", 3), Start("a", 4)])
    assert [run.id for run in runs] == ["a", "c"]
    await h.run_until_idle()
    assert [await run.result(timeout=60) for run in runs] == [1, 3]
    assert (await (await h.app.get(echo, "b")).describe()).params == 9
    assert await h.app.start_many(echo, [Start("a", 1)]) == []
    assert await h.app.start_many(echo, []) == []


async def test_the_entries_of_a_batch_have_start_options(h: Harness, echo: Any) -> None:
    starts = [Start("a", 1, queue="slow", priority=2, delay="1 hour", search={"n": 1}), Start("b", 2)]

    runs = await h.app.start_many(echo, starts)
    await h.run_until_idle()

    assert [(await run.status()).status for run in runs] == ["waiting", "complete"]
    assert [one.id for one in (await h.app.list(echo, search={"n": 1})).items] == ["a"]


@pytest.mark.above_the_store
async def test_an_entry_of_a_batch_takes_no_unknown_option(h: Harness, echo: Any) -> None:
    with pytest.raises(TypeError, match="unknown start option 'eager'"):
        Start("a", 1, eager=False)  # type: ignore[call-overload]


async def test_a_run_begins_at_the_time_of_start_at(h: Harness, echo: Any) -> None:
    run = await h.start(echo, 1, start_at=h.now() + timedelta(hours=1))
    past = await h.start(echo, 2, start_at=h.now() - timedelta(hours=1))
    await h.run_until_idle()
    assert [(await one.status()).status for one in (run, past)] == ["waiting", "complete"]

    await h.advance("61 minutes")

    assert await run.result(timeout=60) == 1


@pytest.mark.above_the_store
@pytest.mark.parametrize(
    "options",
    [
        {"delay": "1s", "start_delay": "1s"},
        {"delay": "1s", "start_at": datetime(2030, 1, 1, tzinfo=UTC)},
        {"start_at": datetime(2030, 1, 1)},  # noqa: DTZ001  (that is the point)
        {"start_at": "2030-01-01"},
        {"delay": "soon"},
    ],
)
async def test_an_invalid_time_of_a_start_is_refused(h: Harness, echo: Any, options: Any) -> None:
    with pytest.raises(InvalidOptionError):
        await h.start(echo, 1, **options)


@pytest.mark.above_the_store
async def test_a_batch_with_one_bad_entry_starts_nothing(h: Harness, echo: Any) -> None:
    for bad in (Start("bad id", 1), Start("x", "text"), Start("x", {1})):
        with pytest.raises((InvalidInstanceIdError, ParamsInvalidError, TypeError)):
            await h.app.start_many(echo, [Start("good", 1), bad])
    assert await _count(h) == 0


@pytest.mark.above_the_store
@pytest.mark.parametrize("bad", ["", "with space", "-dash", "a/b", "x" * 101, "é", "a\n", 5, b"x"])
async def test_a_bad_id_is_refused(h: Harness, echo: Any, bad: Any) -> None:
    with pytest.raises(InvalidInstanceIdError) as caught:
        await h.start(echo, 1, id=bad)
    assert caught.value.code == "INVALID_INSTANCE_ID"
    assert await _count(h) == 0


@pytest.mark.above_the_store
@pytest.mark.parametrize(
    ("option", "value", "error"),
    [
        ("on_conflict", "maybe", InvalidOptionError),
        ("on_reuse", "maybe", InvalidOptionError),
        ("queue", "", InvalidOptionError),
        ("queue", 5, InvalidOptionError),
        ("priority", "high", InvalidOptionError),
        ("priority", True, InvalidOptionError),
        ("priority", 1.5, InvalidOptionError),
        ("eager", "yes", InvalidOptionError),
    ],
)
async def test_a_bad_option_is_refused_by_name(
    h: Harness, echo: Any, option: str, value: Any, error: type[Exception]
) -> None:
    with pytest.raises(error, match=option):
        await h.start(echo, 1, **{option: value})
    assert await _count(h) == 0


@pytest.mark.above_the_store
@pytest.mark.parametrize("bad", ["soon", -1, "-5s", True])
async def test_a_bad_delay_is_refused_by_name(h: Harness, echo: Any, bad: Any) -> None:
    with pytest.raises((InvalidDurationError, InvalidOptionError), match="start_delay"):
        await h.start(echo, 1, start_delay=bad)
    assert await _count(h) == 0


@pytest.mark.above_the_store
async def test_an_unknown_option_is_a_type_error(h: Harness, echo: Any) -> None:
    with pytest.raises(TypeError, match="colour"):
        await h.start(echo, 1, colour="red")
    assert await _count(h) == 0


@pytest.mark.above_the_store
@pytest.mark.parametrize("unknown", ["unknown", 5, None, object(), lambda: None])
async def test_an_unknown_workflow_is_refused(h: Harness, echo: Any, unknown: Any) -> None:
    for call in (h.start(unknown), h.app.get(unknown, "x"), h.app.start_many(unknown, [])):
        with pytest.raises(WorkflowNotFoundError) as caught:
            await call
        assert caught.value.code == "WORKFLOW_NOT_FOUND"
    with pytest.raises(WorkflowNotFoundError, match="echo"):
        await h.start("ekho")


def test_a_name_cannot_be_registered_twice(app: Holdfast) -> None:
    @app.workflow(name="taken")
    async def first(ctx: Context) -> None: ...

    with pytest.raises(WorkflowAlreadyRegisteredError, match="'taken'") as caught:

        @app.workflow(name="taken")
        async def second(ctx: Context) -> None: ...

    assert caught.value.code == "WORKFLOW_ALREADY_REGISTERED"
    with pytest.raises(WorkflowAlreadyRegisteredError):
        app.remote("taken")


@pytest.mark.parametrize("bad", ["with space", "-x", "x" * 65, "é"])
def test_a_bad_workflow_name_is_refused(app: Holdfast, bad: str) -> None:
    with pytest.raises(InvalidNameError):
        app.workflow(name=bad)(_workflow)
    with pytest.raises(InvalidNameError):
        app.remote(bad)


async def _workflow(ctx: Context) -> None: ...


def test_a_function_that_cannot_be_a_workflow_is_refused(app: Holdfast) -> None:
    def not_async(ctx: Context) -> None: ...

    async def no_context() -> None: ...

    async def too_many(ctx: Context, a: int, b: int) -> None: ...

    async def keywords(ctx: Context, *, a: int) -> None: ...

    for wrong in (not_async, no_context, too_many, keywords):
        with pytest.raises(DefinitionError, match=wrong.__name__):
            app.workflow(wrong)  # type: ignore[call-overload]


async def test_a_run_with_priority_and_queue_runs(h: Harness, echo: Any) -> None:
    run = await h.start(echo, 1, priority=-5, queue="default")
    await h.run_until_idle()
    assert await run.result(timeout=60) == 1


async def test_a_list_has_pages_with_the_newest_runs_first(h: Harness, echo: Any) -> None:
    for n in range(7):
        await h.start(echo, n, id=f"r{n}")
    ids, cursor = [], None
    for _ in range(4):
        page = await h.app.list(echo, cursor=cursor, limit=3)
        ids.append([item.id for item in page.items])
        cursor = page.cursor
        if cursor is None:
            break
    assert ids == [["r6", "r5", "r4"], ["r3", "r2", "r1"], ["r0"]]


async def test_a_list_is_filtered_by_workflow_and_status(app: Holdfast, h: Harness, echo: Any) -> None:
    @app.workflow
    async def other(ctx: Context) -> None: ...

    await h.start(echo, -1, id="waits")
    await h.start(echo, 1, id="ends")
    await h.start(other, id="other")
    await h.run_until_idle()

    async def ids(*args: Any, **filters: Any) -> set[str]:
        return {item.id for item in (await h.app.list(*args, **filters)).items}

    assert await ids() == {"waits", "ends", "other"}
    assert await ids(echo) == await ids("echo") == {"waits", "ends"}
    assert await ids(status="complete") == {"ends", "other"}
    assert await ids(echo, status="waiting") == {"waits"}
    assert await ids(echo, status="paused") == set()
    [item] = (await h.app.list(other)).items
    assert (item.id, item.workflow_name, item.details.status) == ("other", "other", "complete")


async def test_a_list_shows_the_current_run_of_each_instance(h: Harness, echo: Any) -> None:
    run = await h.start(echo, 1, id="one")
    await h.run_until_idle()
    await run.restart()
    [item] = (await h.app.list()).items
    assert item.details.status == "active"


@pytest.mark.above_the_store
async def test_bad_filters_are_refused(h: Harness, echo: Any) -> None:
    with pytest.raises(InvalidOptionError, match="status"):
        await h.app.list(status="happy")
    for limit in (0, 101, "5", True):
        with pytest.raises(InvalidOptionError, match="limit"):
            await h.app.list(limit=limit)
    for cursor in ("", "x5", "i", "i-1", "i5x", "i" + "9" * 30, 5):
        with pytest.raises(InvalidCursorError):
            await h.app.list(cursor=cursor)
