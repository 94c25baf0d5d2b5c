"""A workbench for the replay machine: a run without a database, a worker or a clock.

``Bench`` keeps what a store would keep. Tests say what becomes known (a step's outcome, an event, the time); ``cold``
throws the machine away and replays a new one from what was kept.
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
from holdfast.kernel.driver import Call, Outcome, Rest
from holdfast.kernel.requests import Requests
from holdfast.ports import Runtime
from holdfast.store.protocol import Fact, Finish, Log, Mail, Park, RunRecord, Snapshot
from holdfast.workflow.driver import Manners, define
from holdfast.workflow.machine import Machine

START = 1_000_000
OPEN: list[Bench] = []
"""Benches of the test that is running; closed after it."""
Workflow = Callable[..., Coroutine[Any, Any, Any]]


class Bench:
    """One run of a workflow function, driven by hand."""

    def __init__(self, fn: Workflow, params: Any = None, *, limits: Limits | None = None, seed: int = 7) -> None:
        self.now = START
        self.strict = False
        """The worker has strict replay."""
        self.limits = limits or Limits()
        self.code(fn)
        self.record = _new_run(None if params is None else codec.encode(params, what="params"), seed)
        self.facts: list[Fact] = []
        self.logs: list[Log] = []
        self.undelivered: list[Mail] = []
        self.consumed: dict[int, Mail] = {}
        self.calls: dict[str, Call] = {}
        self.cancelled: list[str] = []
        self.rest: Rest | None = None
        self.machine: Machine | None = None
        OPEN.append(self)

    def code(self, fn: Workflow, *, app: Holdfast | None = None, manners: Manners | None = None) -> None:
        """Deploy this code. ``app`` has its steps."""
        self._fn = fn
        definition = define(
            "bench",
            fn,
            limits=self.limits,
            now=lambda: from_ms(self.now),
            manners=manners or Manners(),
            step_names=None if app is None else app._step_names,
        )
        self.driver: Any = definition.driver
        runtime = Runtime()
        self.requests = Requests(Registry(), self.limits, runtime, runtime.time)

    # --- driving

    def go(self, *outcomes: Outcome, lost: bool = False) -> Rest:
        """Advance by what became known, and keep what a store would."""
        if self.machine is None:
            snapshot = Snapshot(tuple(self.facts), dict(self.consumed), self._logged())
            known = snapshot if self.record.started_at else None
            self.machine = self.driver.open(self.record, known, self.requests, strict=self.strict)
        rest = self.machine.advance(self.now, outcomes, list(self.undelivered), lost=lost)
        self._keep(rest)
        return rest

    def finish(self, key: str, value: Any = None) -> Rest:
        """The step in flight under this key returns a value."""
        call = self.calls.pop(key)
        data, live = call.record(value)
        return self.go(Outcome(key, call.attempt, self.now, self.now, value=data, live=live))

    def fail(self, key: str, error: BaseException) -> Rest:
        call = self.calls.pop(key)
        return self.go(Outcome(key, call.attempt, self.now, self.now, failure=Failure.of(error)))

    def send(self, type: str, payload: Any = None) -> Rest:
        self.post(type, payload)
        return self.go()

    def post(self, type: str, payload: Any = None) -> None:
        """An event that nobody has looked at yet."""
        number = len(self.undelivered) + len(self.consumed) + 1
        self.undelivered.append(Mail(number, type, codec.encode(payload, what="payload"), self.now))

    def sleep(self, seconds: float) -> Rest:
        """Let time pass, stopping at each moment at which something is due."""
        until = self.now + round(seconds * 1000)
        while self.rest and not self.end and self.rest.wake_at is not None and self.rest.wake_at <= until:
            self.now = max(self.now, self.rest.wake_at)
            self.go()
        self.now = until
        return self.rest if self.rest and self.end else self.go()

    def cold(self, *, lost: bool = False) -> Rest:
        """Another worker takes over: a new machine replays what is recorded."""
        self.close()
        self.calls.clear()
        return self.go(lost=lost)

    def close(self) -> None:
        if self.machine is not None:
            self.machine.close()
            self.machine = None

    def fork(self) -> Bench:
        """Another bench with what is recorded here, and nothing in memory."""
        other = Bench(self._fn, limits=self.limits)
        other.now, other.record = self.now, self.record
        other.facts, other.logs = list(self.facts), list(self.logs)
        other.undelivered, other.consumed = list(self.undelivered), dict(self.consumed)
        return other

    # --- looking

    @property
    def end(self) -> Finish | Park | None:
        return self.rest.end if self.rest else None

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

    # --- keeping

    def _keep(self, rest: Rest) -> None:
        self.rest = rest
        self.facts += [*rest.observed.facts, *rest.follows.facts]
        self.logs += [*rest.observed.logs, *rest.follows.logs]
        for delivery in rest.observed.deliveries:
            mail = next(m for m in self.undelivered if m.n == delivery.event)
            self.undelivered.remove(mail)
            self.consumed[mail.n] = mail
        for key in rest.cancelled:
            self.calls.pop(key, None)
            self.cancelled.append(key)
        self.calls.update({call.key: call for call in rest.calls})
        if rest.started_at is not None:
            self.record = replace(self.record, started_at=rest.started_at)

    def _logged(self) -> int:
        return sum(line.category != "system" and line.step_key is None for line in self.logs)


def _new_run(params: bytes | None, seed: int) -> RunRecord:
    return RunRecord(
        run=1, workflow="bench", instance_id="one", number=0, kind="workflow", status=Status.ACTIVE,
        params=params, output=None, error=None, queue="default", priority=0, created_at=START,
        updated_at=START, started_at=None, completed_at=None, instance=1, seed=seed,
    )  # fmt: skip
