"""Graphs of any shape come out as a simple model says, wherever the worker is lost."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast import Graph, Holdfast, NonRetryableError, Retry
from holdfast.testing import Harness
from holdfast.testing.harness import CrashMismatch
from postgres_harness import CleanStore

PATIENT = Retry(limit=50, delay=0)


@dataclass(frozen=True)
class Plan:
    """A node of a graph that is made up: what it comes after, and how it behaves."""

    after: tuple[int, ...]
    kind: str
    """What it returns: a ``number``, a ``list``, or (``map``) a list made item by item of that of its first parent."""
    behaves: str
    """``well``, ``fails`` for good, works every ``second`` time."""
    unless: int | None
    """It is skipped if what it comes after adds up to this, modulo 3."""


def name_of(n: int) -> str:
    return f"n{n}"


def total(value: Any) -> int:
    return sum(value) if isinstance(value, list) else int(value)


def expected(plans: list[Plan]) -> tuple[dict[str, str], dict[str, Any]]:
    """Statuses and values: the whole meaning of a graph in a few lines."""
    statuses: dict[str, str] = {}
    values: dict[str, Any] = {}
    for n, plan in enumerate(plans):
        parents = [name_of(p) for p in plan.after]
        if any(statuses[p] != "ok" for p in parents):
            statuses[name_of(n)] = "skipped"
            continue
        given_values = [values[p] for p in parents]
        if skips(plan, given_values):
            statuses[name_of(n)] = "skipped"
        elif plan.behaves == "fails" and not (plan.kind == "map" and not given_values[0]):
            statuses[name_of(n)] = "error"
        else:
            statuses[name_of(n)] = "ok"
            values[name_of(n)] = value_of(plan, given_values)
    return statuses, values


def skips(plan: Plan, given_values: list[Any]) -> bool:
    return plan.unless is not None and sum(map(total, given_values)) % 3 == plan.unless


def value_of(plan: Plan, given_values: list[Any]) -> Any:
    number = 1 + sum(map(total, given_values)) % 1000
    if plan.kind == "map":
        return [item + 1 for item in given_values[0]]
    return list(range(number % 4)) if plan.kind == "list" else number


def build(app: Holdfast, plans: list[Plan]) -> Graph:
    graph = app.graph("random")
    for n, plan in enumerate(plans):
        parents = [name_of(p) for p in plan.after]
        graph.node(
            name=name_of(n),
            after=parents,
            map=parents[0] if plan.kind == "map" else None,
            when=taking(parents, lambda values, plan=plan: not skips(plan, values)),
            retry=PATIENT,
        )(taking(parents, working(plan)))
    return graph


def working(plan: Plan) -> Callable[[list[Any]], Any]:
    moods = cycle([True, False])

    def work(values: list[Any]) -> Any:
        if plan.behaves == "fails":
            raise NonRetryableError("as planned")
        if plan.behaves == "second" and next(moods):
            raise OSError("as planned")
        return values[0] + 1 if plan.kind == "map" else value_of(plan, values)

    return work


def taking(names: list[str], do: Callable[[list[Any]], Any]) -> Callable[..., Any]:
    """A function with exactly these parameters."""

    async def function(**values: Any) -> Any:
        return do([values[name] for name in names])

    def predicate(**values: Any) -> Any:
        return do([values[name] for name in names])

    made = predicate if do.__name__ == "<lambda>" else function
    made.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in names]
    )
    return made


@st.composite
def graphs(draw: st.DrawFn, most: int) -> list[Plan]:
    plans: list[Plan] = []
    for n in range(draw(st.integers(1, most))):
        parents = draw(st.lists(st.integers(max(0, n - 12), n - 1), max_size=3, unique=True)) if n else []
        kinds = ["number", "number", "list"]
        if parents and plans[parents[0]].kind != "number":
            kinds += ["map", "map"]
        plans.append(
            Plan(
                tuple(parents),
                draw(st.sampled_from(kinds)),
                draw(st.sampled_from(["well"] * 8 + ["second"] * 2 + ["fails"])),
                draw(st.sampled_from([None, None, None, 0, 1, 2])) if parents else None,
            )
        )
    return plans


@asynccontextmanager
async def harness(app: Holdfast, where: str) -> AsyncIterator[Harness]:
    async with Harness(app, seed=7, store=CleanStore if where == "postgres" else None) as h:
        yield h


async def check(plans: list[Plan], where: str) -> None:
    app = Holdfast("sqlite://")
    graph = build(app, plans)
    statuses, values = expected(plans)
    async with harness(app, where) as h:
        run = await h.start(graph)
        await h.run_until_idle()
        await h.advance("1 minute")
        results = await run.facts("result/")
        assert {key.removeprefix("result/"): found["status"] for key, found in results.items()} == statuses
        assert await run.results() == values
        failed = "error" in statuses.values()
        assert (await run.status()).status == ("errored" if failed else "complete")


@pytest.mark.parametrize("where", ["sqlite"])
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(plans=graphs(25))
async def test_what_a_graph_means(where: str, plans: list[Plan]) -> None:
    await check(plans, where)


@pytest.mark.parametrize("where", ["postgres"])
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(plans=graphs(25))
async def test_what_a_graph_means_on_postgres(where: str, plans: list[Plan]) -> None:
    await check(plans, where)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("where", ["sqlite", "postgres"])
@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
@given(plans=graphs(200).filter(lambda plans: len(plans) >= 100))
async def test_what_a_large_graph_means(where: str, plans: list[Plan]) -> None:
    await check(plans, where)


async def check_crashes(plans: list[Plan], where: str) -> None:
    app = Holdfast("sqlite://")
    graph = build(app, plans)
    statuses, values = expected(plans)
    async with harness(app, where) as h:
        if "error" in statuses.values():
            with pytest.raises(CrashMismatch, match="the run did not complete but is errored"):
                await h.crash_everywhere(graph)
        else:
            assert await h.crash_everywhere(graph) == values


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(plans=graphs(6))
async def test_wherever_the_worker_is_lost(plans: list[Plan]) -> None:
    await check_crashes(plans, "sqlite")


@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
@given(plans=graphs(5))
async def test_wherever_the_worker_is_lost_on_postgres(plans: list[Plan]) -> None:
    await check_crashes(plans, "postgres")
