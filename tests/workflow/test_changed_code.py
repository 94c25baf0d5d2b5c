"""Code that changes while runs are open: runs that match it continue, others are parked with an explanation."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Context, Holdfast
from holdfast.core.model import StepType
from holdfast.store.protocol import Park
from holdfast.testing import Harness

from .machine_bench import Bench


def _work() -> Any: ...


def test_code_may_gain_and_lose_steps_under_an_open_run() -> None:
    async def old(ctx: Context) -> Any:
        await ctx.do("dropped", _work)
        first = await ctx.do("kept", _work)
        return [first, await ctx.do("last", _work)]

    async def new(ctx: Context) -> Any:
        gained = await ctx.do("gained", _work)
        first = await ctx.do("kept", _work)
        return [gained, first, await ctx.do("last", _work)]

    bench = Bench(old)
    bench.advance()
    bench.finish("dropped", 0)
    bench.finish("kept", 1)
    bench.deploy(new)
    bench.replay()
    assert list(bench.calls) == ["gained"]
    bench.finish("gained", "new")
    bench.finish("last", 2)
    assert bench.result == ["new", 1, 2]
    bench.replay()
    assert bench.result == ["new", 1, 2]


async def test_a_run_receives_the_end_of_its_child_if_its_code_has_gained_a_step_before_the_start(
    app: Holdfast, h: Harness
) -> None:
    @app.workflow
    async def child(ctx: Context) -> str:
        await ctx.sleep("nap", "1 hour")
        return "child"

    @app.workflow(name="flow")
    async def old(ctx: Context) -> str:
        return await ctx.run(child)

    run = await h.start(old)
    await h.run_until_idle()
    await h.restart()
    del app.registry._by_name["flow"]

    @app.workflow(name="flow")
    async def new(ctx: Context) -> str:
        await ctx.sleep("gained", "2 hours")
        return await ctx.run(child)

    await h.advance("90 minutes")
    await h.restart()
    await h.advance("2 hours")

    assert await run.result(timeout=60) == "child"
    assert len((await app.list("child")).items) == 1


@pytest.mark.promise("exact-replay", store=None)
@pytest.mark.parametrize("asked_as", ["step", "wait"])
def test_a_recorded_step_requested_as_another_kind_parks_the_run_and_names_both_kinds(asked_as: str) -> None:
    async def old(ctx: Context) -> None:
        await ctx.sleep("thing", "1 hour")

    async def new(ctx: Context) -> Any:
        if asked_as == "step":
            return await ctx.do("thing", _work)
        return await ctx.wait_for_event("thing", type="thing")

    bench = Bench(old)
    bench.advance()
    bench.deploy(new)
    bench.replay()
    assert isinstance(bench.end, Park)
    kind = StepType.DO if asked_as == "step" else StepType.WAIT
    for text in ("NON_DETERMINISTIC", "'thing'", "sleep", kind.value):
        assert text in bench.end.note
        assert text in bench.logs[-1].message
    assert (bench.logs[-1].category, bench.logs[-1].level) == ("system", "error")
    assert bench.calls == {}

    bench.deploy(old)
    bench.replay()
    bench.sleep(3600)
    assert bench.result is None


def test_using_one_name_for_two_kinds_in_one_execution_raises_an_error() -> None:
    async def flow(ctx: Context) -> None:
        await ctx.do("thing", _work)
        await ctx.sleep("thing", 1)

    bench = Bench(flow)
    bench.advance()
    bench.finish("thing")
    assert bench.error.name == "StepTypeMismatchError"
    assert "'thing'" in bench.error.message
