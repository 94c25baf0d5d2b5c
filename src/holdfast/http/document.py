"""The OpenAPI document: FastAPI's document, completed with the input of every registered workflow.

FastAPI describes routes, queries and responses. This module adds the strict request bodies, the limits, and the paths
of each registered workflow: ``/order/instances`` takes an order.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import chain

from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import TypeAdapter
from starlette.responses import JSONResponse, PlainTextResponse, Response

from holdfast.http import wire
from holdfast.http.auth import Authorize, BearerTokens
from holdfast.http.backend import Backend
from holdfast.http.input_schemas import REFS, Schema, event_schema, input_schema, params_are_optional
from holdfast.http.queries import MAX_SEARCH_FILTERS
from holdfast.http.spec import Spec
from holdfast.http.start_options import EXCLUSIVE, PolicyFields, StartFields
from holdfast.kernel.definition import Definition
from holdfast.kernel.model import Model

VERSION = "1"
_ERROR = {"$ref": REFS.format(model="Error")}  # a shared reference: FastAPI would add one model for each use
_NEEDS_UNITS = "x-needs-units"
_EVERYWHERE = (401, 403, 500, 503)
_MEANINGS = {
    400: "Something in the request is not valid; nothing was changed.",
    401: "The request has no valid credentials.",
    403: "This caller may not do this.",
    404: "There is no such workflow or instance.",
    408: "The body arrived too slowly.",
    409: "The instance is in a state that forbids this, or its id is taken.",
    413: "The body, or a value in it, is too large.",
    415: "The body is not JSON.",
    500: "Internal server error.",
    503: "The server is not ready, or cannot reach its database.",
}
# With style "form" and explode, each property of the object is a query parameter: one parameter per attribute.
_SEARCH: Schema = {
    "name": "search",
    "in": "query",
    "style": "form",
    "explode": True,
    "description": f"search.KEY=VALUE, up to {MAX_SEARCH_FILTERS} times: only instances for which all of them hold. "
    "A VALUE that reads as a number, true or false is compared as such; any other value, and a value in double quotes, "
    "is compared as text. One of <, <=, >, >= may precede the value.",
    "schema": {
        "type": "object",
        # No types, because every query value is text. maxProperties excludes objects, which tools would send under
        # other names: search.KEY[name].
        "patternProperties": {r"^search\.[a-zA-Z_][a-zA-Z0-9_.-]{0,63}$": {"maxLength": 1000, "maxProperties": 0}},
        "additionalProperties": True,
    },
}


_MODEL_FIELDS = (
    ("ListedInstance", "nativeStatus"),
    ("Meta", "nativeStatus"),
    ("CurrentStep", "state"),
    ("Step", "state"),
)


def _documented_route(spec: Spec, base: str) -> APIRoute:
    """A route with its response schema, for the document only.

    FastAPI builds a pydantic model for each response schema. That would take most of the time of building an app, so
    the routes that serve requests have no response schema.
    """
    extra: Schema = {_NEEDS_UNITS: True} if spec.needs_units else {}
    if spec.body is not None:
        schema = spec.body.json_schema(ref_template=REFS)
        schema.pop("$defs", None)
        extra["requestBody"] = {
            "required": spec.body_required,
            "content": {"application/json": {"schema": schema}},
        }
    responses: dict[int | str, Schema] = {
        status: {"description": _MEANINGS[status], "content": {"application/json": {"schema": _ERROR}}}
        for status in sorted({*spec.errors, *(_EVERYWHERE if spec.scope is not None else (500,))})
    }
    if spec.pending:
        responses[202] = {"description": "The run has not ended.", "model": spec.result}
    return APIRoute(
        base + spec.path or "/",
        spec.handler,
        methods=[spec.method],
        name=spec.name,
        operation_id=spec.name,
        response_model=None if spec.result is str else spec.result,
        response_class=_response_class(spec),
        responses=responses,
        openapi_extra=extra,
        status_code=200,
    )


_routes_documents: dict[tuple[str, ...], Schema] = {}
"""The documents of the routes, by base path and names of the routes: FastAPI takes half a second for one."""


def _routes_document(specs: Sequence[Spec], base: str) -> Schema:
    """The part of the document that is the same for every app with these routes; the caller may change it."""
    key = (base, *(spec.name for spec in specs))
    if key not in _routes_documents:
        _routes_documents[key] = _build_routes_document(specs, base)
    return copy.deepcopy(_routes_documents[key])


def _build_routes_document(specs: Sequence[Spec], base: str) -> Schema:
    routes = [_documented_route(spec, base) for spec in specs]
    document: Schema = get_openapi(title="Holdfast", version=VERSION, description="Durable workflows.", routes=routes)
    components: Schema = document["components"]["schemas"]
    for unused in ("HTTPValidationError", "ValidationError"):
        components.pop(unused, None)
    error = TypeAdapter(wire.Error).json_schema(ref_template=REFS)
    components |= error.pop("$defs") | {"Error": error}
    for path in document["paths"].values():
        for operation in path.values():
            operation["responses"].pop("422", None)
    return document


class Document:
    """The OpenAPI document, built on request and cached until a definition is registered."""

    def __init__(self, specs: Sequence[Spec], backend: Backend, base: str, authorize: Authorize) -> None:
        self._specs = specs
        self._backend = backend
        self._base = base
        self._authorize = authorize
        self._cached: tuple[tuple[Definition, ...], Schema] | None = None

    def mounted_at(self, root_path: str) -> Schema:
        """The document of the application mounted at ``root_path``."""
        definitions = tuple(self._backend.registry)
        if self._cached is None or self._cached[0] != definitions:
            self._cached = definitions, self._build()
        return self._cached[1] | {"servers": [{"url": root_path or "/"}]}

    def _build(self) -> Schema:
        document = _routes_document(self._specs, self._base)
        components: Schema = document["components"]["schemas"]
        for path in document["paths"].values():
            for operation in path.values():
                self._add_limits(operation)
                self._add_hook_refusals(operation)
        self._add_states(components)
        self._add_workflow_paths(document["paths"], components)
        self._add_event_paths(document["paths"], components)
        if isinstance(self._authorize, BearerTokens):
            document["components"]["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
            document["security"] = [{"bearer": []}]
            document["paths"][f"{self._base}/_health/live"]["get"]["security"] = []
        return document

    def _add_hook_refusals(self, operation: Schema) -> None:
        """Add the 4XX response: the app's own hooks may refuse a request with any such status."""
        if "403" in operation["responses"] and not (self._authorize.open or isinstance(self._authorize, BearerTokens)):
            content = {"application/json": {"schema": _ERROR}}
            operation["responses"]["4XX"] = {"description": "A hook of the app refused this.", "content": content}

    def _add_limits(self, operation: Schema) -> None:
        limits = self._backend.limits
        names = [definition.name for definition in self._backend.registry]
        constraints: Mapping[str, Schema] = {
            "workflow": {"enum": names} if names else {},
            "instance_id": _id_schema(limits.instance_id),
            "idPrefix": {"maxLength": limits.instance_id},
            "pageSize": {"maximum": limits.page_size},
            "logCategory": {"maxLength": limits.log_category},
        }
        for parameter in operation.get("parameters", ()):
            parameter["schema"] |= constraints.get(parameter["name"], {})
        if operation["operationId"] == "listInstances":
            operation["parameters"].append(_SEARCH)
        if operation["operationId"] == "sendEvent":
            event = operation["requestBody"]["content"]["application/json"]["schema"]["properties"]
            event["type"] |= _event_type(limits.event_type)

    def _add_states(self, components: Schema) -> None:
        """Add the statuses and the states of steps that the authoring models have."""
        models = self._backend.registry.models
        enums = {
            "nativeStatus": [model.native_statuses for model in models if model.native_statuses is not None],
            "state": [model.step_states for model in models if model.step_states is not None],
        }
        for enum in chain.from_iterable(enums.values()):
            components[enum.__name__] = TypeAdapter(enum).json_schema()
        for name, field in _MODEL_FIELDS:
            values = [{"$ref": REFS.format(model=enum.__name__)} for enum in enums[field]]
            if values:
                components[name]["properties"][field] = values[0] if len(values) == 1 else {"anyOf": values}

    def _add_workflow_paths(self, paths: dict[str, Schema], components: Schema) -> None:
        """Replace generic paths by one path per workflow.

        The input differs between workflows, and some paths exist only for definitions whose runs consist of units.
        """
        generic = {path: paths.pop(path) for path in [*paths] if path in self._instance_paths()}
        of_units = {
            path: paths.pop(path) for path in [*paths] if any(_NEEDS_UNITS in one for one in paths[path].values())
        }
        for definition in self._backend.registry:
            start = self._start_schema(definition, components)
            model = self._backend.registry.model(definition.kind)
            for path, operations in generic.items():
                paths[path.replace("{workflow}", definition.name)] = {
                    method: self._with_input(operation, definition, model, start)
                    for method, operation in operations.items()
                }
            for path, operations in of_units.items() if model.units is not None else ():
                paths[path.replace("{workflow}", definition.name)] = {
                    method: _for_one_workflow(operation, definition.name) for method, operation in operations.items()
                }

    def _add_event_paths(self, paths: dict[str, Schema], components: Schema) -> None:
        """Add a path for each workflow that declares events; the generic path remains for the other workflows."""
        path = f"{self._base}/{{workflow}}/instances/{{instance_id}}/events"
        generic = paths[path]["post"]
        declaring = [definition for definition in self._backend.registry if definition.events]
        for definition in declaring:
            operation = _for_one_workflow(generic, definition.name)
            body = operation["requestBody"]["content"]["application/json"]
            body["schema"] = event_schema(definition, body["schema"], components)
            paths[path.replace("{workflow}", definition.name)] = {"post": operation}
        others = [definition.name for definition in self._backend.registry if not definition.events]
        if declaring and not others:
            del paths[path]
        elif declaring:
            workflow = next(parameter for parameter in generic["parameters"] if parameter["name"] == "workflow")
            workflow["schema"]["enum"] = others

    def _instance_paths(self) -> tuple[str, ...]:
        return f"{self._base}/{{workflow}}/instances", f"{self._base}/{{workflow}}/instances/batch"

    def _with_input(self, operation: Schema, definition: Definition, model: Model, start: Schema) -> Schema:
        copied = _for_one_workflow(operation, definition.name)
        body = copied.get("requestBody", {}).get("content", {}).get("application/json")
        if body is not None and "instances" in body["schema"]["properties"]:
            required = [*dict.fromkeys(["id", *start.get("required", ())])]
            body["schema"]["properties"]["instances"] = {
                "type": "array",
                "maxItems": self._backend.limits.batch,
                "items": _without_policies(start) | {"required": required},
            }
        elif body is not None:
            body["schema"] = start
            copied["responses"]["200"]["links"] = _links(definition, model)
        return copied

    def _start_schema(self, definition: Definition, components: Schema) -> Schema:
        """The schema of a request that starts one instance."""
        properties = {
            "id": {"type": "string"} | _id_schema(self._backend.limits.instance_id),
            "params": input_schema(definition, components),
            **_option_schemas(),
        }
        message = properties["messages"]["items"]
        message["properties"]["type"] |= _event_type(self._backend.limits.event_type)
        if definition.events:
            properties["messages"]["items"] = event_schema(definition, message, components)
        if definition.batch is not None:  # a start is one item of the list that a run receives
            item = properties["params"].get("items", {})
            properties = {name: field for name, field in properties.items() if name in _OF_BATCHED} | {"params": item}
        elif not definition.limits:
            del properties["onLimit"]
        schema: Schema = {
            "type": "object",
            "properties": properties,
            "additionalProperties": False,
            "allOf": [{"not": {"required": [*pair]}} for pair in EXCLUSIVE if {*pair} <= properties.keys()],
        }
        return schema if params_are_optional(definition) else schema | {"required": ["params"]}


