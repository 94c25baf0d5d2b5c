"""Errors of children in their parents: the same content live and on every replay."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import (
    ChildError,
    Context,
    Exit,
    Handle,
    Holdfast,
    NonRetryableError,
    Retry,
    StepError,
    WorkflowError,
)
from holdfast.testing import Harness

from .observations import at, end_of, observe_with_crashes, statuses


class OutOfStock(WorkflowError):
    pass


class Weird(Exception):
    def __init__(self, a: int, b: int) -> None:
        super().__init__(f"{a} and {b}")


def fields(error: ChildError | None) -> list[Any]:
    if error is None:
        return []
    return [error.status, error.type, error.message, error.kind, error.retryable, error.details]


def chain(error: BaseException | None) -> list[list[str]]:
    """Causes of an error, the nearest first."""
    causes = []
    while error is not None and error.__cause__ is not None:
        error = error.__cause__
        causes.append([type(error).__name__, str(error)])
    return causes


def _breaks(how: str) -> None:
    match how:
        case "structured":
            raise OutOfStock("no more", kind="NOT_FOUND", retryable=False, details={"sku": "s-1", "left": 0})
        case "builtin":
            raise ValueError("bad value")
        case "named":
            raise NonRetryableError("card stolen", "CardStolen", kind="Declined", details=[1, 2])
        case "own class":
            raise Weird(1, 2)
        case "empty":
            raise RuntimeError
        case "exit":
            raise SystemExit(3)


@pytest.fixture
def broken(app: Holdfast) -> Any:
    @app.workflow
    async def broken(ctx: Context, how: str) -> None:
        _breaks(how)

    return broken


CASES: dict[str, list[Any]] = {
    "structured": ["errored", "OutOfStock", "no more", "NOT_FOUND", False, {"sku": "s-1", "left": 0}],
    "builtin": ["errored", "ValueError", "bad value", "Internal", None, None],
    "named": ["errored", "CardStolen", "card stolen", "Declined", False, [1, 2]],
    "own class": ["errored", "Weird", "1 and 2", "Internal", None, None],
    "empty": ["errored", "RuntimeError", "", "Internal", None, None],
    "exit": ["errored", "SystemExit", "3", "Internal", None, None],
}


@pytest.mark.parametrize("how", CASES)
async def test_an_error_arrives_with_all_its_fields(app: Holdfast, h: Harness, broken: Any, how: str) -> None:
    @app.workflow
    async def parent(ctx: Context, how: str) -> list[Any]:
        try:
            await ctx.run(broken, how, id="c")
        except ChildError as error:
            return [*fields(error), error.pid, error.code]
        return []

    assert await h.crash_everywhere(parent, how) == [*CASES[how], "broken/c", "CHILD_FAILED"]


@pytest.mark.above_the_store
@pytest.mark.parametrize("how", ["structured", "named"])
async def test_result_and_exit_event_have_the_same_error(app: Holdfast, h: Harness, broken: Any, how: str) -> None:
    @app.workflow
    async def parent(ctx: Context, how: str) -> list[Any]:
        child = await ctx.spawn(broken, how)
        event = await ctx.events.receive()
        assert isinstance(event, Exit)
        try:
            await child.result()
        except ChildError as error:
            return [event.pid == child.pid, event.result, fields(event.error), fields(error)]
        return []

    assert await h.crash_everywhere(parent, how) == [True, None, CASES[how], CASES[how]]


@pytest.mark.above_the_store
async def test_a_child_error_keeps_its_chain_of_causes(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def chained(ctx: Context) -> None:
        try:
            try:
                raise KeyError("k")
            except KeyError as error:
                raise OutOfStock("no k", kind="NOT_FOUND") from error
        except OutOfStock as error:
            raise ValueError("cannot continue") from error

    @app.workflow
    async def parent(ctx: Context) -> list[Any]:
        try:
            await ctx.run(chained)
        except ChildError as error:
            cause = error.__cause__
            return [*fields(error)[:3], getattr(cause, "kind", None), *chain(error)]
        return []

    assert await h.crash_everywhere(parent) == [
        "errored", "ValueError", "cannot continue", "NOT_FOUND",
        ["WorkflowError", "OutOfStock: no k"],
        ["KeyError", "'k'"],
    ]  # fmt: skip


@pytest.mark.above_the_store
async def test_an_error_of_a_childs_step_keeps_its_fields(app: Holdfast, h: Harness) -> None:
    @app.step(retry=Retry(limit=0))
    async def charge() -> None:
        raise OutOfStock("empty", kind="NOT_FOUND", retryable=True, details={"n": 1})

    @app.workflow
    async def child(ctx: Context) -> None:
        await charge()

    @app.workflow
    async def parent(ctx: Context) -> list[Any]:
        try:
            await ctx.run(child)
        except ChildError as error:
            return fields(error)
        return []

    assert await h.crash_everywhere(parent) == ["errored", "OutOfStock", "empty", "NOT_FOUND", True, {"n": 1}]


@pytest.mark.above_the_store
async def test_an_error_keeps_its_fields_through_three_generations(app: Holdfast, h: Harness, broken: Any) -> None:
    """Runs that do not catch the error pass on its type, message, kind, retryable and details."""

    @app.workflow
    async def middle(ctx: Context, depth: int) -> None:
        await (ctx.run("middle", depth - 1) if depth else ctx.run(broken, "structured"))

    @app.workflow
    async def top(ctx: Context) -> list[Any]:
        try:
            await ctx.run(middle, 1)
        except ChildError as error:
            return fields(error)
        return []

    assert await h.crash_everywhere(top) == CASES["structured"]


@pytest.mark.above_the_store
async def test_each_generation_can_add_a_cause(app: Holdfast, h: Harness, broken: Any) -> None:
    @app.workflow
    async def wraps(ctx: Context, depth: int) -> None:
        try:
            await (ctx.run("wraps", depth - 1) if depth else ctx.run(broken, "builtin"))
        except ChildError as error:
            raise OutOfStock(f"level {depth}", details={"depth": depth}) from error

    @app.workflow
    async def top(ctx: Context) -> list[Any]:
        try:
            await ctx.run(wraps, 2)
        except ChildError as error:
            return [*fields(error)[1:3], error.details, [text for _, text in chain(error)]]
        return []

    kind, message, details, causes = await h.crash_everywhere(top)
    assert (kind, message, details) == ("OutOfStock", "level 2", {"depth": 2})
    assert [next(m for m in ("level 1", "level 0", "bad value") if m in text) for text in causes] == [
        "level 1",
        "level 0",
        "bad value",
    ]


async def test_an_uncaught_child_error_fails_the_parent_with_the_same_error(
    app: Holdfast, h: Harness, broken: Any
) -> None:
    @app.workflow
    async def parent(ctx: Context) -> None:
        await ctx.run(broken, "structured")

    assert await observe_with_crashes(h, parent, observe=end_of) == ("errored", None, "OutOfStock", "no more")


@pytest.mark.above_the_store
async def test_a_child_error_is_a_step_error(app: Holdfast, h: Harness, broken: Any) -> None:
    @app.workflow
    async def parent(ctx: Context) -> list[Any]:
        try:
            await ctx.run(broken, "named", id="c")
        except StepError as error:
            return [type(error).__name__, error.step, error.attempts]
        return []

    assert await h.crash_everywhere(parent) == ["ChildError", "broken/c", 1]


@pytest.mark.above_the_store
async def test_a_child_whose_result_cannot_be_stored_fails(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def unfit(ctx: Context) -> Any:
        return float("nan")

    @app.workflow
    async def parent(ctx: Context) -> str:
        try:
            await ctx.run(unfit)
        except ChildError as error:
            return error.type
        return ""

    assert await h.crash_everywhere(parent) == "NotSerializableError"


# --- children ended from outside


@pytest.fixture
def waits(app: Holdfast) -> Any:
    @app.workflow
    async def waits(ctx: Context) -> str:
        return str((await ctx.wait_for_event("go", type="go", timeout="30 days")).payload)

    return waits


@pytest.fixture
def watches(app: Holdfast, waits: Any) -> Any:
    @app.workflow
    async def watches(ctx: Context, options: dict[str, Any]) -> list[Any]:
        try:
            await ctx.run(waits, id="c", **options)
        except ChildError as error:
            return fields(error)
        return []

    return watches


async def test_a_child_terminated_by_a_client_raises_with_the_reason(h: Harness, watches: Any) -> None:
    async def drive(harness: Harness, run: Handle[Any]) -> None:
        if (await statuses(harness, "waits/c"))["waits/c"] == "waiting":
            await (await at(harness, "waits/c")).terminate("not needed")

    assert await h.crash_everywhere(watches, {}, drive=drive) == [
        "terminated", "Terminated", "the run was terminated (not needed)", "Terminated", False, None,
    ]  # fmt: skip


@pytest.mark.above_the_store
async def test_a_child_terminated_without_a_reason_has_a_default_message(h: Harness, watches: Any) -> None:
    async def drive(harness: Harness, run: Handle[Any]) -> None:
        if (await statuses(harness, "waits/c"))["waits/c"] == "waiting":
            await (await at(harness, "waits/c")).terminate()

    assert (await h.crash_everywhere(watches, {}, drive=drive))[2] == "the run was terminated (no reason given)"


async def test_a_child_cancelled_by_a_client_raises_with_the_reason(h: Harness, watches: Any) -> None:
    async def drive(harness: Harness, run: Handle[Any]) -> None:
        if (await statuses(harness, "waits/c"))["waits/c"] == "waiting":
            await (await at(harness, "waits/c")).cancel("changed my mind")

    assert await h.crash_everywhere(watches, {}, drive=drive) == [
        "cancelled", "CancelledError", "changed my mind", "Cancelled", False, None,
    ]  # fmt: skip


@pytest.mark.parametrize("option", ["run_timeout", "execution_timeout"])
async def test_a_child_that_exceeds_its_timeout_raises_a_timeout_error(h: Harness, watches: Any, option: str) -> None:
    async def observe(harness: Harness, run: Handle[Any]) -> Any:
        return await run.result(timeout=60)

    assert await observe_with_crashes(h, watches, {option: "1 hour"}, observe=observe) == [
        "errored", "RunTimeoutError", f"the run took longer than its {option} of 1 h", "Timeout", None, None,
    ]  # fmt: skip


async def test_a_child_that_a_link_ended_raises_a_link_down_error(app: Holdfast, h: Harness, broken: Any) -> None:
    @app.workflow
    async def linked(ctx: Context) -> None:
        await ctx.spawn(broken, "structured", id="c", link=True)
        await ctx.sleep("for ever", "30 days")

    @app.workflow
    async def parent(ctx: Context) -> list[Any]:
        try:
            await ctx.run(linked)
        except ChildError as error:
            return fields(error)
        return []

    status, name, message, *_ = await h.crash_everywhere(parent)
    assert (status, name) == ("errored", "LinkDownError")
    assert message == "linked run broken/c ended errored: OutOfStock: no more"


# --- several children


@pytest.mark.above_the_store
async def test_the_other_children_continue_when_one_fails(app: Holdfast, h: Harness, broken: Any) -> None:
    @app.workflow
    async def fine(ctx: Context, n: int) -> int:
        await ctx.sleep("nap", "1 minute")
        return n

    @app.workflow
    async def parent(ctx: Context) -> list[Any]:
        found = await asyncio.gather(
            ctx.run(fine, 1), ctx.run(broken, "builtin"), ctx.run(fine, 2), return_exceptions=True
        )
        return [one.type if isinstance(one, ChildError) else one for one in found]

    assert await h.crash_everywhere(parent) == [1, "ValueError", 2]


@pytest.mark.above_the_store
async def test_a_failing_child_in_a_task_group_cancels_its_siblings(app: Holdfast, h: Harness, broken: Any) -> None:
    @app.workflow
    async def slow(ctx: Context) -> None:
        await ctx.sleep("nap", "10 days")

    @app.workflow
    async def parent(ctx: Context) -> list[str]:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(ctx.run(slow, id="s", parent_close="abandon"))
                await ctx.sleep("a moment", "1 minute")
                group.create_task(ctx.run(broken, "named"))
        except ExceptionGroup as errors:
            return [error.type for error in errors.exceptions if isinstance(error, ChildError)]
        return []

    async def observe(harness: Harness, run: Handle[Any]) -> Any:
        return await run.result(timeout=60), await statuses(harness, "slow/s")

    assert await observe_with_crashes(h, parent, observe=observe) == (["CardStolen"], {"slow/s": "cancelled"})


@pytest.mark.above_the_store
async def test_a_parent_can_start_a_failed_child_again(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flaky(ctx: Context, n: int) -> int:
        if n < 3:
            raise WorkflowError("not yet", details={"n": n})
        return n

    @app.workflow
    async def parent(ctx: Context) -> list[Any]:
        failed: list[Any] = []
        for n in range(1, 5):
            try:
                return [await ctx.run(flaky, n), failed]
            except ChildError as error:
                failed.append(error.details)
                await ctx.sleep(f"pause {n}", "1 minute")
        return []

    assert await h.crash_everywhere(parent) == [3, [{"n": 1}, {"n": 2}]]


async def test_a_parent_sees_the_last_attempt_of_its_child(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def fails(ctx: Context) -> None:
        raise WorkflowError(f"attempt {ctx.info.attempt}")

    @app.workflow
    async def parent(ctx: Context) -> list[Any]:
        child = await ctx.spawn(fails, retry=Retry(limit=2, delay="1 minute", backoff="constant"))
        try:
            await child.result()
        except ChildError as error:
            return [error.message, len(ctx.events)]
        return []

    assert await h.crash_everywhere(parent) == ["attempt 3", 1]
