"""The OpenAPI document: FastAPI's, made exact, with the input of every registered workflow.

FastAPI knows the routes, queries and answers. What it cannot know is added here: that bodies are read strictly, what
the limits are, and that ``/order/instances`` takes an order.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, cast

from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import PydanticInvalidForJsonSchema, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import CoreSchema, core_schema
from starlette.responses import JSONResponse, PlainTextResponse

from holdfast.core import exact, typed
from holdfast.core.chains import CHAIN
from holdfast.errors import ParamsInvalidError
from holdfast.http import wire
from holdfast.http.auth import Authorize, BearerTokens
from holdfast.http.queries import MOST_FILTERS
from holdfast.http.routes import Backend
from holdfast.http.spec import Spec
from holdfast.kernel.definition import Definition
from holdfast.kernel.events import DeclaredEvent
from holdfast.kernel.units import GRAPH

Schema: TypeAlias = dict[str, Any]

VERSION = "1"
_REFS = "#/components/schemas/{model}"
_ERROR = {"$ref": _REFS.format(model="Error")}  # once for all: to FastAPI each use would be a model of its own
_KIND = "x-kind"
_EVERYWHERE = (401, 403, 500, 503)
_MEANINGS = {
    400: "Something in the request is not valid; nothing was changed.",
    401: "Nobody is recognized by this request.",
    403: "This caller may not do this.",
    404: "There is no such workflow or instance.",
    408: "The body came too slowly.",
    409: "The instance is in a state that forbids this, or its id is taken.",
    413: "The body, or a value in it, is too large.",
    415: "The body is not JSON.",
    500: "The server made a mistake.",
    503: "The server is not ready, or cannot reach its database.",
}
# One name for each attribute: in this style the properties of the object are what stands in the query.
_SEARCH: Schema = {
    "name": "search",
    "in": "query",
    "style": "form",
    "explode": True,
    "description": f"search.KEY=VALUE, up to {MOST_FILTERS} times: only instances for which all of them hold. A VALUE "
    "that reads as a number, true or false is compared as such, anything else, and what is in double quotes, as text. "
    "In front of it may stand one of <, <=, >, >=.",
    "schema": {
        "type": "object",
        # Without types: whatever stands in a query is text. But an object would be other names, search.KEY[name].
        "patternProperties": {r"^search\.[a-zA-Z_][a-zA-Z0-9_.-]{0,63}$": {"maxLength": 1000, "maxProperties": 0}},
        "additionalProperties": True,
    },
}


def _documented_route(spec: Spec, base: str) -> APIRoute:
    """The route with its response schema, for the document only.

    FastAPI builds a pydantic model for each response, which takes most of the time of making an app. The routes that
    serve requests do without.
    """
    extra: Schema = {} if spec.kind is None else {_KIND: spec.kind}
    if spec.body is not None:
        schema = spec.body.json_schema(ref_template=_REFS)
        schema.pop("$defs", None)
        extra["requestBody"] = {
            "required": spec.body_needed,
            "content": {"application/json": {"schema": schema}},
        }
    return APIRoute(
        base + spec.path or "/",
        spec.handler,
        methods=[spec.method],
        name=spec.name,
        operation_id=spec.name,
        response_model=None if spec.result is str else spec.result,
        response_class=PlainTextResponse if spec.result is str else JSONResponse,
        responses={
            status: {"description": _MEANINGS[status], "content": {"application/json": {"schema": _ERROR}}}
            for status in sorted({*spec.errors, *(_EVERYWHERE if spec.scope is not None else (500,))})
        },
        openapi_extra=extra,
    )


class Document:
    """Made when it is asked for, because workflows may be registered at any time; kept until something is."""

    def __init__(self, specs: Sequence[Spec], backend: Backend, base: str, authorize: Authorize) -> None:
        self._specs = specs
        self._backend = backend
        self._base = base
        self._authorize = authorize
        self._made: tuple[tuple[Definition, ...], Schema] | None = None

    def of(self, root_path: str) -> Schema:
        """The document as it is true under ``root_path``, where this application is mounted."""
        definitions = tuple(self._backend.registry)
        if self._made is None or self._made[0] != definitions:
            self._made = definitions, self._make()
        return self._made[1] | {"servers": [{"url": root_path or "/"}]}

    def _make(self) -> Schema:
        routes = [_documented_route(spec, self._base) for spec in self._specs]
        document: Schema = get_openapi(
            title="Holdfast", version=VERSION, description="Durable workflows.", routes=routes
        )
        components: Schema = document["components"]["schemas"]
        for unused in ("HTTPValidationError", "ValidationError"):
            components.pop(unused, None)
        error = TypeAdapter(wire.Error).json_schema(ref_template=_REFS)
        components |= error.pop("$defs") | {"Error": error}
        for path in document["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)
                self._put_limits(operation)
                self._put_refusals(operation)
        self._put_workflows(document["paths"], components)
        self._put_events(document["paths"], components)
        if isinstance(self._authorize, BearerTokens):
            document["components"]["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
            document["security"] = [{"bearer": []}]
            document["paths"][f"{self._base}/_health/live"]["get"]["security"] = []
        return document

    def _put_refusals(self, operation: Schema) -> None:
        """Hooks of the app's own may refuse a request with any status."""
        if "403" in operation["responses"] and not (self._authorize.open or isinstance(self._authorize, BearerTokens)):
            content = {"application/json": {"schema": _ERROR}}
            operation["responses"]["4XX"] = {"description": "A hook of the app refused this.", "content": content}

    def _put_limits(self, operation: Schema) -> None:
        limits = self._backend.limits
        names = [definition.name for definition in self._backend.registry]
        more: Mapping[str, Schema] = {
            "workflow": {"enum": names} if names else {},
            "instance_id": _id_schema(limits.instance_id),
            "idPrefix": {"maxLength": limits.instance_id},
            "pageSize": {"maximum": limits.page_size},
            "logCategory": {"maxLength": limits.log_category},
        }
        for parameter in operation.get("parameters", ()):
            parameter["schema"] |= more.get(parameter["name"], {})
        if operation["operationId"] == "listInstances":
            operation["parameters"].append(_SEARCH)
        if operation["operationId"] == "sendEvent":
            event = operation["requestBody"]["content"]["application/json"]["schema"]["properties"]
            event["type"] |= {
                "minLength": 1,
                "maxLength": limits.event_type,
                "pattern": "^[a-zA-Z0-9_][a-zA-Z0-9_.-]*$",
            }

    def _put_workflows(self, paths: dict[str, Schema], components: Schema) -> None:
        """In place of one path for all workflows, one for each: they take different inputs, and are of some kind."""
        generic = {path: paths.pop(path) for path in [*paths] if path in self._of_all_workflows()}
        of_kind = {path: paths.pop(path) for path in [*paths] if any(_KIND in one for one in paths[path].values())}
        for definition in self._backend.registry:
            entry = self._entry(definition, components)
            for path, operations in generic.items():
                paths[path.replace("{workflow}", definition.name)] = {
                    method: self._for_workflow(operation, definition, entry) for method, operation in operations.items()
                }
            for path, operations in of_kind.items():
                mine = {
                    method: _named(operation, definition.name)
                    for method, operation in operations.items()
                    if operation[_KIND] == definition.kind
                }
                if mine:
                    paths[path.replace("{workflow}", definition.name)] = mine

    def _put_events(self, paths: dict[str, Schema], components: Schema) -> None:
        """A path of its own for each workflow that declares events; the path for all is for the others."""
        path = f"{self._base}/{{workflow}}/instances/{{instance_id}}/events"
        generic = paths[path]["post"]
        declaring = {one.name: one for one in self._backend.registry if one.events}
        for definition in declaring.values():
            mine = _named(generic, definition.name)
            body = mine["requestBody"]["content"]["application/json"]
            body["schema"] = event_schema(definition, body["schema"], components)
            paths[path.replace("{workflow}", definition.name)] = {"post": mine}
        others = [one.name for one in self._backend.registry if not one.events]
        if declaring and not others:
            del paths[path]
        elif declaring:
            workflow = next(one for one in generic["parameters"] if one["name"] == "workflow")
            workflow["schema"]["enum"] = others

    def _of_all_workflows(self) -> tuple[str, ...]:
        return f"{self._base}/{{workflow}}/instances", f"{self._base}/{{workflow}}/instances/batch"

    def _for_workflow(self, operation: Schema, definition: Definition, entry: Schema) -> Schema:
        mine = _named(operation, definition.name)
        body = mine.get("requestBody", {}).get("content", {}).get("application/json")
        if body is not None and "instances" in body["schema"]["properties"]:
            required = [*dict.fromkeys(["id", *entry.get("required", ())])]
            body["schema"]["properties"]["instances"] = {
                "type": "array",
                "maxItems": self._backend.limits.batch,
                "items": entry | {"required": required},
            }
        elif body is not None:
            body["schema"] = entry
            mine["responses"]["200"]["links"] = _links(definition)
        return mine

    def _entry(self, definition: Definition, components: Schema) -> Schema:
        """What starts one instance of a workflow."""
        properties = {
            "id": {"type": "string"} | _id_schema(self._backend.limits.instance_id),
            "params": input_schema(definition, components),
        }
        schema: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
        return schema if _accepts(definition.decode_params, None) else schema | {"required": ["params"]}


