"""Responses about workflows, instances and their histories: fields, nulls and orders."""

from __future__ import annotations

import re
from typing import Any

import pytest
from http_api import Api, client_of, opened
from http_shop import make_shop

from holdfast import Context, Holdfast, Limits, step_info
from holdfast.testing import Harness

EVERY_STORE = True
DATE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
STEP = {
    "stepKey", "name", "type", "status", "attempts", "maxAttempts", "timeoutMs", "nextRetryAt", "wakeAt",
    "waitEventType",
}  # fmt: skip
HISTORY_STEP = STEP | {"id", "runNumber", "result", "createdAt", "updatedAt"}
EVENT = {"id", "runNumber", "type", "payload", "createdAt", "deliveredAt", "consumedByStepKey"}
LOG = {
    "id", "runNumber", "stepKey", "attempt", "level", "category", "message", "data", "isReplay", "createdAt",
}  # fmt: skip


async def test_workflows_are_listed_in_the_order_of_registration_with_and_without_a_slash(api: Api) -> None:
    names = [
        "order", "echo", "nothing", "strict", "failing", "sleepy", "waiter", "approved", "doors", "retrying", "chatty",
        "tagged", "tidy", "stubborn", "cancel_event", "second", "helper", "boss", "order.process", "pipeline",
    ]  # fmt: skip

    assert await api.get("") == await api.get("/") == {"workflows": [{"name": name} for name in names]}


# --- lists


async def test_a_list_is_newest_first_and_pages_by_cursor(api: Api) -> None:
    for n in range(5):
        await api.create("waiter", id=f"w{n}")

    first = await api.get("/waiter/instances", pageSize=2)
    second = await api.get("/waiter/instances", pageSize=2, cursor=first["cursor"])
    third = await api.get("/waiter/instances", pageSize=2, cursor=second["nextCursor"])

    assert [instance["id"] for page in (first, second, third) for instance in page["instances"]] == [
        "w4",
        "w3",
        "w2",
        "w1",
        "w0",
    ]
    assert first["cursor"] == first["nextCursor"]
    assert [page["hasNextPage"] for page in (first, second, third)] == [True, True, False]
    assert set(third) == {"instances", "hasNextPage"}
    assert set(first["instances"][0]) == {"id", "details", "createdAt"}
    assert DATE.fullmatch(first["instances"][0]["createdAt"])


async def test_a_cursor_keeps_its_position_while_instances_are_created(api: Api) -> None:
    for n in range(4):
        await api.create("waiter", id=f"w{n}")
    first = await api.get("/waiter/instances", pageSize=2)
    await api.create("waiter", id="new")

    second = await api.get("/waiter/instances", pageSize=2, cursor=first["cursor"])

    assert [instance["id"] for instance in second["instances"]] == ["w1", "w0"]


async def test_a_list_filters_by_status(api: Api) -> None:
    await api.create("waiter", id="a")
    await api.create("waiter", id="b")
    await api.post("/waiter/instances/a/terminate")
    await api.until("waiter", "b", "waiting")

    async def ids(status: str) -> list[str]:
        return [instance["id"] for instance in (await api.get("/waiter/instances", status=status))["instances"]]

    assert await ids("terminated") == ["a"]
    assert await ids("waiting") == ["b"]
    assert await ids("complete") == []


async def test_a_list_has_25_entries_by_default(api: Api) -> None:
    await api.post("/nothing/instances/batch", {"instances": [{"id": f"n{n}"} for n in range(30)]})

    assert len((await api.get("/nothing/instances"))["instances"]) == 25
    assert len((await api.get("/nothing/instances", pageSize=100))["instances"]) == 30


