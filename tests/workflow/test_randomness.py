"""Random numbers and UUIDs in workflow code come from the run's seed: equal on replay, different between runs."""

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


def _result(bench: Bench) -> Any:
    bench.advance()
    bench.finish("a")
    return bench.result


def test_draws_are_equal_on_every_replay() -> None:
    bench = Bench(draws)
    live = _result(bench)
    bench.replay()
    assert bench.result == live
    assert len(set(map(str, live))) == 6


def test_draws_differ_between_runs_and_between_restarts_of_one() -> None:
    restarted = Bench(draws, seed=1)
    restarted.record = replace(restarted.record, number=1)
    first, second, third = _result(Bench(draws, seed=1)), _result(Bench(draws, seed=2)), _result(restarted)
    assert not set(map(str, first)) & set(map(str, second))
    assert not set(map(str, first)) & set(map(str, third))


def test_uuid4_returns_a_version_4_uuid() -> None:
    async def flow(ctx: Context) -> list[Any]:
        generated = ctx.uuid4()
        return [generated.version, generated.variant]

    bench = Bench(flow)
    bench.advance()
    assert bench.result == [4, "specified in RFC 4122"]