_ON_INSTANCES = (
    "getInstance", "getHistory", "sendEvent", "pauseInstance", "resumeInstance", "terminateInstance", "restartInstance",
    "cancelInstance",
)  # fmt: skip


_ON_CHAINS = ("getOutbox", "redeliverOutbox")
_ON_GRAPHS = ("getFacts", "drawInstance", "killInstance")


def _named(operation: Schema, workflow: str) -> Schema:
    """An operation of all workflows as that of one."""
    mine = copy.deepcopy(operation)
    mine.pop(_KIND, None)
    mine["operationId"] = f"{mine['operationId']}-{workflow}"
    mine["parameters"] = [one for one in mine["parameters"] if one["name"] != "workflow"]
    return mine


def _links(definition: Definition) -> Schema:
    """What can be done with the instance that was made: for people, and for tools that go on from there."""
    made, name = {"instance_id": "$response.body#/id"}, definition.name
    operations = *_ON_INSTANCES, *(_ON_CHAINS if definition.kind == CHAIN else ())
    links = {one: {"operationId": one, "parameters": {"workflow": name, **made}} for one in operations}
    if definition.events:
        links["sendEvent"] = {"operationId": f"sendEvent-{name}", "parameters": made}
    if definition.kind == GRAPH:
        links |= {one: {"operationId": f"{one}-{name}", "parameters": made} for one in _ON_GRAPHS}
    return links


