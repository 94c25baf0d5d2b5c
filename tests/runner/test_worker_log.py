"""The worker's log: one line for each failed or parked run and each step that failed permanently, with workflow/id."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import pytest

from driving import lose_worker
from holdfast import ChainTask, ChildError, Context, Holdfast, NonRetryableError, Retry
from holdfast.testing import Harness

NO_RETRY = Retry(limit=0)


def logged(caplog: pytest.LogCaptureFixture, logger: str = "holdfast.runs") -> list[tuple[str, str]]:
    return [(record.levelname, record.getMessage()) for record in caplog.records if record.name == logger]


async def start_and_run(h: Harness, workflow: Any, params: Any = None, **options: Any) -> None:
    await h.start(workflow, params, **options)
    await h.run_until_idle()


async def test_a_run_that_errors_is_logged_with_its_traceback(
    app: Holdfast, h: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    @app.workflow
    async def shop(ctx: Context) -> None:
        raise KeyError("missing")

    await start_and_run(h, shop, id="o-1")

    assert logged(caplog) == [("ERROR", "run shop/o-1 (run 0) errored: KeyError: 'missing'")]
    [record] = [record for record in caplog.records if record.name == "holdfast.runs"]
    fields = (record.workflow, record.instance_id, record.run_number, record.step_key)  # type: ignore[attr-defined]
    assert fields == ("shop", "o-1", 0, None)
    assert 'raise KeyError("missing")' in caplog.text


async def test_a_step_whose_retries_are_exhausted_is_logged_with_its_run(
    app: Holdfast, h: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    @app.step(retry=Retry(limit=1, delay=0))
    async def charge() -> None:
        raise ConnectionError("the bank\ndoes not answer")

    @app.workflow
    async def shop(ctx: Context) -> None:
        await charge()

    await start_and_run(h, shop, id="o-1")

    text = "run shop/o-1 (run 0) errored: ConnectionError: the bank does not answer; "
    assert logged(caplog) == [("ERROR", text + "step 'charge' failed permanently on attempt 2")]


async def test_a_failed_step_that_the_workflow_handles_is_logged_as_a_warning(
    app: Holdfast, h: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    @app.step(retry=NO_RETRY)
    async def charge() -> None:
        raise ConnectionError("no")

    @app.workflow
    async def shop(ctx: Context) -> str:
        try:
            await charge()
        except ConnectionError:
            await ctx.sleep("nap", "1 hour")
        return "paid later"

    await start_and_run(h, shop, id="o-1")
    await h.restart()
    await h.advance("1 hour")

    assert logged(caplog) == [
        ("WARNING", "step 'charge' of run shop/o-1 (run 0) failed permanently on attempt 1: ConnectionError: no")
    ]


@pytest.mark.above_the_store
async def test_a_failed_step_of_a_persist_task_workflow_is_logged_once(
    app: Holdfast, h: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    @app.step(retry=NO_RETRY)
    async def charge() -> None:
        raise ConnectionError("no")

    @app.workflow(persist="task")
    async def shop(ctx: Context) -> None:
        await charge()

    await start_and_run(h, shop, id="o-1")

    assert len(logged(caplog)) == 1


async def test_a_failed_run_is_a_warning_if_it_is_retried_and_an_error_at_its_last_attempt(
    app: Holdfast, h: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    @app.workflow
    async def shop(ctx: Context) -> None:
        raise ConnectionError("no")

    await start_and_run(h, shop, id="o-1", retry=Retry(limit=1, delay=0))

    assert logged(caplog) == [
        ("WARNING", "run shop/o-1 (run 0) errored: ConnectionError: no; it is tried again as run 1, attempt 2"),
        ("ERROR", "run shop/o-1 (run 1) errored: ConnectionError: no"),
    ]


async def test_a_failed_child_is_logged_as_a_warning(
    app: Holdfast, h: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    @app.workflow
    async def child(ctx: Context) -> None:
        raise NonRetryableError("no")

    @app.workflow
    async def parent(ctx: Context) -> None:
        try:
            await ctx.run(child, id="c")
        except ChildError:
            return

    await start_and_run(h, parent, id="p")

    assert logged(caplog) == [
        ("WARNING", "run child/c (run 0) errored: NonRetryableError: no; its parent parent/p is notified")
    ]


async def test_a_run_whose_code_does_not_match_its_history_is_logged_when_it_is_parked(
    app: Holdfast, h: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    changed = False

    async def one() -> int:
        return 1

    @app.workflow
    async def shop(ctx: Context) -> None:
        if changed:
            await ctx.sleep("one", "1 hour")
        else:
            await ctx.do("one", one)
        await ctx.sleep("nap", "1 hour")

    await start_and_run(h, shop, id="o-1")
    changed = True
    await h.restart()
    await h.advance("1 hour")

    [(level, text)] = logged(caplog)
    assert level == "ERROR"
    assert text.startswith("run shop/o-1 (run 0) is parked: NON_DETERMINISTIC: the history has 'one' recorded as do")


@pytest.mark.above_the_store
async def test_a_run_whose_code_takes_too_long_is_logged_when_it_is_parked(
    app: Holdfast, caplog: pytest.LogCaptureFixture
) -> None:
    @app.workflow
    async def shop(ctx: Context) -> None:
        time.sleep(0.05)

    async with app:
        run = await app.start(shop, id="o-1", task_timeout="10 ms")
        async with asyncio.timeout(60):
            while (await run.status()).status != "paused":
                await asyncio.sleep(0.005)

    [(level, text)] = logged(caplog)
    assert level == "ERROR"
    assert text.startswith("run shop/o-1 (run 0) is parked: TASK_TIMEOUT: ")


@pytest.mark.above_the_store
async def test_a_run_that_reached_its_run_timeout_is_logged(
    app: Holdfast, h: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    @app.workflow
    async def shop(ctx: Context) -> None:
        await ctx.sleep("long", "1 day")

    await start_and_run(h, shop, id="o-1", run_timeout="1 hour")
    await h.advance("1 hour")

    [(level, text)] = logged(caplog)
    assert level == "ERROR"
    assert text.startswith("run shop/o-1 (run 0) errored: RunTimeoutError: the run took longer than its run_timeout")


async def test_a_lost_worker_is_logged_with_the_name_of_the_run(
    app: Holdfast, h: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    @app.workflow
    async def shop(ctx: Context) -> None:
        await ctx.do("wait", asyncio.Event().wait, retry=Retry(limit=20))

    await start_and_run(h, shop, id="o-1")
    await lose_worker(h)
    await h.run_until_idle()

    text = (
        "the lease of run shop/o-1 (run 0) expired (1 in a row): its worker died or stalled; "
        "the run can be claimed again"
    )
    assert logged(caplog, "holdfast") == [("WARNING", text)]


async def test_a_run_that_lost_too_many_workers_is_logged_when_it_is_parked(
    app: Holdfast, h: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    @app.workflow
    async def shop(ctx: Context) -> None:
        await ctx.do("wait", asyncio.Event().wait, retry=Retry(limit=20))

    await start_and_run(h, shop, id="o-1")
    for _ in range(10):
        await lose_worker(h)
        await h.run_until_idle()

    assert logged(caplog) == [
        (
            "ERROR",
            "run shop/o-1 (run 0) is parked: the lease of its task expired 10 times in a row; resume to try again",
        )
    ]


async def test_a_failed_chain_is_logged(app: Holdfast, h: Harness, caplog: pytest.LogCaptureFixture) -> None:
    orders = app.chain("orders")

    @orders.step("CHECK", max_attempts=1)
    async def check(task: ChainTask) -> None:
        raise ValueError("no")

    await start_and_run(h, orders, id="o-1")

    [(level, text)] = logged(caplog)
    assert (level, text.split(":")[0]) == ("ERROR", "run orders/o-1 (run 0) errored")
    assert "step 'CHECK' failed permanently on attempt 1" in text


async def test_a_failed_node_and_its_graph_are_logged(
    app: Holdfast, h: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    etl = app.graph("etl")

    @etl.node(retry=NO_RETRY)
    async def extract() -> None:
        raise ValueError("no")

    await start_and_run(h, etl, id="g")

    assert logged(caplog) == [
        ("WARNING", "step 'extract' of run etl/g (run 0) failed permanently on attempt 1: ValueError: no"),
        ("ERROR", "run etl/g (run 0) errored: NodeFailedError: node 'extract' failed: ValueError: no"),
    ]


@pytest.mark.above_the_store
async def test_a_mapped_node_with_a_failed_item_is_logged_with_its_own_attempts(
    app: Holdfast, h: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    etl = app.graph("etl")

    @etl.node
    async def extract() -> list[int]:
        return [1]

    @etl.node(map=extract, retry=NO_RETRY)
    async def check(extract: int) -> None:
        raise ValueError("no")

    await start_and_run(h, etl, id="g")

    assert logged(caplog)[0] == (
        "WARNING",
        "step 'check' of run etl/g (run 0) failed permanently on attempt 1: ValueError: item 0: no",
    )


@pytest.mark.above_the_store
async def test_a_run_that_completes_is_not_logged(app: Holdfast, h: Harness, caplog: pytest.LogCaptureFixture) -> None:
    @app.workflow
    async def shop(ctx: Context) -> int:
        await ctx.sleep("nap", 1)
        return 1

    with caplog.at_level(logging.DEBUG, "holdfast"):
        await start_and_run(h, shop, id="o-1")
        await h.advance("1 second")

    assert caplog.records == []


@pytest.mark.above_the_store
async def test_control_characters_and_surrogates_in_a_log_line_are_escaped(
    app: Holdfast, h: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    @app.workflow
    async def shop(ctx: Context) -> None:
        raise ValueError("\ud800 \x1b[31m \x00 \n run other/o-2 errored")

    await start_and_run(h, shop, id="o-1")

    assert logged(caplog) == [
        ("ERROR", "run shop/o-1 (run 0) errored: ValueError: \\ud800 \\x1b[31m \\x00 run other/o-2 errored")
    ]
    assert caplog.text.encode("utf-8")
    assert "\x1b" not in caplog.text
