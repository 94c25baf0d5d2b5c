"""The handler of an app's outbound events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from holdfast.core.functions import is_async
from holdfast.core.outbound import OutboundEvent
from holdfast.core.show import shown
from holdfast.errors import DefinitionError, InvalidOptionError

DEFAULT_MAX_ATTEMPTS = 10
DEFAULT_CONCURRENCY = 16


@dataclass(slots=True, eq=False)
class OutboxHandler:
    """A function that takes an event to where it belongs. It has failed if it raises."""

    function: Callable[[OutboundEvent], Any]
    is_async: bool
    max_attempts: int
    concurrency: int


def outbox_handler(function: Any, max_attempts: Any, concurrency: Any) -> OutboxHandler:
    if not callable(function):
        raise DefinitionError(f"an outbox needs a function that takes an OutboundEvent, not {shown(function)}")
    return OutboxHandler(
        function, is_async(function), _count("max_attempts", max_attempts), _count("concurrency", concurrency)
    )


def _count(name: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidOptionError(f"{name} must be a whole number of at least 1, not {shown(value)}")
    return value
