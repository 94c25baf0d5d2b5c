"""The OpenAPI document matches the server: some parts are checked here, the rest by fuzzing."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Annotated, Any, Literal, NamedTuple, TypedDict
from uuid import UUID

import jsonschema_rs
import pytest
from http_api import Api, client_of, opened
from http_fuzz import fuzz
from http_shop import make_shop
from pydantic import BaseModel, Field

from holdfast import BearerTokens, Context, Holdfast, Limits
from holdfast.core.durations import MAX_MS

BASE = "/api/workflows"


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1


class Point(NamedTuple):
    x: int
    y: str = ""


class Item(BaseModel):
    when: datetime
    colour: Colour
    photo: bytes


class Box(TypedDict):
    items: list[Item]


@dataclass
class Pair:
    left: int
    right: Pair | None = None


async def document_of(app: Holdfast) -> Any:
    async with client_of(app.asgi()) as http:
        return await Api(http).get("/openapi.json")


def params_of(document: Any, workflow: str) -> Any:
    body = document["paths"][f"{BASE}/{workflow}/instances"]["post"]["requestBody"]
    return body["content"]["application/json"]["schema"]["properties"].get("params")


async def test_every_route_is_described_with_its_errors() -> None:
    document = await document_of(make_shop()[0])

    assert document["openapi"].startswith("3.1")
    instance, graph = (f"{BASE}/{name}/instances/{{instance_id}}" for name in ("{workflow}", "pipeline"))
    schedule = f"{BASE}/_schedules/{{schedule}}"
    assert set(document["paths"]) == {
        BASE, instance, f"{instance}/pause", f"{instance}/resume", f"{instance}/terminate", f"{instance}/restart",
        f"{instance}/retry", f"{instance}/fork", f"{instance}/resolve", f"{instance}/reply", f"{instance}/audit",
        f"{BASE}/_audit",
        f"{BASE}/_bulk", f"{BASE}/_bulk/{{bulk_id}}",
        f"{instance}/cancel", f"{instance}/events", f"{instance}/history", f"{instance}/history/{{run}}",
        f"{instance}/result", f"{instance}/stack", f"{instance}/replay", f"{instance}/export", f"{instance}/positions",
        f"{instance}/outbox", f"{instance}/outbox/redeliver", f"{graph}/facts", f"{graph}/mermaid", f"{graph}/kill",
        f"{BASE}/pipeline/mermaid", f"{BASE}/_runner/tick", f"{BASE}/_health", f"{BASE}/_health/live",
        f"{BASE}/_stats", f"{BASE}/_workers", f"{BASE}/_queues", f"{BASE}/_versions", f"{BASE}/_me",
        f"{BASE}/_attention", f"{BASE}/_series", f"{BASE}/_live", f"{BASE}/_definitions",
        f"{instance}/move",
        *(f"{instance}/{name}" for name in ("timeline", "step", "facts/all", "mailbox", "family", "streams")),
        f"{instance}/streams/{{stream}}",
        f"{BASE}/_limits", f"{BASE}/_limits/{{limit}}", f"{BASE}/_limits/{{limit}}/keys",
        *(f"{BASE}/_queues/{{queue}}/{action}" for action in ("pause", "resume", "move")),
        *(f"{BASE}/_workers/{{worker}}/{action}" for action in ("drain", "resume")),
        *(f"{instance}/{name}" for name in ("graph", "graph/items", "chain", "source")),
        f"{BASE}/_schedules", schedule,
        *(f"{schedule}/{action}" for action in ("pause", "resume", "trigger", "backfill", "preview")),
        f"{BASE}/_instances", f"{BASE}/openapi.json", f"{BASE}/approved/instances/{{instance_id}}/events",
        *(f"{BASE}/{definition.name}/instances{suffix}" for definition in make_shop()[0].registry
          for suffix in ("", "/batch")),
    }  # fmt: skip
    create = document["paths"][f"{BASE}/order/instances"]["post"]
    assert {"200", "400", "401", "403", "404", "409", "413", "415", "500", "503"} <= set(create["responses"])
    assert "422" not in str(document)


async def test_an_input_has_the_schema_of_its_annotation() -> None:
    document = await document_of(make_shop()[0])

    order = params_of(document, "order")
    assert (order["required"], order["properties"]["total"]["type"]) == (["id", "total"], "integer")
    assert params_of(document, "nothing") == {"type": "null"}
    assert params_of(document, "echo") == {}
    assert params_of(document, "chatty") == {"type": "integer"}
    assert params_of(document, "failing") == {"anyOf": [{"type": "string"}, {"type": "null"}]}
    body = document["paths"][f"{BASE}/order/instances"]["post"]["requestBody"]
    assert body["content"]["application/json"]["schema"]["required"] == ["params"]


async def test_inputs_of_every_kind_have_a_schema() -> None:
    app = Holdfast("sqlite://")

    @app.workflow
    async def pack(_ctx: Context, box: Box) -> None: ...

    @app.workflow
    async def pairs(_ctx: Context, pair: Pair) -> None: ...

    app.remote("elsewhere", params=Item)
    document = await document_of(app)

    parts = document["components"]["schemas"]
    assert parts["pack.Item"]["properties"]["photo"]["contentEncoding"] == "base64"
    assert parts["pack.Colour"]["enum"] == ["red", "blue"]
    assert params_of(document, "pack")["properties"]["items"]["items"] == {"$ref": "#/components/schemas/pack.Item"}
    assert params_of(document, "pairs")["$ref"] == "#/components/schemas/pairs.Pair"
    assert "when" in params_of(document, "elsewhere")["properties"]


# A JSON schema can express these only in part: which texts convert to a number, that a key must be such a text, and
# the range of a number in a text.
PARTLY_EXPRESSIBLE = Annotated[int, Field(strict=False)], dict[int, int], Annotated[Decimal, Field(ge=1)]
VALUES: list[Any] = [
    None, True, False, 0, 1, 2, 12, -1, 1.0, 1.5, 2**70, "", "0", "1", "12", " 1 ", "1.0", "1e5", "nan", "true", "red",
    "x", "x\n", "xxxx", "AP8=", "P1D", "1 day", "2024-01-02", "2024-01-02T03:04:05Z", "10:00:00Z",
    "00000000-0000-0000-0000-000000000001", [], [1], ["1"], [1, 1], [1, "x"], [True], [[1]], {}, {"a": 1}, {"a": "1"},
    {"1": 1}, {"left": 1}, {"left": 1, "right": {"left": 2}}, {"left": 1, "right": {"left": "2"}}, {"left": True},
    {"items": []}, {"items": [{}]}, {"items": [{"when": "2024-01-02T03:04:05Z", "colour": "red", "photo": "AP8="}]},
    {"items": [{"when": 0, "colour": "red", "photo": "AP8="}]}, {"x": 1},
]  # fmt: skip


@pytest.mark.parametrize(
    "annotation",
    [
        int, float, bool, str, bytes, None, Decimal, datetime, date, time, timedelta, UUID, Colour, Level, Point, Box,
        Item, Pair, Any, list, dict, list[int], set[int], frozenset[str], tuple[int, str], tuple[int, ...],
        dict[str, int], Literal["x", 1], Literal[True], int | None, int | str, Pair | int, float | bool,
        Annotated[int, Field(ge=1)], Annotated[str, Field(max_length=3)], Annotated[list[int], Field(min_length=1)],
        *PARTLY_EXPRESSIBLE,
    ],
    ids=str,
)  # fmt: skip
async def test_the_schema_of_an_input_accepts_what_the_server_accepts(annotation: Any) -> None:
    app = Holdfast("sqlite://")
    app.remote("elsewhere", params=annotation)
    document = await document_of(app)
    schema = params_of(document, "elsewhere") | {"components": document["components"]}
    documented = jsonschema_rs.validator_for(schema, validate_formats=True)

    async with opened(app) as api:
        for value in VALUES:
            response = await api.send("POST", "/elsewhere/instances", json={"params": value})
            if response.status_code == 200:
                assert documented.is_valid(value), value
            elif annotation not in PARTLY_EXPRESSIBLE:
                assert not documented.is_valid(value), value


APPROVAL = {"by": "ann", "at": "2024-01-02T03:04:05Z"}
EVENTS: list[Any] = [
    {"type": "nod", "payload": APPROVAL}, {"type": "nod", "payload": APPROVAL, "id": "e-1"},
    {"type": "nod"}, {"type": "nod", "payload": None}, {"type": "nod", "payload": {"by": "ann"}},
    {"type": "nod", "payload": APPROVAL | {"at": "noon"}}, {"type": "nod", "payload": APPROVAL, "more": 1},
    {"type": "hint"}, {"type": "hint", "payload": "x"}, {"type": "hint", "payload": 5}, {"type": "other"},
    {"type": "other", "payload": [5]}, {"type": "-"}, {}, {"payload": APPROVAL},
]  # fmt: skip


async def test_the_schema_of_declared_events_accepts_what_the_server_accepts() -> None:
    app, _ = make_shop()
    document = await document_of(app)
    send = document["paths"][f"{BASE}/approved/instances/{{instance_id}}/events"]["post"]
    generic = document["paths"][f"{BASE}/{{workflow}}/instances/{{instance_id}}/events"]["post"]
    [workflow] = [parameter for parameter in generic["parameters"] if parameter["name"] == "workflow"]
    assert "approved" not in workflow["schema"]["enum"]
    links = document["paths"][f"{BASE}/approved/instances"]["post"]["responses"]["200"]["links"]
    assert links["sendEvent"]["operationId"] == send["operationId"] == "sendEvent-approved"
    schema = send["requestBody"]["content"]["application/json"]["schema"] | {"components": document["components"]}
    documented = jsonschema_rs.validator_for(schema, validate_formats=True)

    async with opened(app) as api:
        for body in EVENTS:
            await api.create("approved", id="a") if body == EVENTS[0] else await api.post(
                "/approved/instances/a/restart"
            )
            response = await api.send("POST", "/approved/instances/a/events", json=body)
            assert (response.status_code == 200) == documented.is_valid(body), body


async def test_the_generic_event_path_is_absent_if_every_workflow_declares_events() -> None:
    app = Holdfast("sqlite://")
    app.remote("elsewhere", events={"approval": Item})

    document = await document_of(app)

    assert [path for path in document["paths"] if path.endswith("/events")] == [
        f"{BASE}/elsewhere/instances/{{instance_id}}/events"
    ]
    assert "elsewhere.approval.Colour" in document["components"]["schemas"]


CANCELS: list[Any] = [
    {}, None, [], "x", {"reason": ""}, {"reason": "x" * 2000}, {"reason": "x" * 2001}, {"reason": None}, {"reason": 1},
    {"deadlineMs": 0}, {"deadlineMs": 5.0}, {"deadlineMs": 1.5}, {"deadlineMs": -1}, {"deadlineMs": MAX_MS},
    {"deadlineMs": MAX_MS + 1}, {"deadlineMs": True}, {"deadlineMs": "5"}, {"deadlineMs": None}, {"deadline": 5},
    {"reason": "x", "deadlineMs": 5},
]  # fmt: skip


async def test_the_schema_of_a_cancel_accepts_what_the_server_accepts() -> None:
    app, _ = make_shop()
    document = await document_of(app)
    cancel = document["paths"][f"{BASE}/{{workflow}}/instances/{{instance_id}}/cancel"]["post"]
    assert cancel["requestBody"]["required"] is False
    assert {"200", "400", "404", "409", "413", "415"} <= set(cancel["responses"])
    documented = jsonschema_rs.validator_for(cancel["requestBody"]["content"]["application/json"]["schema"])

    async with opened(app) as api:
        await api.create("stubborn", id="s")
        for body in CANCELS:
            response = await api.send("POST", "/stubborn/instances/s/cancel", content=json.dumps(body))
            assert documented.is_valid(body) == (response.status_code != 400), body


async def test_a_search_is_described_by_the_names_of_its_parameters() -> None:
    app, _ = make_shop()
    document = await document_of(app)
    listing = document["paths"][f"{BASE}/tagged/instances"]["get"]["parameters"]
    [search] = [parameter for parameter in listing if parameter["name"] == "search"]
    assert (search["in"], search["style"], search["explode"]) == ("query", "form", True)
    assert sum(str(path).count("'explode'") for path in document["paths"].values()) == len([*app.registry])
    documented = jsonschema_rs.validator_for(search["schema"])
    [pattern] = search["schema"]["patternProperties"]

    async with opened(app) as api:
        for name in ("a", "_", "a.b-c", "A9", "k" * 64, "9", "-a", "", "a b", "é", "k" * 65):
            response = await api.send("GET", "/tagged/instances", params={f"search.{name}": "x"})
            assert bool(re.search(pattern, f"search.{name}")) == (response.status_code == 200), name
        for value in ("", "x", "5", ">=5", '"', "x" * 1000, "x" * 1001):
            response = await api.send("GET", "/tagged/instances", params={"search.n": value})
            assert documented.is_valid({"search.n": value}) == (response.status_code == 200), value
        for value, query in (
            (["x", "y"], "search.n=x&search.n=y"),
            (10**20, f"search.n={10**20}"),
            (-1e20, "search.n=-1e20"),
            ({"x": 1}, "search.n[x]=1"),
            ({}, ""),
        ):
            response = await api.send("GET", f"/tagged/instances?{query}")
            assert documented.is_valid({"search.n": value}) == (response.status_code == 200), query
        assert documented.is_valid({"n": ["x", "y"]})
        assert (await api.send("GET", "/tagged/instances?n=x&n=y")).status_code == 200


async def test_fields_that_are_absent_when_empty_are_optional_in_the_document() -> None:
    parts = (await document_of(make_shop()[0]))["components"]["schemas"]

    optional = {
        "currentStep", "attempt", "summary", "memo", "search", "parent", "children", "links", "monitors",
        "workflowVersion", "nativeStatus", "killed", "origin", "forks", "queue", "version", "owner",
    }  # fmt: skip
    assert optional_in(parts["Meta"]) == optional
    assert optional_in(parts["Event"]) == {"sender"}
    assert optional_in(parts["Step"]) == optional_in(parts["CurrentStep"]) == {
        "error", "state", "stepSeq", "progress", "heartbeatAt", "resolved",
    }  # fmt: skip
    assert optional_in(parts["ListedInstance"]) == {"kind", "nativeStatus"}
    assert optional_in(parts["OutboxEvent"]) == set()
    assert optional_in(parts["Failure"]) == {"traceback", "causes"}


def optional_in(part: Any) -> set[str]:
    return set(part["properties"]) - set(part["required"])


async def test_a_created_instance_has_links_to_every_operation_on_it() -> None:
    document = await document_of(make_shop()[0])

    def linked(workflow: str) -> set[str]:
        return set(document["paths"][f"{BASE}/{workflow}/instances"]["post"]["responses"]["200"]["links"])

    assert linked("pipeline") - linked("order") == {"getFacts", "drawInstance", "killInstance"}
    assert linked("order.process") - linked("order") == {"getOutbox", "redeliverOutbox"}
    below = [item for path, item in document["paths"].items() if "/{instance_id}/" in path and "post" in item]
    commands = {operations["post"]["operationId"].partition("-")[0] for operations in below}
    assert commands <= linked("order") | linked("pipeline") | linked("order.process")
    links = document["paths"][f"{BASE}/pipeline/instances"]["post"]["responses"]["200"]["links"]
    known = {operation["operationId"] for item in document["paths"].values() for operation in item.values()}
    assert {link["operationId"] for link in links.values()} <= known


async def test_graph_routes_are_documented_for_graphs_only() -> None:
    document = await document_of(make_shop()[0])

    for path, method in (("/facts", "get"), ("/mermaid", "get"), ("/kill", "post")):
        [documented] = [known for known in document["paths"] if known.endswith(f"/{{instance_id}}{path}")]
        assert documented == f"{BASE}/pipeline/instances/{{instance_id}}{path}"
        parameters = {parameter["name"] for parameter in document["paths"][documented][method]["parameters"]}
        assert parameters == {"instance_id", *(["prefix"] if path == "/facts" else [])}
    drawn = document["paths"][f"{BASE}/pipeline/mermaid"]["get"]["responses"]
    assert drawn["200"]["content"] == {"text/plain": {"schema": {"type": "string"}}}
    assert [*drawn["400"]["content"]] == ["application/json"]


async def test_an_app_without_graphs_documents_no_graph_routes() -> None:
    app = Holdfast("sqlite://")
    app.remote("elsewhere")

    document = await document_of(app)

    assert not [path for path in document["paths"] if path.endswith(("/mermaid", "/facts", "/kill"))]


KILLS: list[Any] = [
    {}, None, [], "x", {"reason": ""}, {"reason": "x" * 2000}, {"reason": "x" * 2001}, {"reason": None}, {"reason": 1},
    {"deadlineMs": 0},
]  # fmt: skip


async def test_the_schema_of_a_kill_accepts_what_the_server_accepts() -> None:
    app, _ = make_shop()
    document = await document_of(app)
    kill = document["paths"][f"{BASE}/pipeline/instances/{{instance_id}}/kill"]["post"]
    assert kill["requestBody"]["required"] is False
    assert {"200", "400", "404", "409", "413", "415"} <= set(kill["responses"])
    documented = jsonschema_rs.validator_for(kill["requestBody"]["content"]["application/json"]["schema"])

    async with opened(app) as api:
        await api.create("pipeline", id="g")
        for body in KILLS:
            response = await api.send("POST", "/pipeline/instances/g/kill", content=json.dumps(body))
            assert documented.is_valid(body) == (response.status_code != 400), body


async def test_the_document_has_the_limits_of_the_app() -> None:
    app, _ = make_shop(limits=Limits(instance_id=7, page_size=9, event_type=5, batch=3, log_category=8))
    document = await document_of(app)

    listing = document["paths"][f"{BASE}/order/instances"]["get"]["parameters"]
    assert next(parameter for parameter in listing if parameter["name"] == "pageSize")["schema"]["maximum"] == 9
    batch = document["paths"][f"{BASE}/order/instances/batch"]["post"]["requestBody"]["content"]["application/json"]
    assert batch["schema"]["properties"]["instances"]["maxItems"] == 3
    assert batch["schema"]["properties"]["instances"]["items"]["properties"]["id"]["maxLength"] == 7
    history = document["paths"][f"{BASE}/{{workflow}}/instances/{{instance_id}}/history"]["get"]["parameters"]
    assert next(parameter for parameter in history if parameter["name"] == "logCategory")["schema"]["maxLength"] == 8


async def test_bearer_tokens_are_described() -> None:
    token = "a-long-enough-token"
    app, _ = make_shop(authorize=BearerTokens({token: ["read"]}))
    async with client_of(app.asgi()) as http:
        document = (await http.get("/openapi.json", headers={"Authorization": f"Bearer {token}"})).json()

    assert document["security"] == [{"bearer": []}]
    assert document["paths"][f"{BASE}/_health/live"]["get"]["security"] == []


async def test_an_app_without_workflows_has_a_document() -> None:
    assert f"{BASE}/_health" in (await document_of(Holdfast("sqlite://")))["paths"]


@pytest.mark.timeout(1200)
def test_the_server_conforms_to_the_document_under_fuzzing(request: pytest.FixtureRequest) -> None:
    """The coverage phase, only with ``--long``, sends each kind of invalid value for each parameter: 3,500 requests."""
    phases = "coverage,fuzzing,stateful" if request.config.getoption("--long") else "fuzzing,stateful"
    code, report, requests = fuzz(f"--phases={phases}", "--max-examples=1", "--seed=7", "--max-response-time=10")

    assert code == 0, report
    assert requests > 50
