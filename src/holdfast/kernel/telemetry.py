"""``Telemetry``: the observer of the engine. Metrics and traces are two implementations of it.

The engine calls a method of the observer at each of the points below, and nothing else: an app without telemetry pays
one ``is None`` test per point. The methods are called on the event loop of the worker or the client. They must return
quickly and must not raise; ``TelemetryGroup`` logs an exception of a member once and continues.

All methods describe new work. A replay calls none of them: it repeats code, not steps, commits or starts.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from holdfast.kernel.attempt import Attempt
    from holdfast.kernel.driver import Outcome
    from holdfast.store.protocol import (
        Advance,
        Claim,
        Commit,
        Committed,
        Finish,
        NewEvent,
        NewRun,
        Observed,
        OutboxRow,
        RecordedOperation,
        RunRecord,
        StoredEvent,
    )

R = TypeVar("R")

_log = logging.getLogger("holdfast")

Ended = Callable[[BaseException | None], None]
"""Called once when the observed operation has ended, with the exception that it raised."""


def _ignore(_error: BaseException | None) -> None:
    """The end of an operation that is not observed."""


class Telemetry:
    """An observer of the engine. Every method of this class does nothing; an implementation overrides some."""

    observes_attempts = True
    """False: ``attempt_began`` and ``attempt_ended`` need not be called at present."""
    unguarded: frozenset[str] = frozenset()
    """Names of methods that raise no exception, so that the engine may call them directly."""

    # --- the client

    def start_began(self, runs: Sequence[NewRun]) -> Ended:
        """A client is about to create runs; may add the trace context to their options."""
        return _ignore

    def send_began(self, event: NewEvent) -> Ended:
        """A client is about to send an event; may set the event's trace context."""
        return _ignore

    def request_began(self, headers: Mapping[str, str]) -> Ended:
        """The HTTP API begins to handle a request. Called in the request's context; the end is called there, too."""
        return _ignore

    # --- turns

    def turn_began(self, claim: Claim, now_ms: int) -> None:
        """A worker begins a turn. ``claim.lost``: the task was taken over from a worker that lost it.

        Called in the context of the turn, from which the contexts of its attempts are copied.
        """

    def turn_ended(self, claim: Claim, finish: Finish | None) -> None:
        """A turn has ended. ``finish``: the end of the run, if the turn wrote it."""

    def operations_planned(self, claim: Claim, operations: Sequence[RecordedOperation]) -> None:
        """A turn is about to write operations on other runs; may add the trace context to starts and messages."""

    def outbox_planned(self, claim: Claim, observed: Observed) -> None:
        """A turn is about to publish outbound events (``observed.outbox``); may add the trace context."""

    def events_read(self, claim: Claim, events: Sequence[StoredEvent]) -> None:
        """A turn has read events from its mailbox, besides those of its claim."""

    # --- attempts

    def attempt_began(self, attempt: Attempt) -> None:
        """An attempt of a step begins. Called in the context in which the step's function runs."""

    def attempt_ended(self, attempt: Attempt, outcome: Outcome | None) -> None:
        """An attempt has ended. None: it was abandoned, because its run ended, was paused or lost its worker."""

    # --- writes

    def batch_written(self, seconds: float) -> None:
        """A batch of commits was written; ``seconds``: the time that the store took."""

    def commit_written(self, run: RunRecord, commit: Commit, result: Committed) -> None:
        """The store has replied to a commit of a run; ``result.verdict`` tells which part was written."""

    def advance_written(self, run: RunRecord, advance: Advance) -> None:
        """An advance of a unit was written."""

    def parked(self, run: RunRecord, reason: str) -> None:
        """A run was parked by another write than a commit of its own turn. ``reason``: one of a few codes."""

    # --- the outbox

    def delivery_began(self, row: OutboxRow, run: RunRecord | None) -> Ended:
        """The delivery of an outbound event begins. Called in the context in which the handler runs.

        ``run``: the run that published the event; None: it is not known, or deleted.
        """
        return _ignore

    def close(self) -> None:
        """The app closes."""


_OPERATIONS = ("start_began", "send_began", "request_began", "delivery_began")
"""Methods that return a function to be called at the end of the operation."""
_POINTS = (
    "turn_began", "turn_ended", "operations_planned", "outbox_planned", "events_read", "attempt_began", "attempt_ended",
    "batch_written", "commit_written", "advance_written", "parked", "close",
)  # fmt: skip


class TelemetryGroup(Telemetry):
    """Several observers as one. Each method calls only the observers that override it.

    An exception of an observer does not reach the engine. The first one of each method is logged.
    """

    observes_attempts = False

    def __init__(self, members: Sequence[Telemetry]) -> None:
        self.members = tuple(members)
        self._attempt_observers = [member for member in members if _overrides(member, "attempt_began")]
        for name in (*_OPERATIONS, *_POINTS):
            overriding = [member for member in members if _overrides(member, name)]
            methods = [getattr(member, name) for member in overriding]
            if len(methods) == 1 and name in overriding[0].unguarded:
                setattr(self, name, methods[0])
            elif methods:
                setattr(self, name, _operation(methods) if name in _OPERATIONS else _point(methods))


class _AttemptObservers(TelemetryGroup):
    """Observers some of which observe attempts."""

    @property
    def observes_attempts(self) -> bool:  # type: ignore[override]
        for member in self._attempt_observers:  # noqa: SIM110  (read twice for each attempt: any() takes longer)
            if member.observes_attempts:
                return True
        return False


def _overrides(member: Telemetry, name: str) -> bool:
    return getattr(type(member), name) is not getattr(Telemetry, name)


class _Guard:
    """Calls a function and logs its first exception instead of raising it."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self._function = function
        self._name = name
        self._reported = False

    def __call__(self, *args: Any) -> Any:
        try:
            return self._function(*args)
        except Exception:
            if not self._reported:
                self._reported = True
                _log.exception("telemetry failed in %s; its further failures are not logged", self._name)
        return _ignore


def _point(methods: Sequence[Callable[..., None]]) -> Callable[..., None]:
    guarded = [_Guard(method, method.__qualname__) for method in methods]
    if len(guarded) == 1:
        return guarded[0]

    def call(*args: Any) -> None:
        for method in guarded:
            method(*args)

    return call


def _operation(methods: Sequence[Callable[..., Ended]]) -> Callable[..., Ended]:
    guarded = [(method.__qualname__, _Guard(method, method.__qualname__)) for method in methods]

    def call(*args: Any) -> Ended:
        ends = [_Guard(method(*args), name) for name, method in guarded]

        def ended(error: BaseException | None) -> None:
            for end in reversed(ends):
                end(error)

        return ended

    return call


async def observe(ended: Ended, operation: Awaitable[R]) -> R:
    """Await an operation, and call ``ended`` afterwards."""
    try:
        result = await operation
    except BaseException as error:
        ended(error)
        raise
    ended(None)
    return result


def telemetry_of(members: Sequence[Telemetry]) -> Telemetry | None:
    """The observer of an app with these members; None if there are none."""
    if not members:
        return None
    observed = any(_overrides(member, "attempt_began") for member in members)
    return _AttemptObservers(members) if observed else TelemetryGroup(members)
