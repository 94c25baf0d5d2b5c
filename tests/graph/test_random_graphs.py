"""Random graphs have the results of a simple model, wherever the worker is lost."""

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

MANY_RETRIES = Retry(limit=50, delay=0)


@dataclass(frozen=True)
class Plan:
    """A node of a random graph: its predecessors and its behaviour."""

    after: tuple[int, ...]
    kind: str
    """The result: a ``number``, a ``list``, or (``map``) a list mapped over that of the first predecessor."""
    behaves: str
    """``well``: succeeds; ``fails``: fails permanently; ``second``: succeeds at every second call."""
    unless: int | None
    """The node is skipped if the sum of its predecessors' results is this number modulo 3."""


def name_of(n: int) -> str:
    return f"n{n}"


def total(value: Any) -> int:
    return sum(value) if isinstance(value, list) else int(value)


def expected(plans: list[Plan]) -> tuple[dict[str, str], dict[str, Any]]:
    """The model: the statuses and values of all nodes."""
    statuses: dict[str, str] = {}
    values: dict[str, Any] = {}
    for n, plan in enumerate(plans):
        parents = [name_of(p) for p in plan.after]
        if any(statuses[p] != "ok" for p in parents):
            statuses[name_of(n)] = "skipped"
            continue
        parent_values = [values[p] for p in parents]
        if skips(plan, parent_values):
            statuses[name_of(n)] = "skipped"
        elif plan.behaves == "fails" and not (plan.kind == "map" and not parent_values[0]):
            statuses[name_of(n)] = "error"
        else:
            statuses[name_of(n)] = "ok"
            values[name_of(n)] = value_of(plan, parent_values)
    return statuses, values


def skips(plan: Plan, parent_values: list[Any]) -> bool:
    return plan.unless is not None and sum(map(total, parent_values)) % 3 == plan.unless


def value_of(plan: Plan, parent_values: list[Any]) -> Any:
    number = 1 + sum(map(total, parent_values)) % 1000
    if plan.kind == "map":
        return [item + 1 for item in parent_values[0]]
    return list(range(number % 4)) if plan.kind == "list" else number


def build(app: Holdfast, plans: list[Plan]) -> Graph:
    graph = app.graph("random")
    for n, plan in enumerate(plans):
        parents = [name_of(p) for p in plan.after]
        graph.node(
            name=name_of(n),
            after=parents,
            map=parents[0] if plan.kind == "map" else None,
            when=with_parameters(parents, lambda values, plan=plan: not skips(plan, values)),
            retry=MANY_RETRIES,
        )(with_parameters(parents, behaviour(plan)))
    return graph


def behaviour(plan: Plan) -> Callable[[list[Any]], Any]:
    failing = cycle([True, False])

    def work(values: list[Any]) -> Any:
        if plan.behaves == "fails":
            raise NonRetryableError("as planned")
        if plan.behaves == "second" and next(failing):
            raise OSError("as planned")
        return values[0] + 1 if plan.kind == "map" else value_of(plan, values)

    return work


def with_parameters(names: list[str], do: Callable[[list[Any]], Any]) -> Callable[..., Any]:
    """A function that takes these parameters and passes their values to ``do``."""

    async def function(**values: Any) -> Any:
        return do([values[name] for name in names])

    def predicate(**values: Any) -> Any:
        return do([values[name] for name in names])

    result = predicate if do.__name__ == "<lambda>" else function
    result.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in names]
    )
    return result


@st.composite
def graphs(draw: st.DrawFn, max_nodes: int) -> list[Plan]:
    plans: list[Plan] = []
    for n in range(draw(st.integers(1, max_nodes))):
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
async def harness(app: Holdfast, store: str) -> AsyncIterator[Harness]:
    async with Harness(app, seed=7, store=CleanStore if store == "postgres" else None) as h:
        yield h


async def check(plans: list[Plan], store: str) -> None:
    app = Holdfast("sqlite://")
    graph = build(app, plans)
    statuses, values = expected(plans)
    async with harness(app, store) as h:
        run = await h.start(graph)
        await h.run_until_idle()
        await h.advance("1 minute")
        results = await run.facts("result/")
        assert {key.removeprefix("result/"): result["status"] for key, result in results.items()} == statuses
        assert await run.results() == values
        failed = "error" in statuses.values()
        assert (await run.status()).status == ("errored" if failed else "complete")


@pytest.mark.parametrize("store", ["sqlite"])
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(plans=graphs(25))
async def test_a_random_graph_has_the_results_of_the_model(store: str, plans: list[Plan]) -> None:
    await check(plans, store)


@pytest.mark.parametrize("store", ["postgres"])
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(plans=graphs(25))
async def test_a_random_graph_has_the_results_of_the_model_on_postgres(store: str, plans: list[Plan]) -> None:
    await check(plans, store)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
@given(plans=graphs(200).filter(lambda plans: len(plans) >= 100))
async def test_a_large_random_graph_has_the_results_of_the_model(store: str, plans: list[Plan]) -> None:
    await check(plans, store)


async def check_crashes(plans: list[Plan], store: str) -> None:
    app = Holdfast("sqlite://")
    graph = build(app, plans)
    statuses, values = expected(plans)
    async with harness(app, store) as h:
        if "error" in statuses.values():
            with pytest.raises(CrashMismatch, match="the run did not complete but is errored"):
                await h.crash_everywhere(graph)
        else:
            assert await h.crash_everywhere(graph) == values


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(plans=graphs(6))
async def test_a_random_graph_has_the_same_results_wherever_its_worker_is_lost(plans: list[Plan]) -> None:
    await check_crashes(plans, "sqlite")


@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
@given(plans=graphs(5))
async def test_a_random_graph_has_the_same_results_wherever_its_worker_is_lost_on_postgres(plans: list[Plan]) -> None:
    await check_crashes(plans, "postgres")
