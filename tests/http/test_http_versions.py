"""Versions over HTTP and on the command line: open runs of each release, and moves to another one."""

from __future__ import annotations

from http_api import Api, opened
from http_shop import make_shop

from holdfast import Context, WorkerConfig

EVERY_STORE = True


async def test_versions_show_open_runs_and_living_workers(api: Api) -> None:
    await api.create("waiter", id="w")
    await api.until("waiter", "w", "waiting")

    [found] = (await api.get("/_versions"))["versions"]

    assert (found["version"], found["openRuns"], found["alive"]) == (None, 1, True)
    assert len(found["workers"]) == 1


async def test_a_pinned_run_is_moved_to_another_version() -> None:
    app, _ = make_shop(worker=WorkerConfig(version="v1"))

    @app.workflow(pinned=True)
    async def pinned(ctx: Context) -> None:
        await ctx.wait_for_event("wait", type="go")

    async with opened(app) as api:
        await api.create("pinned", id="p")
        await api.until("pinned", "p", "waiting")

        assert await api.post("/pinned/instances/p/move", {"version": "v2"}) == {"ok": True}

        versions = (await api.get("/_versions"))["versions"]
        assert [(one["version"], one["openRuns"], one["alive"]) for one in versions] == [
            ("v1", 0, True),
            ("v2", 1, False),
        ]
        for body in ({}, {"version": ""}, {"version": "two words"}, {"version": 7}):
            assert (await api.http.post("/pinned/instances/p/move", json=body)).status_code == 400
        await api.post("/pinned/instances/p/terminate", {})
        ended = await api.http.post("/pinned/instances/p/move", json={"version": "v1"})
        assert (ended.status_code, ended.json()["code"]) == (409, "INSTANCE_TERMINAL")
        assert (await api.http.post("/pinned/instances/none/move", json={"version": "v1"})).status_code == 404
