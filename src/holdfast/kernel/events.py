"""Declared event types (``events=``): checking payloads when they are sent, decoding them when they are received.

As with the input of a workflow, the check accepts only the documented JSON form, and decoding is more lenient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from types import MappingProxyType
from typing import Any

from holdfast.core import codec
from holdfast.core.limits import Limits
from holdfast.core.names import check_event_type
from holdfast.core.secret import has_secret
from holdfast.core.show import shown
from holdfast.errors import DamagedRunError, EventInvalidError, InvalidOptionError, ParamsInvalidError

Decode = Callable[[Any], Any]


@dataclass(frozen=True, slots=True, eq=False)
class DeclaredEvent:
    """An event type whose payload has a declared type."""

    type: str
    annotation: Any
    check: Decode
    """Decoder for a payload that is about to be sent; accepts only the documented JSON form."""
    decode: Decode
    """Decoder for a payload that was received."""
    has_secret: Callable[[], bool]
    """True if a payload may contain a ``Secret``."""


Events = Mapping[str, DeclaredEvent]

NO_EVENTS: Events = MappingProxyType({})


def declared_events(events: Any, limits: Limits) -> Events:
    """Check the value of ``events=``."""
    if events is None:
        return NO_EVENTS
    if not isinstance(events, Mapping):
        raise InvalidOptionError(f"events must map event types to payload types, not {shown(events)}")
    return {check_event_type(type_, limits): _declared(type_, annotation) for type_, annotation in events.items()}


def _declared(type_: str, annotation: Any) -> DeclaredEvent:
    exact, lenient = codec.decoder(annotation, exact=True), codec.decoder(annotation)
    return DeclaredEvent(type_, annotation, exact, lenient, cache(partial(has_secret, annotation)))


def checked_payload(workflow: str, event: DeclaredEvent, payload: bytes | None) -> bytes | None:
    """The payload as it is stored; a client may send a secret as the plain value.

    Raises ``EventInvalidError`` unless the payload fits the type that the workflow declares for the event.
    """

    def stored(value: Any) -> bytes | None:
        if payload is not None:
            return codec.checked(value, payload, event.check, "payload")[0]
        event.check(value)
        return None

    problem = f"the payload of event {event.type!r} does not fit {workflow!r}"
    found: bytes | None = _decoded(event.type, payload, stored, problem)
    return found


def read_payload(type_: str, payload: bytes | None, decode: Decode) -> Any:
    """Decode the payload of a received event; raises ``EventInvalidError`` if it does not fit."""
    return _decoded(type_, payload, decode, f"the payload of event {type_!r} is not valid")


def _decoded(type_: str, payload: bytes | None, decode: Decode, problem: str) -> Any:
    try:
        return decode(codec.plain(payload))
    except ParamsInvalidError as error:
        raise EventInvalidError(f"{problem}: {error}", type_, error.issues) from None
    except DamagedRunError:  # the event may fit: a process with the key can read it
        raise
    except Exception as error:  # a validator of the user's type may raise anything
        issue = {"path": [], "message": str(error), "type": type(error).__name__}
        raise EventInvalidError(f"{problem}: {type(error).__name__}: {error}", type_, [issue]) from error
