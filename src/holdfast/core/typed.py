"""From plain JSON values to the types that annotations name. Pydantic does the work.

Owns the differences between pydantic's idea of JSON and ours: ``bytes`` are base64, enums are found by
the JSON form of their values (also as dict keys), text may hold lone surrogates. Where an annotation
leaves a choice, a value comes back as the choice pydantic makes: ``str | bytes`` gives ``str``.

What was recorded is read generously, as pydantic reads it. With ``exact``, as inputs from outside are read, only the
documented JSON form of a type is taken (``exact.py``); the same values come out.

Pydantic is imported on the first annotation that needs it.
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
    """The function that turns a plain JSON value into an ``annotation``, or raises ``ParamsInvalidError``.

    >>> decoder(tuple[int, str])([1, "a"])
    (1, 'a')
    """
    if isinstance(annotation, Unresolved):
        return _late(annotation, exact)
    if any(annotation is one for one in _UNTYPED):
        return untyped
    try:
        hash(annotation)
    except TypeError:
        return _make(annotation, exact)
    # equal annotations may differ in the order of a union, which decides between its members
    return _make_once(annotation, "" if isinstance(annotation, type) else repr(annotation), exact)


def check_annotation(annotation: Any) -> None:
    """Raise ``DefinitionError`` if an annotation that was not resolved when it was read cannot be resolved now."""
    if isinstance(annotation, Unresolved):
        decoder(annotation.resolve())


def untyped(value: Any) -> Any:
    """The decoder for annotations that say nothing: plain JSON, as it is."""
    return value


def _late(annotation: Unresolved, exact: bool) -> Decode:
    """A decoder that is made when it is first used."""

    @lru_cache(maxsize=1)
    def made() -> Decode:
        return decoder(annotation.resolve(), exact=exact)

    def decode(value: Any) -> Any:
        return made()(value)

    return decode


@lru_cache(maxsize=1024)
def _make_once(annotation: Any, _text: str, exact: bool) -> Decode:
    return _make(annotation, exact)


def _make(annotation: Any, exact: bool) -> Decode:
    if annotation is None:
        annotation = type(None)
    if not any(annotation is one for one in _EXACT):
        return _Typed(annotation, exact).decode

    @lru_cache(maxsize=1)
    def careful() -> _Typed:
        return _Typed(annotation, exact)

    def decode(value: Any) -> Any:
        return value if type(value) is annotation else careful().decode(value)

    return decode


class _Typed:
    """One annotation with its validators."""

    def __init__(self, annotation: Any, exact: bool) -> None:
        self.annotation = annotation
        self.exact = exact
        self.schema = core_schema(annotation)
        self.validator = _validator(self.schema, _Adapting(exact=exact))

    @cached_property
    def surrogate_validator(self) -> SchemaValidator:
        return _validator(self.schema, _Adapting(exact=self.exact, surrogates=True))

    def decode(self, value: Any) -> Any:
        from pydantic import ValidationError  # noqa: PLC0415  (late, as the module says)

        try:
            return self.validator.validate_python(value)
        except ValidationError as error:
            return self.decode_again(value, error)

    def decode_again(self, value: Any, error: ValidationError) -> Any:
        """A second look at what failed: text that pydantic cannot read, or a model that is strict.

        A strict model takes a date as text from JSON only, so it has to see JSON.
        """
        from pydantic import ValidationError  # noqa: PLC0415

        try:
            if any(one["type"] == "string_unicode" for one in error.errors(include_url=False)):
                return self.surrogate_validator.validate_python(value)
            return self.validator.validate_json(json.dumps(value))
        except ValidationError as again:
            raise _invalid(self.annotation, again) from None


def _invalid(annotation: Any, error: ValidationError) -> ParamsInvalidError:
    issues = [
        {"path": list(one["loc"]), "message": one["msg"], "type": one["type"]}
        for one in error.errors(include_url=False, include_context=False, include_input=False)
    ]
    first = issues[0]
    place = ".".join(map(str, cast("list[Any]", first["path"])))
    more = f" (and {len(issues) - 1} more)" if len(issues) > 1 else ""
    sentence = f"{place}: {first['message']}" if place else str(first["message"])
    return ParamsInvalidError(f"The value does not fit {_name(annotation)}: {sentence}{more}", issues)


def _name(annotation: Any) -> str:
    return annotation.__qualname__ if isinstance(annotation, type) else shown(annotation)


def core_schema(annotation: Any) -> Schema:
    """Pydantic's schema of an annotation, for its validators and for documents."""
    from pydantic import TypeAdapter  # noqa: PLC0415

    annotation = resolved(annotation)
    try:
        with _plain_typed_dicts():
            adapter: TypeAdapter[Any] = TypeAdapter(annotation)
            adapter.rebuild(raise_errors=True)  # does nothing unless a name is missing, which the error then names
        return dict(cast("Schema", adapter.core_schema))  # copying finds names that are still missing
    except Exception as error:  # pydantic's own, and whatever evaluating the user's annotations raises
        reason = str(error).partition("\n")[0]
        raise DefinitionError(f"{_name(annotation)} cannot be read back from JSON: {reason}") from error


_TYPED_DICT_FLAG = "_SUPPORTS_TYPEDDICT"
_typed_dict_lock = threading.Lock()


