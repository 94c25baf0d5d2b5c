"""A name passed to ``ctx.do`` twice returns the recorded result; a different second call logs a warning."""

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


def _twice(first: tuple[Any, ...], second: tuple[Any, ...], **second_kwargs: Any) -> Workflow:
    async def flow(ctx: Context) -> Any:
        result = await ctx.do("charge", *first)
        await ctx.sleep("nap", 60)
        return [result, await ctx.do("charge", *second, **second_kwargs)]

    return flow


def _warnings(bench: Bench) -> list[str]:
    return [log.message for log in bench.logs if log.category == "system" and log.level == "warn"]


def _run(flow: Workflow) -> Bench:
    bench = Bench(flow)
    bench.advance()
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
def test_another_function_or_other_arguments_log_a_warning(first: Any, second: Any, how: str) -> None:
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
def test_a_repeated_identical_call_logs_no_warning(first: Any, second: Any) -> None:
    assert _warnings(_run(_twice(first, second))) == []


def test_different_keyword_arguments_log_a_warning() -> None:
    assert len(_warnings(_run(_twice((_charge,), (_charge,), unit="g")))) == 1


def test_the_warning_is_logged_once_per_name_and_not_repeated_by_a_replay() -> None:
    async def flow(ctx: Context) -> None:
        for n in range(3):
            await ctx.do("charge", _charge, n)
        await ctx.sleep("nap", 60)
        await ctx.do("charge", _charge, 3)

    bench = Bench(flow)
    bench.advance()
    bench.finish("charge")
    assert len(_warnings(bench)) == 1
    bench.replay()
    bench.sleep(60)
    assert bench.result is None
    bench.replay()
    assert len(_warnings(bench)) == 1
