"""Retry, fork and resolve over HTTP, and the audit records of control requests."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from http_api import Api, client_of

from holdfast import Authorize, AuthRequest, BearerTokens, Context, Filter, Holdfast, Retry
from holdfast.client.bulk_jobs import BulkJobs
from holdfast.store.protocol import SaveBulkJob
from holdfast.testing import Harness
from postgres_harness import CleanStore

EVERY_STORE = True


def _app(fixed: list[bool], **options: Any) -> Holdfast:
    app = Holdfast("sqlite://", **options)

    @app.step(retry=Retry(limit=0))
    async def pay(amount: Any) -> Any:
        if not fixed:
            raise KeyError("no")
        return amount

    @app.workflow
    async def order(ctx: Context, amount: int) -> Any:
        return [await ctx.do("double", lambda: amount * 2), await pay(amount)]

    return app


async def _send(api: Api, method: str, path: str, status: int = 200, **body: Any) -> Any:
    response = await api.send(method, path, **({"json": body} if method == "POST" else {}))
    assert response.status_code == status, response.text
    return response.json()


@pytest.fixture
def store(database: str) -> Any:
    return CleanStore if database == "postgres" else None


async def test_requests_retry_resolve_and_fork_an_instance(store: Any) -> None:
    fixed: list[bool] = []

    async def named(request: AuthRequest) -> None:
        request.act_as(request.headers.get("x-user", "nobody"))

    app = _app(fixed, authorize=Authorize(request=named))
    async with Harness(app, seed=7, store=store) as h, client_of(app.asgi()) as http:
        api = Api(http)
        for name in ("a", "b"):
            await h.start("order", 4, id=name)
        await h.run_until_idle()

        await _send(api, "POST", "/order/instances/b/resolve", stepKey="pay", result={"by": "hand"}, reason="cash")
        fixed.append(True)
        await api.send("POST", "/order/instances/a/retry", json={"reason": "fixed"}, headers={"x-user": "ann"})
        forked = await _send(api, "POST", "/order/instances/b/fork", before="pay", id="c", outputs={"double": 1})
        await h.run_until_idle()

        outputs = [(await _send(api, "GET", f"/order/instances/{name}"))["details"]["output"] for name in "abc"]
        assert outputs == [[8, 4], [8, {"by": "hand"}], [1, 4]]
        assert forked == {"id": "c", "details": {"status": "active"}}
        meta = (await _send(api, "GET", "/order/instances/c"))["meta"]
        assert (meta["origin"]["action"], meta["origin"]["pid"]) == ("fork", "order/b")
        assert (await _send(api, "GET", "/order/instances/b"))["meta"]["forks"] == ["order/c"]
        steps = (await _send(api, "GET", "/order/instances/b/history"))["steps"]
        assert [step.get("resolved") for step in steps] == [None, True]
        [record] = (await _send(api, "GET", "/order/instances/a/audit"))["records"]
        assert (record["actor"], record["action"], record["reason"]) == ("ann", "retry", "fixed")
        everything = await _send(api, "GET", "/_audit?pageSize=2")
        assert [one["action"] for one in everything["records"]] == ["fork", "retry"]
        rest = await _send(api, "GET", f"/_audit?cursor={everything['cursor']}")
        assert [(one["action"], one["target"]) for one in rest["records"]] == [("resolve", "order/b")]


async def test_an_ask_gets_a_reply_by_hand(store: Any) -> None:
    app = Holdfast("sqlite://")

    @app.workflow
    async def stock(ctx: Context, item: str) -> str:
        await ctx.wait_for_event("go", type="go")
        return item

    @app.workflow
    async def buyer(ctx: Context, topic: str) -> Any:
        return await ctx.ask("stock/tea", topic, {"pieces": 3})

    async with Harness(app, seed=7, store=store) as h, client_of(app.asgi()) as http:
        api = Api(http)
        await h.start("stock", "tea", id="tea")
        for name in ("a", "b"):
            await h.start("buyer", "take", id=name)
        await h.run_until_idle()
        first, second = [one["id"] for one in (await _send(api, "GET", "/stock/instances/tea/mailbox"))["events"]]

        await _send(api, "POST", "/stock/instances/tea/reply", eventId=first, payload={"left": 4}, reason="by phone")
        await _send(api, "POST", "/stock/instances/tea/reply", eventId=second, error="sold out")
        await h.run_until_idle()

        details = [(await _send(api, "GET", f"/buyer/instances/{name}"))["details"] for name in "ab"]
        assert (details[0]["output"], details[1]["error"]["name"]) == ({"left": 4}, "Rejected")
        events = (await _send(api, "GET", "/stock/instances/tea/mailbox"))["events"]
        replies = {"ok": True, "payload": {"left": 4}}, {"ok": False, "payload": "sold out"}
        assert [one["reply"] for one in events] == [*replies]
        records = (await _send(api, "GET", "/stock/instances/tea/audit"))["records"]
        assert [(one["action"], one["reason"]) for one in records] == [("reply", None), ("reply", "by phone")]
        again = await _send(api, "POST", "/stock/instances/tea/reply", 409, eventId=first, payload=5)
        assert again["code"] == "INVALID_STATE"
        for body in ({"eventId": "1"}, {"eventId": "x:y"}, {"eventId": first, "payload": 1, "error": "no"}):
            await _send(api, "POST", "/stock/instances/tea/reply", 400, **body)


async def test_requests_that_the_state_does_not_allow_are_409(store: Any) -> None:
    app = _app([True])
    async with Harness(app, seed=7, store=store) as h, client_of(app.asgi()) as http:
        api = Api(http)
        await h.start("order", 4, id="a")
        await h.run_until_idle()

        assert (await _send(api, "POST", "/order/instances/a/retry", 409))["code"] == "INVALID_STATE"
        resolve = await _send(api, "POST", "/order/instances/a/resolve", 409, stepKey="pay", error="x")
        assert resolve["code"] == "INVALID_STATE"
        assert (await _send(api, "POST", "/order/instances/a/fork", 409, before="no"))["code"] == "INVALID_STATE"
        assert (await _send(api, "POST", "/order/instances/a/fork", 409, before="pay", id="a"))["code"] == (
            "INSTANCE_ID_ALREADY_EXISTS"
        )
        assert (await _send(api, "POST", "/order/instances/x/retry", 404))["code"] == "INSTANCE_NOT_FOUND"
        for body in ({}, {"stepKey": 3}, {"stepKey": "pay", "error": 3}):
            response = await api.send("POST", "/order/instances/a/resolve", json=body)
            assert response.status_code == 400, body


@pytest.mark.above_the_store
async def test_a_confined_caller_forks_only_to_its_own_ids() -> None:
    async def confined(_request: AuthRequest) -> Filter:
        return Filter(id_prefix="acme-")

    app = _app([True], authorize=Authorize(request=confined))
    async with Harness(app, seed=7) as h, client_of(app.asgi()) as http:
        api = Api(http)
        await h.start("order", 4, id="acme-1")
        await h.run_until_idle()

        await _send(api, "POST", "/order/instances/acme-1/fork", 403, before="pay", id="globex-1")
        await _send(api, "POST", "/order/instances/acme-1/fork", 403, before="pay")
        await _send(api, "POST", "/order/instances/acme-1/fork", before="pay", id="acme-2")
        await _send(api, "GET", "/_audit", 403)

        await (await h.app.get("order", "acme-1")).fork(before="pay", id="globex-2")
        family = await _send(api, "GET", "/order/instances/acme-1/family")
        assert [fork["pid"] for fork in family["forks"]] == ["order/acme-2"]


async def test_a_bulk_action_runs_in_the_background(store: Any) -> None:
    fixed: list[bool] = []
    app = _app(fixed)
    async with Harness(app, seed=7, store=store) as h, client_of(app.asgi()) as http:
        api = Api(http)
        for n in range(60):
            await h.start("order", n, id=f"o{n}")
        await h.run_until_idle()
        failed = {"workflow": "order", "error": "KeyError", "search": {}}
        dry = await _send(api, "POST", "/_bulk", action="retry", filter=failed, dryRun=True)
        assert (dry["count"], [item["id"] for item in dry["sample"]][:2]) == (60, ["o0", "o1"])
        assert {item["workflowName"] for item in dry["sample"]} == {"order"}
        fixed.append(True)

        started = await _send(api, "POST", "/_bulk", action="retry", filter=failed, reason="fixed")
        while (job := await _send(api, "GET", f"/_bulk/{started['id']}"))["status"] == "running":
            await asyncio.sleep(0.01)
        await h.run_until_idle()

        assert (job["total"], job["done"], job["failed"], job["skipped"]) == (60, 60, 0, 0)
        assert (job["action"], job["reason"], job["errors"]) == ("retry", "fixed", [])
        assert await app.bulk(Filter(status="complete")).count() == 60
        record = (await _send(api, "GET", "/order/instances/o7/audit"))["records"][0]
        assert (record["action"], record["reason"]) == ("retry", "fixed")
        event = {"type": "x", "payload": 1}
        await _send(api, "POST", "/_bulk", action="sendEvent", filter={"idPrefix": "o"}, arguments=event)


async def test_a_bulk_fork_is_counted_first_and_then_runs_in_the_background(store: Any) -> None:
    fixed: list[bool] = []
    app = _app(fixed)
    async with Harness(app, seed=7, store=store) as h, client_of(app.asgi()) as http:
        api = Api(http)
        for n in range(3):
            await h.start("order", n, id=f"o{n}")
        await h.run_until_idle()
        request = {"action": "fork", "filter": {"error": "KeyError"}, "arguments": {"before": "pay", "suffix": "-2"}}
        dry = await _send(api, "POST", "/_bulk", dryRun=True, **request)
        assert (dry["count"], len((await app.list()).items)) == (3, 3)
        fixed.append(True)

        started = await _send(api, "POST", "/_bulk", **request)
        while (job := await _send(api, "GET", f"/_bulk/{started['id']}"))["status"] == "running":
            await asyncio.sleep(0.01)
        await h.run_until_idle()

        assert (job["action"], job["done"]) == ("fork", 3)
        assert {one.id for one in (await app.list(status="complete")).items} == {"o0-2", "o1-2", "o2-2"}


async def test_a_bulk_action_continues_after_a_restart(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    app = _app([])
    async with Harness(app, seed=7, store=store) as h:
        for n in range(60):
            await h.start("order", n, id=f"o{n}")
        await h.run_until_idle()
        client = app._opened().client
        jobs, bulk = client.bulk_jobs, client._store.bulk

        async def stopping(request: Any) -> Any:
            answer = await bulk(request)
            if isinstance(request, SaveBulkJob) and request.position:
                jobs.stop()  # a process that died after its first batch
            return answer

        monkeypatch.setattr(client._store, "bulk", stopping)
        job_id = await jobs.create("delete", [Filter(status="errored")], {})
        await client.local.wait()
        job = await jobs.get(job_id)
        assert job is not None
        assert (job.result.done, job.ended_at) == (50, None)
        monkeypatch.undo()

        async with client_of(app.asgi()) as http:
            client.bulk_jobs = BulkJobs(client._store, client.bulk_actions, client.local, client._requests)
            while (job := await _send(Api(http), "GET", f"/_bulk/{job_id}"))["status"] == "running":
                await asyncio.sleep(0.01)

        assert (job["total"], job["done"]) == (60, 60)
        assert (await app.list()).items == []


@pytest.mark.above_the_store
async def test_a_bulk_action_that_sends_events_needs_the_right_to_send_events() -> None:
    tokens = {"m" * 20: ["manage"], "s" * 20: ["manage", "send_event"]}
    app = _app([], authorize=BearerTokens(tokens))
    async with Harness(app, seed=7), client_of(app.asgi()) as http:
        statuses = {}
        for action, arguments in (("sendEvent", {"type": "go"}), ("pause", {})):
            body = {"action": action, "filter": {"workflow": "order"}, "arguments": arguments}
            for token in tokens:
                headers = {"authorization": f"Bearer {token}"}
                sent = await Api(http).send("POST", "/_bulk", json=body, headers=headers)
                statuses[action, token[0]] = sent.status_code

    assert statuses == {("sendEvent", "m"): 403, ("sendEvent", "s"): 200, ("pause", "m"): 200, ("pause", "s"): 200}


@pytest.mark.above_the_store
async def test_an_invalid_bulk_request_is_400_and_a_confined_one_is_confined() -> None:
    async def confined(_request: AuthRequest) -> Filter:
        return Filter(id_prefix="acme-")

    app = _app([], authorize=Authorize(request=confined))
    async with Harness(app, seed=7) as h, client_of(app.asgi()) as http:
        api = Api(http)
        for name in ("acme-1", "globex-1"):
            await h.start("order", 1, id=name)
        await h.run_until_idle()

        for body in (
            {"action": "explode", "filter": {"status": "errored"}},
            {"action": "retry", "filter": {}},
            {"action": "retry", "filter": {"color": "red"}},
            {"action": "retry", "filter": {"endedAfter": "yesterday"}},
            {"action": "retry"},
            {"action": "sendEvent", "filter": {"status": "errored"}},
            {"action": "fork", "filter": {"status": "errored"}},
            {"action": "cancel", "filter": {"status": "errored"}, "arguments": {"deadlineMs": "soon"}},
            {"action": "cancel", "filter": {"status": "errored"}, "arguments": {"deadlineMs": 10**30}},
            {"action": "cancel", "filter": {"status": "errored"}, "arguments": {"deadline": 5}},
            {"action": "move", "filter": {"status": "errored"}, "arguments": {"version": "a b"}},
            {"action": "fork", "filter": {"status": "errored"}, "arguments": {"before": "pay", "outputs": [1]}},
            {"action": "sendEvent", "filter": {"status": "errored"}, "arguments": {"type": "go", "id": 5}},
            {"action": "retry", "filter": {"status": "errored"}, "arguments": {"type": "go"}},
        ):
            assert (await api.send("POST", "/_bulk", json=body)).status_code == 400, body
        dry = await _send(api, "POST", "/_bulk", action="delete", filter={"status": "errored"}, dryRun=True)
        assert [item["id"] for item in dry["sample"]] == ["acme-1"]
        await _send(api, "POST", "/_bulk", action="delete", filter={"status": "errored"})
        await app._opened().client.local.wait()
        assert [item.id for item in (await app.list()).items] == ["globex-1"]
