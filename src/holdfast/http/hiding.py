"""Hidden values in responses: the values of redacted names, in every field that shows data of the user's program."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

from holdfast.core.redaction import Redaction

current_redaction: ContextVar[Redaction | None] = ContextVar("holdfast_redaction", default=None)
"""The redaction of the API that serves the present request; None: values are shown."""

_VALUES = frozenset(
    {
        "params",
        "output",
        "result",
        "payload",
        "data",
        "value",
        "progress",
        "memo",
        "search",
        "context",
        "facts",
        "reply",
    }
)
"""Fields whose values are JSON of the user's program."""
_TEXTS = frozenset({"message", "traceback", "why", "waitingFor"})
"""Fields whose texts may quote values of the user's program."""
_REDACTED_FIELDS = _VALUES | _TEXTS


def without_secrets(body: Any) -> Any:
    """A response body in which the values of redacted names are hidden."""
    redaction = current_redaction.get()
    if redaction is None:
        return body
    try:
        return _hidden(body, redaction)
    except RecursionError:
        return {"message": "the value is nested too deeply to be shown", "code": "NOT_SHOWN"}


_LEAVES = (str, int, float, bool, type(None))
"""Values without fields. A timeline has some 200,000 of them, so they are recognized by their exact type first."""


def _hidden(body: Any, redaction: Redaction) -> Any:
    if type(body) in _LEAVES:
        return body
    if isinstance(body, Mapping):
        return {
            name: value if type(value) in _LEAVES and name not in _REDACTED_FIELDS else _field(name, value, redaction)
            for name, value in body.items()
        }
    return [_hidden(item, redaction) for item in body] if isinstance(body, list) else body


def _field(name: str, value: Any, redaction: Redaction) -> Any:
    if name in _TEXTS and isinstance(value, str):
        return redaction.message(value)
    if name in _VALUES:
        return redaction.plain(value)
    return _hidden(value, redaction)
