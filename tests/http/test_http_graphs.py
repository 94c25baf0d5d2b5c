"""Graphs over HTTP: nodes, facts, drawings and kills."""

from __future__ import annotations

import json
from typing import Any

import pytest
from http_api import Api, client_of
from http_shop import Gates

from holdfast import Holdfast
from holdfast.testing import Harness

EVERY_STORE = True

INSTANCE = "/pipeline/instances/g"
DRAWN = """\
flowchart TD
    n1["extract"]
    n2[["double"]]
    n3["total"]
    n4["report"]
    n5["audit"]
    n1 ==> n2
    n2 --> n3
    n3 --> n4
    n1 --> n5
"""


async def start_and_run(h: Harness, api: Api, params: int = 3) -> Any:
    """Start an instance and run it until it waits or ends; return the instance."""
    await api.create("pipeline", params, id="g")
    await h.run_until_idle()
    return await api.get(INSTANCE)


async def states(api: Api, **query: Any) -> dict[str, str]:
    return {step["name"]: step["state"] for step in (await api.get(f"{INSTANCE}/history", **query))["steps"]}


async def drawing(api: Api, path: str) -> str:
    response = await api.http.get(path)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "text/plain; charset=utf-8"
    assert response.headers["x-content-type-options"] == "nosniff"
    return response.text


# --- one instance


async def test_a_graph_is_described_with_its_version(h: Harness, virtual: Api) -> None:
    instance = await start_and_run(h, virtual)

    meta = instance["meta"]
    assert instance["details"]["status"] == "complete"
    assert (meta["kind"], meta["workflowVersion"]) == ("graph", 3)
    assert not {"nativeStatus", "killed"} & set(meta)
    assert (meta["currentStep"]["type"], meta["currentStep"]["state"]) == ("node", "ok")
    assert "stepSeq" not in meta["currentStep"]
    [listed] = (await virtual.get("/pipeline/instances"))["instances"]
    assert listed == {"id": "g", "details": instance["details"], "createdAt": meta["createdAt"], "kind": "graph"}


async def test_a_node_that_waits_for_a_retry_shows_its_time(h: Harness, virtual: Api) -> None:
    instance = await start_and_run(h, virtual, 1)

    step = instance["meta"]["currentStep"]
    assert (step["name"], step["status"], step["state"], step["attempts"]) == ("audit", "waiting", "retrying", 1)
    assert step["maxAttempts"] == 2
    assert step["nextRetryAt"] is not None
    assert (step["error"]["name"], step["error"]["message"]) == ("ValueError", "one is too few")
    assert "waiting to retry step 'audit'" in instance["meta"]["why"]


# --- history


async def test_a_timeline_has_the_nodes_that_have_begun(h: Harness, virtual: Api) -> None:
    await virtual.create("pipeline", 3, id="g")
    planned = await virtual.get(f"{INSTANCE}/timeline")
    await h.run_until_idle()
    begun = await virtual.get(f"{INSTANCE}/timeline")

    assert (planned["items"], planned["workingMs"]) == ([], 0)
    assert {item["key"] for item in begun["items"]} == {*await states(virtual)}


async def test_a_history_has_all_nodes_with_their_states(h: Harness, virtual: Api) -> None:
    await virtual.create("pipeline", 1, id="g")
    assert await states(virtual) == dict.fromkeys(["extract", "double", "total", "report", "audit"], "pending")

    await h.run_until_idle()
    done = {"extract": "ok", "double": "ok", "double[0]": "ok", "total": "skipped", "report": "skipped"}
    assert await states(virtual) == done | {"audit": "retrying"}

    await h.advance("1 hour")
    assert await states(virtual) == done | {"audit": "error"}
    assert await virtual.status("pipeline", "g") == "errored"


async def test_nodes_are_in_the_order_of_their_definition(h: Harness, virtual: Api) -> None:
    await start_and_run(h, virtual)

    page = await virtual.get(f"{INSTANCE}/history")
    names = [step["name"] for step in page["steps"]]

    assert names == ["extract", "double", "double[0]", "double[1]", "double[2]", "total", "report", "audit"]
    assert [*await states(virtual, order="desc")] == names[::-1]
    results = {step["name"]: step["result"] for step in page["steps"]}
    assert (results["extract"], results["double[2]"], results["report"]) == ([0, 1, 2], 4, "total 6")
    assert {step["type"] for step in page["steps"]} == {"node"}
    assert {step["maxAttempts"] for step in page["steps"]} == {None}, "not known before an attempt has failed"


async def test_nodes_are_paged(h: Harness, virtual: Api) -> None:
    await start_and_run(h, virtual)
    names, cursor = [], {}
    for _ in range(3):
        page = await virtual.get(f"{INSTANCE}/history", pageSize=3, **cursor)
        names += [step["name"] for step in page["steps"]]
        cursor = {"stepsCursor": page.get("stepsCursor")}

    assert not page["stepsHasNextPage"]
    assert len(names) == len(set(names)) == 8


# --- facts


