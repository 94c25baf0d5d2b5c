"""The app and handles belong to code outside of runs: workflow code may use neither, because it is replayed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Context, Handle, Holdfast, RunFailedError
from holdfast.testing import Harness

pytestmark = pytest.mark.above_the_store

USES: dict[str, Callable[[Holdfast, Handle[Any]], Any]] = {
    "Holdfast.start": lambda app, _run: app.start("other", id="stray"),
    "Holdfast.start_many": lambda app, _run: app.start_many("other", []),
    "Holdfast.get": lambda app, _run: app.get("other", "a"),
    "Holdfast.list": lambda app, _run: app.list(),
    "Holdfast.tick": lambda app, _run: app.tick(),
    "Holdfast.pause_queue": lambda app, _run: app.pause_queue("default"),
    "Holdfast.schedules": lambda app, _run: app.schedules.list(),
    "Handle.result": lambda _app, run: run.result(),
    "Handle.send_event": lambda _app, run: run.send_event("go"),
    "Handle.ask": lambda _app, run: run.ask("go"),
    "Handle.retry": lambda _app, run: run.retry(),
    "Handle.stack": lambda _app, run: run.stack(),
    "Handle.streams": lambda _app, run: run.streams(),
}


@pytest.mark.parametrize("use", USES)
async def test_the_app_and_handles_are_refused_in_workflow_code(app: Holdfast, h: Harness, use: str) -> None:
    @app.workflow
    async def other(ctx: Context) -> str:
        return str((await ctx.wait_for_event("go", type="go")).payload)

    run = await h.start(other, id="a")

    @app.workflow
    async def flow(ctx: Context) -> None:
        await USES[use](h.app, run)

    with pytest.raises(RunFailedError, match=f"{use} was used in workflow code.*put the call into a step") as failed:
        await h.run(flow)
    assert failed.value.error.name == "IOInWorkflowError"
    assert [instance.id for instance in (await h.app.list(other)).items] == ["a"]
    assert (await run.history()).events == []


async def test_a_step_may_use_the_app_and_handles(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def other(ctx: Context) -> str:
        return str((await ctx.wait_for_event("go", type="go")).payload)

    @app.workflow
    async def flow(ctx: Context) -> str:
        async def start() -> str:
            run = await h.app.start(other, id="b")
            await run.send_event("go", "sent in a step")
            return run.id

        return await ctx.do("start", start)

    assert await h.run(flow) == "b"
    assert await h.run(other, id="b") == "sent in a step"
