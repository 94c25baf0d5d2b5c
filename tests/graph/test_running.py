"""Runs of graphs: parameters of nodes, stored facts, failures, control requests and other runs as nodes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest

from apps import MakeApp
from driving import finish, lose_worker, until
from holdfast import (
    ChainTask,
    Context,
    Finished,
    Graph,
    Handle,
    Holdfast,
    InstanceTerminalError,
    InvalidOptionError,
    Killed,
    ParamsInvalidError,
    Retry,
    RunCancelledError,
    RunFailedError,
    RunTerminatedError,
    Started,
    Waiting,
    WorkerConfig,
)
from holdfast.runner.unit_turns import GraphRunTurn
from holdfast.store.protocol import Advanced, Fact, FactsQuery
from holdfast.testing import Harness
from why_text import without_positions

NO_RETRY = Retry(limit=0)


@dataclass
class Source:
    numbers: list[int]
    factor: int = 1


def diamond(app: Holdfast) -> Graph:
    etl = app.graph("etl", version=3)

    @etl.node
    async def extract(params: Source) -> list[int]:
        return params.numbers

    @etl.node(after=[extract])
    async def total(extract: list[int]) -> int:
        return sum(extract)

    @etl.node(after=[extract])
    def largest(extract: list[int], params: Source) -> int:
        return max(extract) * params.factor

    @etl.node(after=[total, largest])
    async def report(total: int, largest: int) -> dict[str, int]:
        return {"total": total, "largest": largest}

    return etl


async def statuses(run: Handle[Any]) -> dict[str, str]:
    return {key.removeprefix("result/"): result["status"] for key, result in (await run.facts("result/")).items()}


async def starts(run: Handle[Any]) -> list[str]:
    return [key.split("/")[1] for key in await run.facts("start/")]


# --- parameters of nodes


async def test_parameters_receive_results_by_name(app: Holdfast, h: Harness) -> None:
    run = await h.start(diamond(app), Source([3, 1, 2], factor=10))
    await h.run_until_idle()
    assert await run.results() == {
        "extract": [3, 1, 2],
        "total": 6,
        "largest": 30,
        "report": {"total": 6, "largest": 30},
    }
    assert await run.result(timeout=60) == await run.results()
    assert (await run.status()).status == "complete"


async def test_an_invalid_input_starts_no_run(app: Holdfast, h: Harness) -> None:
    etl = diamond(app)
    with pytest.raises(ParamsInvalidError):
        await h.start(etl, {"numbers": "none"})
    with pytest.raises(ParamsInvalidError):
        await h.start(etl)


async def test_the_input_of_a_graph_is_optional_if_its_parameter_has_a_default(app: Holdfast, h: Harness) -> None:
    g = app.graph("g")

    @g.node
    async def only(params: int = 4) -> int:
        return params

    assert await finish(h, g) == {"only": 4}
    assert await finish(h, g, 5) == {"only": 5}


async def test_a_step_can_be_a_node(app: Holdfast, h: Harness) -> None:
    attempts = []

    @app.step(retry=Retry(limit=1, delay=0))
    async def charge(params: int) -> int:
        attempts.append(params)
        if len(attempts) == 1:
            raise OSError
        return params

    g = app.graph("g")
    g.node(charge)
    assert await finish(h, g, 7) == {"charge": 7}
    assert attempts == [7, 7]


# --- stored facts


async def test_the_facts_of_a_run_have_the_documented_form(app: Holdfast, h: Harness) -> None:
    run = await h.start(diamond(app), Source([1, 2]))
    await h.run_until_idle()
    facts = await run.facts()
    assert facts["meta"]["wf_version"] == 3
    assert facts["meta"]["total_nodes"] == 4
    assert facts["meta"]["created_at"] == round(h.now().timestamp() * 1000)
    assert [node["name"] for node in facts["meta"]["nodes"]] == ["extract", "total", "largest", "report"]
    results = await run.facts("result/")
    assert {key: result["data"] for key, result in results.items()} == {
        "result/extract": [1, 2],
        "result/total": 3,
        "result/largest": 2,
        "result/report": {"total": 3, "largest": 2},
    }
    assert all(result["status"] == "ok" and isinstance(result["ts"], int) for result in results.values())
    start_facts = await run.facts(prefix="start/")
    assert sorted(key.split("/")[1] for key in start_facts) == ["extract", "largest", "report", "total"]
    assert all(set(start) == {"owner", "lease"} for start in start_facts.values())
    assert await run.facts("result/total") == {"result/total": results["result/total"]}
    assert "tombstone" not in facts


async def test_the_plan_is_stored_before_any_node_runs(app: Holdfast, h: Harness) -> None:
    run = await h.start(diamond(app), Source([1]))
    assert list(await run.facts()) == ["meta"]
    assert await run.results() == {}


async def test_methods_of_graphs_are_refused_for_a_workflow(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def w(ctx: Context) -> None: ...

    run = await h.start(w)
    for method in (run.facts, run.results, run.kill, run.to_mermaid):
        with pytest.raises(InvalidOptionError, match="is a workflow, not a graph"):
            await method()


# --- failures


async def test_each_retry_of_a_node_writes_a_start_fact(app: Holdfast, h: Harness) -> None:
    g = app.graph("g")
    times = []

    @g.node(retry=Retry(limit=2, delay="1 minute", backoff="constant"))
    async def flaky() -> int:
        times.append(h.now())
        if len(times) < 3:
            raise ValueError("not yet")
        return 1

    run = await h.start(g)
    await h.advance("10 minutes")
    assert await run.results() == {"flaky": 1}
    assert await starts(run) == ["flaky"] * 3
    assert [(b - a).total_seconds() for a, b in pairwise(times)] == [60, 60]


async def test_a_failed_node_skips_its_descendants_and_no_other_node(app: Holdfast, h: Harness) -> None:
    g = app.graph("g")

    @g.node(retry=NO_RETRY)
    async def bad() -> int:
        raise ValueError("boom")

    @g.node
    async def good() -> int:
        return 1

    @g.node(after=[bad, good])
    async def both(bad: int, good: int) -> int:
        return bad + good

    @g.node(after=[both])
    async def descendant(both: int) -> int:
        return both

    @g.node(after=[good])
    async def independent(good: int) -> int:
        return good + 1

    run = await h.start(g)
    await h.run_until_idle()
    assert await statuses(run) == {
        "bad": "error", "good": "ok", "both": "skipped", "descendant": "skipped", "independent": "ok",
    }  # fmt: skip
    assert await run.results() == {"good": 1, "independent": 2}
    with pytest.raises(RunFailedError, match="node 'bad' failed: ValueError: boom"):
        await run.result(timeout=60)
    assert (await run.facts("result/bad"))["result/bad"]["data"] == {"name": "ValueError", "message": "boom"}


async def test_the_error_of_a_run_is_that_of_the_first_failed_node_of_the_graph(app: Holdfast, h: Harness) -> None:
    g = app.graph("g")

    @g.node(retry=Retry(limit=1, delay="1 hour"))
    async def late() -> None:
        raise ValueError("at last")

    @g.node(retry=NO_RETRY)
    async def early() -> None:
        raise ValueError("at once")

    run = await h.start(g)
    await h.advance("2 hours")
    with pytest.raises(RunFailedError, match="node 'late' failed"):
        await run.result(timeout=60)


async def test_two_failed_nodes_skip_a_common_descendant_once(app: Holdfast, h: Harness) -> None:
    g = app.graph("g")
    for name in ("a", "b"):

        @g.node(name=name, retry=NO_RETRY)
        async def bad() -> int:
            raise ValueError("boom")

    @g.node(after=["a", "b"])
    async def c() -> None: ...

    run = await h.start(g)
    await h.run_until_idle()
    assert await statuses(run) == {"a": "error", "b": "error", "c": "skipped"}
    assert (await run.status()).status == "errored"


async def test_an_unserializable_result_fails_the_node(app: Holdfast, h: Harness) -> None:
    g = app.graph("g")

    @g.node(retry=NO_RETRY)
    async def odd() -> Any:
        return object()

    with pytest.raises(RunFailedError, match="NotSerializableError"):
        await finish(h, g)


async def test_a_node_fails_at_its_timeout(app: Holdfast, h: Harness) -> None:
    g = app.graph("g")

    @g.node(timeout="1 minute", retry=NO_RETRY)
    async def slow() -> None:
        await asyncio.Event().wait()

    run = await h.start(g)
    await h.advance("2 minutes")
    with pytest.raises(RunFailedError, match="StepTimeoutError"):
        await run.result(timeout=60)


@pytest.mark.promise("at-least-once-steps")
async def test_the_loss_of_a_worker_counts_an_attempt(app: Holdfast, h: Harness) -> None:
    g = app.graph("g")
    hanging = asyncio.Event()
    runs = []

    @g.node(retry=Retry(limit=1, delay=0))
    async def slow() -> int:
        runs.append(1)
        if len(runs) == 1:
            await hanging.wait()
        return len(runs)

    run = await h.start(g)
    await h.tick()
    await lose_worker(h)
    await h.run_until_idle()
    assert await run.results() == {"slow": 2}
    assert await starts(run) == ["slow", "slow"]


async def test_nodes_that_lost_several_workers_are_retried_one_at_a_time(app: Holdfast, h: Harness) -> None:
    g = app.graph("g")
    for name in ("a", "b"):

        @g.node(name=name, timeout="1 day")
        async def hangs() -> None:
            await asyncio.Event().wait()

    run = await h.start(g)
    for _ in range(2):
        await h.run_until_idle()
        await lose_worker(h)
    assert len(await starts(run)) == 4
    await h.run_until_idle()
    assert len(await starts(run)) == 5  # a worker runs one suspect at a time


async def test_a_node_that_loses_all_its_workers_fails(app: Holdfast, h: Harness) -> None:
    g = app.graph("g")

    @g.node(retry=Retry(limit=1, delay=0))
    async def deadly() -> None:
        await asyncio.Event().wait()

    run = await h.start(g)
    for _ in range(2):
        await h.tick()
        await lose_worker(h)
    await h.run_until_idle()
    assert len(await starts(run)) == 3  # the last claim only finds that no attempt is left
    with pytest.raises(RunFailedError, match="StepMaxAttemptsExceeded"):
        await run.result(timeout=60)


@pytest.mark.promise("at-least-once-steps")
async def test_a_refused_result_is_not_passed_to_successors(
    app: Holdfast, h: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    g = app.graph("g")
    runs = []

    @g.node
    async def a() -> int:
        runs.append(1)
        return len(runs)

    @g.node(after=[a])
    async def b(a: int) -> int:
        return a * 10

    @g.node(timeout="1 day")
    async def lasting() -> None:  # the worker owns a unit of this run all the time
        await asyncio.Event().wait()

    write_advances, refused = h._store.advance, []

    async def refuse_once(advances: Any, claimant: Any, room: int) -> Advanced:
        if not refused and advances[0].task.unit == 1:
            refused.append(1)
            return Advanced([False] * len(advances))
        return await write_advances(advances, claimant, room)

    monkeypatch.setattr(h._store, "advance", refuse_once)
    run = await h.start(g)
    await h.run_until_idle()
    await h.advance("1 minute")
    assert refused == [1]
    assert await run.results() == {"a": 2, "b": 20}


# --- conditions


@pytest.mark.parametrize("condition", [True, False])
async def test_a_condition_decides_whether_a_node_runs(app: Holdfast, h: Harness, condition: bool) -> None:
    g = app.graph("g")

    @g.node
    async def check(params: bool) -> bool:
        return params

    @g.node(after=[check], when=lambda check: check)
    async def accept() -> str:
        return "accepted"

    @g.node(after=[accept])
    async def descendant(accept: str) -> str:
        return accept

    @g.node(after=[check], when=lambda check, params: not check and params is False)
    async def refuse() -> str:
        return "refused"

    run = await h.start(g, condition)
    await h.run_until_idle()
    if_true, if_false = ("ok", "skipped") if condition else ("skipped", "ok")
    assert await statuses(run) == {"check": "ok", "accept": if_true, "descendant": if_true, "refuse": if_false}
    assert (await run.status()).status == "complete"


async def test_a_raising_condition_fails_the_node(app: Holdfast, h: Harness) -> None:
    g = app.graph("g")

    @g.node(when=lambda: 1 / 0, retry=NO_RETRY)
    async def a() -> None: ...

    with pytest.raises(RunFailedError, match="ZeroDivisionError"):
        await finish(h, g)


# --- maps


def mapped(app: Holdfast, retry: Retry = NO_RETRY) -> Graph:
    g = app.graph("g")

    @g.node
    async def numbers(params: list[int]) -> list[int]:
        return params

    @g.node(map=numbers, retry=retry)
    async def inverse(numbers: int, params: list[int]) -> float:
        return len(params) / numbers

    @g.node(after=[inverse])
    async def total(inverse: list[float]) -> float:
        return sum(inverse)

    return g


@pytest.mark.parametrize("numbers", [[1, 2, 4], [5], []])
async def test_the_results_of_a_mapped_node_are_in_the_order_of_the_list(
    app: Holdfast, h: Harness, numbers: list[int]
) -> None:
    results = await finish(h, mapped(app), numbers)
    assert results["inverse"] == [len(numbers) / n for n in numbers]
    assert results["total"] == sum(results["inverse"])


async def test_each_item_of_a_mapped_node_has_its_own_start_fact(app: Holdfast, h: Harness) -> None:
    run = await h.start(mapped(app), [1, 2])
    await h.run_until_idle()
    assert {"inverse[0]", "inverse[1]"} <= set(await starts(run))
    assert len(await run.facts("result/")) == 3  # one result for each node; items have none


async def test_the_history_lists_nodes_and_their_items(app: Holdfast, h: Harness) -> None:
    run = await h.start(mapped(app), [1, 2])
    before = h.now()
    await h.advance("1 minute", run=False)
    assert (await run.describe()).started_at is None
    await h.run_until_idle()
    described = await run.describe()
    assert described.started_at is not None
    assert described.started_at > before
    steps = (await run.history()).steps
    assert [(s.step_key, s.state, s.attempts, s.result) for s in steps] == [
        ("numbers", "ok", 1, [1, 2]),
        ("inverse", "ok", 1, [2.0, 1.0]),
        ("inverse[0]", "ok", 1, 2.0),
        ("inverse[1]", "ok", 1, 1.0),
        ("total", "ok", 1, 3.0),
    ]


async def test_why_names_running_and_retrying_nodes(app: Holdfast, h: Harness) -> None:
    g = app.graph("g")

    @g.node(timeout="1 day")
    async def slow() -> None:
        await asyncio.Event().wait()

    @g.node(retry=Retry(limit=3, delay="1 hour"))
    async def flaky() -> None:
        raise OSError("down")

    @g.node
    async def fine() -> None: ...

    run = await h.start(g)
    assert (await run.describe()).why == "0 of 3 nodes have a result; ready nodes wait for a worker"
    await h.run_until_idle()
    why = without_positions((await run.describe()).why)
    assert why.startswith("1 of 3 nodes have a result; running step 'slow' (attempt 1); waiting to retry step 'flaky'")
    assert "OSError: down" in why


async def test_why_counts_the_items_of_a_node_and_names_failed_nodes(app: Holdfast, h: Harness) -> None:
    g = app.graph("g")

    @g.node
    async def numbers(params: int) -> list[int]:
        return list(range(params))

    @g.node(map=numbers, retry=Retry(limit=5, delay="1 hour"))
    async def fetch(numbers: int) -> int:
        if numbers >= 4:
            raise OSError("down")
        return numbers

    @g.node(retry=Retry(limit=0))
    async def region() -> None:
        raise KeyError("region")

    run = await h.start(g, 7)
    await h.run_until_idle()
    why = without_positions((await run.describe()).why)
    assert why.startswith(
        "2 of 3 nodes have a result; 4 items of 'fetch' have a result; waiting to retry step 'fetch[4]'"
    )
    assert why.endswith(", and 2 more; 'region' failed (KeyError: 'region'), so the run will end errored")


async def test_a_failed_item_fails_the_node(app: Holdfast, h: Harness) -> None:
    run = await h.start(mapped(app), [1, 0, 2])
    await h.run_until_idle()
    assert await statuses(run) == {"numbers": "ok", "inverse": "error", "total": "skipped"}
    with pytest.raises(RunFailedError, match="'inverse' failed: ZeroDivisionError: item 1: "):
        await run.result(timeout=60)


async def test_an_item_is_retried_alone_with_an_unchanged_value(app: Holdfast, h: Harness) -> None:
    g = app.graph("g")
    seen: list[int] = []
    retried = asyncio.Event()

    @g.node
    async def numbers() -> list[dict[str, int]]:
        return [{"n": 1}, {"n": 2}]

    @g.node(map=numbers, retry=Retry(limit=1, delay=0))
    async def work(numbers: Any) -> int:
        if numbers["n"] == 2:
            await retried.wait()
            return 2
        seen.append(numbers["n"])
        numbers["n"] += 10
        if len(seen) == 1:
            raise OSError
        retried.set()
        return int(numbers["n"])

    assert (await finish(h, g))["work"] == [11, 2]
    assert seen == [1, 1]


async def test_a_tick_starts_at_most_max_steps_nodes(make_app: MakeApp) -> None:
    app = make_app()
    g = app.graph("g")
    seen: list[str] = []
    for name in ("a", "b", "c"):
        g.node(name=name)(lambda name=name: seen.append(name))
    async with app.connect():
        run = await app.start(g)
        await app.tick(max_steps=1)
        assert len(seen) == 1
        await app.tick()
        assert len(seen) == 3
        assert (await run.status()).status == "complete"


async def test_a_node_mapped_over_a_value_that_is_no_list_fails(app: Holdfast, h: Harness) -> None:
    g = app.graph("g")

    @g.node
    async def numbers() -> Any:
        return {"no": "list"}

    @g.node(map=numbers, retry=NO_RETRY)
    async def work(numbers: Any) -> Any:
        return numbers

    with pytest.raises(RunFailedError, match=r"'work' failed: TypeError: .*whose result is not a list"):
        await finish(h, g)


# --- other runs as nodes


async def test_a_workflow_can_be_a_node(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def child(ctx: Context, n: int) -> int:
        await ctx.sleep("pause", "1 hour")
        return n * 2

    g = app.graph("g")

    @g.node
    async def first(params: int) -> int:
        return params

    g.node(run=child, after=[first])
    g.node(run=child, name="other", after=[first], input=lambda first, params: first + params)

    @g.node(after=["child", "other"])
    async def last(child: int, other: int) -> int:
        return child + other

    run = await h.start(g, 5)
    await h.run_until_idle()
    assert await run.results() == {"first": 5}
    await h.advance("2 hours")
    assert await run.results() == {"first": 5, "child": 10, "other": 20, "last": 30}
    assert len((await run.describe()).children) == 2


async def test_a_failed_child_run_fails_its_node(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def child(ctx: Context) -> None:
        raise ValueError("no luck")

    g = app.graph("g")
    node = g.node(run=child)

    @g.node(after=[node])
    async def descendant() -> None: ...

    run = await h.start(g)
    await h.run_until_idle()
    assert await statuses(run) == {"child": "error", "descendant": "skipped"}
    with pytest.raises(RunFailedError, match=r"'child' failed: ChildError: .* ended errored: no luck"):
        await run.result(timeout=60)


async def test_a_chain_can_be_a_node(app: Holdfast, h: Harness) -> None:
    chain = app.chain("chain")

    @chain.step("ASK")
    async def ask(task: ChainTask) -> Any:
        return Waiting("answer", timeout="1 day") if task.event is None else task.event.payload

    @chain.step("DOUBLE")
    async def double(task: ChainTask) -> int:
        return int(task.outputs["ASK"]) * 2

    g = app.graph("g")
    g.node(run=chain, name="asked")

    @g.node(after=["asked"])
    async def last(asked: int) -> int:
        return asked + 1

    run = await h.start(g)
    await h.run_until_idle()
    [child] = (await run.describe()).children
    await (await h.app.get(chain, child.pid.partition("/")[2])).send_event("answer", 20)
    await h.run_until_idle()
    assert await run.results() == {"asked": 40, "last": 41}


async def test_a_mapped_node_can_start_a_workflow_for_each_item(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def child(ctx: Context, n: int) -> int:
        return n * n

    g = app.graph("g")

    @g.node
    async def numbers(params: list[int]) -> list[int]:
        return params

    g.node(run=child, name="squares", map=numbers)
    assert (await finish(h, g, [1, 2, 3]))["squares"] == [1, 4, 9]


async def test_a_graph_can_be_a_child_of_a_workflow_and_of_a_graph(app: Holdfast, h: Harness) -> None:
    inner = app.graph("inner")

    @inner.node
    async def double(params: int) -> int:
        return params * 2

    outer = app.graph("outer")
    outer.node(run=inner)

    @app.workflow
    async def w(ctx: Context, n: int) -> Any:
        return await ctx.run(outer, n)

    assert await finish(h, w, 4) == {"inner": {"double": 8}}


# --- control requests


@pytest.mark.promise("finality")
async def test_a_killed_run_accepts_no_results_and_has_a_tombstone(app: Holdfast, h: Harness) -> None:
    g = app.graph("g")
    go = asyncio.Event()

    @g.node
    async def slow() -> int:
        await go.wait()
        return 1

    @g.node(after=[slow])
    async def descendant() -> None: ...

    run = await h.start(g)
    await h.tick()
    await run.kill("enough")
    go.set()
    await h.run_until_idle()
    assert await run.facts("result/") == {}
    tombstone = (await run.facts("tombstone"))["tombstone"]
    assert tombstone == {"reason": "enough", "ts": round(h.now().timestamp() * 1000)}
    assert await h.app.advance(run) == Killed("enough")
    with pytest.raises(RunTerminatedError, match="enough"):
        await run.result(timeout=60)
    with pytest.raises(InstanceTerminalError):
        await run.kill()


@pytest.mark.parametrize("how", ["killed", "the worker stops"])
async def test_a_node_is_not_called_if_its_run_or_worker_stops_before(
    app: Holdfast, h: Harness, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    g = app.graph("g")
    ran: list[int] = []

    @g.node
    async def node() -> None:
        ran.append(1)

    read, reading, go = h._store.read, asyncio.Event(), asyncio.Event()

    async def read_slowly(query: Any) -> Any:
        if isinstance(query, FactsQuery):
            reading.set()
            await go.wait()
        return await read(query)

    run = await h.start(g)
    monkeypatch.setattr(h._store, "read", read_slowly, raising=False)
    worker = h._the_worker()
    await worker.claim_due(10)
    await reading.wait()
    if how == "killed":
        await run.kill()
    else:
        worker._table.stop()
    go.set()
    await worker._table.wait(60)
    assert ran == []


async def test_a_finished_run_cannot_be_killed(app: Holdfast, h: Harness) -> None:
    run = await h.start(diamond(app), Source([1]))
    await h.run_until_idle()
    with pytest.raises(InstanceTerminalError):
        await run.kill()
    assert await run.facts("tombstone") == {}


async def test_a_cancelled_run_accepts_no_results(app: Holdfast, h: Harness) -> None:
    g = app.graph("g")

    @g.node
    async def slow() -> None:
        await asyncio.Event().wait()

    run = await h.start(g)
    await h.tick()
    await run.cancel("not needed")
    await h.run_until_idle()
    with pytest.raises(RunCancelledError, match="not needed"):
        await run.result(timeout=60)
    assert await run.facts("result/") == {}


async def test_a_pause_records_running_nodes_and_starts_no_others(app: Holdfast, h: Harness) -> None:
    g = app.graph("g")
    go = asyncio.Event()

    @g.node
    async def first() -> int:
        await go.wait()
        return 1

    @g.node(after=[first])
    async def second(first: int) -> int:
        return first + 1

    run = await h.start(g)
    await h.tick()
    await run.pause()
    go.set()
    await h.run_until_idle()
    assert (await run.status()).status == "paused"
    assert await run.results() == {"first": 1}
    assert await starts(run) == ["first"]
    await run.resume()
    await h.run_until_idle()
    assert await run.results() == {"first": 1, "second": 2}
    assert (await run.status()).status == "complete"


async def test_a_restarted_run_has_its_own_facts(app: Holdfast, h: Harness) -> None:
    run = await h.start(diamond(app), Source([1]), id="a")
    await h.run_until_idle()
    await run.restart()
    assert list(await run.facts()) == ["meta"]
    await h.run_until_idle()
    assert (await run.results())["total"] == 1
    assert (await run.describe()).run_number == 1


async def test_a_failed_run_is_retried_as_a_whole(app: Holdfast, h: Harness) -> None:
    g = app.graph("g")
    runs = []

    @g.node(retry=NO_RETRY)
    async def flaky() -> int:
        runs.append(1)
        if len(runs) == 1:
            raise OSError
        return 5

    run = await h.start(g, retry=Retry(limit=1, delay="1 second"))
    await h.advance("5 seconds")
    assert await run.result(timeout=60) == {"flaky": 5}
    assert (await run.describe()).attempt == 2


async def test_a_run_ends_at_its_timeout(app: Holdfast, h: Harness) -> None:
    g = app.graph("g")

    @g.node
    async def slow() -> None:
        await asyncio.Event().wait()

    run = await h.start(g, run_timeout="1 minute")
    await h.advance("2 minutes")
    with pytest.raises(RunFailedError, match="run_timeout"):
        await run.result(timeout=60)


async def test_the_successor_of_a_timed_out_run_has_its_nodes(app: Holdfast, h: Harness) -> None:
    g = app.graph("g")
    runs = []

    @g.node
    async def slow() -> int:
        runs.append(1)
        if len(runs) == 1:
            await asyncio.Event().wait()
        return len(runs)

    run = await h.start(g, run_timeout="1 minute", retry=Retry(limit=1, delay=0))
    await h.advance("2 minutes")
    assert await run.result(timeout=60) == {"slow": 2}


async def test_a_graph_runs_on_a_cron_schedule(app: Holdfast, h: Harness) -> None:
    g = app.graph("g")
    times = []

    @g.node
    async def nightly() -> None:
        times.append(h.now())

    @g.node(after=[nightly])
    async def after() -> int:
        return len(times)

    run = await h.start(g, cron="0 3 * * *")
    await h.advance("3 days")
    assert [at.hour for at in times] == [3, 3, 3]
    assert [(await run.history(n)).steps[1].result for n in range(3)] == [1, 2, 3]


async def test_a_graph_starts_after_its_start_delay(app: Holdfast, h: Harness) -> None:
    run = await h.start(diamond(app), Source([1]), start_delay="1 hour")
    await h.run_until_idle()
    assert await run.facts("start/") == {}
    await h.advance("1 hour")
    assert (await run.status()).status == "complete"


# --- changed definitions


async def test_open_runs_keep_the_shape_they_were_started_with(make_app: MakeApp) -> None:
    def define(app: Holdfast, *, new: bool) -> Graph:
        g = app.graph("g", version=2 if new else 1)

        @g.node
        async def a() -> int:
            return 1

        @g.node(after=[a])
        async def b(a: int) -> int:
            return a + 1

        if new:

            @g.node(after=[b])
            async def c(b: int) -> int:
                return b + 1

        return g

    old = make_app()
    g = define(old, new=False)
    async with old.connect():
        await old.start(g, id="open")
    new = make_app()
    g = define(new, new=True)
    async with new:
        assert await (await new.get(g, "open")).result(timeout=60) == {"a": 1, "b": 2}
        assert await (await new.start(g, id="fresh")).result(timeout=60) == {"a": 1, "b": 2, "c": 3}


async def test_a_missing_node_parks_the_run_until_it_is_registered(make_app: MakeApp) -> None:
    async def gone() -> None: ...

    old = make_app()
    g = old.graph("g")
    g.node(gone)

    async with old.connect():
        await old.start(g, id="open")
    new = make_app()
    g = new.graph("g")

    @g.node
    async def other() -> None: ...

    async with new:
        run = await new.get(g, "open")

        async def parked() -> bool:
            return (await run.status()).status == "paused"

        await until(parked)
        assert "node 'gone' of graph" in (await run.describe()).why
        g.node(gone)
        await run.resume()
        assert await run.result(timeout=60) == {"gone": None}  # without waiting for the expiry of a lease


# --- app.advance and several workers


async def test_advance_starts_ready_nodes_and_returns_their_names(make_app: MakeApp) -> None:
    app = make_app()
    etl = diamond(app)
    go = asyncio.Event()

    @etl.node(after=["report"])
    async def gated() -> None:
        await go.wait()

    async with app.connect():
        run = await app.start(etl, Source([1, 2]))

        async def next_started() -> tuple[str, ...]:
            advancement = await app.advance(run)
            assert isinstance(advancement, Started)
            return advancement.nodes

        assert await next_started() == ("extract",)
        assert set(await until(next_started)) <= {"total", "largest"}
        while "report" not in (started := await until(next_started)):
            assert set(started) <= {"total", "largest"}
        assert await until(next_started) == ("gated",)
        assert await app.advance(run) == Started(())
        go.set()

        async def finished() -> bool:
            return await app.advance(run) == Finished("complete")

        await until(finished)
        assert (await run.results())["report"] == {"total": 3, "largest": 2}
        assert len(await starts(run)) == 5


async def test_nodes_of_one_graph_run_on_different_workers(make_app: MakeApp) -> None:
    """Each of two nodes waits for the other, and each worker runs only one node at a time."""
    worker_of: dict[str, str] = {}

    def define(app: Holdfast, name: str) -> Graph:
        g = app.graph("g")
        for node in ("left", "right"):

            async def wait_for_the_other(node: str = node) -> str:
                worker_of[node] = name
                async with asyncio.timeout(60):
                    while len(worker_of) < 2:
                        await asyncio.sleep(0.005)
                return name

            g.node(name=node)(wait_for_the_other)

        @g.node(after=["left", "right"])
        async def both(left: str, right: str) -> list[str]:
            return sorted([left, right])

        return g

    first, second = (make_app(worker=WorkerConfig(concurrency=1, poll=0.05)) for _ in range(2))
    graph = define(first, "first")
    define(second, "second")
    async with first, second:
        run = await first.start(graph)
        assert (await run.result(timeout=60))["both"] == ["first", "second"]


async def test_a_worker_runs_many_graphs_to_their_end(make_app: MakeApp) -> None:
    app = make_app()
    etl = diamond(app)
    async with app:
        runs = [await app.start(etl, Source([n])) for n in range(1, 30)]
        for n, run in enumerate(runs, 1):
            assert (await run.result(timeout=60))["total"] == n


# --- flowcharts


async def test_the_flowchart_of_a_run_is_coloured_by_node_states(app: Holdfast, h: Harness) -> None:
    g = app.graph("g")

    @g.node(retry=NO_RETRY)
    async def bad() -> None:
        raise ValueError

    @g.node
    async def slow() -> None:
        await asyncio.Event().wait()

    @g.node(after=[bad])
    async def descendant() -> None: ...

    @g.node(after=[slow])
    async def later() -> None: ...

    run = await h.start(g)
    await h.tick()
    flowchart = await run.to_mermaid()
    for line in ("class n1 error", "class n2 running", "class n3 skipped", "class n4 pending", "n1 --> n3"):
        assert line in flowchart


async def test_a_worker_that_stops_while_it_reads_a_plan_parks_nothing(make_app: MakeApp) -> None:
    app = make_app()
    pair = app.graph("pair")
    for name in ("a", "b"):
        pair.node(name=name)(_one)

    async with Harness(app) as h:
        run = await h.start(pair, eager=False)
        read, reading = h._store.read, asyncio.Event()

        async def read_forever(query: Any) -> Any:
            if isinstance(query, FactsQuery):
                reading.set()
                await asyncio.get_running_loop().create_future()
            return await read(query)

        h._store.read = read_forever
        await h._the_worker().claim_due(10)
        await reading.wait()
        await asyncio.sleep(0)  # the other node waits for the read
        await h._the_worker().stop(drain_ms=0)
        h._store.read = read

        assert (await run.status()).status == "active"
        h._worker = h._new_worker()
        await h.run_until_idle()
        assert await run.results() == {"a": 1, "b": 1}


async def _one() -> int:
    return 1


async def test_a_worker_that_ran_all_nodes_does_not_read_their_results(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_app()
    graph, read = app.graph("line"), list[GraphRunTurn]()
    for name, after in (("b", []), ("a", ["b"])):
        graph.node(name=name, after=after)(_one)

    async def note(turn: GraphRunTurn) -> list[Fact]:
        read.append(turn)
        return []

    monkeypatch.setattr(GraphRunTurn, "_results", note)
    async with app:
        run = await app.start(graph)
        assert await run.result() == {"a": 1, "b": 1}

    assert read == []


async def test_a_worker_that_ran_some_of_the_nodes_reads_the_results_of_the_others(app: Holdfast, h: Harness) -> None:
    graph = app.graph("line")
    for name, after in (("a", []), ("b", ["a"])):
        graph.node(name=name, after=after)(_one)

    run = await h.start(graph, eager=False)
    await h._the_worker().run_pass(1, None)
    h._worker = h._new_worker()
    await h.run_until_idle()

    assert await run.result() == {"a": 1, "b": 1}
