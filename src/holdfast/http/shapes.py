"""Routes of definitions and shapes: JSON schemas of params and events, graphs and chains as pictures, source text."""

from __future__ import annotations

import linecache
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, NotRequired, cast

from fastapi import Query
from starlette.requests import Request
from starlette.responses import Response
from typing_extensions import TypedDict

from holdfast.core.model import StepStatus, optional_to_ms
from holdfast.core.records import PlannedStep
from holdfast.core.timeline import Item
from holdfast.errors import DefinitionError
from holdfast.http import response_bodies, responses, run_bodies, wire, wire_run, wire_views
from holdfast.http.auth import Scope
from holdfast.http.backend import Backend
from holdfast.http.handlers import Handlers, Id, Name
from holdfast.http.hiding import current_redaction
from holdfast.http.input_schemas import event_payload_schema, params_schema
from holdfast.http.queries import check_query
from holdfast.http.responses import reply
from holdfast.http.spec import Spec
from holdfast.http.wire import Count
from holdfast.http.wire_run import Milliseconds
from holdfast.kernel.definition import Definition

_MAX_ITEMS = 1000
_BUCKETS = 20


class ShapeStep(TypedDict):
    key: str
    after: list[str]
    map: NotRequired[str]
    run: NotRequired[str]
    maxAttempts: NotRequired[Count]


class DefinitionBody(TypedDict):
    name: str
    kind: str
    version: NotRequired[int]
    pinned: bool
    doc: NotRequired[str]
    """The docstring of the workflow's function."""
    params: dict[str, Any] | None
    """The JSON schema of the input; ``null``: the workflow takes none."""
    events: dict[str, dict[str, Any]]
    """The JSON schema of the payload of each declared event."""
    shape: NotRequired[dict[str, Any]]
    """``nodes`` of a graph, ``steps`` of a chain."""


class Definitions(TypedDict):
    workflows: list[DefinitionBody]


class NodeItems(TypedDict):
    total: Count
    ok: Count
    error: Count
    retrying: Count
    running: Count


class NodeBody(ShapeStep):
    state: str
    attempts: Count
    start: Milliseconds | None
    end: Milliseconds | None
    worker: NotRequired[str]
    error: NotRequired[wire.Failure]
    items: NotRequired[NodeItems]
    critical: NotRequired[bool]
    """True for nodes of the path that took the longest, up to a node that is still running."""


class GraphBody(TypedDict):
    nodes: list[NodeBody]


class ItemBody(TypedDict):
    n: Count
    state: str
    attempts: Count
    start: Milliseconds | None
    end: Milliseconds | None
    error: NotRequired[wire.Failure]


class ItemTimes(TypedDict):
    """Durations of the items that have a result, from their start to their result."""

    p50Ms: Milliseconds
    p95Ms: Milliseconds
    stepMs: Milliseconds
    """The length of a bucket of ``counts``."""
    counts: list[Count]
    """Items by duration, in buckets of equal length from zero to the longest duration."""


class ItemsBody(TypedDict):
    items: list[ItemBody]
    total: Count
    took: NotRequired[ItemTimes]
    """Absent while no item has a result. It describes all items, also those that are not listed."""


class ChainStepBody(TypedDict):
    seq: Count
    type: str
    state: str
    attempts: Count
    maxAttempts: int | None
    start: Milliseconds | None
    end: Milliseconds | None
    eventType: NotRequired[str]
    wakeAt: NotRequired[Milliseconds]
    nextRetryAt: NotRequired[Milliseconds]
    error: NotRequired[wire.Failure]
    result: NotRequired[Any]
    """The output of a step that is done."""
    calls: list[wire_run.TimelineAttempt]
    """The calls of the step's handler, the earliest first."""


class ChainBody(TypedDict):
    pointer: int | None
    """The position of the current step; ``null`` after the last."""
    steps: list[ChainStepBody]
    outbox: list[wire.OutboxEvent]


class SourceBody(TypedDict):
    file: str
    text: str


class ItemsParams(wire_views.ExportParams):
    """``node``: the node whose items are listed."""

    node: str = ""


class SourceParams(wire_views.ReplayParams):
    """``file``: as a frame of the replay names it."""

    file: str = ""


