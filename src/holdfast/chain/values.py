"""The argument of a chain's step handlers, and the answers they can return."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

from holdfast.core import codec
from holdfast.core.durations import Duration, to_ms
from holdfast.core.event import Event
from holdfast.core.show import shown
from holdfast.errors import InvalidEventTypeError, InvalidOptionError
from holdfast.kernel.logger import StepLogger


@dataclass(frozen=True, slots=True)
class Outbound:
    """An event for the outbox: committed with the step's answer, then delivered to the handler of ``app.outbox``."""

    type: str
    payload: Any = None

    def __post_init__(self) -> None:
        _check_type("Outbound", self.type)


@dataclass(frozen=True, slots=True)
class Completed:
    """The step is done, and the next step becomes due. ``value`` is the step's output."""

    value: Any = None
    outbound: Sequence[Outbound] = ()

    def __post_init__(self) -> None:
        _check_outbound(self, self.outbound)


@dataclass(frozen=True, slots=True)
class Waiting:
    """Call the step again when an event of this type arrives (``EVENT``) or the time is up (``WAITING_TIMEOUT``)."""

    event_type: str
    timeout: Duration
    outbound: Sequence[Outbound] = ()
    timeout_ms: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check_type("Waiting", self.event_type)
        _check_outbound(self, self.outbound)
        object.__setattr__(self, "timeout_ms", to_ms(self.timeout, "Waiting.timeout"))


@dataclass(frozen=True, slots=True)
class RetryStep:
    """The attempt has failed. The step is retried after ``backoff``, unless this was its last attempt."""

    backoff: Duration
    error: str
    backoff_ms: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check_error(self, self.error)
        object.__setattr__(self, "backoff_ms", to_ms(self.backoff, "RetryStep.backoff"))


@dataclass(frozen=True, slots=True)
class Dead:
    """The step has failed permanently, and the chain fails with it."""

    error: str
    outbound: Sequence[Outbound] = ()

    def __post_init__(self) -> None:
        _check_error(self, self.error)
        _check_outbound(self, self.outbound)


Outcome: TypeAlias = Completed | Waiting | RetryStep | Dead
"""The answer of a step. Any other value means ``Completed(value)``."""


class ChainTaskKind(StrEnum):
    """Causes of a call of a step."""

    RUN = "RUN"
    EVENT = "EVENT"
    """The event that the step waited for has arrived."""
    WAITING_TIMEOUT = "WAITING_TIMEOUT"
    """No event arrived before the timeout."""


class Outputs(Mapping[str, Any]):
    """Outputs of the previous steps, by step type. Each access returns a new value, which the handler may change."""

    def __init__(self, encoded: Mapping[str, bytes | None]) -> None:
        self._encoded = encoded

    def __getitem__(self, step_type: str) -> Any:
        return codec.plain(self._encoded[step_type])

    def __iter__(self) -> Iterator[str]:
        return iter(self._encoded)

    def __len__(self) -> int:
        return len(self._encoded)

    def __repr__(self) -> str:
        return repr(dict(self))


@dataclass(frozen=True, slots=True)
class ChainTask:
    """The argument of a step's handler."""

    kind: ChainTaskKind
    params: Any
    """The chain's input."""
    event: Event[Any] | None
    """With ``EVENT``, the event that the step waited for. Retries get the same ``event`` and ``kind``."""
    attempt: int
    """The number of the attempt, from 1."""
    outputs: Mapping[str, Any]
    workflow: str
    instance_id: str
    run_number: int
    step_type: str
    step_seq: int
    """The position of the step, from 0."""
    log: StepLogger = field(repr=False, compare=False)

    @property
    def pid(self) -> str:
        return f"{self.workflow}/{self.instance_id}"


def _check_type(where: str, value: object) -> None:
    if not isinstance(value, str) or not value:
        raise InvalidEventTypeError(f"{where}: the type of an event is text, not {shown(value)}")


def _check_error(outcome: object, value: object) -> None:
    if not isinstance(value, str):
        name = type(outcome).__name__
        raise InvalidOptionError(f"{name}.error must be text that says what went wrong, not {shown(value)}")


def _check_outbound(outcome: object, value: object) -> None:
    """Check the outbound events and replace them with a tuple, which cannot be changed."""
    events: tuple[object, ...] = (value,)
    if isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping):
        events = tuple(value)
    for event in events:
        if not isinstance(event, Outbound):
            name = type(outcome).__name__
            raise InvalidOptionError(f"{name}.outbound must be a list of Outbound(type, payload), not {shown(value)}")
    object.__setattr__(outcome, "outbound", events)
