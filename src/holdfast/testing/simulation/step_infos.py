"""What ``step_info()`` tells the attempts of steps, compared at the end with the recorded facts."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from holdfast.core.failure import Failure
from holdfast.kernel.step_info import StepInfo
from holdfast.store.protocol import FactState
from holdfast.testing.simulation.database import SimulatedDatabase
from holdfast.testing.simulation.loop import Process

_RAISED = frozenset({"ValueError", "StepTimeoutError", "RetryStep"})
"""Names of errors that end an attempt whose worker is not lost."""


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
    """What one call of a step is told."""

    step: StepId
    attempt: int
    most: int | None
    idempotency_key: str
    previous: Any
    process: Process

    @classmethod
    def of(cls, info: StepInfo, process: Process) -> CallInfo:
        step = StepId(info.workflow, info.instance_id, info.run_number, info.step_key)
        return cls(step, info.attempt, info.max_attempts, info.idempotency_key, info.previous_heartbeat, process)


def progress(info: StepInfo) -> list[Any]:
    """The progress that an attempt reports: which step it belongs to, and its number."""
    return [info.workflow, info.instance_id, info.run_number, info.step_key, info.attempt]


def step_info_failures(
    told: Sequence[CallInfo],
    database: SimulatedDatabase,
    undone: Collection[str],
    *,
    progress_kept: bool,
    uncounted: Collection[str] = (),
) -> Iterator[str]:
    """``undone``: keys of steps whose attempts are undone with their transaction if that is cut off.

    ``uncounted``: workflows whose attempts are lost without being counted if their worker dies.
    ``progress_kept``: no call that stores heartbeats failed, so every attempt that raised has left its progress.
    """
    yield from _idempotency_keys(told)
    told = [one for one in told if one.step.workflow not in uncounted]
    yield from _numbers([one for one in told if one.step.key not in undone])
    yield from _recorded_numbers(told, database)
    yield from _own_progress(told)
    if progress_kept:
        yield from _progress_of_failures(told, database)


def _idempotency_keys(told: Sequence[CallInfo]) -> Iterator[str]:
    """Each step has one key, and no two steps have the same."""
    for step, keys in _grouped((one.step, one.idempotency_key) for one in told).items():
        if len(keys) > 1:
            yield f"{step} was called with {len(keys)} idempotency keys"
    for key, steps in _grouped((one.idempotency_key, one.step) for one in told).items():
        if len(steps) > 1:
            yield f"{', '.join(map(str, sorted(steps)))} have the idempotency key {key}"


def _numbers(told: Sequence[CallInfo]) -> Iterator[str]:
    """No number of an attempt is used twice. A worker that is stopped in order gives its number back."""
    calls = Counter((one.step, one.attempt) for one in told if not one.process.shut_down)
    for (step, attempt), times in calls.items():
        if times > 1:
            yield f"{step} was called {times} times as attempt {attempt}"
    for one in told:
        if one.attempt < 1 or (one.most is not None and one.attempt > one.most):
            yield f"{one.step} was called as attempt {one.attempt} of {one.most}"


def _recorded_numbers(told: Sequence[CallInfo], database: SimulatedDatabase) -> Iterator[str]:
    """The result of a step names the attempt that was called last."""
    last: dict[StepId, int] = {}
    for one in told:
        last[one.step] = max(last.get(one.step, 0), one.attempt)
    for *place, attempts in database.rows(
        "SELECT r.workflow, r.instance_id, r.number, f.key, f.attempts + (r.kind = 'chain') FROM holdfast_fact AS f "
        "JOIN holdfast_run AS r ON r.id = f.run WHERE f.state = ? AND f.ok ORDER BY 1, 2, 3, 4",
        int(FactState.RESULT),
    ):
        step = StepId(*place)
        if last.get(step, attempts) != attempts:
            yield f"{step} has a result of attempt {attempts}, and its last call was attempt {last[step]}"


def _own_progress(told: Sequence[CallInfo]) -> Iterator[str]:
    for one in told:
        if one.previous is not None and (one.previous[:-1] != [*one.step] or one.previous[-1] > one.attempt):
            yield f"attempt {one.attempt} of {one.step} was given the progress {one.previous}"


def _progress_of_failures(told: Sequence[CallInfo], database: SimulatedDatabase) -> Iterator[str]:
    """An attempt that follows one that raised is given the progress of that one."""
    raised = _raised(database)
    for one in told:
        before = one.attempt - 1
        if before in raised.get(one.step, ()) and (one.previous is None or one.previous[-1] < before):
            yield f"attempt {one.attempt} of {one.step} was given {one.previous}, not the progress of attempt {before}"


def _raised(database: SimulatedDatabase) -> Mapping[StepId, Collection[int]]:
    """The attempts of each step that are recorded as failed by an error of their own."""
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