@pytest.mark.above_the_store
@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("pageSize=0", "VALIDATION_ERROR"),
        ("pageSize=101", "VALIDATION_ERROR"),
        ("pageSize=-1", "VALIDATION_ERROR"),
        ("pageSize=x", "VALIDATION_ERROR"),
        ("pageSize=", "VALIDATION_ERROR"),
        ("pageSize=1.0", "VALIDATION_ERROR"),
        ("pageSize=1_0", "VALIDATION_ERROR"),
        ("pageSize=%201", "VALIDATION_ERROR"),
        (f"pageSize={'9' * 5000}", "VALIDATION_ERROR"),
        ("pageSize=1&pageSize=2", "VALIDATION_ERROR"),
        ("status=running", "VALIDATION_ERROR"),
        ("status=", "VALIDATION_ERROR"),
        ("status=%00", "VALIDATION_ERROR"),
        ("cursor=", "INVALID_CURSOR"),
        ("cursor=x", "INVALID_CURSOR"),
        ("cursor=5", "INVALID_CURSOR"),
        ("cursor=i", "INVALID_CURSOR"),
        ("cursor=i-1", "INVALID_CURSOR"),
        ("cursor=i1.5", "INVALID_CURSOR"),
        ("cursor=i%D9%A1", "INVALID_CURSOR"),
        ("cursor=e1", "INVALID_CURSOR"),
        (f"cursor=i{'9' * 19}", "INVALID_CURSOR"),
        ("cursor=%FF", "INVALID_CURSOR"),
    ],
)
async def test_an_invalid_query_of_a_list_is_refused(api: Api, query: str, code: str) -> None:
    assert await api.refused("GET", f"/waiter/instances?{query}") == (400, code)


async def test_the_page_size_is_limited_by_the_app() -> None:
    app, _ = make_shop(limits=Limits(page_size=3))
    async with opened(app) as api:
        assert await api.refused("GET", "/waiter/instances?pageSize=4") == (400, "VALIDATION_ERROR")
        assert await api.get("/waiter/instances", pageSize=3)


# --- one instance


async def test_an_instance_shows_every_field(api: Api) -> None:
    await api.create("order", {"id": "o", "total": 3}, id="o-1")

    instance = await api.until("order", "o-1", "waiting")

    assert set(instance) == {"id", "details", "meta"}
    assert instance["details"] == {"status": "waiting"}
    meta = instance["meta"]
    assert set(meta) == {
        "workflowName", "kind", "runNumber", "params", "createdAt", "updatedAt", "startedAt", "completedAt",
        "currentStep", "why", "whyParts",
    }  # fmt: skip
    assert (meta["workflowName"], meta["kind"], meta["runNumber"]) == ("order", "workflow", 0)
    assert meta["params"] == {"id": "o", "total": 3}
    assert all(DATE.fullmatch(meta[name]) for name in ("createdAt", "updatedAt", "startedAt"))
    assert meta["completedAt"] is None
    assert "approval" in meta["why"]
    step = meta["currentStep"]
    assert set(step) == STEP
    assert step | {"wakeAt": None} == {
        "stepKey": "approval", "name": "approval", "type": "waitForEvent", "status": "waiting", "attempts": 0,
        "maxAttempts": 1, "timeoutMs": None, "nextRetryAt": None, "wakeAt": None, "waitEventType": "approval",
    }  # fmt: skip
    assert DATE.fullmatch(step["wakeAt"])


async def test_an_instance_that_has_not_begun_has_no_step_and_no_start(virtual: Api) -> None:
    await virtual.create("nothing", id="n")

    instance = await virtual.get("/nothing/instances/n")

    assert "currentStep" not in instance["meta"]
    assert (instance["meta"]["startedAt"], instance["meta"]["params"]) == (None, None)
    assert instance["details"] == {"status": "active"}


async def test_an_instance_that_ended_shows_its_output_unless_it_is_none(api: Api) -> None:
    for name, value in {"zero": 0, "empty": "", "no": False, "list": []}.items():
        await api.create("echo", value, id=name)
        instance = await api.until("echo", name, "complete")
        assert instance["details"] == {"status": "complete", "output": value}
        assert DATE.fullmatch(instance["meta"]["completedAt"])
    await api.create("nothing", id="none")
    assert (await api.until("nothing", "none", "complete"))["details"] == {"status": "complete"}


async def test_a_step_that_waits_for_its_retry_shows_when_and_why(api: Api) -> None:
    await api.create("retrying", id="r")

    step = (await api.until("retrying", "r", "waiting"))["meta"]["currentStep"]

    assert (step["type"], step["status"], step["attempts"], step["maxAttempts"]) == ("do", "waiting", 1, 4)
    assert step["timeoutMs"] == 600_000
    assert DATE.fullmatch(step["nextRetryAt"])
    assert step["wakeAt"] is None
    assert (step["error"]["name"], step["error"]["message"]) == ("ValueError", "attempt 1")
    assert "ValueError: attempt 1" in step["error"]["traceback"]


