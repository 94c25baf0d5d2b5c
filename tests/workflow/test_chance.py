"""Chance and identity in workflow code are drawn from the run's seed: equal on replay, different between runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from holdfast import Context

from .machine_bench import Bench


def _work() -> Any: ...


async def draws(ctx: Context) -> list[Any]:
    before = [ctx.random.random(), str(ctx.uuid4()), ctx.random_bytes(8).hex()]
    await ctx.do("a", _work)
    return [*before, ctx.random.randrange(10**9), str(ctx.uuid4()), ctx.random_bytes(8).hex()]


def _drawn(bench: Bench) -> Any:
    bench.go()
    bench.finish("a")
    return bench.result


def test_draws_are_equal_on_every_replay() -> None:
    bench = Bench(draws)
    live = _drawn(bench)
    bench.cold()
    assert bench.result == live
    assert len(set(map(str, live))) == 6


def test_draws_differ_between_runs_and_between_restarts_of_one() -> None:
    restarted = Bench(draws, seed=1)
    restarted.record = replace(restarted.record, number=1)
    first, second, third = _drawn(Bench(draws, seed=1)), _drawn(Bench(draws, seed=2)), _drawn(restarted)
    assert not set(map(str, first)) & set(map(str, second))
    assert not set(map(str, first)) & set(map(str, third))


def test_a_uuid_is_a_proper_version_4() -> None:
    async def flow(ctx: Context) -> list[Any]:
        made = ctx.uuid4()
        return [made.version, made.variant]

    bench = Bench(flow)
    bench.go()
    assert bench.result == [4, "specified in RFC 4122"]
