"""Checks of names and ids. Each check returns the name as a plain ``str`` or raises a typed error.

This module owns the patterns and the messages. ``Limits`` holds the lengths. Whether a name is registered or taken is
checked elsewhere.
"""

from __future__ import annotations

import re

from holdfast.core.limits import Limits
from holdfast.core.show import shown
from holdfast.errors import (
    HoldfastError,
    InvalidEventTypeError,
    InvalidInstanceIdError,
    InvalidLogError,
    InvalidNameError,
    InvalidOptionError,
)

SYSTEM_CATEGORY = "system"

_ID = re.compile(r"[a-zA-Z0-9_][a-zA-Z0-9_-]*")
_ID_RULE = "letters, digits, '-' and '_' are allowed, and it does not start with '-'"
_DOTTED = re.compile(r"[a-zA-Z0-9_][a-zA-Z0-9_.-]*")
_MAX_SCHEDULE_NAME = 64
"""The ids of a schedule's runs contain its name and a time."""
_VERSION = re.compile(r"[!-~]{1,100}")
_DOTTED_RULE = "letters, digits, '-', '_' and '.' are allowed, and it does not start with '-' or '.'"


def check_workflow_name(value: object, limits: Limits) -> str:
    name = _checked(value, "workflow name", limits.workflow_name, InvalidNameError)
    return _matching(name, "workflow name", _DOTTED, _DOTTED_RULE, InvalidNameError)


def check_instance_id(value: object, limits: Limits) -> str:
    name = _checked(value, "instance id", limits.instance_id, InvalidInstanceIdError)
    return _matching(name, "instance id", _ID, _ID_RULE, InvalidInstanceIdError)


def check_schedule_name(value: object) -> str:
    name = _checked(value, "schedule name", _MAX_SCHEDULE_NAME, InvalidOptionError)
    return _matching(name, "schedule name", _DOTTED, _DOTTED_RULE, InvalidOptionError)


def is_schedule_name(value: object) -> bool:
    return isinstance(value, str) and len(value) <= _MAX_SCHEDULE_NAME and _DOTTED.fullmatch(value) is not None


def check_event_type(value: object, limits: Limits) -> str:
    name = _checked(value, "event type", limits.event_type, InvalidEventTypeError)
    return _matching(name, "event type", _DOTTED, _DOTTED_RULE, InvalidEventTypeError)


def check_step_name(value: object, limits: Limits) -> str:
    return _checked(value, "step name", limits.step_name, InvalidNameError)


def check_node_name(value: object, limits: Limits) -> str:
    name = _checked(value, "node name", limits.step_name, InvalidNameError)
    return _matching(name, "node name", _DOTTED, _DOTTED_RULE, InvalidNameError)


def check_log_category(value: object, limits: Limits) -> str:
    name = _checked(value, "log category", limits.log_category, InvalidLogError)
    if not name.isprintable():
        raise InvalidLogError(f"log category {shown(name)} is not valid: printable characters are allowed")
    if name == SYSTEM_CATEGORY:
        raise InvalidLogError(f"log category {name!r} is reserved for the engine; choose another")
    return name


def check_stream_name(value: object, limits: Limits) -> str:
    """Return the name of a stream: the rules are those of event types."""
    name = _checked(value, "stream name", limits.event_type, InvalidNameError)
    return _matching(name, "stream name", _DOTTED, _DOTTED_RULE, InvalidNameError)


def check_version(option: str, value: object) -> str:
    """Return the name of a release."""
    if not isinstance(value, str) or not _VERSION.fullmatch(value):
        rule = "1 to 100 printable ASCII characters without spaces"
        raise InvalidOptionError(f"{option} must be the name of a release ({rule}), not {shown(value)}")
    return str.__str__(value)


def _checked(value: object, what: str, max_length: int, error: type[HoldfastError]) -> str:
    if not isinstance(value, str):
        raise error(f"{what} must be a str, not {shown(value)}")
    if not 1 <= len(value) <= max_length:
        raise error(f"{what} {shown(value)} has {len(value)} characters; 1 to {max_length} are allowed")
    return str.__str__(value)  # for a member of a StrEnum: its value, not its name


def _matching(name: str, what: str, pattern: re.Pattern[str], rule: str, error: type[HoldfastError]) -> str:
    if not pattern.fullmatch(name):
        raise error(f"{what} {shown(name)} is not valid: {rule}")
    return name
