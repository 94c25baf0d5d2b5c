"""Start options over HTTP, and requests that wait for the result of a run."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from http_api import Api, opened
from http_shop import Gates

from holdfast import Batch, BearerTokens, Context, Holdfast
from holdfast.kernel.options import RunOptions
from holdfast.store.protocol import RunByName

EVERY_STORE = True

OPTIONS: dict[str, Any] = {
    "queue": "slow",
    "priority": -3,
    "delay": "1h",
    "executionTimeout": "2 days",
    "runTimeout": 3600,
    "taskTimeout": "5s",
    "retry": {"limit": 2, "delay": "1s", "backoff": "linear", "maxDelay": "1m", "nonRetryable": ["KeyError"]},
    "search": {"customer": "c-1", "total": 5},
    "memo": {"note": [1]},
    "context": {"tenant": "t"},
    "summary": "an order",
}


async def stored(app: Holdfast, workflow: str, id: str) -> Any:
    [row] = await app._opened().store.read(RunByName(workflow, id))
    return row


async def check_stored(app: Holdfast, id: str) -> None:
    row = await stored(app, "waiter", id)
    options = RunOptions.decode(row.options)
    assert (row.queue, row.priority, row.status) == ("slow", -3, "waiting")
    assert row.run_at - row.created_at == 3_600_000
    assert (options.execution_ms, options.run_ms, options.task_ms) == (172_800_000, 3_600_000, 5_000)
    assert options.retry is not None
    assert (options.retry.limit, options.retry.backoff, options.retry.max_delay_ms) == (2, "linear", 60_000)
    assert options.retry.non_retryable_names == {"KeyError"}
    assert (options.search, options.memo) == ({"customer": "c-1", "total": 5}, {"note": [1]})
    assert (options.context, options.summary) == ({"tenant": "t"}, "an order")


async def test_a_created_instance_has_all_the_start_options_of_the_request(
    api: Api, shop: tuple[Holdfast, Gates]
) -> None:
    await api.post("/waiter/instances", {"id": "a", **OPTIONS})
    await api.post("/waiter/instances/batch", {"instances": [{"id": "b", **OPTIONS}, {"id": "c"}]})

    await check_stored(shop[0], "a")
    await check_stored(shop[0], "b")
    assert (await stored(shop[0], "waiter", "c")).queue == "default"
    found = await api.get("/waiter/instances", **{"search.customer": "c-1"})
    assert {instance["id"] for instance in found["instances"]} == {"a", "b"}


async def test_start_at_delays_a_run_until_that_time(api: Api, shop: tuple[Holdfast, Gates]) -> None:
    await api.post("/waiter/instances", {"id": "a", "startAt": "2199-01-01T00:00:00+01:00", "timeout": "1h"})

    row = await stored(shop[0], "waiter", "a")
    assert abs(row.run_at - 7_226_578_800_000) < 5_000
    assert RunOptions.decode(row.options).execution_ms == 3_600_000


async def test_on_conflict_and_on_reuse_decide_about_an_existing_id(api: Api) -> None:
    await api.create("waiter", id="a")

    used = await api.post("/waiter/instances", {"id": "a", "onConflict": "use_existing"})
    assert used["id"] == "a"
    await api.post("/waiter/instances", {"id": "a", "onConflict": "terminate_existing"})
    assert (await api.get("/waiter/instances/a"))["meta"]["runNumber"] == 1
    await api.post("/waiter/instances/a/terminate")
    assert await api.refused("POST", "/waiter/instances", json={"id": "a", "onConflict": "use_existing"}) == (
        409,
        "INSTANCE_ID_ALREADY_EXISTS",
    )
    await api.post("/waiter/instances", {"id": "a", "onReuse": "allow"})
    assert (await api.get("/waiter/instances/a"))["meta"]["runNumber"] == 2


async def test_a_start_retries_a_failed_instance(api: Api) -> None:
    await api.create("failing", id="a")
    await api.get("/failing/instances/a/result", wait="20s")

    await api.post("/failing/instances", {"id": "a", "onReuse": "retry_if_failed"})
    await api.get("/failing/instances/a/result", wait="20s")
    await api.post("/failing/instances/batch", {"instances": [{"id": "a", "onReuse": "retry_if_failed"}]})

    assert (await api.get("/failing/instances/a"))["meta"]["runNumber"] == 2
    records = (await api.get("/failing/instances/a/audit"))["records"]
    assert [record["action"] for record in records] == ["retry", "retry"]


async def test_messages_of_a_start_are_delivered_before_anything_else(api: Api) -> None:
    await api.post("/waiter/instances", {"id": "a", "messages": [{"type": "go", "payload": 7}, {"type": "other"}]})
    batch = [{"id": "b", "messages": [{"type": "go"}]}]
    await api.post("/waiter/instances/batch", {"instances": batch})

    assert (await api.get("/waiter/instances/a/result", wait="20s"))["status"] == "complete"
    assert (await api.get("/waiter/instances/b/result", wait="20s"))["status"] == "complete"
    events = (await api.get("/waiter/instances/a/history"))["events"]
    assert [(event["type"], event["payload"]) for event in events] == [("go", 7), ("other", None)]
    again = {"id": "a", "onReuse": "use_existing", "messages": [{"type": "go"}]}
    assert await api.refused("POST", "/waiter/instances", json=again) == (409, "INSTANCE_TERMINAL")


async def test_a_start_that_makes_no_run_answers_with_the_run_that_stands_for_it(api: Api) -> None:
    for policy in (
        {"singleton": "skip", "key": "k"},
        {"dedupe": {"key": "k"}},
        {"debounce": {"wait": "1h", "key": "k"}},
    ):
        first = await api.post("/waiter/instances", policy)
        again = await api.post("/waiter/instances", policy)

        assert again["id"] == first["id"]
    held = await api.post("/waiter/instances", {"singleton": "queue", "key": "k"})
    assert held["details"]["status"] == "waiting"


@pytest.mark.above_the_store
async def test_a_start_without_room_is_429_and_one_of_a_batched_workflow_answers_with_its_batch() -> None:
    app = Holdfast("sqlite://")
    one = app.limit("one", concurrency=1)

    @app.workflow(limits=[one], hold="until_end")
    async def flow(ctx: Context) -> None:
        await ctx.sleep("nap", "1 day")

    @app.workflow(batch=Batch(size=10, wait="1 hour"))
    async def index(ctx: Context, documents: list[int]) -> None: ...

    async with opened(app) as api:
        first = await api.post("/flow/instances", {"onLimit": "reject"})
        assert await api.refused("POST", "/flow/instances", json={"onLimit": "reject"}) == (429, "LIMIT_REACHED")
        dropped = await api.post("/flow/instances", {"onLimit": "drop"})
        batches = {(await api.post("/index/instances", {"params": n}))["id"] for n in range(3)}

        assert (first["details"]["status"], dropped["details"]["status"]) == ("active", "cancelled")
        assert len(batches) == 1
        assert (await api.get(f"/index/instances/{batches.pop()}"))["meta"]["params"] == [0, 1, 2]


@pytest.mark.above_the_store
@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"delay": "soon"}, "INVALID_OPTION"),
        ({"delay": -1}, "VALIDATION_ERROR"),
        ({"delay": "1s", "startAt": "2030-01-01T00:00:00Z"}, "INVALID_OPTION"),
        ({"startAt": "2030-01-01T00:00:00"}, "INVALID_OPTION"),
        ({"startAt": "tomorrow"}, "INVALID_OPTION"),
        ({"timeout": "1s", "executionTimeout": "1s"}, "INVALID_OPTION"),
        ({"timeout": 0}, "VALIDATION_ERROR"),
        ({"priority": "high"}, "VALIDATION_ERROR"),
        ({"priority": 2**31}, "VALIDATION_ERROR"),
        ({"queue": ""}, "VALIDATION_ERROR"),
        ({"retry": {"limit": -1}}, "VALIDATION_ERROR"),
        ({"retry": {"tries": 1}}, "VALIDATION_ERROR"),
        ({"cron": "often"}, "INVALID_OPTION"),
        ({"search": {"bad name": 1}}, "INVALID_OPTION"),
        ({"search": {"a": {}}}, "INVALID_OPTION"),
        ({"onConflict": "replace"}, "VALIDATION_ERROR"),
        ({"eager": False}, "VALIDATION_ERROR"),
        ({"messages": {"type": "go"}}, "VALIDATION_ERROR"),
        ({"messages": [{"type": "go", "id": "1"}]}, "VALIDATION_ERROR"),
        ({"messages": [{"type": "go"}] * 101}, "VALIDATION_ERROR"),
        ({"messages": [{"type": "@cancel"}]}, "INVALID_EVENT_TYPE"),
    ],
)
async def test_an_invalid_option_is_refused_and_nothing_is_started(api: Api, options: Any, code: str) -> None:
    assert await api.refused("POST", "/waiter/instances", json={"id": "a", **options}) == (400, code)
    batch = {"instances": [{"id": "b"}, {"id": "a", **options}]}
    assert await api.refused("POST", "/waiter/instances/batch", json=batch) == (400, code)

    assert await api.count("waiter") == 0


@pytest.mark.above_the_store
async def test_a_start_that_ends_or_repairs_runs_or_sends_events_needs_the_right_to_do_so() -> None:
    app = Holdfast("sqlite://", authorize=BearerTokens({"r" * 20: ["create", "read"], "m" * 20: ["create", "manage"]}))

    @app.workflow
    async def waiter(ctx: Context) -> None:
        await ctx.sleep("1 day")

    async with opened(app) as api:
        creator = {"authorization": f"Bearer {'r' * 20}"}
        body = {"id": "a", "onConflict": "terminate_existing"}
        assert (await api.send("POST", "/waiter/instances", json={"id": "a"}, headers=creator)).status_code == 200
        assert (await api.send("POST", "/waiter/instances", json=body, headers=creator)).status_code == 403
        batch = {"instances": [{"id": "b"}, body]}
        assert (await api.send("POST", "/waiter/instances/batch", json=batch, headers=creator)).status_code == 403
        manager = {"authorization": f"Bearer {'m' * 20}"}
        assert (await api.send("POST", "/waiter/instances", json=body, headers=manager)).status_code == 200
        assert (await (await app.get("waiter", "a")).describe()).run_number == 1
        for policy in ({"singleton": "replace_waiting"}, {"onReuse": "retry_if_failed"}):
            assert (await api.send("POST", "/waiter/instances", json=policy, headers=creator)).status_code == 403
        message = {"messages": [{"type": "go"}]}
        for caller in (creator, manager):
            assert (await api.send("POST", "/waiter/instances", json=message, headers=caller)).status_code == 403


async def test_result_waits_for_the_end_of_a_run(api: Api) -> None:
    await api.create("waiter", id="a")
    assert (await api.http.get("/waiter/instances/a/result")).status_code == 202

    waiting = asyncio.ensure_future(api.http.get("/waiter/instances/a/result", params={"wait": "30s"}))
    await asyncio.sleep(0)
    await api.post("/waiter/instances/a/events", {"type": "go", "payload": 7})
    response = await waiting

    assert (response.status_code, response.json()["status"]) == (200, "complete")
    assert "output" in response.json()
    assert (await api.get("/waiter/instances/a/result"))["status"] == "complete"


async def test_result_of_a_run_that_has_not_ended_in_time_is_202(api: Api) -> None:
    await api.create("waiter", id="a")

    response = await api.http.get("/waiter/instances/a/result", params={"wait": "20ms"})

    assert response.status_code == 202
    assert set(response.json()) == {"status"}


async def test_result_of_a_failed_run_has_its_error(api: Api) -> None:
    await api.create("failing", id="a")

    response = await api.http.get("/failing/instances/a/result", params={"wait": "20"})

    assert (response.status_code, response.json()["status"]) == (200, "errored")
    assert response.json()["error"]["name"]


@pytest.mark.above_the_store
@pytest.mark.parametrize("wait", ["61s", "2h", "long", "-1s", "1s1s"])
async def test_an_invalid_wait_is_refused(api: Api, wait: str) -> None:
    await api.create("waiter", id="a")

    response = await api.send("GET", "/waiter/instances/a/result", params={"wait": wait})

    assert (response.status_code, response.json()["issues"][0]["path"]) == (400, ["query", "wait"])


@pytest.mark.above_the_store
async def test_the_result_of_an_unknown_instance_is_not_found(api: Api) -> None:
    assert await api.refused("GET", "/waiter/instances/none/result?wait=1s") == (404, "INSTANCE_NOT_FOUND")
