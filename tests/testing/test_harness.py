"""The harness: the test moves the time, randomness comes from the seed, and a crash follows any commit."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Any

import pytest

from driving import finish
from holdfast import Context, Handle, Holdfast, Retry, StepTx
from holdfast.testing import CrashMismatch, Harness


async def test_nothing_runs_until_the_test_drives_the_harness(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> str:
        return "done"

    run = await h.start(flow)
    before = h.now()
    await asyncio.sleep(0.01)
    assert (await run.status()).status == "active"
    assert h.now() == before
    assert await h.tick() == 1
    assert (await run.status()).status == "complete"


async def test_advance_stops_at_every_due_time_on_the_way(app: Holdfast, h: Harness) -> None:
    times: list[float] = []
    began = h.now()

    @app.workflow
    async def flow(ctx: Context) -> None:
        for n in range(3):
            await ctx.sleep(f"nap {n}", "10 minutes")
            await ctx.do(f"note {n}", lambda: times.append((h.now() - began).total_seconds()))

    await h.start(flow)
    await h.advance("35 minutes")
    assert times == [600, 1200, 1800]
    assert h.now() == began + timedelta(minutes=35)


async def test_advance_without_run_only_moves_the_clock(app: Holdfast, h: Harness) -> None:
    times: list[float] = []
    began = h.now()

    @app.workflow
    async def flow(ctx: Context) -> None:
        await ctx.sleep("nap", "10 minutes")
        await ctx.do("note", lambda: times.append((h.now() - began).total_seconds()))

    await h.start(flow)
    await h.run_until_idle()
    await h.advance("30 minutes", run=False)
    assert times == []
    await h.run_until_idle()
    assert times == [1800]


async def test_a_restart_of_the_harness_causes_a_cold_replay(app: Holdfast, h: Harness) -> None:
    starts: list[int] = []

    @app.workflow
    async def flow(ctx: Context) -> None:
        starts.append(1)
        await ctx.sleep("nap", 60)

    await h.start(flow)
    await h.advance(30)
    assert len(starts) == 1
    await h.restart()
    await h.advance(30)
    assert len(starts) == 2


async def test_step_timeouts_follow_the_virtual_clock(app: Holdfast, h: Harness) -> None:
    @app.step(timeout="1 hour", retry=Retry(limit=0))
    async def hangs() -> None:
        await asyncio.get_running_loop().create_future()

    @app.workflow
    async def flow(ctx: Context) -> None:
        await hangs()

    began = time.process_time()
    run = await h.start(flow)
    await h.advance("59 minutes")
    assert (await run.status()).status == "active"
    await h.advance("1 minute")
    assert (await run.status()).status == "errored"
    assert time.process_time() - began < 2


async def test_the_harness_waits_for_steps_that_take_real_time(app: Holdfast, h: Harness) -> None:
    @app.step
    async def sleeps() -> str:
        await asyncio.sleep(0.02)
        return "slept"

    @app.step
    def blocks() -> str:
        time.sleep(0.02)
        return "blocked"

    @app.workflow
    async def flow(ctx: Context) -> list[str]:
        return [await sleeps(), await blocks()]

    assert await finish(h, flow) == ["slept", "blocked"]


async def test_the_same_seed_and_ids_give_the_same_random_numbers(app: Holdfast) -> None:
    @app.workflow
    async def flow(ctx: Context) -> list[Any]:
        return [ctx.random.random(), str(ctx.uuid4()), ctx.random_bytes(4).hex()]

    async def drawn(seed: int, id: str) -> Any:
        async with Harness(app, seed=seed) as h:
            run = await h.start(flow)
            return [await finish(h, flow, id=id), run.id]

    assert await drawn(1, "a") == await drawn(1, "a")
    assert (await drawn(1, "a"))[0] != (await drawn(1, "b"))[0]
    assert (await drawn(1, "a"))[0] != (await drawn(2, "a"))[0]
    assert (await drawn(1, "a"))[1] != (await drawn(2, "a"))[1]


async def test_the_app_uses_its_own_store_again_after_the_harness(app: Holdfast) -> None:
    @app.workflow
    async def flow(ctx: Context) -> str:
        return "real"

    async with Harness(app) as h:
        await finish(h, flow)
    async with app:
        assert await (await app.start(flow)).result(timeout=60) == "real"
        assert len((await app.list()).items) == 1


async def test_run_until_idle_raises_if_the_work_never_ends(app: Holdfast, h: Harness, monkeypatch: Any) -> None:
    monkeypatch.setattr("holdfast.testing.driven_engine._MAX_PASSES", 20)

    @app.workflow
    async def flow(ctx: Context) -> None: ...

    run = await h.start(flow)
    tick = h.tick

    async def tick_and_restart() -> int:
        claimed = await tick()
        await run.restart()
        return claimed

    monkeypatch.setattr(h, "tick", tick_and_restart)
    with pytest.raises(RuntimeError, match="never waits"):
        await h.run_until_idle()


# --- crash_everywhere


async def _approve(h: Harness, run: Handle[Any]) -> None:
    await run.send_event("approval", {"by": "ann"}, id="once")


@pytest.mark.promise("liveness", "exact-replay")
async def test_a_good_workflow_with_every_feature_survives_a_crash_after_any_commit(app: Holdfast, h: Harness) -> None:
    calls: list[str] = []

    @app.step(retry=Retry(2, "10s", "constant"))
    async def flaky(key: str) -> str:
        calls.append(key)
        if calls.count(key) % 2:
            raise OSError("every first time")
        return key

    @app.step
    def in_thread(tx: StepTx) -> str:
        tx.start(child, 1, id="child")
        return "threaded"

    @app.workflow
    async def child(ctx: Context, n: int) -> int:
        return n

    @app.workflow
    async def flow(ctx: Context, name: str) -> list[Any]:
        ctx.log.info("started", {"name": name})
        found: list[Any] = [name, await flaky("one"), await in_thread()]
        found += await asyncio.gather(flaky("a"), flaky("b"), ctx.do("plain", lambda: "p"))
        await ctx.sleep("nap", "1 hour")
        try:
            await asyncio.wait_for(ctx.wait_for_event("early", type="early"), 5)
        except TimeoutError:
            found.append("no early event")
        found.append((await ctx.wait_for_event("approval", type="approval")).payload)
        found += [str(ctx.uuid4()), ctx.random.randrange(1000)]
        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.sleep("x", 3))
            group.create_task(asyncio.sleep(5))
        return found

    result = await h.crash_everywhere(flow, "ann", drive=_approve)
    assert result[:8] == ["ann", "one", "threaded", "a", "b", "p", "no early event", {"by": "ann"}]


async def test_crash_everywhere_finds_a_result_that_is_not_deterministic(app: Holdfast, h: Harness) -> None:
    counter = [0]

    @app.workflow
    async def flow(ctx: Context) -> int:
        counter[0] += 1
        await ctx.do("a", lambda: None)
        await ctx.sleep("nap", 60)
        return counter[0]

    with pytest.raises(CrashMismatch, match="commit 1"):
        await h.crash_everywhere(flow)


async def test_crash_everywhere_finds_step_keys_that_are_not_deterministic(app: Holdfast, h: Harness) -> None:
    counter = [0]

    @app.workflow
    async def flow(ctx: Context) -> str:
        counter[0] += 1
        await ctx.do(f"step of execution {counter[0]}", lambda: None)
        await ctx.sleep("nap", 60)
        return "same result"

    with pytest.raises(CrashMismatch):
        await h.crash_everywhere(flow)


async def test_crash_everywhere_raises_for_a_workflow_that_fails(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> None:
        raise ValueError("no")

    with pytest.raises(CrashMismatch, match="ValueError"):
        await h.crash_everywhere(flow)


async def test_crash_everywhere_raises_for_a_workflow_that_waits_forever(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> None:
        await asyncio.Event().wait()

    with pytest.raises(CrashMismatch, match="never happens"):
        await h.crash_everywhere(flow)


@pytest.mark.promise("committed-results-never-change")
async def test_committed_steps_do_not_run_again_after_a_crash(app: Holdfast, h: Harness) -> None:
    calls: dict[str, int] = {}

    async def note(key: str) -> None:
        calls[key] = calls.get(key, 0) + 1

    @app.workflow
    async def flow(ctx: Context) -> None:
        for n in range(4):
            await ctx.do(f"s{n}", note, f"{n}")

    await h.crash_everywhere(flow)
    runs = 1 + len(list(h._crash_points(4)))
    assert calls == {f"{n}": runs for n in range(4)}


async def test_the_result_of_crash_everywhere_has_its_type(app: Holdfast, h: Harness) -> None:
    from uuid import UUID

    @app.workflow
    async def flow(ctx: Context) -> UUID:
        await ctx.do("a", lambda: None)
        return UUID(int=3)

    assert await h.crash_everywhere(flow) == UUID(int=3)


async def test_a_harness_outside_async_with_raises(app: Holdfast) -> None:
    @app.workflow
    async def flow(ctx: Context) -> None: ...

    harness = Harness(app)
    with pytest.raises(Exception, match=r"async with|not open"):
        await harness.start(flow)
    with pytest.raises(RuntimeError, match="async with"):
        await harness.tick()
