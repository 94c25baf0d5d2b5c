"""A chain's machine without a database: facts and events are kept in lists."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from holdfast.chain.call import ChainCall, Handler
from holdfast.chain.chain import ChainProgram
from holdfast.chain.machine import ChainMachine
from holdfast.chain.progress import TaskState, records
from holdfast.core.failure import Failure
from holdfast.core.limits import Limits
from holdfast.core.records import StepRecord
from holdfast.kernel.driver import Decision, Outcome
from holdfast.store.protocol import Fact, Finish, NewRun, Outbound, Park, RunRecord, Snapshot, StoredEvent

Steps = tuple[str, ...]


def program(
    *steps: str, max_attempts: int = 3, lease_ms: int | None = None, timeout_ms: int | None = None
) -> ChainProgram:
    chain = ChainProgram("chain", Any, Limits(), lambda: datetime(2030, 1, 1, tzinfo=UTC))
    for step in steps:
        handler = Handler(lambda task: None, False)
        chain.add(step, handler, max_attempts=max_attempts, lease_ms=lease_ms, timeout_ms=timeout_ms)
    return chain


def run_record(**fields: Any) -> RunRecord:
    return replace(NewRun("chain", "one", kind="chain").record(1, 0, 1, 0), **fields)


class ManualRun:
    """One run of a chain, whose machine the test advances."""

    def __init__(self, chain: ChainProgram, **run: Any) -> None:
        self.chain = chain
        self.run = run_record(**run)
        self.facts: list[Fact] = list(chain.blueprint(0).plan)
        self.events: list[StoredEvent] = []
        self.consumed: dict[int, str] = {}
        self.outbox: list[Outbound] = []
        self.now = 0
        self.call: ChainCall | None = None
        self.decision: Decision | None = None
        self.machine = self.open_machine()

    def open_machine(self) -> ChainMachine:
        """Open a machine from the written facts."""
        consumed = {fact.event for fact in self.facts}
        events = {event.n: event for event in self.events if event.n in consumed}
        return ChainMachine(self.chain, self.run, Snapshot(list(self.facts), events, 0))

    def reopen(self) -> None:
        """Replace the machine by one opened from the written facts. A call in flight stays in flight."""
        self.machine = self.open_machine()

    def advance(self, *outcomes: Outcome, lost: bool = False) -> Decision:
        undelivered = [event for event in self.events if event.n not in self.consumed]
        if lost:
            self.machine, self.call = self.open_machine(), None
        decision = self.decision = self.machine.advance(self.now, outcomes, undelivered, lost=lost)
        self.facts += decision.observed.facts
        self.consumed |= {delivery.event: delivery.step_key for delivery in decision.observed.deliveries}
        self.outbox += decision.observed.outbox
        if self.call is not None and any(outcome.key == self.call.key for outcome in outcomes):
            self.call = None
        if decision.calls:
            [call] = decision.calls
            assert isinstance(call, ChainCall)
            self.call = call
        return decision

    # --- inputs

    def answer(self, value: Any, took: int = 0) -> Decision:
        """The called handler returns ``value``, or raises it if it is an exception."""
        assert self.call is not None
        return self.advance(self.outcome(self.call, value, took))

    def outcome(self, call: ChainCall, value: Any, took: int = 0) -> Outcome:
        started, self.now = self.now, self.now + took
        outcome = Outcome(call.key, call.attempt, started, self.now)
        try:
            if isinstance(value, BaseException):
                raise value
            outcome.value, outcome.live = call.record(value)
        except BaseException as error:
            outcome.failure = Failure.of(error)
        return outcome

    def time_out(self) -> Decision:
        """The call in flight exceeds its timeout."""
        assert self.call is not None
        assert self.call.timeout_ms is not None
        outcome = Outcome(self.call.key, self.call.attempt, self.now, self.now + self.call.timeout_ms)
        outcome.failure = Failure("StepTimeoutError", "too long", kind="Timeout")
        self.now = outcome.at
        return self.advance(outcome)

    def send(self, event_type: str, payload: bytes | None = None, at: int | None = None) -> None:
        self.events.append(StoredEvent(len(self.events) + 1, event_type, payload, self.now if at is None else at))

    def wait_ms(self, ms: int) -> Decision:
        self.now += ms
        return self.advance()

    # --- results

    @property
    def task(self) -> Any:
        assert self.call is not None
        return self.call.args[0]

    def steps(self) -> list[StepRecord]:
        run_at = self.decision.wake_at if self.decision is not None else self.now
        return records(0, self.facts, TaskState(self.call is not None, run_at))

    @property
    def states(self) -> list[str | None]:
        return [step.state for step in self.steps()]

    @property
    def end(self) -> Finish | Park | None:
        assert self.decision is not None
        return self.decision.end
