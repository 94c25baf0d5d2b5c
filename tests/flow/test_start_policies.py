"""Start policies: starts with one key make one run, and get the handle of the run that stands for them."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from holdfast import Batch, ChainTask, Completed, Context, Debounce, Dedupe, Holdfast, WorkerConfig
from holdfast.errors import InvalidOptionError, LimitReachedError, RunCancelledError
from holdfast.testing import Harness
from postgres_harness import CleanStore


@pytest.fixture
def app(tmp_path: Path) -> Holdfast:
    return Holdfast(f"sqlite:///{tmp_path}/starts.db", worker=WorkerConfig(poll="1 hour"))


@pytest.mark.parametrize("policy", [{"dedupe": Dedupe("k")}, {"singleton": "skip", "key": "k"}, {"singleton": "skip"}])
async def test_five_concurrent_starts_with_one_key_make_one_run(app: Holdfast, policy: dict[str, Any]) -> None:
    began: list[int] = []
    go = asyncio.Event()

    @app.step
    async def work(n: int) -> int:
        began.append(n)
        await go.wait()
        return n

    @app.workflow
    async def flow(ctx: Context, n: int) -> int:
        return await work(n)

    async with app:
        runs = await asyncio.gather(*(app.start(flow, n, **policy) for n in range(5)))
        go.set()
        results = [await run.result() for run in runs]
        again = await app.start(flow, 9, **policy)

        assert len({run.id for run in runs}) == 1
        assert len(began) <= 2  # the step of the one run, and of the start after its end
        assert results == [began[0]] * 5
        assert await again.result() == 9


async def test_starts_with_different_keys_make_different_runs(app: Holdfast) -> None:
    @app.workflow
    async def flow(ctx: Context) -> None: ...

    async with app:
        options: list[dict[str, Any]] = [
            {"dedupe": Dedupe("a")}, {"dedupe": Dedupe("b")}, {"singleton": "skip", "key": "a"}, {"singleton": "skip"},
        ]  # fmt: skip
        assert len({(await app.start(flow, **one)).id for one in options}) == 4


async def _result(h: Harness, flow: Any, n: int, policy: Dedupe) -> Any:
    run = await h.app.start(flow, n, dedupe=policy)
    await h.run_until_idle()
    return await run.result()


async def test_a_run_stands_for_starts_within_the_period_also_after_its_end() -> None:
    app = Holdfast("sqlite://")

    @app.workflow
    async def flow(ctx: Context, n: int) -> int:
        return n

    policy = Dedupe("k", period="1 hour")
    async with Harness(app) as h:
        assert await _result(h, flow, 1, policy) == 1
        assert await _result(h, flow, 2, policy) == 1
        await h.advance("61 minutes")
        assert await _result(h, flow, 3, policy) == 3


@pytest.mark.parametrize(
    "options",
    [
        {"dedupe": Dedupe("k"), "id": "mine"},
        {"dedupe": Dedupe("k"), "singleton": "skip"},
        {"dedupe": Dedupe("k"), "on_reuse": "reject"},
        {"dedupe": Dedupe("")},
        {"dedupe": "k"},
        {"dedupe": Dedupe("k", period="soon")},
        {"singleton": "other"},
        {"singleton": "queue", "debounce": "1 second"},
        {"singleton": "queue", "messages": [("a", 1)]},
        {"debounce": "soon"},
        {"debounce": Debounce("1 second"), "id": "mine"},
        {"debounce": Debounce("1 second"), "delay": "1 second"},
        {"debounce": Debounce("1 second", max_wait="soon")},
        {"on_limit": "other"},
        {"on_limit": "drop"},
    ],
)
async def test_wrong_start_policies_are_refused(app: Holdfast, options: dict[str, Any]) -> None:
    @app.workflow
    async def flow(ctx: Context) -> None: ...

    async with app:
        with pytest.raises(InvalidOptionError):
            await app.start(flow, **options)


def _visits(app: Holdfast) -> tuple[Any, list[str]]:
    """A workflow that records when it is entered and left, and waits for an event in between."""
    seen: list[str] = []

    @app.workflow
    async def visit(ctx: Context, n: int) -> int:
        seen.append(f"in {n}")
        try:
            await ctx.wait_for_event("go", type="go")
        finally:
            seen.append(f"out {n}")
        return n

    return visit, seen


async def test_queued_singletons_follow_each_other_without_a_poll(app: Holdfast) -> None:
    visit, seen = _visits(app)

    async with app:
        runs = [await app.start(visit, n, singleton="queue", key="k") for n in range(3)]
        assert "the run before it" in (await runs[1].describe()).why
        for run in runs:
            await run.send_event("go")
        async with asyncio.timeout(60):
            assert [await run.result() for run in runs] == [0, 1, 2]

    entered = list(dict.fromkeys(seen))
    assert [one for one in entered if one.startswith("in")] == ["in 0", "in 1", "in 2"]
    assert entered.index("out 0") < entered.index("in 1")


async def test_a_later_singleton_cancels_the_running_one_and_starts_after_its_cleanup(app: Holdfast) -> None:
    visit, seen = _visits(app)

    async with app:
        first = await app.start(visit, 1, singleton="cancel_running")
        while "in 1" not in seen:
            await asyncio.sleep(0.001)
        second = await app.start(visit, 2, singleton="cancel_running")
        with pytest.raises(RunCancelledError):
            await first.result(timeout=60)
        await second.send_event("go")

        assert await second.result(timeout=60) == 2
        assert list(dict.fromkeys(seen)).index("out 1") < list(dict.fromkeys(seen)).index("in 2")


async def test_a_replaced_run_is_cancelled_with_the_reason(app: Holdfast) -> None:
    visit, seen = _visits(app)

    async with app:
        first = await app.start(visit, 1, singleton="replace_waiting")
        while "in 1" not in seen:
            await asyncio.sleep(0.001)
        second = await app.start(visit, 2, singleton="replace_waiting")
        third = await app.start(visit, 3, singleton="replace_waiting")
        with pytest.raises(RunCancelledError, match="replaced"):
            await second.result(timeout=60)
        await first.send_event("go")
        await third.send_event("go")

        assert (await first.result(timeout=60), await third.result(timeout=60)) == (1, 3)
        assert "in 2" not in seen


async def test_chains_and_graphs_are_singletons_too(app: Holdfast) -> None:
    chain, graph = app.chain("orders"), app.graph("etl")
    inside = most = 0

    async def work() -> int:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0)
        inside -= 1
        return 1

    @chain.step("A")
    async def a(task: ChainTask) -> Completed:
        return Completed(await work())

    graph.node(name="only")(work)
    async with app:
        for workflow in (chain, graph):
            runs = [await app.start(workflow, singleton="queue") for _ in range(3)]
            for run in runs:
                await run.result(timeout=60)

    assert most == 1


async def test_debounced_starts_make_one_run_with_the_last_params() -> None:
    app = Holdfast("sqlite://")

    @app.workflow
    async def reindex(ctx: Context, n: int) -> int:
        return n

    async with Harness(app) as h:
        runs = []
        for n in range(4):
            runs.append(await h.app.start(reindex, n, debounce=Debounce("10 seconds", key="shop")))
            await h.advance("6 seconds")
        assert (await runs[0].status()).status == "waiting"
        await h.advance("5 seconds")

        assert len({run.id for run in runs}) == 1
        assert await runs[0].result() == 3
        assert (await h.app.start(reindex, 9, debounce="10 seconds", key="shop")).id != runs[0].id


async def test_the_last_of_the_debounced_starts_decides_the_options(h: Harness, app: Holdfast) -> None:
    @app.workflow
    async def reindex(ctx: Context, n: int) -> list[Any]:
        return [n, dict(ctx.values)]

    debounced: Any = {"debounce": "10 seconds"}
    await h.start(reindex, 1, queue="other", search={"n": 1}, memo={"n": 1}, context={"n": 1}, **debounced)
    run = await h.start(reindex, 2, search={"n": 2}, memo={"n": 2}, context={"n": 2}, priority=3, **debounced)
    found = await h.app.list(reindex, search={"n": 2}, queue="default")
    await h.advance("10 seconds")

    assert ([item.id for item in found.items], (await h.app.list(search={"n": 1})).items) == ([run.id], [])
    assert await run.result() == [2, {"n": 2}]
    assert ((await run.describe()).memo, (await run.describe()).search) == ({"n": 2}, {"n": 2})


@pytest.mark.parametrize("id_policy", ["allow", "terminate_existing"])
async def test_a_singleton_that_replaces_the_run_with_its_id_waits_for_the_executed_one(
    h: Harness, app: Holdfast, id_policy: str
) -> None:
    order: list[str] = []

    @app.workflow
    async def sync(ctx: Context, name: str) -> None:
        order.append(f"{name} begins")
        await ctx.sleep("work", "1 hour")
        order.append(f"{name} ends")

    if id_policy == "allow":
        await h.run(sync, "earlier", id="a", singleton="queue")
    await h.start(sync, "other", id="b", singleton="queue")
    await h.run_until_idle()
    if id_policy == "terminate_existing":
        await h.start(sync, "waiting", id="a", singleton="queue")
    order.clear()
    replaces: Any = {"on_reuse" if id_policy == "allow" else "on_conflict": id_policy}
    skipped = await h.start(sync, "skipped", id="a", singleton="skip", **replaces)
    again = await h.start(sync, "again", id="a", singleton="replace_waiting", **replaces)
    await h.advance("2 hours")

    assert (skipped.id, again.id) == ("b", "a")
    assert order == ["other ends", "again begins", "again ends"]


@pytest.mark.parametrize("store", [None, CleanStore], ids=["sqlite", "postgres"])
@pytest.mark.parametrize("on_limit", ["reject", "drop"])
async def test_a_start_that_reuses_an_id_is_decided_by_the_limit_too(
    app: Holdfast, store: type[CleanStore] | None, on_limit: Any
) -> None:
    one = app.limit("one", concurrency=1)

    @app.workflow(limits=[one], hold="until_end")
    async def flow(ctx: Context, length: str) -> None:
        await ctx.sleep("work", length)

    async with Harness(app, store=store) as h:
        await h.run(flow, "1 second", id="a")
        await h.start(flow, "1 hour", id="b")
        await h.run_until_idle()
        with pytest.raises(LimitReachedError) if on_limit == "reject" else nullcontext():
            await h.start(flow, "1 second", id="a", on_reuse="allow", on_limit=on_limit)
        run = await h.app.get(flow, "a")

        found = (await run.describe()).run_number, (await run.status()).status
        assert found == ((0, "complete") if on_limit == "reject" else (1, "cancelled"))
        await h.advance("1 hour")
        assert [limit.used for limit in await h.app.list_limits()] == [0]


async def test_batched_starts_make_one_run_that_receives_a_list() -> None:
    app = Holdfast("sqlite://")

    @app.workflow(batch=Batch(size=3, wait="2 seconds", key=lambda n: n % 2))
    async def index(ctx: Context, numbers: list[int]) -> list[int]:
        return numbers

    @app.workflow
    async def parent(ctx: Context) -> list[int]:
        return await ctx.run(index, 7)

    async with Harness(app) as h:
        runs = [await h.app.start(index, n) for n in (1, 2, 3, 5, 7)]
        await h.run_until_idle()
        assert await runs[0].result() == [1, 3, 5]
        await h.advance("2 seconds")
        assert (await runs[1].result(), await runs[4].result()) == ([2], [7])

        child = await h.app.start(parent)
        await h.run_until_idle()
        assert await child.result() == [7]
        with pytest.raises(InvalidOptionError):
            await h.app.start(index, 1, id="mine")


async def test_a_start_without_room_is_rejected_or_dropped(app: Holdfast) -> None:
    one = app.limit("one", concurrency=1)
    go = asyncio.Event()

    @app.step
    async def work() -> int:
        await go.wait()
        return 1

    @app.workflow(limits=[one])
    async def flow(ctx: Context) -> int:
        return await work()

    async with app:
        first = await app.start(flow, on_limit="reject")
        with pytest.raises(LimitReachedError, match="limit 'one' has no room"):
            await app.start(flow, on_limit="reject")
        dropped = await app.start(flow, on_limit="drop")
        waiting = await app.start(flow)
        go.set()

        assert (await first.result(timeout=60), await waiting.result(timeout=60)) == (1, 1)
        with pytest.raises(RunCancelledError, match="dropped"):
            await dropped.result()
        assert len((await app.list(flow)).items) == 3


async def test_a_limit_decides_starts_before_any_worker_has_begun(app: Holdfast) -> None:
    one = app.limit("one", concurrency=1)

    @app.workflow(limits=[one])
    async def flow(ctx: Context) -> None: ...

    async with app.connect():
        await app.start(flow, on_limit="reject")

        with pytest.raises(LimitReachedError):
            await app.start(flow, on_limit="reject")