@contextmanager
def _plain_typed_dicts() -> Generator[None]:
    """Let pydantic take ``typing.TypedDict`` before Python 3.12 too.

    It asks for the one of ``typing_extensions`` there, for the sake of corner cases of generic ones.
    """
    from pydantic._internal import _generate_schema as internal  # noqa: PLC0415

    with _typed_dict_lock:
        before = getattr(internal, _TYPED_DICT_FLAG, True)
        setattr(internal, _TYPED_DICT_FLAG, True)
        try:
            yield
        finally:
            setattr(internal, _TYPED_DICT_FLAG, before)


def _validator(schema: Schema, adapting: _Adapting) -> SchemaValidator:
    from pydantic_core import SchemaValidator  # noqa: PLC0415

    # the ready-made validators of nested models know nothing of our changes; pydantic before 2.13 cannot
    # do without them, and would hand out base64 text as the bytes of a nested model
    return SchemaValidator(adapting.adapt(schema), _use_prebuilt=False)


class _Adapting:
    """A copy of a pydantic core schema that reads JSON as this package writes it."""

    # what is under these keys is the user's data, not schema
    OPAQUE = frozenset({"metadata", "default", "expected", "members", "config", "serialization", "cls"})
    # what these hand on is not JSON any more, but whatever the user's function makes of it
    CONVERTING = frozenset({"function-before", "function-wrap"})

    def __init__(self, *, exact: bool, surrogates: bool = False) -> None:
        self.exact = exact
        self.surrogates = surrogates
        self.definitions: dict[str, Schema] = {}

    def adapt(self, node: Any) -> Any:
        if isinstance(node, list | tuple):
            return [self.adapt(one) for one in cast("list[Any]", node)]
        if not isinstance(node, dict):
            return node
        schema = cast("Schema", node)
        type_ = schema.get("type")
        if not isinstance(type_, str):  # fields or choices by their names, which may be any
            return {name: self.adapt(one) for name, one in schema.items()}
        if type_ == "definitions":
            self.definitions.update((one["ref"], one) for one in schema["definitions"])
        with self.as_exact_as(schema):
            copy = {key: self.adapt_part(key, one) for key, one in schema.items()}
        return self.adapt_one(copy)

    def adapt_part(self, key: str, part: Any) -> Any:
        if key in self.OPAQUE:
            return part
        return self.adapt_key(part) if key == "keys_schema" else self.adapt(part)

    @contextmanager
    def as_exact_as(self, schema: Schema) -> Generator[None]:
        """A model that is strict needs no guards, and has to see JSON itself: only there is a date text to it."""
        outside = self.exact
        self.exact &= schema["type"] not in self.CONVERTING and not schema.get("config", {}).get("strict")
        yield
        self.exact = outside

    def adapt_one(self, schema: Schema) -> Schema:
        adapted = self.adapt_form(schema)
        check = guard(schema) if self.exact else None
        return adapted if check is None else _before(adapted, check)

    def adapt_form(self, schema: Schema) -> Schema:
        match schema.get("type"):
            case "bytes":
                return _before(schema, _from_base64)
            case "str" if self.surrogates:
                return _around(schema, _with_stand_ins)
            case "enum":
                return self.adapt_enum(schema)
            case _:
                return schema

    def adapt_enum(self, schema: Schema) -> Schema:
        if _has_scalars(schema):
            return schema
        by_json = {_json(one.value): one for one in schema["members"]}

        def member(value: Any) -> Any:
            return by_json.get(_json(value), value) if isinstance(value, _PLAIN) else value

        return _before(schema, member)

    def adapt_key(self, schema: Schema) -> Schema:
        """The key of a dict is always text, whatever its type."""
        resolved = self.definitions.get(schema.get("schema_ref", ""), schema)
        here = _Adapting(exact=False, surrogates=self.surrogates)
        adapted: Schema = here.adapt({key: part for key, part in resolved.items() if key != "ref"})
        if resolved.get("type") != "enum" or not _has_scalars(resolved):
            return adapted
        by_text = {key_text(one): one for one in resolved["members"]}
        return _before(adapted, lambda value: by_text.get(value, value))


def _has_scalars(enum: Schema) -> bool:
    return all(type(one.value) in _SCALARS for one in enum["members"])


def _json(value: Any) -> str:
    return json.dumps(value, default=json_form)


def _before(schema: Schema, function: Callable[[Any], Any]) -> Schema:
    return _wrapped("function-before", schema, function)


def _around(schema: Schema, function: Callable[[Any, Decode], Any]) -> Schema:
    return _wrapped("function-wrap", schema, function)


def _wrapped(type: str, schema: Schema, function: Callable[..., Any]) -> Schema:
    inner = {key: one for key, one in schema.items() if key != "ref"}
    outer = {"type": type, "schema": inner, "function": {"type": "no-info", "function": function}}
    return outer | ({"ref": schema["ref"]} if "ref" in schema else {})


def _from_base64(value: Any) -> Any:
    return b64decode(value, validate=True) if isinstance(value, str) else value


_SURROGATES = range(0xD800, 0xE000)
_SURROGATE = re.compile("[\ud800-\udfff]")
_STAND_INS = tuple(range(start, start + len(_SURROGATES)) for start in (0x10F000, 0x10E000, 0xF0000))


def _with_stand_ins(value: Any, validate: Decode) -> Any:
    """Check text with lone surrogates by way of private characters of the same number."""
    if not isinstance(value, str) or not _SURROGATE.search(value):
        return validate(value)
    free = next((block for block in _STAND_INS if not any(ord(one) in block for one in value)), None)
    if free is None:
        return validate(value)
    checked = validate(value.translate(dict(zip(_SURROGATES, map(chr, free), strict=True))))
    return checked.translate(dict(zip(free, map(chr, _SURROGATES), strict=True)))
