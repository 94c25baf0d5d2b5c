"""The ``persist`` modes: a run is written at every step boundary, or only when it suspends."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Literal

import pytest

from apps import MakeApp
from driving import lose_worker, until
from holdfast import Context, Handle, Holdfast, InvalidOptionError, Retry, StepTx, Transaction, step_info
from holdfast.store.protocol import TerminateRun
from holdfast.testing import Harness


def _define_five_steps(app: Holdfast, persist: Literal["step", "task"], calls: list[int]) -> Any:
    @app.workflow(persist=persist)
    async def flow(ctx: Context) -> int:
        for n in range(5):
            await ctx.do(f"s{n}", calls.append, n)
        return len(calls)

    return flow


@pytest.mark.parametrize(("persist", "commits"), [("step", 5), ("task", 1)])
async def test_the_persist_mode_determines_the_number_of_commits(
    app: Holdfast, h: Harness, persist: Any, commits: int
) -> None:
    run = await h.start(_define_five_steps(app, persist, []))
    await h.run_until_idle()
    assert await run.result() == 5
    assert h._store.commits == commits
    assert [s.status for s in (await run.history()).steps] == ["completed"] * 5


@pytest.mark.promise("at-least-once-steps")
@pytest.mark.parametrize(("persist", "repeated"), [("step", []), ("task", [0, 1, 2])])
async def test_a_crash_repeats_steps_that_were_not_written(
    app: Holdfast, h: Harness, persist: Any, repeated: list[int]
) -> None:
    calls: list[int] = []
    crashed: list[bool] = []

    async def crash() -> None:
        if not crashed:
            crashed.append(True)
            await asyncio.get_running_loop().create_future()

    @app.workflow(persist=persist)
    async def flow(ctx: Context) -> list[int]:
        for n in range(3):
            await ctx.do(f"s{n}", calls.append, n)
        await ctx.do("crash", crash)
        return calls

    run = await h.start(flow)
    await h.tick()
    await lose_worker(h)
    await h.advance("1 minute")
    assert await run.result(timeout=60) == [0, 1, 2, *repeated]


async def test_buffered_results_are_written_when_the_run_suspends(app: Holdfast, h: Harness) -> None:
    calls: list[str] = []

    @app.workflow(persist="task")
    async def flow(ctx: Context) -> list[str]:
        await ctx.do("a", calls.append, "a")
        await ctx.do("b", calls.append, "b")
        await ctx.sleep("nap", 60)
        await ctx.do("c", calls.append, "c")
        return calls

    run = await h.start(flow)
    await h.run_until_idle()
    assert h._store.commits == 1
    await h.restart()
    await h.advance(60)
    assert await run.result() == ["a", "b", "c"]
    assert h._store.commits == 2


async def test_a_failed_attempt_is_written_before_the_wait_for_its_retry(app: Holdfast, h: Harness) -> None:
    attempts: list[int] = []

    def flaky() -> str:
        attempts.append(1)
        if len(attempts) < 3:
            raise OSError("again")
        return "worked"

    @app.workflow(persist="task")
    async def flow(ctx: Context) -> Any:
        return await ctx.do("flaky", flaky, retry=Retry(5, "10s", "constant"))

    run = await h.start(flow)
    for _ in range(2):
        await h.run_until_idle()
        await h.restart()
        await h.advance("10s")
    assert await run.result() == "worked"
    assert len(attempts) == 3


@pytest.mark.parametrize("persist", ["step", "task"])
async def test_a_crash_at_any_commit_does_not_change_the_result_in_either_mode(
    app: Holdfast, h: Harness, persist: Any
) -> None:
    @app.workflow(persist=persist)
    async def flow(ctx: Context) -> list[Any]:
        first = await asyncio.gather(*(ctx.do(f"p{n}", lambda n=n: n) for n in range(3)))
        await ctx.sleep("nap", 60)
        return [*first, await ctx.do("last", lambda: "z"), str(ctx.uuid4())]

    result = await h.crash_everywhere(flow)
    assert result[:4] == [0, 1, 2, "z"]


async def results_of(run: Handle[Any]) -> list[tuple[str, Any]]:
    steps = (await run.history(run_number=0)).steps
    return [(step.step_key, step.result) for step in steps if step.status == "completed"]


@pytest.mark.parametrize("end", ["terminate", "restart"])
async def test_a_terminated_or_restarted_run_keeps_the_buffered_results(app: Holdfast, h: Harness, end: str) -> None:
    @app.workflow(persist="task")
    async def flow(ctx: Context) -> None:
        await ctx.do("a", lambda: 1)
        await ctx.do("b", lambda: 2)
        await ctx.do("hangs", asyncio.Event().wait)

    run = await h.start(flow)
    await h.tick()
    assert (await run.history()).steps == []
    await getattr(run, end)()
    assert await until(partial(results_of, run)) == [("a", 1), ("b", 2)]


async def test_a_paused_run_that_is_terminated_keeps_the_buffered_results(app: Holdfast, h: Harness) -> None:
    @app.workflow(persist="task")
    async def flow(ctx: Context) -> None:
        await ctx.do("a", lambda: 1)
        await ctx.do("hangs", asyncio.Event().wait)

    run = await h.start(flow)
    await h.tick()
    await run.pause()
    await run.terminate("enough")
    assert await until(partial(results_of, run)) == [("a", 1)]
    assert (await run.status()).status == "terminated"


async def test_a_run_that_another_process_terminates_keeps_the_buffered_results(make_app: MakeApp) -> None:
    app, began = make_app(), asyncio.Event()

    async def hangs() -> None:
        began.set()
        await asyncio.Event().wait()

    @app.workflow(persist="task")
    async def flow(ctx: Context) -> None:
        await ctx.do("a", lambda: 1)
        await ctx.do("b", lambda: 2)
        await ctx.do("hangs", hangs)

    async with app, make_app().connect() as client:
        client.remote("flow")
        await app.start(flow, id="one")
        await began.wait()
        run = await client.get("flow", "one")
        await run.terminate("enough")
        assert await until(partial(results_of, run)) == [("a", 1), ("b", 2)]


def _terminating(h: Harness) -> Any:
    """A step that terminates its own run. The worker is not notified, and its next commit is refused."""

    async def terminate() -> str:
        await h._store.control(TerminateRun("flow", step_info().instance_id))
        return "terminated"

    return terminate


async def test_a_run_that_is_ended_before_its_last_commit_keeps_all_results(app: Holdfast, h: Harness) -> None:
    @app.workflow(persist="task")
    async def flow(ctx: Context) -> None:
        await ctx.do("a", lambda: 1)
        await ctx.do("b", _terminating(h))

    run = await h.start(flow)
    await h.run_until_idle()
    assert await until(partial(results_of, run)) == [("a", 1), ("b", "terminated")]


async def test_earlier_results_are_kept_when_a_live_transaction_is_refused(app: Holdfast, h: Harness) -> None:
    async def book(tx: Transaction) -> None:
        await tx.execute("CREATE TABLE IF NOT EXISTS booking (n INTEGER)")

    @app.workflow(persist="task")
    async def flow(ctx: Context) -> None:
        await ctx.do("a", _terminating(h))
        await ctx.do("book", book)

    run = await h.start(flow)
    await h.run_until_idle()
    assert await until(partial(results_of, run)) == [("a", "terminated")]


async def test_a_result_whose_statements_are_refused_is_not_kept(app: Holdfast, h: Harness) -> None:
    async def book(tx: StepTx) -> None:
        tx.execute("CREATE TABLE IF NOT EXISTS booking (n INTEGER)")

    @app.workflow(persist="task")
    async def flow(ctx: Context) -> None:
        await ctx.do("a", _terminating(h))
        await ctx.do("book", book)

    run = await h.start(flow)
    await h.run_until_idle()
    assert await until(partial(results_of, run)) == [("a", "terminated")]


async def test_a_child_is_started_although_a_concurrent_live_transaction_is_cancelled(make_app: MakeApp) -> None:
    app, begun, asked = make_app(), asyncio.Event(), list[bool]()

    async def book(_tx: Transaction) -> None:
        begun.set()
        await asyncio.Event().wait()

    async def until_asked() -> None:
        while not asked:
            await asyncio.sleep(0)

    @app.workflow
    async def child(_ctx: Context) -> str:
        return "done"

    @app.workflow(persist="task")
    async def flow(ctx: Context) -> str:
        booking = asyncio.ensure_future(ctx.do("book", book))
        other = asyncio.ensure_future(ctx.do("other", until_asked))
        await ctx.do("begun", begun.wait)
        asked.append(True)
        running = asyncio.ensure_future(ctx.run(child))
        await other
        booking.cancel()
        return await running

    async with app:
        assert await (await app.start(flow)).result(timeout=60) == "done"


async def test_results_before_a_long_step_are_written_while_it_runs(make_app: MakeApp) -> None:
    app, go = make_app(), asyncio.Event()

    @app.workflow(persist="task")
    async def flow(ctx: Context) -> str:
        await ctx.do("a", lambda: 1)
        await ctx.do("b", lambda: 2)
        await ctx.do("long", go.wait)
        return "done"

    async with app:
        run = await app.start(flow)
        assert await until(partial(results_of, run)) == [("a", 1), ("b", 2)]
        go.set()
        assert await run.result() == "done"


async def test_a_worker_that_lost_a_run_writes_no_late_results(app: Holdfast, h: Harness) -> None:
    """The run did not end: its results come from the worker that takes it over."""
    calls: list[str] = []

    @app.workflow(persist="task")
    async def flow(ctx: Context) -> None:
        await ctx.do("a", lambda: calls.append("a"))
        await ctx.do("hangs", asyncio.Event().wait)

    run = await h.start(flow)
    await h.tick()
    [turn] = h._the_worker()._table.snapshot().values()
    turn.signal(None)
    await h.run_until_idle()
    assert await results_of(run) == []
    await lose_worker(h)
    await h.tick()
    await run.terminate()
    assert await until(partial(results_of, run)) == [("a", None)]
    assert calls == ["a", "a"]


def test_an_unknown_persist_mode_is_refused(app: Holdfast) -> None:
    with pytest.raises(InvalidOptionError, match="persist"):
        app.workflow(persist="sometimes")  # type: ignore[call-overload]