class Shapes(Handlers):
    """Definitions and shapes."""

    async def definitions(self) -> Response:
        """The registered workflows with the JSON schemas of their params and declared events, and their shapes."""
        current_redaction.set(None)  # schemas show names, and no values
        body: Definitions = {"workflows": [self._definition(one) for one in self._backend.registry]}
        return reply(body)

    def _definition(self, definition: Definition) -> DefinitionBody:
        body: DefinitionBody = {
            "name": definition.name,
            "kind": definition.kind,
            "pinned": definition.pinned,
            "params": params_schema(definition),
            "events": {event.type: event_payload_schema(event) for event in definition.events.values()},
        }
        if definition.version is not None:
            body["version"] = definition.version
        if definition.doc:
            body["doc"] = definition.doc
        planned = self._backend.registry.model(definition.kind).planned(_plan(definition))
        if planned and definition.unit_driver is not None:
            body["shape"] = {"nodes": [_shape(step) for step in planned]}
        elif planned:
            body["shape"] = {"steps": [_chain_shape(step) for step in planned]}
        return body

    async def graph(
        self, request: Request, workflow: Name, instance_id: Id, query: Annotated[wire_views.ExportParams, Query()]
    ) -> Response:
        """The nodes of a graph's run with their states, and the path of results that took the longest."""
        check_query(request, query)
        planned, items = await self._drawn(workflow, instance_id, query.runNumber)
        body: GraphBody = {"nodes": _nodes(planned, {item.step.step_key: item for item in items})}
        return reply(body)

    async def items(
        self, request: Request, workflow: Name, instance_id: Id, query: Annotated[ItemsParams, Query()]
    ) -> Response:
        """The items of a node that maps over a list, at most a thousand, and how long all its items took."""
        check_query(request, query)
        _, items = await self._drawn(workflow, instance_id, query.runNumber)
        found = [item for item in items if item.step.step_key.startswith(f"{query.node}[")]
        body: ItemsBody = {"items": [_item(item) for item in found[:_MAX_ITEMS]], "total": len(found)}
        took = sorted(item.end - item.start for item in found if item.end is not None)
        if took:
            body["took"] = _item_times(took)
        return reply(body)

    async def chain(
        self, request: Request, workflow: Name, instance_id: Id, query: Annotated[wire_views.ExportParams, Query()]
    ) -> Response:
        """The steps of a chain's run with their states, the current step, and the outbox."""
        check_query(request, query)
        client = self._client()
        _, items = await self._drawn(workflow, instance_id, query.runNumber)
        address = client.instances.address(workflow, instance_id)
        outbox = await client.outbox.records(*address, query.runNumber)
        steps = sorted((_chain_step(item) for item in items), key=lambda step: step["seq"])
        waiting = [step["seq"] for step in steps if step["state"] not in ("DONE", "PENDING")]
        body: ChainBody = {
            "pointer": waiting[0] if waiting else None,
            "steps": steps,
            "outbox": response_bodies.outbox(outbox)["events"],
        }
        return reply(body)

    async def _drawn(
        self, workflow: str, instance_id: str, run_number: int | None
    ) -> tuple[Sequence[PlannedStep], Sequence[Item]]:
        client = self._client()
        return await client.details.shape(*client.instances.address(workflow, instance_id), run_number)

    async def source(
        self, request: Request, workflow: Name, instance_id: Id, query: Annotated[SourceParams, Query()]
    ) -> Response:
        """The text of one of the files of the frames of this replay; by default that of the innermost frame."""
        if not self._backend.debug:
            raise responses.Problem(403, responses.DEBUG_DISABLED, "source files over HTTP are not enabled")
        check_query(request, query)
        client = self._client()
        address = client.instances.address(workflow, instance_id)
        view = await client.views.replay(*address, query.until, run_number=query.runNumber)
        files = [frame.file for task in view.stack.tasks for frame in reversed(task.frames)]
        file = query.file or (files[0] if files else "")
        if query.file and query.file not in files:
            raise responses.Problem(404, responses.NOT_FOUND, "no frame of this replay is in this file")
        body: SourceBody = {"file": file, "text": "".join(linecache.getlines(file))}
        return reply(body)


def shape_routes(backend: Backend) -> Sequence[Spec]:
    shapes, instance = Shapes(backend), "/{workflow}/instances/{instance_id}"
    return [
        Spec("GET", "/_definitions", "listDefinitions", Scope.READ, shapes.definitions, Definitions, no_instances=True),
        Spec("GET", f"{instance}/graph", "getGraph", Scope.READ, shapes.graph, GraphBody, (400, 404)),
        Spec("GET", f"{instance}/graph/items", "listItems", Scope.READ, shapes.items, ItemsBody, (400, 404)),
        Spec("GET", f"{instance}/chain", "getChain", Scope.READ, shapes.chain, ChainBody, (400, 404)),
        Spec("GET", f"{instance}/source", "getSource", Scope.DEBUG, shapes.source, SourceBody, (400, 403, 404)),
    ]  # fmt: skip


