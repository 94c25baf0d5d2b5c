"""Decoding of plain JSON values into the types of annotations, by pydantic.

This module owns the differences between pydantic's JSON and Holdfast's: ``bytes`` are base64, enum members are found by
the JSON form of their values (also as dict keys), text may contain lone surrogates. Where an annotation is ambiguous,
pydantic chooses: ``str | bytes`` gives ``str``.

Recorded values are decoded leniently, with pydantic's conversions. Inputs from outside are decoded with ``exact``,
which accepts only the documented JSON form of a type (``exact.py``). Both modes produce the same values.

Pydantic is imported for the first annotation that needs it.
"""

from __future__ import annotations

import inspect
import json
import re
import threading
from base64 import b64decode
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Never, NoReturn, TypeAlias, cast

from holdfast.core.exact import guard
from holdfast.core.functions import Unresolved, resolved
from holdfast.core.lowering import json_form, key_text
from holdfast.core.show import shown
from holdfast.errors import DefinitionError, ParamsInvalidError

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic_core import SchemaValidator

Decode: TypeAlias = Callable[[Any], Any]
Schema: TypeAlias = dict[str, Any]

_UNTYPED = (Any, object, NoReturn, Never, inspect.Parameter.empty)
_EXACT = (type(None), bool, int, float, str, dict, list)
_SCALARS = (type(None), bool, int, float, str)
_PLAIN = (*_SCALARS, list, dict)


def decoder(annotation: Any, *, exact: bool = False) -> Decode:
    """Return a function that decodes a plain JSON value by ``annotation``, or raises ``ParamsInvalidError``.

    >>> decoder(tuple[int, str])([1, "a"])
    (1, 'a')
    """
    if isinstance(annotation, Unresolved):
        return _lazy(annotation, exact)
    if any(annotation is untyped_form for untyped_form in _UNTYPED):
        return untyped
    try:
        hash(annotation)
    except TypeError:
        return _make(annotation, exact)
    # Equal annotations may differ in the order of a union, and the order decides which member is tried first.
    return _make_once(annotation, "" if isinstance(annotation, type) else repr(annotation), exact)


def check_annotation(annotation: Any) -> None:
    """Raise ``DefinitionError`` if an annotation that was unresolved at its definition still cannot be resolved."""
    if isinstance(annotation, Unresolved):
        decoder(annotation.resolve())


def untyped(value: Any) -> Any:
    """Decoder for annotations without type information: returns the plain JSON value."""
    return value


def _lazy(annotation: Unresolved, exact: bool) -> Decode:
    """A decoder that is built at its first use."""

    @lru_cache(maxsize=1)
    def built() -> Decode:
        return decoder(annotation.resolve(), exact=exact)

    def decode(value: Any) -> Any:
        return built()(value)

    return decode


@lru_cache(maxsize=1024)
def _make_once(annotation: Any, _text: str, exact: bool) -> Decode:
    return _make(annotation, exact)


def _make(annotation: Any, exact: bool) -> Decode:
    if annotation is None:
        annotation = type(None)
    if not any(annotation is json_type for json_type in _EXACT):
        return _Typed(annotation, exact).decode

    @lru_cache(maxsize=1)
    def validating() -> _Typed:
        return _Typed(annotation, exact)

    def decode(value: Any) -> Any:
        return value if type(value) is annotation else validating().decode(value)

    return decode


class _Typed:
    """An annotation with its validators."""

    def __init__(self, annotation: Any, exact: bool) -> None:
        self.annotation = annotation
        self.exact = exact
        self.schema = core_schema(annotation)
        self.validator = _validator(self.schema, _SchemaAdapter(exact=exact))

    @cached_property
    def surrogate_validator(self) -> SchemaValidator:
        return _validator(self.schema, _SchemaAdapter(exact=self.exact, surrogates=True))

    def decode(self, value: Any) -> Any:
        from pydantic import ValidationError

        try:
            return self.validator.validate_python(value)
        except ValidationError as error:
            return self.decode_again(value, error)

    def decode_again(self, value: Any, error: ValidationError) -> Any:
        """Decode a value again after ``error``: text that pydantic cannot read, or a value of a strict model.

        A strict model accepts a date as text only when it validates JSON.
        """
        from pydantic import ValidationError

        try:
            if any(issue["type"] == "string_unicode" for issue in error.errors(include_url=False)):
                return self.surrogate_validator.validate_python(value)
            return self.validator.validate_json(json.dumps(value))
        except ValidationError as again:
            raise _invalid(self.annotation, again) from None


