"""Failed attempts and failed runs keep their traceback and the causes of their error."""

from __future__ import annotations

import asyncio
import time
import traceback
from typing import Any

import pytest

from driving import warm_and_cold
from holdfast import (
    ChainTask,
    ChildError,
    Context,
    ErrorInfo,
    Holdfast,
    Retry,
    RunFailedError,
    StepError,
)
from holdfast.testing import Harness

NO_RETRY = Retry(limit=0)


class OutOfStock(Exception):
    pass


def look_up(sku: str) -> str:
    return {"a": "b"}[sku]


async def failed_run(h: Harness, workflow: Any, params: Any = None) -> tuple[Any, ErrorInfo]:
    run = await h.start(workflow, params)
    await h.run_until_idle()
    error = (await run.status()).error
    assert error is not None
    return run, error


def traceback_of(error: ErrorInfo | None) -> str:
    assert error is not None
    assert error.traceback is not None
    return error.traceback


async def test_a_failed_step_and_its_run_keep_their_tracebacks(app: Holdfast, h: Harness) -> None:
    @app.step(retry=NO_RETRY)
    async def reserve(sku: str) -> str:
        return look_up(sku)

    @app.workflow
    async def shop(ctx: Context) -> str:
        return await reserve("missing")

    run, error = await failed_run(h, shop)
    [step] = (await run.history()).steps

    assert 'return {"a": "b"}[sku]' in traceback_of(step.error)
    assert "in reserve" in traceback_of(step.error)
    assert "holdfast/runner" not in traceback_of(step.error)
    assert 'return await reserve("missing")' in traceback_of(error)
    assert "The error came from step 'reserve', attempt 1:" in traceback_of(error)
    assert 'return {"a": "b"}[sku]' in traceback_of(error)
    assert (await run.describe()).error == error


async def test_each_failed_attempt_keeps_its_traceback(app: Holdfast, h: Harness) -> None:
    @app.step(retry=Retry(limit=1, delay="1 minute"))
    async def reserve(sku: str) -> str:
        return look_up(sku)

    @app.workflow
    async def shop(ctx: Context) -> str:
        return await reserve("missing")

    run = await h.start(shop)
    await h.run_until_idle()
    [waiting] = (await run.history()).steps
    await h.restart()
    await h.advance("1 minute")
    [ended] = (await run.history()).steps

    assert (waiting.status, ended.status) == ("waiting", "errored")
    assert "in look_up" in traceback_of(waiting.error)
    assert "in look_up" in traceback_of(ended.error)