def _id_schema(longest: int) -> Schema:
    return {"minLength": 1, "maxLength": longest, "pattern": "^[a-zA-Z0-9_][a-zA-Z0-9_-]*$"}


# --- the input of a workflow


class _Inputs(GenerateJsonSchema):
    """Pydantic's schemas, made true where this package's JSON is not what pydantic says of its own."""

    def generate_inner(self, schema: Any) -> JsonSchemaValue:
        return {} if exact.is_lax(schema) else super().generate_inner(schema)

    def bytes_schema(self, schema: core_schema.BytesSchema) -> JsonSchemaValue:
        del schema
        return {"type": "string", "contentEncoding": "base64", "pattern": exact.BASE64}

    def decimal_schema(self, schema: core_schema.DecimalSchema) -> JsonSchemaValue:
        number = super().decimal_schema(schema)["anyOf"][0]
        return {"anyOf": [number, {"type": "string", "pattern": exact.DECIMAL}]}

    def set_schema(self, schema: core_schema.SetSchema) -> JsonSchemaValue:
        return _repeatable(super().set_schema(schema))

    def frozenset_schema(self, schema: core_schema.FrozenSetSchema) -> JsonSchemaValue:
        return _repeatable(super().frozenset_schema(schema))


def _repeatable(schema: JsonSchemaValue) -> JsonSchemaValue:
    return {key: value for key, value in schema.items() if key != "uniqueItems"}


def input_schema(definition: Definition, components: Schema) -> Schema:
    """The JSON schema of a workflow's input, its parts put among ``components``."""
    schema = _value_schema(definition.params_type, definition.name, components)
    return schema if not _accepts(definition.decode_params, None) else _or_null(schema)


def event_schema(definition: Definition, body: Schema, components: Schema) -> Schema:
    """The body that sends an event: one form for each declared type, and one for all other types."""
    forms = [_declared_form(definition.name, event, body, components) for event in definition.events.values()]
    other_types = {"not": {"enum": [*definition.events]}}
    others = body | {"properties": body["properties"] | {"type": body["properties"]["type"] | other_types}}
    return {"anyOf": [*forms, others]}


def _declared_form(workflow: str, event: DeclaredEvent, body: Schema, components: Schema) -> Schema:
    payload = _value_schema(event.annotation, f"{workflow}.{event.type}", components)
    optional = _accepts(event.check, None)
    properties = {"type": {"const": event.type}, "payload": _or_null(payload) if optional else payload}
    required = [*body["required"], *(() if optional else ("payload",))]
    return body | {"properties": body["properties"] | properties, "required": required}


def _value_schema(annotation: Any, prefix: str, components: Schema) -> Schema:
    """The JSON schema of a type; its parts are put among ``components``, with the prefix in front of their names."""
    generator = _Inputs(ref_template=_REFS.replace("{model}", prefix + ".{model}"))
    try:
        schema = generator.generate(cast("CoreSchema", typed.core_schema(annotation)))
    except PydanticInvalidForJsonSchema:
        return {}  # a type of the user's own that has no JSON schema: anything may be tried
    components.update((f"{prefix}.{name}", part) for name, part in schema.pop("$defs", {}).items())
    return schema


def _or_null(schema: Schema) -> Schema:
    return schema if not schema or schema == {"type": "null"} else {"anyOf": [schema, {"type": "null"}]}


def _accepts(decode: Callable[[Any], Any], value: Any) -> bool:
    try:
        decode(value)
    except ParamsInvalidError:
        return False
    return True
