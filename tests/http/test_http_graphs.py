"""Graphs over HTTP: their nodes, what is stored of them, how they are drawn and killed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from http_api import Api, client_of
from http_shop import Gates

from holdfast import Holdfast
from holdfast.testing import Harness

EVERY_STORE = True

ONE = "/pipeline/instances/g"
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


async def begun(h: Harness, api: Api, params: int = 3) -> Any:
    """An instance that has gone as far as it can by itself."""
    await api.create("pipeline", params, id="g")
    await h.run_until_idle()
    return await api.get(ONE)


async def states(api: Api, **query: Any) -> dict[str, str]:
    return {step["name"]: step["state"] for step in (await api.get(f"{ONE}/history", **query))["steps"]}


async def drawing(api: Api, path: str) -> str:
    answer = await api.http.get(path)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.headers["x-content-type-options"] == "nosniff"
    return answer.text


# --- one instance


async def test_a_graph_is_described_with_its_version(h: Harness, virtual: Api) -> None:
    found = await begun(h, virtual)

    meta = found["meta"]
    assert found["details"]["status"] == "complete"
    assert (meta["kind"], meta["workflowVersion"]) == ("graph", 3)
    assert not {"nativeStatus", "killed"} & set(meta)
    assert (meta["currentStep"]["type"], meta["currentStep"]["state"]) == ("node", "ok")
    assert "stepSeq" not in meta["currentStep"]
    [listed] = (await virtual.get("/pipeline/instances"))["instances"]
    assert listed == {"id": "g", "details": found["details"], "createdAt": meta["createdAt"], "kind": "graph"}


async def test_a_node_that_will_be_tried_again_says_when(h: Harness, virtual: Api) -> None:
    found = await begun(h, virtual, 1)

    step = found["meta"]["currentStep"]
    assert (step["name"], step["status"], step["state"], step["attempts"]) == ("audit", "waiting", "retrying", 1)
    assert step["maxAttempts"] == 2
    assert step["nextRetryAt"] is not None
    assert (step["error"]["name"], step["error"]["message"]) == ("ValueError", "one is too few")
    assert "waiting to retry step 'audit'" in found["meta"]["why"]


# --- history


async def test_all_nodes_are_there_with_their_states(h: Harness, virtual: Api) -> None:
    await virtual.create("pipeline", 1, id="g")
    assert await states(virtual) == dict.fromkeys(["extract", "double", "total", "report", "audit"], "pending")

    await h.run_until_idle()
    done = {"extract": "ok", "double": "ok", "double[0]": "ok", "total": "skipped", "report": "skipped"}
    assert await states(virtual) == done | {"audit": "retrying"}

    await h.advance("1 hour")
    assert await states(virtual) == done | {"audit": "error"}
    assert await virtual.status("pipeline", "g") == "errored"


async def test_nodes_are_in_the_order_of_their_definition(h: Harness, virtual: Api) -> None:
    await begun(h, virtual)

    page = await virtual.get(f"{ONE}/history")
    names = [step["name"] for step in page["steps"]]

    assert names == ["extract", "double", "double[0]", "double[1]", "double[2]", "total", "report", "audit"]
    assert [*await states(virtual, order="desc")] == names[::-1]
    results = {step["name"]: step["result"] for step in page["steps"]}
    assert (results["extract"], results["double[2]"], results["report"]) == ([0, 1, 2], 4, "total 6")
    assert {step["type"] for step in page["steps"]} == {"node"}
    assert {step["maxAttempts"] for step in page["steps"]} == {None}, "not known before one has failed"


async def test_nodes_are_paged(h: Harness, virtual: Api) -> None:
    await begun(h, virtual)
    names, cursor = [], {}
    for _ in range(3):
        page = await virtual.get(f"{ONE}/history", pageSize=3, **cursor)
        names += [step["name"] for step in page["steps"]]
        cursor = {"stepsCursor": page.get("stepsCursor")}

    assert not page["stepsHasNextPage"]
    assert len(names) == len(set(names)) == 8


# --- facts


async def test_facts_are_found_by_the_beginning_of_their_keys(h: Harness, virtual: Api) -> None:
    await begun(h, virtual)

    everything = (await virtual.get(f"{ONE}/facts"))["facts"]
    results = (await virtual.get(f"{ONE}/facts", prefix="result/"))["facts"]
    meta = (await virtual.get(f"{ONE}/facts", prefix="meta"))["facts"]["meta"]

    assert {key.partition("/")[0] for key in everything} >= {"meta", "start", "result"}
    assert results == {key: value for key, value in everything.items() if key.startswith("result/")}
    assert {key: (one["status"], one["data"]) for key, one in results.items()} == {
        "result/extract": ("ok", [0, 1, 2]),
        "result/double": ("ok", [0, 2, 4]),
        "result/total": ("ok", 6),
        "result/report": ("ok", "total 6"),
        "result/audit": ("ok", None),
    }
    assert (meta["wf_version"], meta["total_nodes"]) == (3, 5)
    [started] = (await virtual.get(f"{ONE}/facts", prefix="start/extract/"))["facts"].values()
    assert set(started) == {"owner", "lease"}


@pytest.mark.parametrize("prefix", ["nothing", "result/extractor", "résult", "\x00", "%", "x" * 10_000])
async def test_a_prefix_that_no_key_has_finds_nothing(h: Harness, virtual: Api, prefix: str) -> None:
    await begun(h, virtual)

    assert await virtual.get(f"{ONE}/facts", prefix=prefix) == {"facts": {}}


async def test_a_prefix_is_given_once(h: Harness, virtual: Api) -> None:
    await begun(h, virtual)

    answer = await virtual.send("GET", f"{ONE}/facts?prefix=meta&prefix=result/")

    assert (answer.status_code, answer.json()["code"]) == (400, "VALIDATION_ERROR")
    assert answer.json()["issues"] == [
        {"path": ["query", "prefix"], "message": "is given more than once", "type": "repeated"}
    ]


# --- drawings


async def test_a_graph_is_drawn_as_it_is_registered(h: Harness, virtual: Api) -> None:
    assert await drawing(virtual, "/pipeline/mermaid") == DRAWN


async def test_a_run_is_drawn_in_the_colours_of_its_nodes(h: Harness, virtual: Api) -> None:
    await begun(h, virtual, 2)

    drawn = await drawing(virtual, f"{ONE}/mermaid")

    assert drawn.startswith(DRAWN)
    assert "    class n1,n2,n5 ok\n    class n3,n4 skipped\n" in drawn


async def test_a_graph_that_grew_is_drawn_and_documented_as_it_is_now(where: dict[str, Any]) -> None:
    app = Holdfast(**where)
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
        one["paths"][create]["post"]["requestBody"]["content"]["application/json"]["schema"]["properties"]["params"]
        for one in (before, after)
    ]
    assert schemas == [{}, {"type": "integer"}]


# --- killing


async def test_a_kill_leaves_a_tombstone(h: Harness, virtual: Api, gates: Gates) -> None:
    await virtual.create("pipeline", id="g")

    assert await virtual.post(f"{ONE}/kill", {"reason": "no longer wanted"}) == {"ok": True}
    await h.run_until_idle()

    found = await virtual.get(ONE)
    assert found["details"]["status"] == "terminated"
    assert (found["meta"]["killed"], found["meta"]["why"]) == (True, "terminated: no longer wanted")
    [tombstone] = (await virtual.get(f"{ONE}/facts", prefix="tombstone"))["facts"].values()
    assert tombstone["reason"] == "no longer wanted"
    assert gates.entered == []
    assert set((await states(virtual)).values()) == {"pending"}


@pytest.mark.parametrize(("verb", "status"), [("terminate", "terminated"), ("cancel", "cancelled")])
async def test_a_graph_that_is_terminated_or_cancelled_has_a_tombstone(virtual: Api, verb: str, status: str) -> None:
    await virtual.create("pipeline", id="g")
    await virtual.post(f"{ONE}/{verb}")

    found = await virtual.get(ONE)
    assert (found["details"]["status"], found["meta"]["killed"]) == (status, True)
    [tombstone] = (await virtual.get(f"{ONE}/facts", prefix="tombstone"))["facts"].values()
    assert tombstone["reason"] is None


async def test_a_graph_that_was_killed_can_begin_again(h: Harness, virtual: Api) -> None:
    await virtual.create("pipeline", id="g")
    await virtual.post(f"{ONE}/kill")
    await virtual.post(f"{ONE}/restart")
    await h.run_until_idle()

    found = await virtual.get(ONE)
    assert (found["details"]["status"], found["meta"]["runNumber"]) == ("complete", 1)
    assert "killed" not in found["meta"]


@pytest.mark.parametrize("body", [None, {}, {"reason": "\x00 and \ud800"}, {"reason": "x" * 2000}, {"reason": ""}])
async def test_a_kill_needs_no_reason_and_keeps_any(virtual: Api, body: Any) -> None:
    await virtual.create("pipeline", id="g")

    content = "" if body is None else json.dumps(body)
    assert (await virtual.send("POST", f"{ONE}/kill", content=content)).json() == {"ok": True}

    [tombstone] = (await virtual.get(f"{ONE}/facts", prefix="tombstone"))["facts"].values()
    assert tombstone["reason"] == (body or {}).get("reason")
    assert await virtual.status("pipeline", "g") == "terminated"


@pytest.mark.parametrize(
    "content",
    ['{"reason": 5}', '{"reason": null}', f'{{"reason": "{"x" * 2001}"}}', '{"why": "x"}', "[]", '"x"', "{", "nan",
     '{"reason": "a", "reason": "b"}', '{"deadlineMs": 5}'],
    ids=lambda text: text[:20],
)  # fmt: skip
async def test_a_kill_that_is_written_wrong_kills_nothing(virtual: Api, content: str) -> None:
    await virtual.create("pipeline", id="g")

    assert await virtual.refused("POST", f"{ONE}/kill", content=content) == (400, "VALIDATION_ERROR")

    assert "killed" not in (await virtual.get(ONE))["meta"]
    assert await virtual.status("pipeline", "g") == "active"


async def test_a_kill_has_a_body_of_json_within_the_limit(virtual: Api) -> None:
    await virtual.create("pipeline", id="g")

    as_form = {"content": "reason=x", "headers": {"content-type": "application/x-www-form-urlencoded"}}
    assert await virtual.refused("POST", f"{ONE}/kill", **as_form) == (415, "UNSUPPORTED_MEDIA_TYPE")
    assert await virtual.refused("POST", f"{ONE}/kill", content=b" " * 2**22) == (413, "PAYLOAD_TOO_LARGE")
    assert await virtual.status("pipeline", "g") == "active"


@pytest.mark.parametrize("ending", ["kill", "terminate"])
async def test_what_has_ended_cannot_be_killed(virtual: Api, ending: str) -> None:
    await virtual.create("pipeline", id="g")
    await virtual.post(f"{ONE}/{ending}")

    answer = await virtual.send("POST", f"{ONE}/kill", json={"reason": "again"})

    assert (answer.status_code, answer.json()["code"]) == (409, "INSTANCE_TERMINAL")
    assert "is terminated and cannot be killed" in answer.json()["message"]
    tombstones = (await virtual.get(f"{ONE}/facts", prefix="tombstone"))["facts"]
    assert [one["reason"] for one in tombstones.values()] == [None]


# --- what is no graph


@pytest.mark.parametrize(("workflow", "kind"), [("waiter", "workflow"), ("order.process", "chain")])
@pytest.mark.parametrize(("method", "path"), [("GET", "facts"), ("GET", "mermaid"), ("POST", "kill")])
async def test_only_a_graph_has_them(virtual: Api, workflow: str, kind: str, method: str, path: str) -> None:
    await virtual.create(workflow, id="x")

    answer = await virtual.send(method, f"/{workflow}/instances/x/{path}")

    assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_OPTION")
    assert answer.json()["message"] == f"instance 'x' of {workflow!r} is a {kind} and no graph"
    assert await virtual.status(workflow, "x") == "active"


@pytest.mark.parametrize("workflow", ["waiter", "order.process"])
async def test_only_a_graph_can_be_drawn(virtual: Api, workflow: str) -> None:
    assert await virtual.refused("GET", f"/{workflow}/mermaid") == (400, "INVALID_OPTION")
    assert await virtual.refused("GET", "/nobody/mermaid") == (404, "WORKFLOW_NOT_FOUND")


@pytest.mark.parametrize(("method", "path"), [("GET", "facts"), ("GET", "mermaid"), ("POST", "kill")])
async def test_a_graph_that_is_not_there(virtual: Api, method: str, path: str) -> None:
    assert await virtual.refused(method, f"/nobody/instances/g/{path}") == (404, "WORKFLOW_NOT_FOUND")
    assert await virtual.refused(method, f"{ONE}/{path}") == (404, "INSTANCE_NOT_FOUND")
    assert await virtual.refused(method, f"/pipeline/instances/-g/{path}") == (400, "INVALID_INSTANCE_ID")
    other = {"GET": "POST", "POST": "GET"}[method]
    assert await virtual.refused(other, f"{ONE}/{path}") == (405, "METHOD_NOT_ALLOWED")
