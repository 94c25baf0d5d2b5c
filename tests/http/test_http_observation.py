"""Routes about the whole database: statistics, workers, queues, rights of the caller, metrics."""

from __future__ import annotations

from typing import Any

import pytest
from http_api import Api, client_of, opened
from http_shop import make_shop

from holdfast import Authorize, AuthRequest, BearerTokens, Context, Denied, Filter, Holdfast

EVERY_STORE = True


async def test_stats_show_runs_throughput_errors_and_slow_steps(api: Api) -> None:
    await api.create("failing", id="a")
    await api.until("failing", "a", "errored")
    await api.create("waiter", id="b")
    await api.until("waiter", "b", "waiting")

    stats = await api.get("/_stats")

    assert stats["runs"] == {"failing": {"errored": 1}, "waiter": {"waiting": 1}}
    assert (stats["startedPerMinute"], stats["endedPerMinute"]) == (2, 1)
    assert (stats["startedLastHour"], stats["endedLastHour"]) == (2, 1)
    assert (stats["due"], stats["oldestDue"], stats["workers"]) == (0, None, 1)
    assert list(stats["errors"].values()) == [1]
    assert isinstance(stats["slowestSteps"], list)


async def test_workers_and_queues_are_listed(api: Api) -> None:
    await api.post("/waiter/instances", {"queue": "night"})

    [worker] = await api.workers()
    queues = (await api.get("/_queues"))["queues"]

    assert worker["alive"] is True
    assert worker["queues"] == ["default"]
    assert [(queue["name"], queue["due"], queue["workers"]) for queue in queues] == [("default", 0, 1), ("night", 1, 0)]
    assert queues[1]["oldestDue"] is not None


@pytest.mark.above_the_store
async def test_me_names_the_allowed_actions() -> None:
    app, _ = make_shop(authorize=BearerTokens({"r" * 20: ["read"], "m" * 20: ["read", "manage", "create"]}))
    async with opened(app) as api:
        for token, actions in (("r", {"read"}), ("m", {"read", "manage", "create"})):
            response = await api.http.get("/_me", headers={"authorization": f"Bearer {token * 20}"})
            assert set(response.json()["actions"]) == actions
        assert (await api.http.get("/_me")).status_code == 401
    async with client_of(make_shop()[0].asgi()) as http:
        assert {"read", "create", "manage", "send_event", "tick"} <= set((await http.get("/_me")).json()["actions"])


@pytest.mark.above_the_store
@pytest.mark.parametrize("path", ["/_stats", "/_workers", "/_queues", "/_attention", "/_series"])
async def test_a_caller_who_may_access_only_some_instances_sees_no_statistics(path: str) -> None:
    async def tenant(request: AuthRequest) -> Filter:
        return Filter(id_prefix="a-")

    app, _ = make_shop(authorize=Authorize(request=tenant))
    async with opened(app) as api:
        assert await api.refused("GET", path) == (403, "FORBIDDEN")


def metered() -> Holdfast:
    app = Holdfast("sqlite://")

    @app.workflow
    async def order(ctx: Context) -> int:
        return 1

    return app


@pytest.mark.above_the_store
async def test_metrics_are_served_at_the_root() -> None:
    app = metered()
    asgi = app.asgi(metrics=True)
    async with app, client_of(asgi, base="http://test") as http:
        await (await app.start("order")).result(timeout=60)
        response = await http.get("/metrics")
        missing = await http.get("/api/workflows/metrics")

    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert 'holdfast_runs_ended_total{workflow="order",status="complete"} 1' in response.text
    assert missing.status_code == 404


@pytest.mark.above_the_store
async def test_metrics_are_off_by_default_and_pass_the_gate() -> None:
    app = metered()
    async with app, client_of(app.asgi(), base="http://test") as http:
        assert (await http.get("/metrics")).status_code == 404

    async def nobody(request: Any) -> None:
        raise Denied(401, "who are you")

    app.authorize = Authorize(request=nobody)
    async with app, client_of(app.asgi(metrics=True), base="http://test") as http:
        assert (await http.get("/metrics")).status_code == 401
