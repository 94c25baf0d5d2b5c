"""Status, description and history of a run, and ``why``: the reason for its state in one sentence."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from apps import MakeApp
from driving import lose_worker, until, until_status
from holdfast import Context, Holdfast, Retry, RunFailedError, WorkerConfig
from holdfast.errors import StoreUnavailableError
from holdfast.testing import Harness
from scenarios.test_pause import Gate
from why_text import without_positions


async def test_why_names_the_event_that_a_run_waits_for(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> None:
        await ctx.wait_for_event("get approval", type="approval", timeout="1 hour")

    run = await h.start(flow)
    await h.run_until_idle()
    await h.advance("15 minutes")
    described = await run.describe()
    assert without_positions(described.why) == (
        "waiting for an event of type 'approval' in 'get approval' until 2030-01-01 01:00:00 UTC (in 45 min)"
    )
    assert described.current_step is not None
    assert described.current_step.step_key == "get approval"
    assert described.status == "waiting"


async def test_why_names_the_sleep_and_its_end(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> None:
        await ctx.sleep("cool off", "2 hours")

    run = await h.start(flow)
    await h.run_until_idle()
    assert (
        without_positions((await run.describe()).why) == "sleeping in 'cool off' until 2030-01-01 02:00:00 UTC (in 2 h)"
    )


@pytest.mark.above_the_store
async def test_why_shows_durations_over_a_minute_without_milliseconds(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> None:
        await ctx.sleep("cool off", "2 hours 5 ms")

    @app.workflow
    async def receives(ctx: Context) -> None:
        await ctx.inbox.receive()

    run, other = await h.start(flow), await h.start(receives)
    await h.run_until_idle()
    assert without_positions((await run.describe()).why).endswith("(in 2 h)")
    await h.advance("61.5 seconds")
    assert without_positions((await run.describe()).why).endswith("(in 1 h 58 min 58 s)")
    assert without_positions((await other.describe()).why) == "waiting for a message (1 min 1 s so far)"
    await h.advance("1 h 58 min 30 s")
    assert without_positions((await run.describe()).why).endswith("(in 28 s 505 ms)")


async def test_why_names_the_failed_attempt_and_the_time_of_the_retry(app: Holdfast, h: Harness) -> None:
    def breaks() -> None:
        raise OSError("gateway busy")

    @app.workflow
    async def flow(ctx: Context) -> None:
        await ctx.do("charge", breaks, retry=Retry(2, "1 minute"))

    run = await h.start(flow)
    await h.run_until_idle()
    assert without_positions((await run.describe()).why) == (
        "waiting to retry step 'charge' after failed attempt 1 of 3 (OSError: gateway busy)"
        " until 2030-01-01 00:01:00 UTC (in 1 min)"
    )


async def test_why_names_all_waits_of_a_run(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> None:
        await asyncio.gather(ctx.sleep("nap", 60), ctx.wait_for_event("go", type="go"))

    run = await h.start(flow)
    await h.run_until_idle()
    why = (await run.describe()).why
    assert "sleeping in 'nap'" in why
    assert "waiting for an event of type 'go'" in why


async def test_why_shows_the_end_of_an_asyncio_sleep(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> None:
        await asyncio.sleep(60)

    run = await h.start(flow)
    await h.run_until_idle()
    assert "2030-01-01 00:01:00" in (await run.describe()).why


async def test_why_says_that_a_run_waits_forever(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> None:
        await asyncio.Event().wait()

    run = await h.start(flow)
    await h.run_until_idle()
    assert (await run.status()).status == "waiting"
    assert "no timer, event or other run can wake the code" in (await run.describe()).why


async def test_why_names_the_running_step(make_app: MakeApp) -> None:
    app, gate = make_app(), Gate()

    @app.workflow
    async def flow(ctx: Context) -> None:
        await ctx.do("fetch", gate)

    async with app:
        run = await app.start(flow)
        await gate.began.wait()
        assert (await run.status()).status == "active"

        async def shown() -> str:
            why = (await run.describe()).why
            return why if "fetch" in why else ""

        assert without_positions(await until(shown)) == "running step 'fetch' (attempt 1)"
        gate.open.set()
        await run.result(timeout=60)


async def test_why_names_a_step_that_is_not_recorded_yet_by_its_position(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context, steps: int) -> None:
        for n in range(steps):
            await ctx.do(f"step {n}", lambda: None)
        await ctx.do("last", gate)

    for steps, expected in (0, "its first step"), (1, "its next step"):
        gate = Gate()
        run = await h.start(flow, steps)
        await h.run_until_idle()
        assert without_positions((await run.describe()).why) == f"running workflow code or {expected}"
        gate.open.set()
        await h.run_until_idle()


async def test_why_says_that_a_due_run_waits_for_a_worker(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> None: ...

    run = await h.start(flow)
    assert (await run.describe()).why == "due, and waiting for a worker of queue 'default'"


async def test_why_says_that_a_workflow_is_not_registered_here(tmp_path: Path) -> None:
    app = Holdfast(f"sqlite:///{tmp_path}/shared.db")
    remote = app.remote("elsewhere", params=int, result=str)
    async with app:
        run = await app.start(remote, 5)
        why = (await run.describe()).why
    assert "'elsewhere'" in why
    assert "registered" in why


async def test_why_shows_the_time_of_a_delayed_start(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> None: ...

    run = await h.start(flow, start_delay="1 hour")
    await h.advance("59 minutes")
    assert "2030-01-01 01:00:00" in (await run.describe()).why
    await h.advance("1 minute")
    assert (await run.status()).status == "complete"


async def test_why_says_that_a_run_is_parked_after_too_many_losses(make_app: MakeApp) -> None:
    app = make_app(worker=WorkerConfig(max_losses=2))

    @app.workflow
    async def flow(ctx: Context) -> None:
        await ctx.do("hang", _hang, retry=Retry(limit=100))

    async def _hang() -> None:
        await asyncio.get_running_loop().create_future()

    async with Harness(app) as h:
        run = await h.start(flow)
        for _ in range(2):
            await h._the_worker().reap()
            assert await h._the_worker().claim_due(1) == 1  # and dies before its first commit
            await lose_worker(h)
        await h.tick()
        described = await run.describe()
        assert described.status == "paused"
        assert "parked" in described.why
        assert "2 times" in described.why


@pytest.mark.parametrize("how", ["complete", "errored", "terminated"])
async def test_why_says_how_a_run_ended(app: Holdfast, h: Harness, how: str) -> None:
    @app.workflow
    async def flow(ctx: Context) -> dict[str, int]:
        if how == "errored":
            raise ValueError("bad luck")
        if how == "terminated":
            await ctx.sleep("nap", 60)
        return {"n": 1}

    run = await h.start(flow)
    await h.run_until_idle()
    if how == "terminated":
        await run.terminate("by ann")
    why = {"complete": "complete", "errored": "errored: ValueError: bad luck", "terminated": "terminated: by ann"}
    described = await run.describe()
    assert (described.status, described.why) == (how, why[how])
    assert described.completed_at == h.now()
    assert described.output == ({"n": 1} if how == "complete" else None)


async def test_a_description_has_params_and_dates(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context, n: int) -> int:
        await ctx.sleep("nap", 60)
        return n

    created = h.now()
    run = await h.start(flow, 5, id="x")
    await h.advance("10s", run=False)
    await h.advance("2 minutes")
    description = await run.describe()
    assert (
        description.id,
        description.workflow_name,
        description.kind,
        description.run_number,
        description.params,
    ) == (
        "x",
        "flow",
        "workflow",
        0,
        5,
    )
    assert description.created_at == created
    assert description.started_at == created + timedelta(seconds=10)
    assert description.completed_at == description.updated_at == created + timedelta(seconds=70)
    assert (description.memo, description.search) == ({}, {})


async def test_history_shows_every_field_of_a_step(app: Holdfast, h: Harness) -> None:
    @app.step(retry=Retry(2, "5s", "constant"), timeout="1 minute")
    async def charge() -> dict[str, int]:
        if not tried:
            tried.append(1)
            raise OSError("busy")
        return {"paid": 5}

    tried: list[int] = []

    @app.workflow
    async def flow(ctx: Context) -> None:
        await charge()

    began = h.now()
    run = await h.start(flow)
    await h.advance("1 minute")
    [step] = (await run.history()).steps
    assert step.id == "0:charge"
    assert (step.step_key, step.name, step.type, step.status) == ("charge", "charge", "do", "completed")
    assert (step.attempts, step.max_attempts, step.timeout_ms) == (2, 3, 60_000)
    assert (step.result, step.error, step.next_retry_at, step.wake_at) == ({"paid": 5}, None, None, None)
    assert (step.created_at, step.updated_at) == (began, began + timedelta(seconds=5))


async def test_status_and_output_are_plain_json(app: Holdfast, h: Harness) -> None:
    from uuid import UUID

    @app.workflow
    async def flow(ctx: Context) -> UUID:
        return UUID(int=1)

    run = await h.start(flow)
    await h.run_until_idle()
    assert (await run.status()).output == str(UUID(int=1))
    assert await run.result(timeout=60) == UUID(int=1)


async def test_a_timeout_of_result_does_not_affect_the_run(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> str:
        await ctx.sleep("nap", 60)
        return "done"

    run = await h.start(flow)
    await h.run_until_idle()
    with pytest.raises(TimeoutError):
        await run.result(timeout=0.01)
    assert (await run.status()).status == "waiting"
    await h.advance(60)
    assert await run.result(timeout=60) == "done"
    assert await run.result(timeout=60) == "done"


async def test_a_timeout_of_result_names_what_the_run_waits_for(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> None:
        await ctx.wait_for_event("approval", type="approval")

    run = await h.start(flow, id="x")
    await h.run_until_idle()

    with pytest.raises(TimeoutError) as caught:
        await run.result(timeout=0.02)

    start = "run flow/x has not ended within 20 ms: waiting for an event of type 'approval' in 'approval' until "
    assert str(caught.value).startswith(start)


@pytest.mark.above_the_store
async def test_a_timeout_of_ask_names_what_the_run_waits_for(make_app: MakeApp) -> None:
    app = make_app()

    @app.workflow
    async def flow(ctx: Context) -> None:
        await ctx.wait_for_event("approval", type="approval")

    async with app:
        run = await app.start(flow, id="a")
        await until_status(run, "waiting")
        with pytest.raises(TimeoutError, match=r"run flow/a has not replied to 'price' within 10 ms: .*'approval'"):
            await run.ask("price", timeout="10 ms")


async def test_result_raises_a_timeout_even_if_the_store_fails_meanwhile(
    app: Holdfast, h: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.workflow
    async def flow(ctx: Context) -> None:
        await ctx.sleep("long", "1 day")

    run = await h.start(flow, id="x")
    await h.run_until_idle()

    async def fail(*_: object) -> None:
        raise StoreUnavailableError("gone")

    monkeypatch.setattr(run, "describe", fail)

    with pytest.raises(TimeoutError, match="the reason cannot be read"):
        await run.result(timeout=0.02)


async def test_several_callers_may_wait_for_one_result(make_app: MakeApp) -> None:
    app, gate = make_app(), Gate()

    @app.workflow
    async def flow(ctx: Context) -> Any:
        return await ctx.do("gate", gate)

    async with app:
        run = await app.start(flow, id="one")
        others = [await app.get("flow", "one") for _ in range(3)]
        waiting = [asyncio.create_task(handle.result(timeout=60)) for handle in (run, run, *others)]
        await gate.began.wait()
        gate.open.set()
        assert await asyncio.gather(*waiting) == ["through"] * 5


async def test_a_failure_names_the_run_and_the_error(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> None:
        raise KeyError("missing")

    run = await h.start(flow, id="x")
    await h.run_until_idle()
    with pytest.raises(RunFailedError, match=r"flow/x.*KeyError.*missing"):
        await run.result(timeout=60)
    assert run.pid == "flow/x"
    assert "flow/x" in repr(run)


@pytest.mark.promise("exact-replay")
async def test_a_run_whose_code_does_not_match_its_history_is_paused_until_it_does(app: Holdfast, h: Harness) -> None:
    fits = [True]

    @app.workflow
    async def flow(ctx: Context) -> str:
        await ctx.do("before", lambda: None)
        if fits[0]:
            await ctx.sleep("thing", 60)
        else:
            await ctx.do("thing", lambda: None)
        return "done"

    run = await h.start(flow)
    await h.run_until_idle()
    fits[0] = False
    await h.restart()
    await h.advance(60)
    described = await run.describe()
    assert described.status == "paused"
    for text in ("NON_DETERMINISTIC", "'thing'", "sleep", " do"):
        assert text in described.why
    [line] = await run.logs(category="system")
    assert line.level == "error"
    assert "NON_DETERMINISTIC" in line.message

    await run.resume()
    await h.run_until_idle()
    assert (await run.status()).status == "paused", "it still does not fit"
    fits[0] = True
    await run.resume()
    await h.run_until_idle()
    assert await run.result(timeout=60) == "done"
    assert [s.status for s in (await run.history()).steps] == ["completed", "completed"]


async def test_a_real_run_reaches_waiting(app: Holdfast) -> None:
    @app.workflow
    async def flow(ctx: Context) -> None:
        await ctx.wait_for_event("go", type="go")

    async with app:
        run = await app.start(flow)
        assert await until_status(run, "waiting") == "waiting"
