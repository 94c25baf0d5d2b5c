"""Definitions, shapes of graphs and chains, and source files."""

from __future__ import annotations

from pathlib import Path

import pytest
from http_api import Api, client_of

from holdfast.http.shapes import _item_times
from holdfast.testing import Harness

EVERY_STORE = True


async def test_definitions_have_schemas_and_shapes(virtual: Api) -> None:
    known = {one["name"]: one for one in (await virtual.get("/_definitions"))["workflows"]}

    assert known["nothing"]["params"] is None
    assert known["echo"]["params"] == {}
    assert set(known["strict"]["params"]["properties"]) == {"name", "count", "tags"}
    assert set(known["approved"]["events"]) == {"nod", "hint"}
    assert known["approved"]["events"]["nod"]["required"] == ["by", "at"]
    graph = known["pipeline"]
    assert (graph["kind"], graph["version"]) == ("graph", 3)
    nodes = {node["key"]: node for node in graph["shape"]["nodes"]}
    assert (nodes["double"]["after"], nodes["double"]["map"]) == (["extract"], "extract")
    chain = known["order.process"]
    assert [step["type"] for step in chain["shape"]["steps"]] == ["VALIDATE", "PAY", "SHIP"]


@pytest.mark.above_the_store
async def test_definitions_include_incomplete_chains_and_graphs_without_a_shape(h: Harness, virtual: Api) -> None:
    h.app.chain("no.steps")
    h.app.graph("no-nodes")

    @h.app.graph("unknown-predecessor").node(after=["later"])
    async def node(later: int) -> int:
        return later

    known = {one["name"]: one for one in (await virtual.get("/_definitions"))["workflows"]}

    for name in ("no.steps", "no-nodes", "unknown-predecessor"):
        assert "shape" not in known[name]
    assert "shape" in known["pipeline"]


async def test_a_graph_is_shown_with_the_states_of_its_nodes(h: Harness, virtual: Api) -> None:
    await h.start("pipeline", 3, id="g")
    await h.run_until_idle()

    nodes = {node["key"]: node for node in (await virtual.get("/pipeline/instances/g/graph"))["nodes"]}
    shown = await virtual.get("/pipeline/instances/g/graph/items", node="double")
    items = shown["items"]

    assert {node["state"] for node in nodes.values()} <= {"ok", "skipped", "error"}
    assert nodes["extract"]["critical"] is True
    assert nodes["double"]["items"] == {"total": 3, "ok": 3, "error": 0, "retrying": 0, "running": 0}
    assert [(item["n"], item["state"]) for item in items] == [(0, "ok"), (1, "ok"), (2, "ok")]
    assert shown["total"] == sum(shown["took"]["counts"]) == 3


@pytest.mark.above_the_store
async def test_items_without_a_result_have_no_durations(h: Harness, virtual: Api) -> None:
    await h.start("pipeline", 3, id="g")

    shown = await virtual.get("/pipeline/instances/g/graph/items", node="double")

    assert shown == {"items": [], "total": 0}


@pytest.mark.above_the_store
def test_durations_of_items_are_counted_in_equal_buckets() -> None:
    took = _item_times([0, 1, 19, 20, 99])

    assert (took["p50Ms"], took["p95Ms"], took["stepMs"]) == (19, 99, 5)
    assert took["counts"] == [2, 0, 0, 1, 1, *[0] * 14, 1]
    assert _item_times([7]) == {"p50Ms": 7, "p95Ms": 7, "stepMs": 1, "counts": [*[0] * 7, 1, *[0] * 12]}


@pytest.mark.above_the_store
async def test_the_graph_and_the_chain_of_an_earlier_run_are_shown(h: Harness, virtual: Api) -> None:
    await h.start("order.process", id="c")
    await h.run_until_idle()
    await (await h.app.get("order.process", "c")).restart()

    earlier = await virtual.get("/order.process/instances/c/chain", runNumber="0")
    current = await virtual.get("/order.process/instances/c/chain")

    assert [step["state"] for step in earlier["steps"]] == ["DONE", "WAITING", "PENDING"]
    assert [step["state"] for step in current["steps"]] != [step["state"] for step in earlier["steps"]]
    assert ("result" in earlier["steps"][0], "result" in earlier["steps"][1]) == (True, False)
    assert [call["outcome"] for call in earlier["steps"][0]["calls"]] == ["ok"]


async def test_a_chain_is_shown_with_its_pointer(h: Harness, virtual: Api) -> None:
    await h.start("order.process", id="c")
    await h.run_until_idle()

    chain = await virtual.get("/order.process/instances/c/chain")

    assert [step["type"] for step in chain["steps"]] == ["VALIDATE", "PAY", "SHIP"]
    assert [step["seq"] for step in chain["steps"]] == [0, 1, 2]
    waiting = chain["steps"][chain["pointer"]]
    assert (waiting["state"], waiting["end"]) == ("WAITING", None)
    assert chain["steps"][0]["state"] == "DONE"
    assert chain["steps"][2]["start"] is None


async def test_only_source_files_of_the_replay_are_shown(h: Harness) -> None:
    await h.start("waiter", id="w")
    await h.run_until_idle()
    async with client_of(h.app.asgi(debug=True)) as http:
        api = Api(http)
        replay = await api.get("/waiter/instances/w/replay")
        file = replay["stack"]["tasks"][0]["frames"][0]["file"]
        source = await api.get("/waiter/instances/w/source", file=file)
        for other in ("/etc/passwd", f"{file}x", str(Path(file).parent / "http_api.py"), "../" + file):
            assert await api.refused("GET", f"/waiter/instances/w/source?file={other}") == (404, "NOT_FOUND")
    async with client_of(h.app.asgi()) as http:
        refused = await Api(http).refused("GET", f"/waiter/instances/w/source?file={file}")

    assert (source["file"], source["text"]) == (file, Path(file).read_text())
    assert refused == (403, "DEBUG_DISABLED")
