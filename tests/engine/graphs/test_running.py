"""Graphs run: what nodes get, what is stored of them, what becomes of them when something fails."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest

from engine.conftest import MakeApp
from engine.driving import finish, lose_worker, until
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
from holdfast.store.protocol import Advanced
from holdfast.testing import Harness

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
    return {key.removeprefix("result/"): found["status"] for key, found in (await run.facts("result/")).items()}


async def starts(run: Handle[Any]) -> list[str]:
    return [key.split("/")[1] for key in await run.facts("start/")]


# --- what nodes get


async def test_results_arrive_by_parameter_name(app: Holdfast, h: Harness) -> None:
    run = await h.start(diamond(app), Source([3, 1, 2], factor=10))
    await h.run_until_idle()
    assert await run.results() == {
        "extract": [3, 1, 2],
        "total": 6,
        "largest": 30,
        "report": {"total": 6, "largest": 30},
    }
    assert await run.result(timeout=5) == await run.results()
    assert (await run.status()).status == "complete"


async def test_an_input_that_no_node_can_read_starts_nothing(app: Holdfast, h: Harness) -> None:
    etl = diamond(app)
    with pytest.raises(ParamsInvalidError):
        await h.start(etl, {"numbers": "none"})
    with pytest.raises(ParamsInvalidError):
        await h.start(etl)


async def test_a_graph_that_needs_no_input(app: Holdfast, h: Harness) -> None:
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


# --- what is stored


async def test_the_stored_form(app: Holdfast, h: Harness) -> None:
    run = await h.start(diamond(app), Source([1, 2]))
    await h.run_until_idle()
    facts = await run.facts()
    assert facts["meta"]["wf_version"] == 3
    assert facts["meta"]["total_nodes"] == 4
    assert facts["meta"]["created_at"] == round(h.now().timestamp() * 1000)
    assert [node["name"] for node in facts["meta"]["nodes"]] == ["extract", "total", "largest", "report"]
    results = await run.facts("result/")
    assert {key: found["data"] for key, found in results.items()} == {
        "result/extract": [1, 2],
        "result/total": 3,
        "result/largest": 2,
        "result/report": {"total": 3, "largest": 2},
    }
    assert all(found["status"] == "ok" and isinstance(found["ts"], int) for found in results.values())
    begun = await run.facts(prefix="start/")
    assert sorted(key.split("/")[1] for key in begun) == ["extract", "largest", "report", "total"]
    assert all(set(found) == {"owner", "lease"} for found in begun.values())
    assert await run.facts("result/total") == {"result/total": results["result/total"]}
    assert "tombstone" not in facts


async def test_before_anything_has_run_there_is_the_plan(app: Holdfast, h: Harness) -> None:
    run = await h.start(diamond(app), Source([1]))
    assert list(await run.facts()) == ["meta"]
    assert await run.results() == {}


async def test_what_is_no_graph_has_no_such_facts(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def w(ctx: Context) -> None: ...

    run = await h.start(w)
    for ask in (run.facts, run.results, run.kill, run.to_mermaid):
        with pytest.raises(InvalidOptionError, match="is a workflow and no graph"):
            await ask()


# --- failing


async def test_a_node_is_tried_again_each_time_with_a_new_start(app: Holdfast, h: Harness) -> None:
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


async def test_a_node_that_fails_for_good_skips_what_needs_it_and_nothing_else(app: Holdfast, h: Harness) -> None:
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
    async def below(both: int) -> int:
        return both

    @g.node(after=[good])
    async def beside(good: int) -> int:
        return good + 1

    run = await h.start(g)
    await h.run_until_idle()
    assert await statuses(run) == {
        "bad": "error", "good": "ok", "both": "skipped", "below": "skipped", "beside": "ok",
    }  # fmt: skip
    assert await run.results() == {"good": 1, "beside": 2}
    with pytest.raises(RunFailedError, match="node 'bad' failed: ValueError: boom"):
        await run.result(timeout=5)
    assert (await run.facts("result/bad"))["result/bad"]["data"] == {"name": "ValueError", "message": "boom"}


async def test_of_several_that_failed_the_first_of_the_graph_is_named(app: Holdfast, h: Harness) -> None:
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
        await run.result(timeout=5)


async def test_two_that_fail_skip_a_common_descendant_once(app: Holdfast, h: Harness) -> None:
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


async def test_a_result_that_cannot_be_stored_is_a_failure(app: Holdfast, h: Harness) -> None:
    g = app.graph("g")

    @g.node(retry=NO_RETRY)
    async def odd() -> Any:
        return object()

    with pytest.raises(RunFailedError, match="NotSerializableError"):
        await finish(h, g)


async def test_a_node_that_takes_too_long(app: Holdfast, h: Harness) -> None:
    g = app.graph("g")

    @g.node(timeout="1 minute", retry=NO_RETRY)
    async def slow() -> None:
        await asyncio.Event().wait()

    run = await h.start(g)
    await h.advance("2 minutes")
    with pytest.raises(RunFailedError, match="StepTimeoutError"):
        await run.result(timeout=5)


async def test_a_lost_worker_costs_an_attempt(app: Holdfast, h: Harness) -> None:
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


async def test_nodes_that_lost_several_workers_are_tried_one_at_a_time(app: Holdfast, h: Harness) -> None:
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
    assert len(await starts(run)) == 5  # one of them kills workers: it is to die alone


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
    assert len(await starts(run)) == 3  # the last one only found that the attempts are used up
    with pytest.raises(RunFailedError, match="StepMaxAttemptsExceeded"):
        await run.result(timeout=5)


async def test_a_result_that_was_refused_is_not_passed_on(
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
    async def lasting() -> None:  # the worker has something of this run all the time
        await asyncio.Event().wait()

    write, refused = h._store.advance, []

    async def refuse_once(advances: Any, claimant: Any, room: int) -> Advanced:
        if not refused and advances[0].task.unit == 1:
            refused.append(1)
            return Advanced([False] * len(advances))
        return await write(advances, claimant, room)

    monkeypatch.setattr(h._store, "advance", refuse_once)
    run = await h.start(g)
    await h.run_until_idle()
    await h.advance("1 minute")
    assert refused == [1]
    assert await run.results() == {"a": 2, "b": 20}


# --- conditions


@pytest.mark.parametrize("yes", [True, False])
async def test_a_condition_decides_whether_a_node_runs(app: Holdfast, h: Harness, yes: bool) -> None:
    g = app.graph("g")

    @g.node
    async def ask(params: bool) -> bool:
        return params

    @g.node(after=[ask], when=lambda ask: ask)
    async def act() -> str:
        return "acted"

    @g.node(after=[act])
    async def below(act: str) -> str:
        return act

    @g.node(after=[ask], when=lambda ask, params: not ask and params is False)
    async def rest() -> str:
        return "rested"

    run = await h.start(g, yes)
    await h.run_until_idle()
    did, not_done = ("ok", "skipped") if yes else ("skipped", "ok")
    assert await statuses(run) == {"ask": "ok", "act": did, "below": did, "rest": not_done}
    assert (await run.status()).status == "complete"


async def test_a_condition_that_fails_is_a_failure_of_the_node(app: Holdfast, h: Harness) -> None:
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


@pytest.mark.parametrize("given", [[1, 2, 4], [5], []])
async def test_mapped_over_a_list_in_order(app: Holdfast, h: Harness, given: list[int]) -> None:
    found = await finish(h, mapped(app), given)
    assert found["inverse"] == [len(given) / n for n in given]
    assert found["total"] == sum(found["inverse"])


async def test_items_are_started_one_by_one(app: Holdfast, h: Harness) -> None:
    run = await h.start(mapped(app), [1, 2])
    await h.run_until_idle()
    assert {"inverse[0]", "inverse[1]"} <= set(await starts(run))
    assert len(await run.facts("result/")) == 3  # the items are not nodes: one result each


async def test_as_people_read_it(app: Holdfast, h: Harness) -> None:
    run = await h.start(mapped(app), [1, 2])
    before = h.now()
    await h.advance("1 minute", run=False)
    assert (await run.describe()).started_at is None
    await h.run_until_idle()
    told = await run.describe()
    assert told.started_at is not None
    assert told.started_at > before
    steps = (await run.history()).steps
    assert [(s.step_key, s.state, s.attempts, s.result) for s in steps] == [
        ("numbers", "ok", 1, [1, 2]),
        ("inverse", "ok", 1, [2.0, 1.0]),
        ("inverse[0]", "ok", 1, 2.0),
        ("inverse[1]", "ok", 1, 1.0),
        ("total", "ok", 1, 3.0),
    ]


async def test_why_it_is_where_it_is(app: Holdfast, h: Harness) -> None:
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
    assert (await run.describe()).why == "0 of 3 nodes have a result; those that are ready wait for a worker"
    await h.run_until_idle()
    why = (await run.describe()).why
    assert why.startswith("1 of 3 nodes have a result; running step 'slow' (attempt 1); waiting to retry step 'flaky'")
    assert "OSError: down" in why


async def test_an_item_that_fails_fails_the_node(app: Holdfast, h: Harness) -> None:
    run = await h.start(mapped(app), [1, 0, 2])
    await h.run_until_idle()
    assert await statuses(run) == {"numbers": "ok", "inverse": "error", "total": "skipped"}
    with pytest.raises(RunFailedError, match="'inverse' failed: ZeroDivisionError: item 1: "):
        await run.result(timeout=5)


async def test_an_item_is_tried_again_alone_and_as_it_was(app: Holdfast, h: Harness) -> None:
    g = app.graph("g")
    seen: list[int] = []
    again = asyncio.Event()

    @g.node
    async def numbers() -> list[dict[str, int]]:
        return [{"n": 1}, {"n": 2}]

    @g.node(map=numbers, retry=Retry(limit=1, delay=0))
    async def work(numbers: Any) -> int:
        if numbers["n"] == 2:
            await again.wait()
            return 2
        seen.append(numbers["n"])
        numbers["n"] += 10
        if len(seen) == 1:
            raise OSError
        again.set()
        return int(numbers["n"])

    assert (await finish(h, g))["work"] == [11, 2]
    assert seen == [1, 1]


async def test_a_pass_starts_no_more_than_it_may(make_app: MakeApp) -> None:
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


async def test_what_is_no_list_cannot_be_mapped_over(app: Holdfast, h: Harness) -> None:
    g = app.graph("g")

    @g.node
    async def numbers() -> Any:
        return {"no": "list"}

    @g.node(map=numbers, retry=NO_RETRY)
    async def work(numbers: Any) -> Any:
        return numbers

    with pytest.raises(RunFailedError, match=r"'work' failed: TypeError: .*whose result is no list"):
        await finish(h, g)


# --- other runs as nodes


async def test_a_workflow_as_a_node(app: Holdfast, h: Harness) -> None:
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


async def test_a_run_that_fails_fails_its_node(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def child(ctx: Context) -> None:
        raise ValueError("no luck")

    g = app.graph("g")
    node = g.node(run=child)

    @g.node(after=[node])
    async def below() -> None: ...

    run = await h.start(g)
    await h.run_until_idle()
    assert await statuses(run) == {"child": "error", "below": "skipped"}
    with pytest.raises(RunFailedError, match=r"'child' failed: ChildError: .* ended errored: no luck"):
        await run.result(timeout=5)


async def test_a_chain_as_a_node(app: Holdfast, h: Harness) -> None:
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


async def test_a_workflow_for_each_item(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def child(ctx: Context, n: int) -> int:
        return n * n

    g = app.graph("g")

    @g.node
    async def numbers(params: list[int]) -> list[int]:
        return params

    g.node(run=child, name="squares", map=numbers)
    assert (await finish(h, g, [1, 2, 3]))["squares"] == [1, 4, 9]


async def test_a_graph_in_a_workflow_and_in_a_graph(app: Holdfast, h: Harness) -> None:
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


# --- steering


async def test_killed(app: Holdfast, h: Harness) -> None:
    g = app.graph("g")
    go = asyncio.Event()

    @g.node
    async def slow() -> int:
        await go.wait()
        return 1

    @g.node(after=[slow])
    async def below() -> None: ...

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
        await run.result(timeout=5)
    with pytest.raises(InstanceTerminalError):
        await run.kill()


@pytest.mark.parametrize("how", ["killed", "the worker stops"])
async def test_what_is_over_before_its_node_is_called_is_not_called(
    app: Holdfast, h: Harness, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    g = app.graph("g")
    ran: list[int] = []

    @g.node
    async def node() -> None:
        ran.append(1)

    read, reading, go = h._store.facts, asyncio.Event(), asyncio.Event()

    async def slowly(*args: Any) -> Any:
        reading.set()
        await go.wait()
        return await read(*args)

    run = await h.start(g)
    monkeypatch.setattr(h._store, "facts", slowly, raising=False)
    worker = h._the_worker()
    await worker.claim_due(10)
    await reading.wait()
    if how == "killed":
        await run.kill()
    else:
        worker._stop_turns()
    go.set()
    await worker._wait_for_turns(5)
    assert ran == []


async def test_a_finished_run_cannot_be_killed(app: Holdfast, h: Harness) -> None:
    run = await h.start(diamond(app), Source([1]))
    await h.run_until_idle()
    with pytest.raises(InstanceTerminalError):
        await run.kill()
    assert await run.facts("tombstone") == {}


async def test_cancelled(app: Holdfast, h: Harness) -> None:
    g = app.graph("g")

    @g.node
    async def slow() -> None:
        await asyncio.Event().wait()

    run = await h.start(g)
    await h.tick()
    await run.cancel("not needed")
    await h.run_until_idle()
    with pytest.raises(RunCancelledError, match="not needed"):
        await run.result(timeout=5)
    assert await run.facts("result/") == {}


async def test_a_pause_lets_what_runs_end_and_starts_nothing(app: Holdfast, h: Harness) -> None:
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


async def test_restarted_with_its_own_shape(app: Holdfast, h: Harness) -> None:
    run = await h.start(diamond(app), Source([1]), id="a")
    await h.run_until_idle()
    await run.restart()
    assert list(await run.facts()) == ["meta"]
    await h.run_until_idle()
    assert (await run.results())["total"] == 1
    assert (await run.describe()).run_number == 1


async def test_the_run_as_a_whole_is_tried_again(app: Holdfast, h: Harness) -> None:
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
    assert await run.result(timeout=5) == {"flaky": 5}
    assert (await run.describe()).attempt == 2


async def test_a_deadline_ends_it(app: Holdfast, h: Harness) -> None:
    g = app.graph("g")

    @g.node
    async def slow() -> None:
        await asyncio.Event().wait()

    run = await h.start(g, run_timeout="1 minute")
    await h.advance("2 minutes")
    with pytest.raises(RunFailedError, match="run_timeout"):
        await run.result(timeout=5)


async def test_what_comes_after_a_deadline_has_its_nodes_too(app: Holdfast, h: Harness) -> None:
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
    assert await run.result(timeout=5) == {"slow": 2}


async def test_by_a_schedule(app: Holdfast, h: Harness) -> None:
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


async def test_started_later(app: Holdfast, h: Harness) -> None:
    run = await h.start(diamond(app), Source([1]), start_delay="1 hour")
    await h.run_until_idle()
    assert await run.facts("start/") == {}
    await h.advance("1 hour")
    assert (await run.status()).status == "complete"


# --- another graph under the same name


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
        assert await (await new.get(g, "open")).result(timeout=10) == {"a": 1, "b": 2}
        assert await (await new.start(g, id="fresh")).result(timeout=10) == {"a": 1, "b": 2, "c": 3}


async def test_a_node_that_is_not_there_any_more_parks_the_run(make_app: MakeApp) -> None:
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
        assert "no such node 'gone'" in (await run.describe()).why
        g.node(gone)
        await run.resume()
        assert await run.result(timeout=5) == {"gone": None}  # and nobody had to wait for a lease


# --- the processor


async def test_advance_starts_what_is_ready_and_says_so(make_app: MakeApp) -> None:
    app = make_app()
    etl = diamond(app)
    go = asyncio.Event()

    @etl.node(after=["report"])
    async def held() -> None:
        await go.wait()

    async with app.connect():
        run = await app.start(etl, Source([1, 2]))

        async def next_started() -> tuple[str, ...]:
            said = await app.advance(run)
            assert isinstance(said, Started)
            return said.nodes

        assert await next_started() == ("extract",)
        assert set(await until(next_started)) <= {"total", "largest"}
        while "report" not in (found := await until(next_started)):
            assert set(found) <= {"total", "largest"}
        assert await until(next_started) == ("held",)
        assert await app.advance(run) == Started(())
        go.set()

        async def finished() -> bool:
            return await app.advance(run) == Finished("complete")

        await until(finished)
        assert (await run.results())["report"] == {"total": 3, "largest": 2}
        assert len(await starts(run)) == 5


async def test_nodes_of_one_graph_run_on_different_workers(make_app: MakeApp) -> None:
    """Each of two nodes waits for the other, and each worker takes only one at a time."""
    here: dict[str, str] = {}

    def define(app: Holdfast, name: str) -> Graph:
        g = app.graph("g")
        for node in ("left", "right"):

            async def meet(node: str = node) -> str:
                here[node] = name
                async with asyncio.timeout(10):
                    while len(here) < 2:
                        await asyncio.sleep(0.005)
                return name

            g.node(name=node)(meet)

        @g.node(after=["left", "right"])
        async def both(left: str, right: str) -> list[str]:
            return sorted([left, right])

        return g

    one, two = (make_app(worker=WorkerConfig(concurrency=1, poll=0.05)) for _ in range(2))
    graph = define(one, "one")
    define(two, "two")
    async with one, two:
        run = await one.start(graph)
        assert (await run.result(timeout=20))["both"] == ["one", "two"]


async def test_a_real_worker_runs_it_to_the_end(make_app: MakeApp) -> None:
    app = make_app()
    etl = diamond(app)
    async with app:
        runs = [await app.start(etl, Source([n])) for n in range(1, 30)]
        for n, run in enumerate(runs, 1):
            assert (await run.result(timeout=20))["total"] == n


# --- drawn


async def test_drawn_in_the_colours_of_its_states(app: Holdfast, h: Harness) -> None:
    g = app.graph("g")

    @g.node(retry=NO_RETRY)
    async def bad() -> None:
        raise ValueError

    @g.node
    async def slow() -> None:
        await asyncio.Event().wait()

    @g.node(after=[bad])
    async def below() -> None: ...

    @g.node(after=[slow])
    async def later() -> None: ...

    run = await h.start(g)
    await h.tick()
    drawn = await run.to_mermaid()
    for line in ("class n1 error", "class n2 running", "class n3 skipped", "class n4 pending", "n1 --> n3"):
        assert line in drawn


async def test_a_worker_that_stops_while_it_reads_a_plan_parks_nothing(make_app: MakeApp) -> None:
    app = make_app()
    pair = app.graph("pair")
    for name in ("a", "b"):
        pair.node(name=name)(_one)

    async with Harness(app) as h:
        run = await h.start(pair, eager=False)
        read, asked = h._store.facts, asyncio.Event()

        async def never(*_args: Any) -> Any:
            asked.set()
            await asyncio.get_running_loop().create_future()

        h._store.facts = never
        await h._the_worker().claim_due(10)
        await asked.wait()
        await asyncio.sleep(0)  # the other node waits for the one that reads
        await h._the_worker().stop(drain_ms=0)
        h._store.facts = read

        assert (await run.status()).status == "active"
        h._worker = h._new_worker()
        await h.run_until_idle()
        assert await run.results() == {"a": 1, "b": 1}


async def _one() -> int:
    return 1
