"""A test bench for the replay machine: a run without a database, a worker or a clock.

``Bench`` holds what a store would hold. Tests pass in what becomes known (a step's outcome, an event, the time);
``replay`` drops the machine and opens a new one, which replays the recorded facts.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from holdfast import Holdfast
from holdfast.core import codec
from holdfast.core.failure import Failure
from holdfast.core.limits import Limits
from holdfast.core.model import Status, from_ms
from holdfast.kernel.definition import Registry
from holdfast.kernel.driver import Call, Decision, Outcome
from holdfast.kernel.model import Models
from holdfast.kernel.requests import Requests
from holdfast.ports import Runtime
from holdfast.store.protocol import Fact, Finish, Log, NewRun, Park, RunRecord, Snapshot, StoredEvent
from holdfast.workflow.driver import WorkflowOptions, define
from holdfast.workflow.machine import Machine

START = 1_000_000
OPEN_BENCHES: list[Bench] = []
"""Benches of the running test; a fixture closes them after it."""
Workflow = Callable[..., Coroutine[Any, Any, Any]]


class Bench:
    """One run of a workflow function, driven by hand."""

    def __init__(self, fn: Workflow, params: Any = None, *, limits: Limits | None = None, seed: int = 7) -> None:
        self.now = START
        self.strict = False
        """True if the worker has strict replay."""
        self.limits = limits or Limits()
        self.deploy(fn)
        self.record = _new_run(None if params is None else codec.encode(params, what="params"), seed)
        self.facts: list[Fact] = []
        self.logs: list[Log] = []
        self.undelivered: list[StoredEvent] = []
        self.consumed: dict[int, StoredEvent] = {}
        self.calls: dict[str, Call] = {}
        self.cancelled: list[str] = []
        self.decision: Decision | None = None
        self.machine: Machine | None = None
        OPEN_BENCHES.append(self)

    def deploy(self, fn: Workflow, *, app: Holdfast | None = None, options: WorkflowOptions | None = None) -> None:
        """Deploy this code. ``app`` is the app that registers its steps."""
        self._fn = fn
        definition = define(
            "bench",
            fn,
            limits=self.limits,
            now=lambda: from_ms(self.now),
            options=options or WorkflowOptions(),
            step_names=None if app is None else app._step_names,
        )
        self.driver: Any = definition.driver
        runtime = Runtime()
        self.requests = Requests(Registry(Models), self.limits, runtime, runtime.time)

    # --- driving

    def advance(self, *outcomes: Outcome, lost: bool = False) -> Decision:
        """Advance the machine by these outcomes, new events and the time, and store its decision."""
        if self.machine is None:
            snapshot = Snapshot(tuple(self.facts), dict(self.consumed), self._count_logs())
            loaded = snapshot if self.record.started_at else None
            self.machine = self.driver.open(self.record, loaded, self.requests, strict=self.strict)
        decision = self.machine.advance(self.now, outcomes, list(self.undelivered), lost=lost)
        self._store_decision(decision)
        return decision

    def finish(self, key: str, value: Any = None) -> Decision:
        """Let the running step with this key return a value."""
        call = self.calls.pop(key)
        data, live = call.record(value)
        return self.advance(Outcome(key, call.attempt, self.now, self.now, value=data, live=live))

    def fail(self, key: str, error: BaseException) -> Decision:
        call = self.calls.pop(key)
        return self.advance(Outcome(key, call.attempt, self.now, self.now, failure=Failure.of(error)))

    def send(self, type: str, payload: Any = None) -> Decision:
        self.add_event(type, payload)
        return self.advance()

    def add_event(self, type: str, payload: Any = None) -> None:
        """Add an event to the mailbox without advancing the machine."""
        number = len(self.undelivered) + len(self.consumed) + 1
        self.undelivered.append(StoredEvent(number, type, codec.encode(payload, what="payload"), self.now))

    def sleep(self, seconds: float) -> Decision:
        """Let time pass, and advance the machine each time that something is due."""
        until = self.now + round(seconds * 1000)
        while self.decision and not self.end and self.decision.wake_at is not None and self.decision.wake_at <= until:
            self.now = max(self.now, self.decision.wake_at)
            self.advance()
        self.now = until
        return self.decision if self.decision and self.end else self.advance()

    def replay(self, *, lost: bool = False) -> Decision:
        """Replay the recorded facts on a new machine, as after a takeover by another worker."""
        self.close()
        self.calls.clear()
        return self.advance(lost=lost)

    def close(self) -> None:
        if self.machine is not None:
            self.machine.close()
            self.machine = None

    def fork(self) -> Bench:
        """A copy of the bench with the recorded facts, logs and events, and without a machine."""
        other = Bench(self._fn, limits=self.limits)
        other.now, other.record = self.now, self.record
        other.facts, other.logs = list(self.facts), list(self.logs)
        other.undelivered, other.consumed = list(self.undelivered), dict(self.consumed)
        return other

    # --- the state of the run

    @property
    def end(self) -> Finish | Park | None:
        return self.decision.end if self.decision else None

    @property
    def result(self) -> Any:
        assert isinstance(self.end, Finish), self.end
        assert self.end.status is Status.COMPLETE, self.end.error
        return codec.plain(self.end.output)

    @property
    def error(self) -> Failure:
        assert isinstance(self.end, Finish)
        assert self.end.error is not None
        return Failure.decode(self.end.error)

    # --- what a store does

    def _store_decision(self, decision: Decision) -> None:
        self.decision = decision
        self.facts += [*decision.observed.facts, *decision.following.facts]
        self.logs += [*decision.observed.logs, *decision.following.logs]
        for delivery in decision.observed.deliveries:
            event = next(m for m in self.undelivered if m.n == delivery.event)
            self.undelivered.remove(event)
            self.consumed[event.n] = event
        for key in decision.cancelled:
            self.calls.pop(key, None)
            self.cancelled.append(key)
        self.calls.update({call.key: call for call in decision.calls})
        if decision.started_at is not None:
            self.record = replace(self.record, started_at=decision.started_at)

    def _count_logs(self) -> int:
        return sum(line.category != "system" and line.step_key is None for line in self.logs)


def _new_run(params: bytes | None, seed: int) -> RunRecord:
    return NewRun("bench", "one", params, seed=seed).record(1, 0, 1, START)
