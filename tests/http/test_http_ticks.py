"""Ticks over HTTP as the only runner: runs complete without a worker."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from http_api import Api, client_of, until

from holdfast import Authorize, AuthRequest, Context, Denied, Filter, Holdfast, Retry
from holdfast.testing import Harness

EVERY_STORE = True

TICK = "/_runner/tick"


def make_app(calls: Counter[str], **options: Any) -> Holdfast:
    app = Holdfast(**options)

    @app.step(retry=Retry(limit=2, delay="1 minute", backoff="constant"))
    async def flaky(name: str) -> str:
        calls[name] += 1
        if calls[name] < 3:
            raise ValueError("not yet")
        return f"attempt {calls[name]}"

    @app.workflow
    async def child(ctx: Context, name: str) -> str:
        await ctx.sleep("nap", "10 minutes")
        return f"child of {name}"

    @app.workflow
    async def everything(ctx: Context) -> list[Any]:
        name = ctx.info.instance_id
        attempt = await flaky(name)
        await ctx.sleep("pause", "1 hour")
        child_result = await ctx.run(child, name)
        event = await ctx.wait_for_event("go", type="go", timeout="24 hours")
        return [attempt, child_result, event.payload]

    @app.step
    async def count(name: str) -> None:
        calls[name] += 1
        await asyncio.sleep(0.02)

    @app.workflow
    async def short(ctx: Context) -> None:
        await count(ctx.info.instance_id)

    nodes = app.graph("nodes")

    @nodes.node
    async def first() -> int:
        return 1

    @nodes.node(after=[first])
    async def second(first: int) -> int:
        return first + 1

    return app


@pytest.fixture
def calls() -> Counter[str]:
    return Counter()


@pytest.fixture
def shop(database_options: dict[str, Any], calls: Counter[str]) -> tuple[Holdfast, None]:
    return make_app(calls, **database_options), None


async def test_ticks_alone_complete_runs_with_retries_sleeps_children_and_events(h: Harness) -> None:
    async with client_of(h.app.asgi(tick=True)) as http:
        api = Api(http)
        await api.create("everything", id="a")

        async def advance_and_tick(duration: str) -> None:
            """Advance the time without a worker, then send ticks until nothing is due."""
            await h.advance(duration, run=False)
            while (await api.post(TICK))["processed"]:
                pass

        await advance_and_tick("0 s")
        for duration in ("1 minute", "1 minute", "1 hour", "10 minutes"):
            assert await api.status("everything", "a") == "waiting"
            await advance_and_tick(duration)
        assert (await api.get("/everything/instances/a"))["meta"]["currentStep"]["type"] == "waitForEvent"
        await api.post("/everything/instances/a/events", {"type": "go", "payload": 7})
        await advance_and_tick("0 s")
        ended = await api.get("/everything/instances/a")

    assert ended["details"] == {"status": "complete", "output": ["attempt 3", "child of a", 7]}


async def test_no_run_advances_between_ticks(h: Harness, calls: Counter[str]) -> None:
    async with client_of(h.app.asgi(tick=True)) as http:
        api = Api(http)
        await api.create("short", id="a")
        await h.advance("1 day", run=False)

        assert (await api.status("short", "a"), calls["a"]) == ("active", 0)
        assert await api.post(TICK) == {"processed": 1}
        assert (await api.status("short", "a"), calls["a"]) == ("complete", 1)


async def test_ticks_run_graphs_and_obey_pause_and_cancel(h: Harness) -> None:
    async with client_of(h.app.asgi(tick=True)) as http:
        api = Api(http)
        await api.create("nodes", id="g")
        for name in ("paused", "cancelled"):
            await api.create("everything", id=name)
        await api.post("/everything/instances/paused/pause")
        await api.post("/everything/instances/cancelled/cancel")
        while (await api.post(TICK))["processed"]:
            pass

        assert await api.status("nodes", "g") == "complete"
        assert await api.status("everything", "paused") == "paused"
        assert await api.status("everything", "cancelled") == "cancelled"


async def test_concurrent_ticks_share_the_runs(database_options: dict[str, Any], calls: Counter[str]) -> None:
    app = make_app(calls, **database_options)
    async with app.connect(), client_of(app.asgi(tick=True)) as http:
        api = Api(http)
        names = [f"s{n}" for n in range(12)]
        await api.post("/short/instances/batch", {"instances": [{"id": name} for name in names]})

        ticked = await asyncio.gather(*(api.post(TICK, {"maxInstances": 5}) for _ in range(4)))
        while (await api.post(TICK))["processed"]:
            pass
        done = await api.get("/short/instances", status="complete")

    assert sum(response["processed"] for response in ticked) <= len(names)
    assert len(done["instances"]) == len(names)
    assert calls == Counter(names)  # each step was called once


async def test_a_run_of_an_interrupted_tick_continues_with_a_later_tick(h: Harness, calls: Counter[str]) -> None:
    async with client_of(h.app.asgi(tick=True)) as http:
        api = Api(http)
        await api.create("short", id="a")
        interrupted = asyncio.create_task(api.post(TICK))

        async def called() -> bool:
            return calls["a"] > 0

        await until(called)
        interrupted.cancel()
        await asyncio.gather(interrupted, return_exceptions=True)
        await h.advance("1 hour", run=False)  # its lease has expired, if the task was not released
        while (await api.post(TICK))["processed"]:
            pass

        assert await api.status("short", "a") == "complete"


# --- authorization of ticks


@pytest.mark.above_the_store
async def test_a_tick_is_authorized_by_its_hook(calls: Counter[str]) -> None:
    async def scheduler(request: AuthRequest) -> None:
        if request.headers.get("x-scheduler") != "cron":
            raise Denied(401, "only the scheduler ticks")
        if request.body.get("maxInstances", 1) > 10:
            raise Denied(403, "too much at once")

    async def anyone(_request: AuthRequest) -> None: ...

    app = make_app(calls, url="sqlite://", authorize=Authorize(tick=scheduler, create=anyone))
    async with app.connect(), client_of(app.asgi(tick=True)) as http:
        api, cron = Api(http), {"X-Scheduler": "cron"}
        await api.create("short", id="a")

        assert await api.refused("POST", TICK) == (401, "UNAUTHORIZED")
        assert await api.refused("POST", TICK, headers=cron, json={"maxInstances": 11}) == (403, "FORBIDDEN")
        assert calls["a"] == 0
        response = await api.send("POST", TICK, headers=cron, json={"maxInstances": 10})
        assert response.json() == {"processed": 1}


@pytest.mark.above_the_store
async def test_a_caller_confined_by_a_filter_may_not_tick(calls: Counter[str]) -> None:
    async def confined(_request: AuthRequest) -> Filter:
        return Filter(id_prefix="a")

    app = make_app(calls, url="sqlite://", authorize=Authorize(request=confined))
    async with app.connect(), client_of(app.asgi(tick=True)) as http:
        await Api(http).create("short", id="a")
        assert await Api(http).refused("POST", TICK) == (403, "FORBIDDEN")
    assert calls == Counter()


# --- serving without a worker


@pytest.mark.above_the_store
async def test_an_asgi_application_without_a_worker_runs_instances_only_at_ticks(calls: Counter[str]) -> None:
    app = make_app(calls, url="sqlite://")
    asgi = app.asgi(tick=True, worker=False)
    async with asgi.router.lifespan_context(asgi), client_of(asgi) as http:
        api = Api(http)
        await api.create("short", id="a")
        assert await api.post(TICK) == {"processed": 1}  # a worker would have started the run already
        assert await api.status("short", "a") == "complete"


@pytest.mark.above_the_store
async def test_the_lifespan_does_not_change_an_open_application(calls: Counter[str]) -> None:
    app = make_app(calls, url="sqlite://")
    asgi = app.asgi(worker=False)
    async with app:
        async with asgi.router.lifespan_context(asgi):
            await (await app.start("short", id="a")).result(timeout="20 s")
        await (await app.start("short", id="b")).result(timeout="20 s")