async def test_facts_are_found_by_a_prefix_of_their_keys(h: Harness, virtual: Api) -> None:
    await start_and_run(h, virtual)

    everything = (await virtual.get(f"{INSTANCE}/facts"))["facts"]
    results = (await virtual.get(f"{INSTANCE}/facts", prefix="result/"))["facts"]
    meta = (await virtual.get(f"{INSTANCE}/facts", prefix="meta"))["facts"]["meta"]

    assert {key.partition("/")[0] for key in everything} >= {"meta", "start", "result"}
    assert results == {key: value for key, value in everything.items() if key.startswith("result/")}
    assert {key: (result["status"], result["data"]) for key, result in results.items()} == {
        "result/extract": ("ok", [0, 1, 2]),
        "result/double": ("ok", [0, 2, 4]),
        "result/total": ("ok", 6),
        "result/report": ("ok", "total 6"),
        "result/audit": ("ok", None),
    }
    assert (meta["wf_version"], meta["total_nodes"]) == (3, 5)
    [started] = (await virtual.get(f"{INSTANCE}/facts", prefix="start/extract/"))["facts"].values()
    assert set(started) == {"owner", "lease"}


@pytest.mark.parametrize("prefix", ["nothing", "result/extractor", "résult", "\x00", "%", "x" * 10_000])
async def test_a_prefix_that_no_key_has_finds_nothing(h: Harness, virtual: Api, prefix: str) -> None:
    await start_and_run(h, virtual)

    assert await virtual.get(f"{INSTANCE}/facts", prefix=prefix) == {"facts": {}}


async def test_a_repeated_prefix_parameter_is_refused(h: Harness, virtual: Api) -> None:
    await start_and_run(h, virtual)

    response = await virtual.send("GET", f"{INSTANCE}/facts?prefix=meta&prefix=result/")

    assert (response.status_code, response.json()["code"]) == (400, "VALIDATION_ERROR")
    assert response.json()["issues"] == [
        {"path": ["query", "prefix"], "message": "is given more than once", "type": "repeated"}
    ]


# --- drawings


async def test_a_graph_is_drawn_as_it_is_registered(h: Harness, virtual: Api) -> None:
    assert await drawing(virtual, "/pipeline/mermaid") == DRAWN


async def test_a_run_is_drawn_with_the_states_of_its_nodes(h: Harness, virtual: Api) -> None:
    await start_and_run(h, virtual, 2)

    drawn = await drawing(virtual, f"{INSTANCE}/mermaid")

    assert drawn.startswith(DRAWN)
    assert "    class n1,n2,n5 ok\n    class n3,n4 skipped\n" in drawn


async def test_a_node_added_later_appears_in_the_drawing_and_the_document(database_options: dict[str, Any]) -> None:
    app = Holdfast(**database_options)
    etl = app.graph("etl")

    @etl.node
    async def first() -> None: ...

    async with app.connect(), client_of(app.asgi()) as http:
        api = Api(http)
        before = await api.get("/openapi.json")

        @etl.node(after=[first])
        async def second(params: int) -> None: ...

        assert 'n2["second"]' in await drawing(api, "/etl/mermaid")
        after = await api.get("/openapi.json")

    create = "/api/workflows/etl/instances"
    schemas = [
        document["paths"][create]["post"]["requestBody"]["content"]["application/json"]["schema"]["properties"][
            "params"
        ]
        for document in (before, after)
    ]
    assert schemas == [{}, {"type": "integer"}]


# --- killing


async def test_a_kill_leaves_a_tombstone(h: Harness, virtual: Api, gates: Gates) -> None:
    await virtual.create("pipeline", id="g")

    assert await virtual.post(f"{INSTANCE}/kill", {"reason": "no longer wanted"}) == {"ok": True}
    await h.run_until_idle()

    instance = await virtual.get(INSTANCE)
    assert instance["details"]["status"] == "terminated"
    assert (instance["meta"]["killed"], instance["meta"]["why"]) == (True, "terminated: no longer wanted")
    [tombstone] = (await virtual.get(f"{INSTANCE}/facts", prefix="tombstone"))["facts"].values()
    assert tombstone["reason"] == "no longer wanted"
    assert gates.entered == []
    assert set((await states(virtual)).values()) == {"pending"}


@pytest.mark.parametrize(("action", "status"), [("terminate", "terminated"), ("cancel", "cancelled")])
async def test_a_graph_that_is_terminated_or_cancelled_has_a_tombstone(virtual: Api, action: str, status: str) -> None:
    await virtual.create("pipeline", id="g")
    await virtual.post(f"{INSTANCE}/{action}")

    instance = await virtual.get(INSTANCE)
    assert (instance["details"]["status"], instance["meta"]["killed"]) == (status, True)
    [tombstone] = (await virtual.get(f"{INSTANCE}/facts", prefix="tombstone"))["facts"].values()
    assert tombstone["reason"] is None


async def test_a_killed_graph_can_be_restarted(h: Harness, virtual: Api) -> None:
    await virtual.create("pipeline", id="g")
    await virtual.post(f"{INSTANCE}/kill")
    await virtual.post(f"{INSTANCE}/restart")
    await h.run_until_idle()

    instance = await virtual.get(INSTANCE)
    assert (instance["details"]["status"], instance["meta"]["runNumber"]) == ("complete", 1)
    assert "killed" not in instance["meta"]