@pytest.mark.parametrize(
    "path", ["", "/history", "/history/0", "/pause", "/resume", "/terminate", "/restart", "/cancel"]
)
async def test_a_missing_instance_is_not_found(api: Api, path: str) -> None:
    method = "GET" if not path or "history" in path else "POST"

    assert await api.refused(method, f"/waiter/instances/none{path}") == (404, "INSTANCE_NOT_FOUND")
    assert await api.refused(method, f"/unknown/instances/none{path}") == (404, "WORKFLOW_NOT_FOUND")
    assert await api.refused(method, f"/waiter/instances/a.b{path}") == (400, "INVALID_INSTANCE_ID")


# --- history


async def test_a_history_shows_every_field_of_steps_and_events(api: Api) -> None:
    await api.create("order", {"id": "o", "total": 3}, id="o-1")
    await api.post("/order/instances/o-1/events", {"type": "other"})
    await api.post("/order/instances/o-1/events", {"type": "approval", "payload": {"by": "ann"}})
    await api.until("order", "o-1", "complete")

    history = await api.get("/order/instances/o-1/history")

    assert set(history) == {"runNumber", "steps", "events", "stepsHasNextPage", "eventsHasNextPage"}
    charge, approval = history["steps"]
    assert set(charge) == set(approval) == HISTORY_STEP
    assert (charge["type"], charge["status"], charge["result"]) == ("do", "completed", "paid 3")
    assert (charge["attempts"], charge["maxAttempts"], charge["timeoutMs"]) == (1, 6, 600_000)
    assert approval["result"]["payload"] == {"by": "ann"}
    other, event = history["events"]
    assert set(other) == set(event) == EVENT
    assert (other["type"], other["payload"], other["deliveredAt"], other["consumedByStepKey"]) == ("other", *[None] * 3)
    assert (event["payload"], event["consumedByStepKey"]) == ({"by": "ann"}, "approval")
    assert DATE.fullmatch(event["deliveredAt"])


async def test_a_failed_step_shows_its_error(h: Harness, virtual: Api) -> None:
    await virtual.create("retrying", id="r")
    for _ in range(10):
        await h.run_until_idle()
        await h.advance("4 hours")

    [step] = (await virtual.get("/retrying/instances/r/history"))["steps"]

    assert set(step) == HISTORY_STEP | {"error"}
    assert (step["status"], step["attempts"], step["result"], step["nextRetryAt"]) == ("errored", 4, None, None)
    assert (await virtual.get("/retrying/instances/r"))["details"]["error"]["name"] == "ValueError"


async def test_a_sleep_is_a_step(h: Harness, virtual: Api) -> None:
    await virtual.create("sleepy", id="s")
    await h.run_until_idle()

    [step] = (await virtual.get("/sleepy/instances/s/history"))["steps"]

    assert (step["type"], step["status"], step["maxAttempts"], step["waitEventType"]) == ("sleep", "waiting", 1, None)
    assert DATE.fullmatch(step["wakeAt"])


async def pages(api: Api, path: str, name: str, **query: Any) -> list[list[Any]]:
    """The pages of one list of a history."""
    result, cursor = [], {}
    while True:
        page = await api.get(path, **query, **cursor)
        result.append(page[name])
        if not page[f"{name}HasNextPage"]:
            assert name == "logs" or f"{name}Cursor" not in page
            return result
        cursor = {f"{name}Cursor": page[f"{name}Cursor"]}


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("name", ["steps", "events", "logs"])
async def test_each_list_of_a_history_has_its_own_cursor(api: Api, name: str, order: str) -> None:
    await api.create("chatty", 7, id="c")
    await api.until("chatty", "c", "waiting")
    for n in range(8):
        await api.post("/chatty/instances/c/events", {"type": "noise", "payload": n})
    path = "/chatty/instances/c/history"
    complete = (await api.get(path, includeLogs="true"))[name]
    assert len(complete) >= 7

    paged = await pages(api, path, name, pageSize=3, order=order, includeLogs="true")

    assert [len(page) for page in paged[:-1]] == [3] * (len(paged) - 1)
    assert [item for page in paged for item in page] == (complete if order == "asc" else complete[::-1])