def _invalid(annotation: Any, error: ValidationError) -> ParamsInvalidError:
    issues = [
        {"path": list(issue["loc"]), "message": issue["msg"], "type": issue["type"]}
        for issue in error.errors(include_url=False, include_context=False, include_input=False)
    ]
    first = issues[0]
    path = ".".join(map(str, cast("list[Any]", first["path"])))
    more = f" (and {len(issues) - 1} more)" if len(issues) > 1 else ""
    sentence = f"{path}: {first['message']}" if path else str(first["message"])
    return ParamsInvalidError(f"The value does not fit {_name(annotation)}: {sentence}{more}", issues)


def _name(annotation: Any) -> str:
    return annotation.__qualname__ if isinstance(annotation, type) else shown(annotation)


def core_schema(annotation: Any) -> Schema:
    """Pydantic's core schema of an annotation, for validators and for the OpenAPI document."""
    from pydantic import TypeAdapter

    annotation = resolved(annotation)
    try:
        with _plain_typed_dicts():
            adapter: TypeAdapter[Any] = TypeAdapter(annotation)
            adapter.rebuild(raise_errors=True)  # no effect unless a name is missing; the error names it
        return dict(cast("Schema", adapter.core_schema))  # the copy fails if a name is still missing
    except Exception as error:  # pydantic's errors, and any error of evaluating the user's annotations
        reason = str(error).partition("\n")[0]
        raise DefinitionError(f"{_name(annotation)} cannot be read back from JSON: {reason}") from error


_TYPED_DICT_FLAG = "_SUPPORTS_TYPEDDICT"
_typed_dict_lock = threading.Lock()


@contextmanager
def _plain_typed_dicts() -> Generator[None]:
    """Make pydantic accept ``typing.TypedDict`` on Python versions before 3.12.

    On those versions pydantic requires the ``TypedDict`` of ``typing_extensions``, because of corner cases of generic
    classes.
    """
    from pydantic._internal import _generate_schema as internal

    with _typed_dict_lock:
        before = getattr(internal, _TYPED_DICT_FLAG, True)
        setattr(internal, _TYPED_DICT_FLAG, True)
        try:
            yield
        finally:
            setattr(internal, _TYPED_DICT_FLAG, before)


def _validator(schema: Schema, adapter: _SchemaAdapter) -> SchemaValidator:
    from pydantic_core import SchemaValidator

    # The prebuilt validators of nested models do not have the adaptations. Pydantic before 2.13 cannot disable them,
    # and would return base64 text as the bytes of a nested model.
    return SchemaValidator(adapter.adapt(schema), _use_prebuilt=False)