async def test_a_printed_run_failed_error_has_the_traceback_of_the_run(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def shop(ctx: Context) -> str:
        return look_up("missing")

    run, _ = await failed_run(h, shop)

    with pytest.raises(RunFailedError) as caught:
        await run.result()

    shown = "".join(traceback.format_exception(caught.value))
    assert isinstance(caught.value.__cause__, KeyError)
    assert 'return {"a": "b"}[sku]' in shown
    assert 'return look_up("missing")' in shown
    assert shown.rstrip().endswith(f"RunFailedError: run {run.pid} failed with KeyError: 'missing'")


async def test_the_error_in_the_workflow_is_equal_live_and_on_replay(app: Holdfast, h: Harness) -> None:
    @app.step(retry=NO_RETRY)
    async def reserve() -> None:
        try:
            look_up("missing")
        except KeyError as error:
            raise OutOfStock("none left") from error

    @app.workflow
    async def shop(ctx: Context) -> list[Any]:
        seen: list[Any] = []
        for turn in range(2):
            if turn:
                await ctx.sleep("nap", "1 hour")
            try:
                await ctx.do("reserve", reserve, retry=NO_RETRY)
            except StepError as error:
                cause = error.__cause__
                seen.append([error.type, error.message, error.attempts, error.traceback, repr(cause)])
        return seen

    warm, cold = await warm_and_cold(h, shop)

    assert warm == cold
    assert warm[0] == warm[1]
    assert "in look_up" in warm[0][3]
    assert warm[0][4] == "KeyError('missing')"


async def test_a_parent_shows_the_traceback_of_its_child(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def child(ctx: Context) -> None:
        try:
            look_up("missing")
        except KeyError as error:
            raise OutOfStock("none left") from error

    @app.workflow
    async def parent(ctx: Context) -> None:
        await ctx.run(child, id="c")

    run, error = await failed_run(h, parent)
    [step] = [step for step in (await run.history()).steps if step.type == "child"]

    assert "in look_up" in traceback_of(step.error)
    assert "The error came from run child/c:" in traceback_of(error)
    assert "in look_up" in traceback_of(error)
    assert error.causes == [ErrorInfo("KeyError", "'missing'")]


async def test_a_caught_child_error_has_the_traceback_of_the_child(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def child(ctx: Context) -> None:
        look_up("missing")

    @app.workflow
    async def parent(ctx: Context) -> str | None:
        try:
            await ctx.run(child)
        except ChildError as error:
            return error.traceback
        return None

    warm, cold = await warm_and_cold(h, parent)

    assert "in look_up" in warm
    assert warm == cold


async def test_a_dead_chain_step_and_its_chain_keep_the_traceback(app: Holdfast, h: Harness) -> None:
    orders = app.chain("orders")

    @orders.step("CHECK", max_attempts=1)
    async def check(task: ChainTask) -> str:
        return look_up("missing")

    run, error = await failed_run(h, orders)
    [step] = (await run.history()).steps

    assert "in look_up" in traceback_of(step.error)
    assert "in look_up" in traceback_of(error)
    assert error.causes == [ErrorInfo("KeyError", "'missing'")]


async def test_a_failed_node_and_its_graph_keep_the_traceback(app: Holdfast, h: Harness) -> None:
    etl = app.graph("etl")

    @etl.node(retry=NO_RETRY)
    async def extract() -> str:
        return look_up("missing")

    run, error = await failed_run(h, etl)
    [node] = (await run.history()).steps

    assert "in look_up" in traceback_of(node.error)
    assert "in look_up" in traceback_of(error)
    assert error.causes == [ErrorInfo("KeyError", "'missing'")]


async def test_a_failed_item_of_a_mapped_node_keeps_the_traceback(app: Holdfast, h: Harness) -> None:
    etl = app.graph("etl")

    @etl.node
    async def extract() -> list[str]:
        return ["missing"]

    @etl.node(map=extract, retry=NO_RETRY)
    async def load(extract: str) -> str:
        return look_up(extract)

    _, error = await failed_run(h, etl)

    assert "in look_up" in traceback_of(error)


@pytest.mark.above_the_store
async def test_a_run_of_a_persist_task_workflow_keeps_the_traceback(app: Holdfast, h: Harness) -> None:
    @app.step(retry=NO_RETRY)
    async def reserve(sku: str) -> str:
        return look_up(sku)

    @app.workflow(persist="task")
    async def shop(ctx: Context) -> str:
        return await reserve("missing")

    run, error = await failed_run(h, shop)
    [step] = (await run.history()).steps

    assert "in look_up" in traceback_of(step.error)
    assert "in look_up" in traceback_of(error)


@pytest.mark.above_the_store
async def test_a_step_that_times_out_has_a_traceback_of_where_it_waited(app: Holdfast, h: Harness) -> None:
    async def wait_for_the_bank() -> None:
        await asyncio.Event().wait()

    @app.step(retry=NO_RETRY, timeout="1 second")
    async def pay() -> None:
        await wait_for_the_bank()

    @app.workflow
    async def shop(ctx: Context) -> None:
        await pay()

    run = await h.start(shop)
    await h.run_until_idle()
    await h.advance("1 second")
    [step] = (await run.history()).steps

    assert "await asyncio.Event().wait()" in traceback_of(step.error)
    assert traceback_of(step.error).endswith("StepTimeoutError: step 'pay' took longer than 1 s")


@pytest.mark.above_the_store
async def test_a_step_in_a_thread_that_times_out_has_a_traceback_of_where_it_was(app: Holdfast) -> None:
    over = asyncio.Event()

    @app.step(retry=NO_RETRY, timeout="100 ms")
    def pay() -> None:
        while not over.is_set():
            time.sleep(0.01)

    @app.workflow
    async def shop(ctx: Context) -> None:
        await pay()

    async with app:
        run = await app.start(shop)
        with pytest.raises(RunFailedError):
            await run.result(timeout=60)
        over.set()
        [step] = (await run.history()).steps

    assert "in pay" in traceback_of(step.error)
    assert "threading" not in traceback_of(step.error)


# --- exception groups


async def test_the_error_of_an_exception_group_in_workflow_code_names_its_first_exception(
    app: Holdfast, h: Harness
) -> None:
    @app.step(retry=NO_RETRY)
    async def reserve(sku: str) -> str:
        return look_up(sku)

    @app.workflow
    async def shop(ctx: Context) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(reserve("missing"))

    run, error = await failed_run(h, shop)

    message = "unhandled errors in a TaskGroup (1 sub-exception): KeyError: 'missing'"
    assert (error.name, error.message) == ("ExceptionGroup", message)
    assert error.causes == [ErrorInfo("KeyError", "'missing'")]
    assert "in look_up" in traceback_of(error)
    assert (await run.describe()).why == f"errored: ExceptionGroup: {message}"
    with pytest.raises(RunFailedError, match="KeyError: 'missing'"):
        await run.result()


async def test_the_error_of_an_exception_group_in_a_step_names_its_first_exception(app: Holdfast, h: Harness) -> None:
    @app.step(retry=Retry(limit=1, delay="1 minute"))
    async def reserve() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(0))
            group.create_task(asyncio.to_thread(look_up, "missing"))

    @app.workflow
    async def shop(ctx: Context) -> None:
        await reserve()

    run = await h.start(shop)
    await h.run_until_idle()

    assert "(1 sub-exception): KeyError: 'missing')" in (await run.describe()).why
    [step] = (await run.history()).steps
    assert step.error is not None
    assert step.error.causes == [ErrorInfo("KeyError", "'missing'")]

    await h.advance("1 minute")
    error = (await run.status()).error
    assert error is not None
    assert error.causes == [ErrorInfo("KeyError", "'missing'")]


async def test_an_exception_group_of_a_step_is_raised_as_a_group_in_workflow_code(app: Holdfast, h: Harness) -> None:
    @app.step(retry=NO_RETRY, raises=(OutOfStock,))
    async def reserve() -> None:
        raise ExceptionGroup("both", [KeyError("k"), OutOfStock("none left")])

    @app.workflow
    async def shop(ctx: Context) -> list[str]:
        caught = []
        try:
            await reserve()
        except* KeyError as group:
            caught += [repr(one) for one in group.exceptions]
        except* OutOfStock as group:
            caught += [repr(one) for one in group.exceptions]
        await ctx.sleep("nap", "1 hour")
        return caught

    warm, cold = await warm_and_cold(h, shop)

    assert warm == cold == ["KeyError('k')", "OutOfStock('none left')"]


async def test_an_exception_group_of_an_unknown_class_keeps_its_exceptions(app: Holdfast, h: Harness) -> None:
    class OrderErrors(ExceptionGroup[Exception]):
        pass

    @app.step(retry=NO_RETRY)
    async def reserve() -> None:
        raise OrderErrors("both", [KeyError("k"), OutOfStock("none left")])

    @app.workflow
    async def shop(ctx: Context) -> None:
        await reserve()

    _, error = await failed_run(h, shop)

    assert (error.name, error.message) == ("OrderErrors", "both (2 sub-exceptions): KeyError: 'k'")
    [group] = error.causes
    assert group.causes == [ErrorInfo("KeyError", "'k'"), ErrorInfo("OutOfStock", "none left")]