def _plan(definition: Definition) -> Sequence[Any]:
    """The planned steps; none for an incomplete chain or graph, which cannot be started."""
    if definition.blueprint is None:
        return ()
    try:
        return definition.blueprint(0).plan
    except DefinitionError:
        return ()


def _shape(step: PlannedStep) -> ShapeStep:
    body: ShapeStep = {"key": step.key, "after": [*step.after]}
    if step.map is not None:
        body["map"] = step.map
    if step.run is not None:
        body["run"] = step.run
    return body


def _chain_shape(step: PlannedStep) -> dict[str, Any]:
    return {"type": step.key, "maxAttempts": step.max_attempts}


def _nodes(planned: Iterable[PlannedStep], items: Mapping[str, Item]) -> list[NodeBody]:
    nodes = [_node(step, items) for step in planned if step.key in items]
    critical = _critical({node["key"]: node for node in nodes})
    for node in nodes:
        if node["key"] in critical:
            node["critical"] = True
    return nodes


def _node(step: PlannedStep, items: Mapping[str, Item]) -> NodeBody:
    item = items[step.key]
    body = cast("NodeBody", {**_shape(step), **_times(item)})
    workers = [attempt.worker for attempt in item.attempts if attempt.worker is not None]
    if workers:
        body["worker"] = workers[-1]
    if step.map is not None:
        body["items"] = _item_counts([one for key, one in items.items() if key.startswith(f"{step.key}[")])
    return body


def _times(item: Item) -> dict[str, Any]:
    """The fields that nodes and items have in common."""
    record, begun = item.step, item.step.state != "pending"
    body: dict[str, Any] = {
        "state": record.state or record.status,
        "attempts": record.attempts,
        "start": item.start if begun else None,
        "end": item.end,
    }
    if record.error is not None:
        body["error"] = response_bodies.failure(record.error)
    return body


def _item(item: Item) -> ItemBody:
    number = int(item.step.step_key.rpartition("[")[2].rstrip("]"))
    return cast("ItemBody", {"n": number, **_times(item)})


def _item_times(took: Sequence[int]) -> ItemTimes:
    """``took``: durations in ascending order. The percentiles are nearest ranks."""
    step = took[-1] // _BUCKETS + 1
    counts = [0] * _BUCKETS
    for duration in took:
        counts[duration // step] += 1
    p50, p95 = (took[(len(took) * percent + 99) // 100 - 1] for percent in (50, 95))
    return {"p50Ms": p50, "p95Ms": p95, "stepMs": step, "counts": counts}


def _item_counts(items: Sequence[Item]) -> NodeItems:
    states = [item.step.state for item in items]
    ok, error, retrying = states.count("ok"), states.count("error"), states.count("retrying")
    running = len(states) - ok - error - retrying
    return {"total": len(states), "ok": ok, "error": error, "retrying": retrying, "running": running}


def _critical(nodes: Mapping[str, NodeBody]) -> set[str]:
    """The node that ended last or is running for the longest time, and before each the predecessor that ended last."""
    path: set[str] = set()
    begun = [node for node in nodes.values() if node["start"] is not None and node["state"] != "skipped"]
    last = min((node for node in begun if node["end"] is None), key=lambda node: node["start"] or 0, default=None)
    if last is None:
        last = max(begun, key=lambda node: node["end"] or 0, default=None)
    while last is not None and last["key"] not in path:
        path.add(last["key"])
        before = [nodes[key] for key in last["after"] if key in nodes and nodes[key]["end"] is not None]
        last = max(before, key=lambda node: node["end"] or 0, default=None)
    return path


def _chain_step(item: Item) -> ChainStepBody:
    record = item.step
    begun = record.state != "PENDING"
    body: dict[str, Any] = {
        "seq": record.step_seq or 0,
        "type": record.step_key,
        "state": record.state or StepStatus(record.status),
        "attempts": record.attempts,
        "maxAttempts": record.max_attempts,
        "start": item.start if begun else None,
        "end": item.end,
        "calls": [run_bodies.attempt_body(attempt) for attempt in item.attempts] if begun else [],
    }
    if record.state == "DONE":
        body["result"] = record.result
    optional = {
        "eventType": record.wait_event_type,
        "wakeAt": optional_to_ms(record.wake_at),
        "nextRetryAt": optional_to_ms(record.next_retry_at),
        "error": None if record.error is None else response_bodies.failure(record.error),
    }
    return cast("ChainStepBody", body | {name: value for name, value in optional.items() if value is not None})
