"""The error names of runs, steps and lists, on every store. Clients depend on these names."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, NoReturn

import pytest
from http_api import Api, client_of

from holdfast import Context, Holdfast, NonRetryableError, Retry, StepTx, WorkflowError
from holdfast.testing import Harness
from postgres_harness import CleanStore

EVERY_STORE = True
ONCE = Retry(limit=0)


class OutOfStock(Exception):
    pass


class CardDeclined(WorkflowError):
    pass


class Refused(NonRetryableError):
    pass


ERRORS: dict[str, Exception] = {
    "NonRetryableError": NonRetryableError("no"),
    "QuotaExceeded": NonRetryableError("no", "QuotaExceeded"),
    "Refused": Refused("no"),
    "OutOfStock": OutOfStock("no"),
    "CardDeclined": CardDeclined("no", kind="Payment"),
    "KeyError": KeyError("no"),
    "TimeoutError": TimeoutError("no"),
}


def make_failing() -> Holdfast:
    app = Holdfast("sqlite://")

    def fail(name: str) -> NoReturn:
        raise ERRORS[name]

    async def never() -> None:
        await asyncio.get_running_loop().create_future()

    @app.step(retry=ONCE)
    async def make_table(tx: StepTx) -> None:
        tx.execute("DROP TABLE IF EXISTS item")
        tx.execute("CREATE TABLE item (name TEXT UNIQUE)")

    @app.step
    async def add(tx: StepTx) -> None:
        tx.execute("INSERT INTO item VALUES ('taken')")

    @app.workflow
    async def in_code(_ctx: Context, name: str) -> None:
        fail(name)

    @app.workflow
    async def in_step(ctx: Context, name: str) -> None:
        await ctx.do("fails", fail, name, retry=ONCE)

    @app.workflow
    async def grouped(ctx: Context) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.do("fails", fail, "KeyError", retry=ONCE))

    @app.workflow
    async def slow(ctx: Context) -> None:
        await ctx.do("slow", never, timeout="30 s", retry=ONCE)

    @app.workflow
    async def deadly(ctx: Context) -> None:
        await ctx.do("deadly", never, retry=Retry(limit=1))

    @app.workflow
    async def twice(ctx: Context) -> None:
        await make_table()
        await add()
        await ctx.do("add again", add)

    @app.workflow
    async def waiting(ctx: Context) -> None:
        await ctx.wait_for_event("go", type="go", timeout="1 hour")

    return app


@pytest.fixture
async def h(database: str) -> AsyncIterator[Harness]:
    async with Harness(make_failing(), store=CleanStore if database == "postgres" else None) as harness:
        yield harness


@pytest.fixture
async def virtual(h: Harness) -> AsyncIterator[Api]:
    async with client_of(h.app.asgi()) as http:
        yield Api(http)


async def error_of(api: Api, workflow: str, step: str | None) -> dict[str, Any]:
    """The error of the run, checked to be the same in the list and in the history."""
    instance = await api.get(f"/{workflow}/instances/x")
    [listed] = (await api.get(f"/{workflow}/instances", status="errored"))["instances"]
    assert instance["details"]["status"] == "errored"
    assert set(instance["details"]) == {"status", "error"}
    assert listed["details"] == instance["details"]
    error: dict[str, Any] = instance["details"]["error"]
    assert {"name", "message"} <= set(error) <= {"name", "message", "traceback", "causes"}
    assert error["message"]
    if step is not None:
        steps = (await api.get(f"/{workflow}/instances/x/history"))["steps"]
        [record] = [record for record in steps if record["stepKey"] == step]
        assert (record["status"], record["error"]["name"]) == ("errored", error["name"])
    return error


@pytest.mark.parametrize("source", ["in_code", "in_step"])
@pytest.mark.parametrize("name", ERRORS)
async def test_an_error_has_the_name_of_its_class_or_the_name_given(
    h: Harness, virtual: Api, name: str, source: str
) -> None:
    await virtual.create(source, name, id="x")
    await h.run_until_idle()

    error = await error_of(virtual, source, "fails" if source == "in_step" else None)

    assert error["name"] == name
    assert "no" in error["message"]


async def test_a_step_timeout_is_a_step_timeout_error(h: Harness, virtual: Api) -> None:
    await virtual.create("slow", id="x")
    await h.advance("1 minute")

    assert (await error_of(virtual, "slow", "slow"))["name"] == "StepTimeoutError"


async def test_a_step_lost_too_often_is_a_step_max_attempts_exceeded_error(h: Harness, virtual: Api) -> None:
    await virtual.create("deadly", id="x")
    for _ in range(2):
        await h.tick()
        await h._lose_worker()
    await h.run_until_idle()

    assert (await error_of(virtual, "deadly", "deadly"))["name"] == "StepMaxAttemptsExceeded"


async def test_a_violated_unique_constraint_is_a_unique_constraint_error(h: Harness, virtual: Api) -> None:
    await virtual.create("twice", id="x")
    await h.run_until_idle()

    assert (await error_of(virtual, "twice", "add again"))["name"] == "UniqueConstraintError"


async def test_a_missing_event_is_a_wait_for_event_timeout_error(h: Harness, virtual: Api) -> None:
    await virtual.create("waiting", id="x")
    await h.advance("2 hours")

    assert (await error_of(virtual, "waiting", "go"))["name"] == "WaitForEventTimeoutError"


async def test_an_error_has_its_traceback_and_its_causes(h: Harness, virtual: Api) -> None:
    await virtual.create("grouped", id="x")
    await h.run_until_idle()

    error = await error_of(virtual, "grouped", None)
    [step] = (await virtual.get("/grouped/instances/x/history"))["steps"]

    assert error["message"] == "unhandled errors in a TaskGroup (1 sub-exception): KeyError: 'no'"
    assert error["causes"] == [{"name": "KeyError", "message": "'no'"}]
    assert "raise ERRORS[name]" in error["traceback"]
    assert "raise ERRORS[name]" in step["error"]["traceback"]
    assert set(step["error"]) == {"name", "message", "traceback"}


async def test_an_error_without_frames_and_causes_has_neither_field(h: Harness, virtual: Api) -> None:
    await virtual.create("waiting", id="x")
    await h.run_until_idle()
    await virtual.post("/waiting/instances/x/cancel", {"reason": "enough"})
    await h.run_until_idle()

    assert (await virtual.get("/waiting/instances/x"))["details"]["error"] == {
        "name": "CancelledError",
        "message": "enough",
    }