class _SchemaAdapter:
    """Copies a pydantic core schema so that it reads JSON as this package writes it."""

    # The values of these keys are data of the user, not schemas.
    OPAQUE = frozenset({"metadata", "default", "expected", "members", "config", "serialization", "cls"})
    # Schemas of these types receive the return value of a user's function, which need not be JSON.
    CONVERTING = frozenset({"function-before", "function-wrap"})

    def __init__(self, *, exact: bool, surrogates: bool = False) -> None:
        self.exact = exact
        self.surrogates = surrogates
        self.definitions: dict[str, Schema] = {}

    def adapt(self, node: Any) -> Any:
        if isinstance(node, list | tuple):
            return [self.adapt(part) for part in cast("list[Any]", node)]
        if not isinstance(node, dict):
            return node
        schema = cast("Schema", node)
        type_ = schema.get("type")
        if not isinstance(type_, str):  # a mapping of field or choice names to schemas
            return {name: self.adapt(part) for name, part in schema.items()}
        if type_ == "definitions":
            self.definitions.update((part["ref"], part) for part in schema["definitions"])
        with self.exactness_of(schema):
            copy = {key: self.adapt_part(key, part) for key, part in schema.items()}
        return self.adapt_one(copy)

    def adapt_part(self, key: str, part: Any) -> Any:
        if key in self.OPAQUE:
            return part
        return self.adapt_key(part) if key == "keys_schema" else self.adapt(part)

    @contextmanager
    def exactness_of(self, schema: Schema) -> Generator[None]:
        """Disable ``exact`` inside converting schemas and strict models.

        A strict model needs no guards. It must validate JSON itself, because it accepts dates as text only in JSON.
        """
        outer = self.exact
        self.exact &= schema["type"] not in self.CONVERTING and not schema.get("config", {}).get("strict")
        yield
        self.exact = outer

    def adapt_one(self, schema: Schema) -> Schema:
        adapted = self.adapt_form(schema)
        check = guard(schema) if self.exact else None
        return adapted if check is None else _before(adapted, check)

    def adapt_form(self, schema: Schema) -> Schema:
        match schema.get("type"):
            case "bytes":
                return _before(schema, _from_base64)
            case "str" if self.surrogates:
                return _around(schema, _validate_with_placeholders)
            case "enum":
                return self.adapt_enum(schema)
            case _:
                return schema

    def adapt_enum(self, schema: Schema) -> Schema:
        if _has_scalars(schema):
            return schema
        by_json = {_json(member.value): member for member in schema["members"]}

        def to_member(value: Any) -> Any:
            return by_json.get(_json(value), value) if isinstance(value, _PLAIN) else value

        return _before(schema, to_member)

    def adapt_key(self, schema: Schema) -> Schema:
        """Adapt the schema of dict keys. A key is always text in JSON, whatever its type."""
        resolved = self.definitions.get(schema.get("schema_ref", ""), schema)
        lenient = _SchemaAdapter(exact=False, surrogates=self.surrogates)
        adapted: Schema = lenient.adapt({key: part for key, part in resolved.items() if key != "ref"})
        if resolved.get("type") != "enum" or not _has_scalars(resolved):
            return adapted
        by_text = {key_text(member): member for member in resolved["members"]}
        return _before(adapted, lambda value: by_text.get(value, value))


def _has_scalars(enum: Schema) -> bool:
    return all(type(member.value) in _SCALARS for member in enum["members"])


def _json(value: Any) -> str:
    return json.dumps(value, default=json_form)


def _before(schema: Schema, function: Callable[[Any], Any]) -> Schema:
    return _wrapped("function-before", schema, function)


def _around(schema: Schema, function: Callable[[Any, Decode], Any]) -> Schema:
    return _wrapped("function-wrap", schema, function)


def _wrapped(type: str, schema: Schema, function: Callable[..., Any]) -> Schema:
    inner = {key: part for key, part in schema.items() if key != "ref"}
    outer = {"type": type, "schema": inner, "function": {"type": "no-info", "function": function}}
    return outer | ({"ref": schema["ref"]} if "ref" in schema else {})


def _from_base64(value: Any) -> Any:
    return b64decode(value, validate=True) if isinstance(value, str) else value


_SURROGATES = range(0xD800, 0xE000)
_SURROGATE = re.compile("[\ud800-\udfff]")
_PLACEHOLDERS = tuple(range(start, start + len(_SURROGATES)) for start in (0x10F000, 0x10E000, 0xF0000))


def _validate_with_placeholders(value: Any, validate: Decode) -> Any:
    """Validate text with each lone surrogate replaced by a private-use character, so that its length is unchanged."""
    if not isinstance(value, str) or not _SURROGATE.search(value):
        return validate(value)
    free = next((block for block in _PLACEHOLDERS if not any(ord(char) in block for char in value)), None)
    if free is None:
        return validate(value)
    checked = validate(value.translate(dict(zip(_SURROGATES, map(chr, free), strict=True))))
    return checked.translate(dict(zip(free, map(chr, _SURROGATES), strict=True)))
