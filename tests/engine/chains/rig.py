"""A chain's machine without a database: facts and mail are kept in lists, as a store would keep them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from holdfast.chain.call import ChainCall, Handler
from holdfast.chain.chain import ChainProgram
from holdfast.chain.machine import ChainMachine
from holdfast.core.chains import Place, records
from holdfast.core.failure import Failure
from holdfast.core.limits import Limits
from holdfast.core.model import Status, StepRecord
from holdfast.kernel.driver import Outcome, Rest
from holdfast.store.protocol import Fact, Finish, Mail, Outbound, Park, RunRecord, Snapshot

Steps = tuple[str, ...]


def program(
    *steps: str, max_attempts: int = 3, lease_ms: int | None = None, timeout_ms: int | None = None
) -> ChainProgram:
    made = ChainProgram("chain", Any, Limits(), lambda: datetime(2030, 1, 1, tzinfo=UTC))
    for step in steps:
        handler = Handler(lambda task: None, False)
        made.add(step, handler, max_attempts=max_attempts, lease_ms=lease_ms, timeout_ms=timeout_ms)
    return made


def run_record(**fields: Any) -> RunRecord:
    given: dict[str, Any] = {
        "run": 1, "workflow": "chain", "instance_id": "one", "number": 0, "kind": "chain", "status": Status.ACTIVE,
        "params": None, "output": None, "error": None, "queue": "default", "priority": 0, "created_at": 0,
        "updated_at": 0, "started_at": None, "completed_at": None, "instance": 1,
    }  # fmt: skip
    return RunRecord(**(given | fields))


class Rig:
    """One run, driven by hand."""

    def __init__(self, chain: ChainProgram, **run: Any) -> None:
        self.chain = chain
        self.run = run_record(**run)
        self.facts: list[Fact] = list(chain.blueprint(0).plan)
        self.mail: list[Mail] = []
        self.consumed: dict[int, str] = {}
        self.outbox: list[Outbound] = []
        self.now = 0
        self.call: ChainCall | None = None
        self.rest: Rest | None = None
        self.machine = self.opened()

    def opened(self) -> ChainMachine:
        """A machine from what is written."""
        named = {fact.event for fact in self.facts}
        read = {mail.n: mail for mail in self.mail if mail.n in named}
        return ChainMachine(self.chain, self.run, Snapshot(list(self.facts), read, 0))

    def reopen(self) -> None:
        """Forget all that is not written; what is in flight stays so, as with a pause that is withdrawn."""
        self.machine = self.opened()

    def go(self, *outcomes: Outcome, lost: bool = False) -> Rest:
        unread = [mail for mail in self.mail if mail.n not in self.consumed]
        if lost:
            self.machine, self.call = self.opened(), None
        rest = self.rest = self.machine.advance(self.now, outcomes, unread, lost=lost)
        self.facts += rest.observed.facts
        self.consumed |= {delivery.event: delivery.step_key for delivery in rest.observed.deliveries}
        self.outbox += rest.observed.outbox
        if self.call is not None and any(outcome.key == self.call.key for outcome in outcomes):
            self.call = None
        if rest.calls:
            [call] = rest.calls
            assert isinstance(call, ChainCall)
            self.call = call
        return rest

    # --- what can happen

    def answer(self, value: Any, took: int = 0) -> Rest:
        """The handler that is called answers."""
        assert self.call is not None
        return self.go(self.outcome(self.call, value, took))

    def outcome(self, call: ChainCall, value: Any, took: int = 0) -> Outcome:
        started, self.now = self.now, self.now + took
        made = Outcome(call.key, call.attempt, started, self.now)
        try:
            if isinstance(value, BaseException):
                raise value
            made.value, made.live = call.record(value)
        except BaseException as error:
            made.failure = Failure.of(error)
        return made

    def time_out(self) -> Rest:
        """The call that is under way took as long as it may."""
        assert self.call is not None
        assert self.call.timeout_ms is not None
        took = Outcome(self.call.key, self.call.attempt, self.now, self.now + self.call.timeout_ms)
        took.failure = Failure("StepTimeoutError", "too long", kind="Timeout")
        self.now = took.at
        return self.go(took)

    def send(self, event_type: str, payload: bytes | None = None, at: int | None = None) -> None:
        self.mail.append(Mail(len(self.mail) + 1, event_type, payload, self.now if at is None else at))

    def wait_ms(self, ms: int) -> Rest:
        self.now += ms
        return self.go()

    # --- what has come of it

    @property
    def task(self) -> Any:
        assert self.call is not None
        return self.call.args[0]

    def steps(self) -> list[StepRecord]:
        place = Place(self.call is not None, self.rest.wake_at if self.rest is not None else self.now)
        return records(0, self.facts, place)

    @property
    def states(self) -> list[str | None]:
        return [step.state for step in self.steps()]

    @property
    def end(self) -> Finish | Park | None:
        assert self.rest is not None
        return self.rest.end
