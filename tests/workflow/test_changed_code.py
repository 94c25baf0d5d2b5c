"""Code that changes under open runs: what fits goes on, what does not is parked with both sides shown."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Context
from holdfast.core.model import StepType
from holdfast.store.protocol import Park

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
    bench.go()
    bench.finish("dropped", 0)
    bench.finish("kept", 1)
    bench.code(new)
    bench.cold()
    assert list(bench.calls) == ["gained"]
    bench.finish("gained", "new")
    bench.finish("last", 2)
    assert bench.result == ["new", 1, 2]
    bench.cold()
    assert bench.result == ["new", 1, 2]


@pytest.mark.parametrize("asked_as", ["step", "wait"])
def test_a_recorded_step_asked_for_as_another_kind_parks_the_run_with_both_sides_shown(asked_as: str) -> None:
    async def old(ctx: Context) -> None:
        await ctx.sleep("thing", "1 hour")

    async def new(ctx: Context) -> Any:
        if asked_as == "step":
            return await ctx.do("thing", _work)
        return await ctx.wait_for_event("thing", type="thing")

    bench = Bench(old)
    bench.go()
    bench.code(new)
    bench.cold()
    assert isinstance(bench.end, Park)
    kind = StepType.DO if asked_as == "step" else StepType.WAIT
    for text in ("NON_DETERMINISTIC", "'thing'", "sleep", kind.value):
        assert text in bench.end.note
        assert text in bench.logs[-1].message
    assert (bench.logs[-1].category, bench.logs[-1].level) == ("system", "error")
    assert bench.calls == {}

    bench.code(old)
    bench.cold()
    bench.sleep(3600)
    assert bench.result is None


def test_one_name_for_two_kinds_in_one_execution_is_an_error_of_the_code() -> None:
    async def flow(ctx: Context) -> None:
        await ctx.do("thing", _work)
        await ctx.sleep("thing", 1)

    bench = Bench(flow)
    bench.go()
    bench.finish("thing")
    assert bench.error.name == "StepTypeMismatchError"
    assert "'thing'" in bench.error.message
