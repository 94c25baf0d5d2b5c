"""A name given to ``ctx.do`` twice: the recorded result, and a warning if the second call means something else."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from holdfast import Context

from .machine_bench import Bench, Workflow


class Gateway:
    def charge(self, *_args: Any, **_kwargs: Any) -> Any: ...


def _charge(*_args: Any, **_kwargs: Any) -> Any: ...


def _refund(*_args: Any, **_kwargs: Any) -> Any: ...


GATEWAY = Gateway()


def _twice(first: tuple[Any, ...], second: tuple[Any, ...], **again: Any) -> Workflow:
    async def flow(ctx: Context) -> Any:
        one = await ctx.do("charge", *first)
        await ctx.sleep("nap", 60)
        return [one, await ctx.do("charge", *second, **again)]

    return flow


def _warnings(bench: Bench) -> list[str]:
    return [log.message for log in bench.logs if log.category == "system" and log.level == "warn"]


def _run(flow: Workflow) -> Bench:
    bench = Bench(flow)
    bench.go()
    bench.finish("charge", "paid")
    bench.sleep(60)
    assert bench.result == ["paid", "paid"]
    return bench


@pytest.mark.parametrize(
    ("first", "second", "how"),
    [
        ((_charge, 1), (_charge, 2), "other arguments"),
        ((_charge, {"a": 1}), (_charge,), "other arguments"),
        ((_charge, 1), (_refund, 1), "another function (_refund, not _charge)"),
        ((partial(_charge, 1),), (partial(_charge, 2),), "other arguments"),
        ((GATEWAY.charge, 1), (GATEWAY.charge, 2), "other arguments"),
        ((lambda: 1,), (lambda: 2,), "another function"),
    ],
)
def test_another_function_or_other_arguments_are_warned_of(first: Any, second: Any, how: str) -> None:
    [warning] = _warnings(_run(_twice(first, second)))
    assert "'charge'" in warning
    assert how in warning


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((_charge, 1, {"a": [1]}), (_charge, 1, {"a": [1]})),
        ((partial(_charge, 1),), (partial(_charge, 1),)),
        ((partial(_charge, 1),), (_charge, 1)),
        ((GATEWAY.charge, 1), (GATEWAY.charge, 1)),
        ((_charge, object()), (_charge, object())),  # nothing that can be compared
    ],
)
def test_the_same_call_again_is_not_warned_of(first: Any, second: Any) -> None:
    assert _warnings(_run(_twice(first, second))) == []


def test_keyword_arguments_count() -> None:
    assert len(_warnings(_run(_twice((_charge,), (_charge,), unit="g")))) == 1


def test_a_name_is_warned_of_once_and_not_again_by_a_replay() -> None:
    async def flow(ctx: Context) -> None:
        for n in range(3):
            await ctx.do("charge", _charge, n)
        await ctx.sleep("nap", 60)
        await ctx.do("charge", _charge, 3)

    bench = Bench(flow)
    bench.go()
    bench.finish("charge")
    assert len(_warnings(bench)) == 1
    bench.cold()
    bench.sleep(60)
    assert bench.result is None
    bench.cold()
    assert len(_warnings(bench)) == 1
