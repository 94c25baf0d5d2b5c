"""The handler of an app's outbound events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.core.checks import check_count
from holdfast.core.durations import Duration, to_ms
from holdfast.core.functions import check_handler, is_async
from holdfast.core.show import shown
from holdfast.errors import DefinitionError, InvalidOptionError

if TYPE_CHECKING:
    from holdfast.core.outbound import OutboundEvent

DEFAULT_MAX_ATTEMPTS = 10
DEFAULT_CONCURRENCY = 16
DEFAULT_TIMEOUT = "60 seconds"


@dataclass(slots=True, eq=False)
class OutboxHandler:
    """The function that delivers outbound events, and its options. A delivery has failed if the function raises."""

    function: Callable[[OutboundEvent], Any]
    is_async: bool
    max_attempts: int
    concurrency: int
    timeout_ms: int
    """Timeout of one delivery."""

    @property
    def lease_ms(self) -> int:
        """Lease of a claimed event: longer than the timeout, so that the delivery ends before the lease expires."""
        return self.timeout_ms * 3 // 2


def outbox_handler(function: Any, max_attempts: Any, concurrency: Any, timeout: Duration) -> OutboxHandler:
    if not callable(function):
        raise DefinitionError(f"an outbox needs a function that takes an OutboundEvent, not {shown(function)}")
    check_handler("the outbox handler", function)
    timeout_ms = to_ms(timeout, "timeout")
    if timeout_ms < 1:
        raise InvalidOptionError(f"timeout must be greater than 0, not {shown(timeout)}")
    return OutboxHandler(
        function,
        is_async(function),
        check_count("max_attempts", max_attempts),
        check_count("concurrency", concurrency),
        timeout_ms,
    )