_INSTANCE_OPERATIONS = (
    "getInstance", "getHistory", "sendEvent", "pauseInstance", "resumeInstance", "terminateInstance", "restartInstance",
    "cancelInstance", "moveInstance",
    "retryInstance", "forkInstance", "resolveStep", "replyToAsk",
)  # fmt: skip

_OF_BATCHED = ("queue", "priority", "key", "memo", "search", "context", "summary", "runTimeout", "taskTimeout")
"""Fields of a start that is collected in a batch, besides ``params``."""
_POLICIES = PolicyFields.__annotations__.keys() - StartFields.__annotations__.keys()

_OUTBOX_OPERATIONS = ("getOutbox", "redeliverOutbox")
_UNIT_OPERATIONS = ("getFacts", "drawInstance", "killInstance")


class _EventStream(Response):
    media_type = "text/event-stream"


def _response_class(spec: Spec) -> type[Response]:
    if spec.streams:
        return _EventStream
    return PlainTextResponse if spec.result is str else JSONResponse


def _event_type(max_length: int) -> Schema:
    return {"minLength": 1, "maxLength": max_length, "pattern": "^[a-zA-Z0-9_][a-zA-Z0-9_.-]*$"}


def _option_schemas() -> Schema:
    """The schemas of the start options, without references."""
    schema = copy.deepcopy(_policy_fields_schema())
    referred = {f"#/$defs/{name}": definition for name, definition in schema["$defs"].items()}
    return {name: referred.get(field.get("$ref"), field) for name, field in schema["properties"].items()}