@pytest.mark.parametrize("body", [None, {}, {"reason": "\x00 and \ud800"}, {"reason": "x" * 2000}, {"reason": ""}])
async def test_a_kill_needs_no_reason_and_stores_any_reason(virtual: Api, body: Any) -> None:
    await virtual.create("pipeline", id="g")

    content = "" if body is None else json.dumps(body)
    assert (await virtual.send("POST", f"{INSTANCE}/kill", content=content)).json() == {"ok": True}

    [tombstone] = (await virtual.get(f"{INSTANCE}/facts", prefix="tombstone"))["facts"].values()
    assert tombstone["reason"] == (body or {}).get("reason")
    assert await virtual.status("pipeline", "g") == "terminated"


@pytest.mark.parametrize(
    "content",
    ['{"reason": 5}', '{"reason": null}', f'{{"reason": "{"x" * 2001}"}}', '{"why": "x"}', "[]", '"x"', "{", "nan",
     '{"reason": "a", "reason": "b"}', '{"deadlineMs": 5}'],
    ids=lambda text: text[:20],
)  # fmt: skip
async def test_an_invalid_kill_request_kills_nothing(virtual: Api, content: str) -> None:
    await virtual.create("pipeline", id="g")

    assert await virtual.refused("POST", f"{INSTANCE}/kill", content=content) == (400, "VALIDATION_ERROR")

    assert "killed" not in (await virtual.get(INSTANCE))["meta"]
    assert await virtual.status("pipeline", "g") == "active"


async def test_a_kill_body_of_another_media_type_or_size_is_refused(virtual: Api) -> None:
    await virtual.create("pipeline", id="g")

    as_form = {"content": "reason=x", "headers": {"content-type": "application/x-www-form-urlencoded"}}
    assert await virtual.refused("POST", f"{INSTANCE}/kill", **as_form) == (415, "UNSUPPORTED_MEDIA_TYPE")
    assert await virtual.refused("POST", f"{INSTANCE}/kill", content=b" " * 2**22) == (413, "PAYLOAD_TOO_LARGE")
    assert await virtual.status("pipeline", "g") == "active"


@pytest.mark.parametrize("ending", ["kill", "terminate"])
async def test_a_graph_that_has_ended_cannot_be_killed(virtual: Api, ending: str) -> None:
    await virtual.create("pipeline", id="g")
    await virtual.post(f"{INSTANCE}/{ending}")

    response = await virtual.send("POST", f"{INSTANCE}/kill", json={"reason": "again"})

    assert (response.status_code, response.json()["code"]) == (409, "INSTANCE_TERMINAL")
    assert "is terminated and cannot be killed" in response.json()["message"]
    tombstones = (await virtual.get(f"{INSTANCE}/facts", prefix="tombstone"))["facts"]
    assert [tombstone["reason"] for tombstone in tombstones.values()] == [None]


# --- other kinds and missing instances


@pytest.mark.parametrize(("workflow", "kind"), [("waiter", "workflow"), ("order.process", "chain")])
@pytest.mark.parametrize(("method", "path"), [("GET", "facts"), ("GET", "mermaid"), ("POST", "kill")])
async def test_facts_mermaid_and_kill_refuse_other_kinds(
    virtual: Api, workflow: str, kind: str, method: str, path: str
) -> None:
    await virtual.create(workflow, id="x")

    response = await virtual.send(method, f"/{workflow}/instances/x/{path}")

    assert (response.status_code, response.json()["code"]) == (400, "INVALID_OPTION")
    assert response.json()["message"] == f"instance 'x' of {workflow!r} is a {kind}, not a graph"
    assert await virtual.status(workflow, "x") == "active"


@pytest.mark.parametrize("workflow", ["waiter", "order.process"])
async def test_only_a_graph_can_be_drawn(virtual: Api, workflow: str) -> None:
    assert await virtual.refused("GET", f"/{workflow}/mermaid") == (400, "INVALID_OPTION")
    assert await virtual.refused("GET", "/unknown/mermaid") == (404, "WORKFLOW_NOT_FOUND")


@pytest.mark.parametrize(("method", "path"), [("GET", "facts"), ("GET", "mermaid"), ("POST", "kill")])
async def test_facts_mermaid_and_kill_of_a_missing_graph_are_not_found(virtual: Api, method: str, path: str) -> None:
    assert await virtual.refused(method, f"/unknown/instances/g/{path}") == (404, "WORKFLOW_NOT_FOUND")
    assert await virtual.refused(method, f"{INSTANCE}/{path}") == (404, "INSTANCE_NOT_FOUND")
    assert await virtual.refused(method, f"/pipeline/instances/-g/{path}") == (400, "INVALID_INSTANCE_ID")
    other = {"GET": "POST", "POST": "GET"}[method]
    assert await virtual.refused(other, f"{INSTANCE}/{path}") == (405, "METHOD_NOT_ALLOWED")
