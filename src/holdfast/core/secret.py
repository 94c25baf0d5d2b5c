"""``Secret[T]``: a value that is always encrypted in the store, and hidden wherever values are shown.

This module owns the type, its JSON form and the test whether an annotation contains it. The codecs that encrypt are in
``holdfast.payloads``.
"""

from __future__ import annotations

from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, get_args, get_origin, get_type_hints

from holdfast.core.functions import Unresolved

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

MARK = "$secret"
SECRET_KEY = b'"$secret"'
"""The mark as it is encoded; a value without these bytes contains no secret."""
HIDDEN = "[secret]"


class Secret(Generic[T]):
    """A value that is encrypted wherever it is stored, and hidden in stacks, logs, HTTP replies and the dashboard.

    Example::

        @dataclass
        class Login:
            user: str
            password: Secret[str]

        connect(login.user, login.password.reveal())
    """

    __slots__ = ("_value",)

    def __init__(self, value: T) -> None:
        self._value = value

    def reveal(self) -> T:
        """The value itself."""
        return self._value

    def __repr__(self) -> str:
        return "Secret(…)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and bool(self._value == other._value)

    def __hash__(self) -> int:
        return hash((Secret, self._value))

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Callable[[Any], Any]) -> Any:
        from pydantic_core import core_schema

        [inner] = get_args(source) or [Any]
        return core_schema.no_info_wrap_validator_function(_decode, handler(inner))


def _decode(value: Any, validate: Callable[[Any], Any]) -> Secret[Any]:
    """Decode the stored form, or the plain value that a client sends."""
    if isinstance(value, Secret):
        value = value.reveal()
    elif isinstance(value, dict) and len(cast("dict[str, Any]", value)) == 1 and MARK in value:
        value = cast("dict[str, Any]", value)[MARK]
    else:
        _seen.plain += 1
    return Secret(validate(value))


class _Seen:
    plain = 0


_seen = _Seen()


def plain_secrets() -> int:
    """The number of secrets that were decoded from plain values. Such a value is marked before it is stored."""
    return _seen.plain


def secret_form(secret: Secret[Any]) -> dict[str, Any]:
    """The JSON form of a secret."""
    return {MARK: secret.reveal()}


def hidden(value: Any) -> Any:
    """A plain value with its secrets replaced."""
    if isinstance(value, dict):
        content = cast("dict[str, Any]", value)
        if len(content) == 1 and MARK in content:
            return HIDDEN
        return {key: hidden(part) for key, part in content.items()}
    return [hidden(part) for part in value] if isinstance(value, list) else value


def has_secret(annotation: Any) -> bool:
    """True if values of an annotation may contain a secret. Pydantic is not needed for this test.

    Of a name that is not defined yet, the text is the only source.
    """
    return _has_secret(annotation, {})


def _has_secret(annotation: Any, seen: dict[int, Any]) -> bool:
    """``seen``: the examined annotations by id. It keeps them alive: a new object could get the id of a deleted one."""
    if isinstance(annotation, Unresolved):
        try:
            annotation = annotation.evaluate()
        except Exception:
            return "Secret" in repr(annotation)
    if annotation is Secret or get_origin(annotation) is Secret:
        return True
    if id(annotation) in seen:
        return False
    seen[id(annotation)] = annotation
    parts = [*get_args(annotation)]
    if isinstance(annotation, type) and (is_dataclass(annotation) or any(map(vars(annotation).__contains__, _FIELDS))):
        try:
            parts += get_type_hints(annotation, include_extras=True).values()
        except Exception:  # a name that is not defined yet; the text is the only source
            texts = vars(annotation).get("__annotations__", {}).values()
            return any("Secret" in str(text) for text in texts)
    return any(_has_secret(part, seen) for part in parts)


_FIELDS = ("__pydantic_fields__", "__total__", "_field_defaults")
"""Attributes of classes whose annotations are fields: models of pydantic, TypedDict, NamedTuple."""
