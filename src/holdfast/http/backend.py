"""The parts of an app that the HTTP API uses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from holdfast.client import Client
from holdfast.core.limits import Limits
from holdfast.core.redaction import Redaction
from holdfast.kernel.definition import Registry


class Tick(Protocol):
    async def __call__(self, *, max_instances: int | None = None, max_steps: int | None = None) -> int: ...


@dataclass(frozen=True, slots=True)
class Backend:
    """The parts of an app that the HTTP API uses."""

    registry: Registry
    limits: Limits
    client: Callable[[], Client]
    """Raises ``AppClosedError`` while the app is not open."""
    tick: Tick | None
    """None: ticks over HTTP are not enabled."""
    now: Callable[[], datetime]
    metrics: Callable[[], Awaitable[str]] | None = None
    """The text for Prometheus; None: there is no route for it."""
    redaction: Redaction | None = None
    """Hides values in all responses; None: values are shown."""
    title: str = "app"
    """The name of the program."""
    boot: str = "0"
    """Distinguishes this server process from the one before."""
    example: bool = False
    """True if the app is the example of ``holdfast dev --example``."""
    debug: bool = False
    """True if stacks and replays, which show local variables, may be read over HTTP."""
