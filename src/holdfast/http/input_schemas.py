"""JSON schemas of what a workflow accepts: its input and the payloads of its declared events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, cast

from pydantic import PydanticInvalidForJsonSchema
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from holdfast.core import exact, typed
from holdfast.errors import ParamsInvalidError
from holdfast.kernel.definition import Definition
from holdfast.kernel.events import DeclaredEvent

Schema: TypeAlias = dict[str, Any]

REFS = "#/components/schemas/{model}"


class _InputSchema(GenerateJsonSchema):
    """Pydantic's JSON schemas, corrected where this package reads JSON differently from pydantic."""

    def generate_inner(self, schema: Any) -> JsonSchemaValue:
        return {} if exact.is_lax(schema) else super().generate_inner(schema)

    def bytes_schema(self, schema: core_schema.BytesSchema) -> JsonSchemaValue:
        del schema
        return {"type": "string", "contentEncoding": "base64", "pattern": exact.BASE64}

    def decimal_schema(self, schema: core_schema.DecimalSchema) -> JsonSchemaValue:
        number = super().decimal_schema(schema)["anyOf"][0]
        return {"anyOf": [number, {"type": "string", "pattern": exact.DECIMAL}]}

    def set_schema(self, schema: core_schema.SetSchema) -> JsonSchemaValue:
        return _allow_repeats(super().set_schema(schema))

    def frozenset_schema(self, schema: core_schema.FrozenSetSchema) -> JsonSchemaValue:
        return _allow_repeats(super().frozenset_schema(schema))


def _allow_repeats(schema: JsonSchemaValue) -> JsonSchemaValue:
    return {key: value for key, value in schema.items() if key != "uniqueItems"}


def input_schema(definition: Definition, components: Schema) -> Schema:
    """Return the JSON schema of a workflow's input and add its ``$defs`` to ``components``."""
    schema = _value_schema(definition.params_type, definition.name, components)
    return _or_null(schema) if params_are_optional(definition) else schema


def params_are_optional(definition: Definition) -> bool:
    return _accepts(definition.decode_params, None)


def params_schema(definition: Definition) -> Schema | None:
    """The JSON schema of a workflow's input with its own ``$defs``; None if the workflow takes no input."""
    if definition.params_type is None:
        return None
    return _standalone(definition.params_type)


def event_payload_schema(event: DeclaredEvent) -> Schema:
    """The JSON schema of an event's payload, with its own ``$defs``."""
    return _standalone(event.annotation)


def _standalone(annotation: Any) -> Schema:
    try:
        return _InputSchema().generate(cast("CoreSchema", typed.core_schema(annotation)))
    except PydanticInvalidForJsonSchema:
        return {}


def event_schema(definition: Definition, body: Schema, components: Schema) -> Schema:
    """The body that sends an event: one alternative for each declared type, and one for all other types."""
    declared = [_declared_body(definition.name, event, body, components) for event in definition.events.values()]
    other_types = {"not": {"enum": [*definition.events]}}
    others = body | {"properties": body["properties"] | {"type": body["properties"]["type"] | other_types}}
    return {"anyOf": [*declared, others]}


def _declared_body(workflow: str, event: DeclaredEvent, body: Schema, components: Schema) -> Schema:
    payload = _value_schema(event.annotation, f"{workflow}.{event.type}", components)
    optional = _accepts(event.check, None)
    properties = {"type": {"const": event.type}, "payload": _or_null(payload) if optional else payload}
    required = [*body["required"], *(() if optional else ("payload",))]
    return body | {"properties": body["properties"] | properties, "required": required}


def _value_schema(annotation: Any, prefix: str, components: Schema) -> Schema:
    """Return the JSON schema of a type and add its ``$defs`` to ``components``, their names prefixed."""
    generator = _InputSchema(ref_template=REFS.replace("{model}", prefix + ".{model}"))
    try:
        schema = generator.generate(cast("CoreSchema", typed.core_schema(annotation)))
    except PydanticInvalidForJsonSchema:
        return {}  # a user-defined type without a JSON schema: the document allows any value
    components.update((f"{prefix}.{name}", model) for name, model in schema.pop("$defs", {}).items())
    return schema


def _or_null(schema: Schema) -> Schema:
    return schema if not schema or schema == {"type": "null"} else {"anyOf": [schema, {"type": "null"}]}


def _accepts(decode: Callable[[Any], Any], value: Any) -> bool:
    try:
        decode(value)
    except ParamsInvalidError:
        return False
    return True
