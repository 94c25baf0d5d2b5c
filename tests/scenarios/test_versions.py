"""Old and new releases side by side: pinned runs finish on the release that started them, others on any."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from apps import MakeApp
from holdfast import (
    ChainTask,
    Completed,
    Context,
    Handle,
    Holdfast,
    InstanceTerminalError,
    InvalidOptionError,
    Outcome,
    Waiting,
    WorkerConfig,
)
from holdfast.testing import Harness

OLD, NEW = "2026-11-16", "2026-11-17"


@pytest.fixture
def release(make_app: MakeApp) -> Callable[..., Holdfast]:
    """Creates the app of a release; its workflows return the release that executed them last."""

    def make(version: str | None) -> Holdfast:
        app = make_app(worker=WorkerConfig(version=version, lease="2 seconds"))

        @app.step
        async def where() -> str:
            return str(version)

        @app.workflow(pinned=True)
        async def pinned(ctx: Context) -> list[str]:
            before = await where()
            await ctx.wait_for_event("approval", type="go")
            return [before, await where()]

        @app.workflow
        async def free(ctx: Context) -> list[str]:
            before = await where()
            await ctx.wait_for_event("approval", type="go")
            return [before, await where()]

        @app.workflow
        async def changed(ctx: Context) -> int:
            await ctx.wait_for_event("approval", type="go")
            return ctx.version("rounding", 1, 1 if version == OLD else 2)

        chain = app.chain("chain", pinned=True)

        @chain.step("FIRST")
        async def first(task: ChainTask) -> Outcome:
            return Completed(version) if task.event is not None else Waiting("go", timeout="1 hour")

        graph = app.graph("graph", pinned=True)

        @graph.node
        async def node() -> str:
            return str(version)

        return app

    return make


async def _waiting(run: Handle[Any]) -> None:
    """Wait until the run waits for its event and its worker has released it."""
    while True:
        description = await run.describe()
        if description.status == "waiting":
            return


async def test_a_pinned_run_is_left_to_its_release_and_others_are_not(release: Callable[..., Holdfast]) -> None:
    old, new = release(OLD), release(NEW)
    async with old:
        pinned, free = await old.start("pinned", id="p"), await old.start("free", id="f")
        await _waiting(pinned)
        await _waiting(free)
    async with new:
        for name, instance in (("pinned", "p"), ("free", "f")):
            await (await new.get(name, instance)).send_event("go")
        assert await (await new.get("free", "f")).result("10 seconds") == [OLD, NEW]
        assert (await (await new.get("pinned", "p")).describe()).why == (
            f"pinned to version '{OLD}', for which no worker is alive; start one, or move the run"
        )

        async with old:
            assert await (await new.get("pinned", "p")).result("10 seconds") == [OLD, OLD]


async def test_a_pinned_run_finishes_on_the_release_to_which_it_is_moved(release: Callable[..., Holdfast]) -> None:
    old, new = release(OLD), release(NEW)
    async with old:
        run = await old.start("pinned", id="p")
        await _waiting(run)
        async with new:
            await run.move(NEW)
            await run.send_event("go")

            assert await run.result("10 seconds") == [OLD, NEW]
            with pytest.raises(InstanceTerminalError):
                await run.move(OLD)


async def test_a_start_of_a_client_without_a_version_is_pinned_by_the_first_worker(
    release: Callable[..., Holdfast],
) -> None:
    client, old, new = release(None), release(OLD), release(NEW)
    async with client.connect():
        run = await client.start("pinned", id="p")
        async with new:
            await _waiting(run)
        async with old:
            await run.send_event("go")
            async with new:
                assert await run.result("10 seconds") == [NEW, NEW]


async def test_chains_and_graphs_can_be_pinned(release: Callable[..., Holdfast]) -> None:
    old, new = release(OLD), release(NEW)
    async with old.connect(), new:
        chain, graph = await old.start("chain", id="c"), await old.start("graph", id="g")
        await chain.send_event("go")
        assert "pinned to version" in (await graph.describe()).why
        await graph.move(NEW)
        await graph.result("10 seconds")
        assert await graph.results() == {"node": NEW}
        async with release(OLD):
            assert await chain.result("10 seconds") == OLD


async def test_versions_shows_open_runs_and_living_workers(release: Callable[..., Holdfast]) -> None:
    old, new = release(OLD), release(NEW)
    async with old.connect():
        await old.start("pinned", id="p")
    async with release(None).connect() as client:
        await client.start("free", id="f", start_delay="1 hour")
        async with new:
            while not any(worker.version == NEW for worker in await client.workers()):
                pass

            shown = [(one.version, one.open_runs, len(one.workers)) for one in await client.versions()]

    assert shown == [(OLD, 1, 0), (NEW, 0, 1), (None, 1, 0)]


async def test_ctx_version_gives_a_run_the_newest_change_of_the_release_that_executes_it(
    release: Callable[..., Holdfast],
) -> None:
    old, new = release(OLD), release(NEW)
    async with old:
        run = await old.start("changed", id="v")
        await _waiting(run)
    async with new:
        run = await new.get("changed", "v")
        await run.send_event("go")

        assert await run.result("10 seconds") == 2


# --------------------------------------------------------------------------------------------------- one release


async def test_a_successor_of_a_pinned_run_gets_the_version_of_its_first_worker(app: Holdfast, h: Harness) -> None:
    @app.workflow(pinned=True)
    async def twice(ctx: Context, n: int = 0) -> int:
        if n == 0:
            raise ctx.continue_as_new(1)
        return n

    run = await h.start(twice, 0, id="t")
    await h.run_until_idle()

    assert await run.result() == 1
    assert [one.open_runs for one in await app.versions()] == []


@pytest.mark.above_the_store
@pytest.mark.parametrize("version", ["", "two words", "x" * 101, 7])
def test_a_version_is_a_short_name(version: Any) -> None:
    with pytest.raises(InvalidOptionError, match="name of a release"):
        WorkerConfig(version=version)


@pytest.mark.above_the_store
def test_pinned_must_be_true_or_false(app: Holdfast) -> None:
    for register in (app.workflow, lambda **options: app.chain("c", **options), lambda **o: app.graph("g", **o)):
        with pytest.raises(InvalidOptionError, match="pinned"):
            register(pinned="yes")
