"""Answers of step handlers, checked and encoded for the commit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from holdfast.chain.values import Completed, Dead, Outbound, RetryStep, Waiting
from holdfast.core import codec
from holdfast.core.durations import describe
from holdfast.core.failure import Failure
from holdfast.core.limits import Limits
from holdfast.core.names import check_event_type
from holdfast.errors import InvalidDurationError
from holdfast.kernel.attempt import ReportedFailure
from holdfast.store.protocol import Outbound as Outgoing


class DoneAnswer(NamedTuple):
    value: bytes
    outbox: Sequence[Outgoing]


class WaitAnswer(NamedTuple):
    event_type: str
    timeout_ms: int
    outbox: Sequence[Outgoing]


@dataclass(frozen=True, slots=True)
class RetryAnswer(ReportedFailure):
    backoff_ms: int
    error: Failure


@dataclass(frozen=True, slots=True)
class DeadAnswer(ReportedFailure):
    error: Failure
    outbox: Sequence[Outgoing]


HandlerAnswer: TypeAlias = DoneAnswer | WaitAnswer | RetryAnswer | DeadAnswer

NO_VALUE = b"null"


def encode_answer(step: str, answer: Any, limits: Limits, *, last: bool) -> HandlerAnswer:
    """Check and encode a handler's answer. Raises an error, which becomes the attempt's failure, if it is invalid.

    ``last``: the step is the last one, so its output is the output of the run and the limit of outputs applies.
    """
    if isinstance(answer, Waiting):
        return _wait(step, answer, limits)
    if isinstance(answer, RetryStep):
        return RetryAnswer(answer.backoff_ms, Failure("RetryStep", answer.error))
    if isinstance(answer, Dead):
        return DeadAnswer(Failure("Dead", answer.error), _outgoing(step, answer.outbound, limits))
    limit, what = limits.output if last else limits.result, f"result of step {step!r}"
    if isinstance(answer, Completed):
        return DoneAnswer(codec.encode(answer.value, what=what, limit=limit), _outgoing(step, answer.outbound, limits))
    return DoneAnswer(codec.encode(answer, what=what, limit=limit), ())


def _wait(step: str, answer: Waiting, limits: Limits) -> WaitAnswer:
    event_type = check_event_type(answer.event_type, limits)
    if answer.timeout_ms > limits.event_wait_max_ms:
        longest = describe(limits.event_wait_max_ms)
        raise InvalidDurationError(f"step {step!r} waits {describe(answer.timeout_ms)}; the longest wait is {longest}")
    return WaitAnswer(event_type, answer.timeout_ms, _outgoing(step, answer.outbound, limits))


def _outgoing(step: str, events: Sequence[Outbound], limits: Limits) -> Sequence[Outgoing]:
    return [
        Outgoing(
            check_event_type(event.type, limits),
            None
            if event.payload is None
            else codec.encode(event.payload, what=f"payload of outbound {event.type!r}", limit=limits.event_payload),
            step,
        )
        for event in events
    ]
