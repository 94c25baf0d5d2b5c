"""Checks the values of ``step_info()`` in the calls of steps, at the end, against the recorded facts."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple

from holdfast.core.facts import RESOLVE
from holdfast.core.failure import Failure
from holdfast.kernel.step_info import StepInfo
from holdfast.store.protocol import FactState
from holdfast.testing.simulation.database import SimulatedDatabase
from holdfast.testing.simulation.loop import Process

_RAISED = frozenset({"ValueError", "StepTimeoutError", "RetryStep"})
"""Names of errors that end an attempt without the loss of its worker."""


class StepId(NamedTuple):
    workflow: str
    instance: str
    number: int
    """The number of the run."""
    key: str

    def __str__(self) -> str:
        return f"step {self.key} of {self.instance} (run {self.number})"


@dataclass(frozen=True, slots=True)
class CallInfo:
    """The value of ``step_info()`` in one call of a step."""

    step: StepId
    attempt: int
    max_attempts: int | None
    idempotency_key: str
    previous: Any
    """The progress that the call received."""
    process: Process

    @classmethod
    def of(cls, info: StepInfo, process: Process) -> CallInfo:
        step = StepId(info.workflow, info.instance_id, info.run_number, info.step_key)
        return cls(step, info.attempt, info.max_attempts, info.idempotency_key, info.previous_heartbeat, process)

    def with_number(self, key_numbers: Mapping[tuple[str, int], int]) -> CallInfo:
        """The call with the run number that its idempotency key has: a retry uses the keys of the failed run."""
        step = self.step
        number = key_numbers.get((step.instance, step.number), step.number)
        return replace(self, step=step._replace(number=number))


def step_info_failures(
    calls: Sequence[CallInfo],
    database: SimulatedDatabase,
    rolled_back: Collection[str],
    *,
    progress_kept: bool,
    uncounted: Collection[str] = (),
    key_numbers: Mapping[tuple[str, int], int] = MappingProxyType({}),
) -> Iterator[str]:
    """Check the calls of all steps.

    ``rolled_back``: keys of steps whose attempts are not counted if their live transaction is rolled back.
    ``uncounted``: workflows whose attempts are not counted if their worker dies.
    ``key_numbers``: the run number in the idempotency keys of retried runs, by instance and run number.
    ``progress_kept``: no call that stores heartbeats failed, so every attempt that raised has left its progress.
    """
    yield from _idempotency_keys([call.with_number(key_numbers) for call in calls])
    calls = [call for call in calls if call.step.workflow not in uncounted]
    yield from _numbers([call for call in calls if call.step.key not in rolled_back])
    yield from _recorded_numbers(calls, database)
    yield from _own_progress(calls)
    if progress_kept:
        yield from _progress_of_failures(calls, database)


def _idempotency_keys(calls: Sequence[CallInfo]) -> Iterator[str]:
    """Check that each step has one idempotency key, and no two steps have the same."""
    for step, keys in _grouped((call.step, call.idempotency_key) for call in calls).items():
        if len(keys) > 1:
            yield f"{step} was called with {len(keys)} idempotency keys"
    for key, steps in _grouped((call.idempotency_key, call.step) for call in calls).items():
        if len(steps) > 1:
            yield f"{', '.join(map(str, sorted(steps)))} have the idempotency key {key}"


def _numbers(calls: Sequence[CallInfo]) -> Iterator[str]:
    """Check that no attempt number is used twice. The number of an attempt that a shutdown interrupts is used again."""
    counts = Counter((call.step, call.attempt) for call in calls if not call.process.shut_down)
    for (step, attempt), times in counts.items():
        if times > 1:
            yield f"{step} was called {times} times as attempt {attempt}"
    for call in calls:
        if call.attempt < 1 or (call.max_attempts is not None and call.attempt > call.max_attempts):
            yield f"{call.step} was called as attempt {call.attempt} of {call.max_attempts}"


def _recorded_numbers(calls: Sequence[CallInfo], database: SimulatedDatabase) -> Iterator[str]:
    """Check that the result of a step names the attempt that was called last."""
    last: dict[StepId, int] = {}
    for call in calls:
        last[call.step] = max(last.get(call.step, 0), call.attempt)
    for *place, attempts in database.rows(
        "SELECT r.workflow, r.instance_id, r.number, f.key, f.attempts + (r.kind = 'chain') FROM holdfast_fact AS f "
        "JOIN holdfast_run AS r ON r.id = f.run WHERE f.state = ? AND f.ok AND f.event_type IS NOT ? "
        "ORDER BY 1, 2, 3, 4",
        int(FactState.RESULT),
        RESOLVE,
    ):
        step = StepId(*place)
        if last.get(step, attempts) != attempts:
            yield f"{step} has a result of attempt {attempts}, and its last call was attempt {last[step]}"


def _own_progress(calls: Sequence[CallInfo]) -> Iterator[str]:
    """Check that an attempt receives only progress of its own step, of an attempt that is not later."""
    for call in calls:
        if call.previous is not None and (call.previous[:-1] != [*call.step] or call.previous[-1] > call.attempt):
            yield f"attempt {call.attempt} of {call.step} received the progress {call.previous}"


def _progress_of_failures(calls: Sequence[CallInfo], database: SimulatedDatabase) -> Iterator[str]:
    """Check that an attempt which follows one that raised receives the progress of that attempt."""
    raised = _raised(database)
    for call in calls:
        before = call.attempt - 1
        if before in raised.get(call.step, ()) and (call.previous is None or call.previous[-1] < before):
            yield f"attempt {call.attempt} of {call.step} received {call.previous}, not that of attempt {before}"


def _raised(database: SimulatedDatabase) -> Mapping[StepId, Collection[int]]:
    """For each step: the attempts that are recorded as failed by an error of the step."""
    rows = database.rows(
        "SELECT r.workflow, r.instance_id, r.number, f.key, f.attempts, f.value FROM holdfast_fact AS f "
        "JOIN holdfast_run AS r ON r.id = f.run WHERE f.state = ? ORDER BY 1, 2, 3, 4, 5",
        int(FactState.FAILURE),
    )
    return _grouped((StepId(*place), n) for *place, n, error in rows if Failure.decode(error).name in _RAISED)


def _grouped(pairs: Iterable[tuple[Any, Any]]) -> Mapping[Any, Collection[Any]]:
    groups = defaultdict[Any, set[Any]](set)
    for key, value in pairs:
        groups[key].add(value)
    return groups
