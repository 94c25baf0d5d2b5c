"""Decisions of people about the calls of agents: events that several waits of one run share.

Agents that work in parallel in one run wait for events of the same type. One wait at a time, the **reader**, receives
events; each decision goes to the agent whose call it names, also if that agent opens the call later.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from holdfast.core.durations import Duration
from holdfast.errors import EventInvalidError
from holdfast.workflow.context import Context

D = TypeVar("D")


@dataclass(slots=True)
class _SharedDecisions:
    """The decisions of one run that arrived in events of one type."""

    open_calls: set[str] = field(default_factory=set)
    decided: dict[str, Any] = field(default_factory=dict)
    """Decisions that no agent has received yet."""
    reading: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @contextmanager
    def reader(self) -> Iterator[None]:
        """Become the reader; afterwards another wait without a decision becomes the reader."""
        self.reading = True
        try:
            yield
        finally:
            self.reading = False
            self.changed.set()
            self.changed.clear()

    def note(self, call: str, decision: Any, context: Context) -> None:
        self.decided[call] = decision
        if call not in self.open_calls:
            context.log.warning(f"a decision names the call {call!r}, which is not open")


_by_run: WeakKeyDictionary[Context, dict[str, _SharedDecisions]] = WeakKeyDictionary()
"""The decisions of each run, by the type of their events."""


async def decisions(
    context: Context,
    calls: Iterable[str],
    payload: type[D],
    call_of: Callable[[D], str],
    *,
    event: str,
    timeout: Duration,
) -> AsyncIterator[D]:
    """The decision about each call, in the order of their events.

    ``call_of`` is the call that a decision names. Raises ``WaitForEventTimeoutError`` if no event arrives in time. An
    event that does not fit ``payload`` is ignored, with a warning in the log of the run.
    """
    shared = _by_run.setdefault(context, {}).setdefault(event, _SharedDecisions())
    missing, numbers = sorted({*calls}), count(1)
    first = min(missing, default="")
    shared.open_calls.update(missing)
    try:
        while missing:
            if (call := next((one for one in missing if one in shared.decided), None)) is not None:
                missing.remove(call)
                shared.open_calls.discard(call)
                yield shared.decided.pop(call)
            elif shared.reading:
                await shared.changed.wait()
            else:
                name = f"{event} {next(numbers)} for {first}"
                with shared.reader():
                    waiting = context.wait_for_event(name, type=event, timeout=timeout, payload=payload)
                    try:
                        decision = (await waiting).payload
                    except EventInvalidError as error:
                        context.log.warning(f"an event of the type {event!r} is ignored: {error}")
                        continue
                    shared.note(call_of(decision), decision, context)
    finally:
        shared.open_calls.difference_update(missing)