async def test_steps_are_ordered_by_their_start(api: Api) -> None:
    await api.create("chatty", 5, id="c")
    await api.until("chatty", "c", "waiting")

    keys = [step["stepKey"] for step in (await api.get("/chatty/instances/c/history"))["steps"]]

    assert keys == [*(f"step {n}" for n in range(5)), "end"]


async def test_a_run_that_does_not_exist_has_an_empty_history(api: Api) -> None:
    await api.create("chatty", 2, id="c")
    await api.until("chatty", "c", "waiting")
    empty = {"steps": [], "events": [], "stepsHasNextPage": False, "eventsHasNextPage": False}

    for number in (1, 7, 2**31, 2**63, 10**30):
        assert await api.get("/chatty/instances/c/history", runNumber=number) == empty | {"runNumber": number}
        assert await api.get(f"/chatty/instances/c/history/{number}") == empty | {"runNumber": number}
    logs = await api.get("/chatty/instances/c/history/9", includeLogs="true")
    assert (logs["logs"], logs["logsHasNextPage"], logs["logsCursor"]) == ([], False, "l0")


async def test_an_old_run_stays_readable_after_a_restart(api: Api) -> None:
    await api.create("chatty", 2, id="c")
    await api.until("chatty", "c", "waiting")
    before = await api.get("/chatty/instances/c/history")
    await api.post("/chatty/instances/c/restart")
    await api.until("chatty", "c", "waiting")

    assert (await api.get("/chatty/instances/c/history"))["runNumber"] == 1
    old = await api.get("/chatty/instances/c/history/0")
    assert (
        [step["result"] for step in old["steps"][:2]] == [step["result"] for step in before["steps"][:2]] == ["0", "1"]
    )
    assert old == await api.get("/chatty/instances/c/history", runNumber=0)


# --- logs


async def test_logs_are_included_on_request_and_show_every_field(api: Api) -> None:
    await api.create("order", {"id": "o", "total": 3}, id="o")
    await api.until("order", "o", "waiting")
    path = "/order/instances/o/history"

    for query in ({}, {"includeLogs": "false"}):
        assert not {"logs", "logsCursor", "logsHasNextPage"} & set(await api.get(path, **query))
    history = await api.get(path, includeLogs="true")

    [line] = history["logs"]
    assert set(line) == LOG
    assert line | {"id": 0, "createdAt": 0} == {
        "id": 0, "runNumber": 0, "stepKey": None, "attempt": None, "level": "info", "category": "workflow",
        "message": "charged", "data": {"payment": "paid 3"}, "isReplay": False, "createdAt": 0,
    }  # fmt: skip
    assert history["logsHasNextPage"] is False


async def test_logs_are_filtered_exactly(api: Api) -> None:
    await api.create("chatty", 6, id="c")
    await api.until("chatty", "c", "waiting")

    async def messages(**query: str) -> list[str]:
        history = await api.get("/chatty/instances/c/history", includeLogs="true", **query)
        return [line["message"] for line in history["logs"]]

    assert await messages(logLevel="warn") == ["line 0", "line 2", "line 4"]
    assert await messages(logLevel="info") == ["line 1", "line 3", "line 5"]
    assert await messages(logLevel="debug") == []
    assert await messages(logCategory="odd") == ["line 1", "line 3", "line 5"]
    assert await messages(logCategory="odd", logLevel="warn") == []


async def test_a_logs_cursor_is_always_present_so_that_logs_can_be_followed(api: Api) -> None:
    await api.create("chatty", 3, id="c")
    await api.until("chatty", "c", "waiting")
    path = "/chatty/instances/c/history"

    first = await api.get(path, includeLogs="true")
    after = await api.get(path, includeLogs="true", logsCursor=first["logsCursor"])
    assert [line["message"] for line in first["logs"]] == ["line 0", "line 1", "line 2"]
    assert (after["logs"], after["logsCursor"]) == ([], first["logsCursor"])

    empty = await api.get(path, includeLogs="true", logLevel="error")
    assert empty["logs"] == []
    assert "logsCursor" in empty
    continued = await api.get(path, includeLogs="true", logsCursor=empty["logsCursor"])
    assert continued["logs"] == first["logs"]


