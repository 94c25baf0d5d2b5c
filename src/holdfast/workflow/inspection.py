"""Inspection of workflow code: the code is replayed on a machine that no turn drives.

The machine gets the complete history, so that recorded kinds, deadlines, versions and renamed steps are those of every
replay, and delivers as many results as requested. Its decisions are not written.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

from holdfast.core.facts import ANY_TOPIC, Fact, FactState, Log
from holdfast.core.frames import frame_info, function_info, position_of, user_frames
from holdfast.core.model import StepType, optional_from_ms
from holdfast.core.records import CodePosition
from holdfast.core.redaction import Redaction
from holdfast.core.tracebacks import coroutine_frames
from holdfast.core.views import PendingRequest, TaskStack
from holdfast.kernel.inspection import Difference, Subject
from holdfast.kernel.requests import Requests
from holdfast.workflow.differences import find_differences
from holdfast.workflow.keys import ANONYMOUS
from holdfast.workflow.machine import Machine
from holdfast.workflow.pending import Pending, PendingOperation, PendingStep, PendingTimer, PendingWait
from holdfast.workflow.run_events import EVENTS
from holdfast.workflow.tasks import WorkflowTask

if TYPE_CHECKING:
    from holdfast.workflow.driver import ReplayDriver


class WorkflowInspection:
    """A run of workflow code at a position in its history."""

    def __init__(
        self, driver: ReplayDriver, subject: Subject, requests: Requests, redaction: Redaction, function: Any
    ) -> None:
        self._driver = driver
        self._subject = subject
        self._redaction = redaction
        self._file: str = function.__code__.co_filename
        self._recorded_kinds = {fact.key: fact.kind for fact in subject.snapshot.facts}
        self._machine: Machine = driver.open(subject.run, subject.snapshot, requests, strict=subject.strict)
        self._parts = self._machine.parts()
        self._logs: list[Log] = []
        self.facts: Sequence[Fact] = [*self._parts.history.results]
        self.position = 0
        self._begun = False

    # --- the position

    def replay_to(self, position: int) -> None:
        started = self._started_at()
        if started is None:
            return
        if not self._begun:
            self._begun = True
            self._machine.begin_replay(started)
            self._take_logs()
        # Where history and code differ, the code must not continue: it would receive a result of another kind.
        while self.position < position and self.difference is None and self._machine.deliver_next() is not None:
            self.position += 1
            self._take_logs()

    def _started_at(self) -> int | None:
        """The start of the run; None if it has not started. The row has it after the first commit of a result, and the
        START fact of a long first step before that."""
        started_at = self._subject.run.started_at
        if started_at is None and self._subject.snapshot.facts:
            return min(fact.started_at for fact in self._subject.snapshot.facts)
        return started_at

    def _take_logs(self) -> None:
        self._logs += [line for line in self._parts.buffer.take_logs() if line.category != "system"]

    @property
    def difference(self) -> str | None:
        return self._machine.execution.divergence

    def logs(self) -> Sequence[Log]:
        return self._logs

    def close(self) -> None:
        self._machine.close()

    def differences(self) -> list[Difference]:
        return find_differences(self._machine, self._driver.step_names, self._subject)

    # --- the stack

    def tasks(self, *, all: bool = False) -> list[TaskStack]:
        if self._machine.execution.ended:
            return []
        requests = self._requests_by_future()
        return [self._task(task, requests, all=all) for task in self._machine.loop.tasks]

    def _task(self, task: WorkflowTask[Any], requests: Mapping[int, PendingRequest], *, all: bool) -> TaskStack:
        frames = self._frames(task, all=all)
        waiter = _awaited_future(task)
        request = None if waiter is None else requests.get(id(waiter))
        infos = [frame_info(frame, self._redaction) for frame in frames]
        if not infos and request is not None:
            infos = self._function_of(request.step_key)
        return TaskStack(task.get_name(), infos, None if request is None else str(request))

    def _frames(self, task: WorkflowTask[Any], *, all: bool = False) -> list[FrameType]:
        frames = list(coroutine_frames(task.get_coro()))
        return frames if all else user_frames(frames, self._file)

    def _function_of(self, key: str) -> list[Any]:
        """The function of a step whose call is the whole task, as in ``group.create_task(charge(order))``."""
        step = self._parts.keys.pending.get(key)
        if not isinstance(step, PendingStep):
            return []
        return [function_info(step.function, step.spec.named_arguments(step.args, step.kwargs), self._redaction)]

    # --- pending requests

    def pending(self) -> list[PendingRequest]:
        if self._machine.execution.ended:
            return []
        return [request for request, _ in self._awaited()]

    def positions(self) -> Mapping[str | None, CodePosition]:
        positions: dict[str | None, CodePosition] = {}
        if not self._machine.execution.ended:
            for task in self._machine.loop.tasks:
                position = position_of(self._frames(task))
                if position is not None:
                    positions[None] = position
                    break
            positions |= {r.step_key: r.position for r, _ in self._awaited() if r.position is not None}
        return positions

    def _requests_by_future(self) -> dict[int, PendingRequest]:
        return {id(future): request for request, futures in self._awaited() for future in futures}

    def _awaited(self) -> Iterator[tuple[PendingRequest, Sequence[asyncio.Future[Any]]]]:
        """The pending requests of the code, each with the futures that its result completes."""
        positions = self._positions_by_future()
        failures = self._failures()
        for pending in [*self._parts.keys.pending.values()]:
            futures = _futures(pending)
            yield self._request(pending, failures[pending.key], _first(positions, futures)), futures
        inbox = self._parts.inbox
        for topic, futures in inbox.awaited_channels():
            name = "any" if topic == ANY_TOPIC else topic
            position = _first(positions, futures)
            yield PendingRequest(f"listen {name}", "message", name, position=position), futures
        for what, futures in inbox.awaited_runs():
            yield self._awaited_run(what, _first(positions, futures)), futures

    def _awaited_run(self, what: str, position: CodePosition | None) -> PendingRequest:
        """``what``: ``ctx.events``, the key of an ask, or the pid of a child."""
        if what == EVENTS:
            return PendingRequest(what, "message", what, position=position)
        if what.startswith(ANONYMOUS):
            asked = self._parts.keys.started_operation(what)
            name = what if asked is None or asked.name is None else asked.name
            return PendingRequest(what, StepType.ASK.value, name, recorded=True, position=position)
        key = self._parts.inbox.start_key(what) or what
        return PendingRequest(key, StepType.CHILD.value, what, recorded=True, position=position)

    def _request(self, pending: Pending, failures: int, position: CodePosition | None) -> PendingRequest:
        recorded = pending.key in self._recorded_kinds
        match pending:
            case PendingStep():
                name, kind = pending.name or pending.key, StepType.DO
                wake_at = optional_from_ms(pending.not_before or None)
                return PendingRequest(pending.key, kind.value, name, wake_at, None, failures, recorded, position)
            case PendingWait():
                wake_at = optional_from_ms(pending.due)
                return PendingRequest(
                    pending.key, pending.kind.value, pending.key, wake_at, pending.event_type, 0, recorded, position
                )
            case PendingTimer():
                wake_at = optional_from_ms(pending.due)
                return PendingRequest(pending.key, StepType.TIMER.value, pending.key, wake_at, position=position)
            case PendingOperation():
                kind, name = pending.kind, pending.name
                return PendingRequest(pending.key, kind.value, name, recorded=recorded, position=position)
        raise AssertionError(f"unknown request {pending!r}")

    def _failures(self) -> Counter[str]:
        """Failed attempts by key until the time of the position; all of them at the end of the history."""
        at_end, now = self.position == len(self.facts), self._machine.position.now_ms
        facts = self._subject.snapshot.facts
        return Counter(f.key for f in facts if f.state == FactState.FAILURE and (at_end or f.at <= now))

    def _positions_by_future(self) -> dict[int, CodePosition]:
        """The position of the task that awaits each future; for tasks without user code, that of the main task."""
        positions: dict[int, CodePosition] = {}
        main: CodePosition | None = None
        for task in self._machine.loop.tasks:
            position = position_of(self._frames(task)) or main
            main = main or position
            waiter = _awaited_future(task)
            if waiter is not None and position is not None:
                positions[id(waiter)] = position
        return positions


def _awaited_future(task: asyncio.Task[Any]) -> asyncio.Future[Any] | None:
    future: asyncio.Future[Any] | None = getattr(task, "_fut_waiter", None)  # asyncio has no public name for it
    return future


def _futures(pending: Pending) -> Sequence[asyncio.Future[Any]]:
    if isinstance(pending, PendingTimer):
        arguments: Sequence[Any] = pending.timer._args or ()  # noqa: SLF001
        return [argument for argument in arguments if isinstance(argument, asyncio.Future)]
    return [pending.future]


def _first(positions: Mapping[int, CodePosition], futures: Sequence[asyncio.Future[Any]]) -> CodePosition | None:
    return next((positions[id(future)] for future in futures if id(future) in positions), None)