@cache
def _policy_fields_schema() -> Schema:
    return TypeAdapter(PolicyFields).json_schema()


def _without_policies(start: Schema) -> Schema:
    """The schema of a start in a batch, which has no start policy."""
    properties = {name: field for name, field in start["properties"].items() if name not in _POLICIES}
    pairs = [pair for pair in start["allOf"] if not _POLICIES & {*pair["not"]["required"]}]
    return start | {"properties": properties, "allOf": pairs}


def _for_one_workflow(operation: Schema, workflow: str) -> Schema:
    """A copy of a generic operation, without the ``workflow`` parameter, for one workflow."""
    copied = copy.deepcopy(operation)
    copied.pop(_NEEDS_UNITS, None)
    copied["operationId"] = f"{copied['operationId']}-{workflow}"
    copied["parameters"] = [parameter for parameter in copied["parameters"] if parameter["name"] != "workflow"]
    return copied


def _links(definition: Definition, model: Model) -> Schema:
    """Links from a created instance to the operations on it, for readers and for tools that follow links."""
    created, name = {"instance_id": "$response.body#/id"}, definition.name
    operations = *_INSTANCE_OPERATIONS, *(_OUTBOX_OPERATIONS if model.writes_outbox else ())
    links = {
        operation: {"operationId": operation, "parameters": {"workflow": name, **created}} for operation in operations
    }
    if definition.events:
        links["sendEvent"] = {"operationId": f"sendEvent-{name}", "parameters": created}
    if model.units is not None:
        links |= {
            operation: {"operationId": f"{operation}-{name}", "parameters": created} for operation in _UNIT_OPERATIONS
        }
    return links


def _id_schema(max_length: int) -> Schema:
    return {"minLength": 1, "maxLength": max_length, "pattern": "^[a-zA-Z0-9_][a-zA-Z0-9_-]*$"}