async def test_the_cursor_of_an_empty_descending_page_leads_to_later_lines(h: Harness, virtual: Api) -> None:
    await virtual.create("chatty", 2, id="c")
    path = "/chatty/instances/c/history"
    empty = await virtual.get(path, includeLogs="true", order="desc")
    await h.run_until_idle()

    history = await virtual.get(path, includeLogs="true", order="desc", logsCursor=empty["logsCursor"])

    assert [line["message"] for line in history["logs"]] == ["line 1", "line 0"]


async def test_the_limit_of_log_categories_applies_to_queries() -> None:
    app, _ = make_shop(limits=Limits(log_category=70))
    path = "/waiter/instances/w/history?includeLogs=true&logCategory="
    async with opened(app) as api:
        await api.create("waiter", id="w")
        assert (await api.get(path + "x" * 70))["logs"] == []
        assert await api.refused("GET", path + "x" * 71) == (400, "VALIDATION_ERROR")


@pytest.mark.above_the_store
@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("runNumber=-1", "VALIDATION_ERROR"),
        ("runNumber=x", "VALIDATION_ERROR"),
        ("runNumber=1.5", "VALIDATION_ERROR"),
        ("pageSize=0", "VALIDATION_ERROR"),
        ("pageSize=101", "VALIDATION_ERROR"),
        ("order=up", "VALIDATION_ERROR"),
        ("order=ASC", "VALIDATION_ERROR"),
        ("includeLogs=1", "VALIDATION_ERROR"),
        ("includeLogs=", "VALIDATION_ERROR"),
        ("logLevel=warning", "VALIDATION_ERROR"),
        ("logCategory=", "VALIDATION_ERROR"),
        ("logCategory=%00", "VALIDATION_ERROR"),
        ("logCategory=" + "x" * 65, "VALIDATION_ERROR"),
        ("order=asc&order=desc", "VALIDATION_ERROR"),
        ("stepsCursor=x", "INVALID_CURSOR"),
        ("stepsCursor=e1", "INVALID_CURSOR"),
        ("eventsCursor=s1", "INVALID_CURSOR"),
        ("logsCursor=e1", "INVALID_CURSOR"),
        ("logsCursor=l-1", "INVALID_CURSOR"),
    ],
)
async def test_an_invalid_query_of_a_history_is_refused(api: Api, query: str, code: str) -> None:
    await api.create("waiter", id="w")

    assert await api.refused("GET", f"/waiter/instances/w/history?{query}") == (400, code)
    if "runNumber" not in query:
        assert await api.refused("GET", f"/waiter/instances/w/history/0?{query}") == (400, code)


@pytest.mark.above_the_store
@pytest.mark.parametrize("run", ["x", "-1", "1.0", "%20", "0x1", "%00"])
async def test_an_invalid_run_number_is_refused(api: Api, run: str) -> None:
    await api.create("waiter", id="w")

    assert await api.refused("GET", f"/waiter/instances/w/history/{run}") == (400, "VALIDATION_ERROR")


@pytest.mark.above_the_store
async def test_the_progress_of_a_step_is_shown_until_it_is_completed() -> None:
    app = Holdfast("sqlite://")

    async def load() -> None:
        await step_info().heartbeat({"rows": 40})
        if step_info().attempt == 1:
            raise OSError("once more")

    @app.workflow
    async def import_(ctx: Context) -> None:
        await ctx.do("load", load)

    async with Harness(app) as h, client_of(h.app.asgi()) as http:
        api = Api(http)
        await h.start(import_, id="a")
        await h.run_until_idle()
        [retrying] = (await api.get("/import_/instances/a/history"))["steps"]
        current = (await api.get("/import_/instances/a"))["meta"]["currentStep"]
        await h.advance("1 minute")
        [completed] = (await api.get("/import_/instances/a/history"))["steps"]
    assert (retrying["progress"], retrying["heartbeatAt"]) == ({"rows": 40}, "2030-01-01T00:00:00.000Z")
    assert current["progress"] == {"rows": 40}
    assert not {"progress", "heartbeatAt"} & set(completed)
