"""``app.bulk``: actions on all instances that match a filter."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import BulkResult, Context, Filter, Holdfast, Retry
from holdfast.errors import InvalidOptionError
from repair.conftest import Open

ONCE = Retry(limit=0)


def _app(broken: list[bool], calls: list[int]) -> Holdfast:
    app = Holdfast("sqlite://")

    @app.workflow(name="flow")
    async def flow(ctx: Context, n: int) -> Any:
        async def work() -> int:
            calls.append(n)
            if broken and n % 2:
                raise KeyError(n)
            return n

        result = await ctx.do("work", work, retry=ONCE)
        if n >= 100:
            return (await ctx.wait_for_event("go", type="go")).payload
        return result

    return app


async def test_a_bulk_retry_repairs_the_matching_runs_and_no_others(opened: Open) -> None:
    broken, calls = [True], []
    app = _app(broken, calls)

    async with opened(app) as h:
        for n in range(130):
            await h.start("flow", n % 99, id=f"r{n}")
        await h.run_until_idle()
        failed = app.bulk(Filter(workflow="flow", error="KeyError"))
        assert await failed.count() == 64
        assert [item.id for item in await failed.sample(2)] == ["r1", "r3"]
        broken.clear()
        calls.clear()
        seen: list[BulkResult] = []
        with app.acting_as("ann"):
            result = await app.bulk(Filter(status="errored"), progress=seen.append).retry(reason="fixed")
        await h.run_until_idle()

        assert (result.done, result.failed, result.skipped) == (64, 0, 0)
        assert [one.done for one in seen] == [50, 64]
        assert len(calls) == 64
        assert await app.bulk(Filter(status="complete")).count() == 130
        assert len((await app.audit()).items) == 64 or (await app.audit()).cursor is not None


async def test_a_bulk_fork_begins_at_the_step_and_can_be_repeated(opened: Open) -> None:
    broken, calls = [True], []
    app = _app(broken, calls)

    async with opened(app) as h:
        for n in (1, 3, 5):
            await h.start("flow", n, id=f"r{n}")
        await h.start("flow", 2, id="other")
        await h.run_until_idle()
        await h.start("flow", 7, id="new")  # has no step yet
        failed = app.bulk(Filter(id_prefix="r"), progress=None)
        assert await failed.count() == 3
        broken.clear()
        calls.clear()

        assert await app.bulk(Filter(workflow="flow")).fork("work", suffix="-x", reason="try") == BulkResult(4, 0, 1)
        await h.run_until_idle()

        assert sorted(calls) == [1, 2, 3, 5, 7]
        fork = await app.get("flow", "r3-x")
        assert (await fork.result(timeout=60), (await fork.describe()).origin.pid) == (3, "flow/r3")  # type: ignore[union-attr]
        assert await app.bulk(Filter(id_prefix="r", status="errored")).fork("work", suffix="-x") == BulkResult(
            skipped=3
        )
        assert await app.bulk(Filter(id_prefix="r3-x")).fork("none") == BulkResult(skipped=1)
        for wrong in ({"before": 3}, {"before": "work", "suffix": ""}):
            with pytest.raises(InvalidOptionError):
                await failed.fork(**wrong)  # type: ignore[arg-type]


async def test_actions_skip_runs_whose_state_does_not_allow_them(opened: Open) -> None:
    app = _app([True], [])

    async with opened(app) as h:
        for n in (1, 2, 100, 102):
            await h.start("flow", n, id=f"r{n}")
        await h.run_until_idle()
        everything = app.bulk(Filter(workflow="flow"))

        assert await everything.retry() == BulkResult(done=1, skipped=3)
        await h.run_until_idle()
        assert await everything.pause() == BulkResult(done=2, skipped=2)
        assert (await everything.resume()).done == 4
        sent = await app.bulk(Filter(id_prefix="r100")).send_event("go", 7, reason="approved by phone")
        assert sent == BulkResult(done=1)
        assert (await app.audit()).items[0].reason == "approved by phone"
        await h.run_until_idle()
        assert await everything.terminate("enough") == BulkResult(done=1, skipped=3)
        assert await app.bulk(Filter(status="terminated")).restart() == BulkResult(done=1)
        await h.run_until_idle()
        assert await everything.cancel() == BulkResult(done=1, skipped=3)
        await h.run_until_idle()
        assert await everything.delete() == BulkResult(done=4)
        assert await everything.count() == 0
        assert (await app.list()).items == []
        assert [record.action for record in (await app.audit()).items][:4] == ["delete"] * 4


async def test_delete_removes_all_rows_of_an_ended_instance_only(opened: Open) -> None:
    app = _app([], [])

    async with opened(app) as h:
        done, open_run = await h.start("flow", 2, id="a"), await h.start("flow", 100, id="b")
        await h.run_until_idle()
        await done.restart()
        await h.run_until_idle()
        await done.delete(reason="tidy")
        again = await h.start("flow", 4, id="a")
        await h.run_until_idle()

        assert ((await again.describe()).run_number, await again.result(timeout=60)) == (0, 4)
        assert await app.bulk(Filter(id_prefix="b")).delete() == BulkResult(skipped=1)
        assert (await open_run.status()).status == "waiting"


async def test_invalid_options_are_refused(opened: Open) -> None:
    app = _app([], [])

    async with opened(app):
        for rate in (0, -1, "fast", True):
            with pytest.raises(InvalidOptionError):
                app.bulk(Filter(), rate=rate)  # type: ignore[arg-type]
        with pytest.raises(InvalidOptionError):
            await app.bulk(Filter()).sample(0)


async def test_a_bulk_retry_of_a_fork_starts_the_child_of_its_origin_again(opened: Open) -> None:
    app, broken = Holdfast("sqlite://"), [True]

    @app.workflow(name="child")
    async def child(ctx: Context) -> str:
        return str((await ctx.wait_for_event("go", type="go")).payload)

    @app.workflow(name="flow")
    async def flow(ctx: Context) -> str:
        started = await ctx.spawn(child, id="c")

        async def work() -> None:
            if broken:
                raise KeyError("broken")

        await ctx.do("work", work, retry=ONCE)
        return await started.result()

    async with opened(app) as h:
        origin = await h.start(flow, id="o")
        await h.run_until_idle()
        broken.clear()
        fork = await origin.fork(before="work", id="f")
        await h.run_until_idle()
        ended = [(await (await app.get(*pid)).status()).status for pid in (("flow", "f"), ("child", "c"))]

        assert ended == ["errored", "terminated"]
        assert await app.bulk(Filter(id_prefix="f")).retry() == BulkResult(done=1)
        await h.run_until_idle()
        await (await app.get(child, "c")).send_event("go", "went")
        await h.run_until_idle()
        assert await fork.result(timeout=60) == "went"
        assert (await origin.status()).status == "errored"


async def test_a_repeated_bulk_fork_does_not_fork_its_own_forks(opened: Open) -> None:
    broken = [True]
    app = _app(broken, [])

    async with opened(app) as h:
        for n in (1, 3):
            await h.start("flow", n, id=f"r{n}")
        await h.run_until_idle()
        failed = app.bulk(Filter(status="errored"))
        assert await failed.fork("work", suffix="-x") == BulkResult(done=2)
        await h.run_until_idle()
        await (await app.get("flow", "r1-x")).retry()  # the current run of this fork is no fork
        await h.run_until_idle()

        assert await failed.count() == 4
        assert await failed.fork("work", suffix="-x") == BulkResult(skipped=4)
        assert await failed.fork("work", suffix="-y") == BulkResult(done=4)
