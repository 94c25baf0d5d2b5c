"""Events about runs, and ``ctx.events``, the channel that workflow code receives them from."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from holdfast.errors import ChildError
from holdfast.store.protocol import StoredEvent
from holdfast.workflow.channels import Channel
from holdfast.workflow.mailbox import Consume

EVENTS = "ctx.events"
"""The wait of a task that receives from ``ctx.events``."""


@dataclass(frozen=True, slots=True)
class Exit:
    """The end of a monitored run. ``error`` is None if the run completed."""

    pid: str
    result: Any = None
    error: ChildError | None = None


@dataclass(frozen=True, slots=True)
class LinkDown:
    """The end of a linked run that did not complete."""

    pid: str
    error: ChildError


@dataclass(frozen=True, slots=True)
class Cancel:
    """A request to cancel this run. At the deadline the run is terminated."""

    reason: str | None
    deadline: datetime | None


RunEvent = Exit | LinkDown | Cancel


class EventChannel(Channel[RunEvent]):
    """``ctx.events``. Receiving an entry also consumes the stored event that it came from."""

    def __init__(self, consume: Consume, poll: Callable[[], Awaitable[bool]]) -> None:
        super().__init__()
        self._capacity = float("inf")
        self._consume = consume
        self._poll_events = poll

    async def _poll(self) -> bool:
        return await self._poll_events()

    def put(self, event: RunEvent, stored: StoredEvent | None) -> None:
        self._try_send((event, stored))

    def _on_received(self, value: Any) -> RunEvent:
        event, stored = value
        if stored is not None:
            self._consume(stored, stored.type)
        received: RunEvent = event
        return received


class RunEvents:
    """The run events of one run. The channel is created when the code first uses ``ctx.events``."""

    def __init__(self, consume: Consume, poll: Callable[[], Awaitable[bool]]) -> None:
        self._consume = consume
        self._poll = poll
        self._channel: EventChannel | None = None
        self._early: list[tuple[RunEvent, StoredEvent | None]] = []
        """Events that happened before the code first used ``ctx.events``."""

    @property
    def channel(self) -> Channel[RunEvent]:
        if self._channel is None:
            self._channel = EventChannel(self._consume, self._poll)
            for event, stored in self._early:
                self._channel.put(event, stored)
            self._early.clear()
        return self._channel

    @property
    def awaited(self) -> bool:
        """True if code waits to receive from ``ctx.events``."""
        return self._channel is not None and self._channel.awaited

    def receiving(self) -> list[tuple[str, list[asyncio.Future[Any]]]]:
        """``ctx.events`` with the futures of its receivers, if code waits to receive from it."""
        return [] if self._channel is None or not self._channel.awaited else [(EVENTS, self._channel.receiving())]

    def emit(self, event: RunEvent, stored: StoredEvent | None) -> bool:
        """Add an event to ``ctx.events``; True if its stored event is consumed only when the code receives it."""
        if self._channel is None:
            stored = stored if isinstance(event, Cancel) else None  # the successor watches the other runs again
            self._early.append((event, stored))
        else:
            self._channel.put(event, stored)
        return stored is not None

    def early_ends(self) -> Iterator[Exit | LinkDown]:
        """Ends of runs that the code has not received, because it never used ``ctx.events``."""
        return (event for event, _ in self._early if isinstance(event, Exit | LinkDown))

    def clear(self) -> None:
        self._channel = None
