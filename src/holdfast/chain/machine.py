"""The machine of a chain: facts in, the current step's call or its end out.

All it knows is in facts. The plan decides which step comes next, so that a program whose chain has other steps by now
goes on as the run began; of the program it needs a handler for the current step, and nothing else. Each answer of a
handler is a fact of its own in the commit that also opens the next step, which the same worker goes on with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from random import Random
from types import MappingProxyType
from typing import Any, Protocol

from holdfast.chain.call import ChainCall, Handler
from holdfast.chain.decisions import Again, Decision, Done, Over, Wait
from holdfast.chain.values import ChainTask, ChainTaskKind, Outputs
from holdfast.core import codec
from holdfast.core.chains import ChainStep, Progress
from holdfast.core.event import Event
from holdfast.core.failure import Failure
from holdfast.core.limits import Limits
from holdfast.core.model import Level, Status, StepType, from_ms
from holdfast.core.retry import Retry
from holdfast.errors import LinkDownError, ParamsInvalidError
from holdfast.kernel.attempt import NO_VALUES
from holdfast.kernel.driver import Outcome, Rest
from holdfast.kernel.logger import StepLogger
from holdfast.kernel.options import NO_OPTIONS, RunOptions
from holdfast.store.protocol import (
    CANCEL,
    EXIT,
    Act,
    Answer,
    Delivery,
    Fact,
    FactState,
    Finish,
    Follows,
    Log,
    Mail,
    Observed,
    Park,
    RunRecord,
    Snapshot,
    Watch,
)

DEFAULT_BACKOFF = Retry(delay="1 second", backoff="exponential", max_delay="5 minutes")
"""How long a step that raised waits for its next attempt: 1 s, then twice as long each time, up to 5 minutes."""

LEASE_EXPIRED = Failure("LEASE_EXPIRED", "LEASE_EXPIRED", kind="Timeout")
"""The error of an attempt whose worker was lost: no heartbeat came within the lease."""

_PATIENCE_MS = 10 * 60_000
"""How long a step that nobody here has a handler for is left to others, before the run is set aside."""


class Program(Protocol):
    """The chain as this process knows it."""

    name: str
    limits: Limits
    log: StepLogger
    decode_params: Callable[[Any], Any]
    """Of a recorded input."""

    def handler(self, step_type: str) -> Handler | None: ...


class ChainMachine:
    """One run of a chain in memory."""

    def __init__(self, program: Program, run: RunRecord, snapshot: Snapshot) -> None:
        self._program = program
        self._run = run
        self._options = NO_OPTIONS if run.options is None else RunOptions.decode(run.options)
        self._values = MappingProxyType(self._options.context) if self._options.context else NO_VALUES
        self._progress = Progress.of(snapshot.facts)
        self._mail: dict[int, Mail] = dict(snapshot.mail)
        """Events, as far as they were read: those that were consumed, and those that may be."""
        self._used = {f.event for f in snapshot.facts if f.event is not None}
        self._orders: dict[int, Mail] = {}
        """The engine's own mail."""
        self._begun = run.started_at is not None
        self._moved_at = max([run.started_at or 0, *(f.at for f in snapshot.facts)])
        self._calling: ChainCall | None = None
        self._opened: ChainStep | None = None
        """What began to wait in this very advance."""
        self._holding = False
        self._observed = Observed()
        self._said: list[Log] = []

    # --- driven by the runner

    def advance(
        self,
        now_ms: int,
        outcomes: Sequence[Outcome] = (),
        mail: Sequence[Mail] = (),
        *,
        acted: Sequence[Answer] = (),  # noqa: ARG002  (it does nothing to other runs)
        lost: bool = False,
    ) -> Rest:
        self._observed, self._said, self._opened = Observed(facts=[], deliveries=[]), [], None
        for item in mail:
            (self._orders if item.type in (CANCEL, EXIT) else self._mail)[item.n] = item
        started_at = self._begin(now_ms)
        if lost:
            self._count_loss(now_ms)
        for outcome in outcomes:
            self._take(outcome)
        end = None
        if not self._holding:
            end = self._end(now_ms) or self._steered(now_ms)
            if end is None:
                self._wake(now_ms)
        return self._rest(now_ms, started_at, end)

    def seal(self, acts: Sequence[Act]) -> None:
        """It has none."""

    def hold(self) -> None:
        self._holding = True

    def close(self) -> None:
        """Nothing outlives it."""

    def _begin(self, now_ms: int) -> int | None:
        """The time of the start, if this is the first time ever."""
        if self._begun:
            return None
        self._begun, self._moved_at = True, now_ms
        return now_ms

    # --- what comes of attempts

    def _take(self, outcome: Outcome) -> None:
        step = self._progress.current
        if step is None or not _is_of(outcome, step):
            return  # of an attempt that does not count any more
        self._calling = None
        self._observed.logs = [*self._observed.logs, *outcome.logs]
        if outcome.heartbeat is not None:
            self._progress.apply(outcome.heartbeat)
        if outcome.failure is not None:
            self._failed(step, outcome, outcome.failure)
        else:
            self._answered(step, outcome, outcome.live)

    def _answered(self, step: ChainStep, outcome: Outcome, decision: Decision) -> None:
        match decision:
            case Done(value, outbox):
                self._result(step, outcome, ok=True, value=value)
                self._observed.outbox = outbox
            case Wait(event_type, timeout_ms, outbox):
                self._open_wait(step, outcome.at, event_type, outcome.at + timeout_ms)
                self._observed.outbox = outbox
            case Again(backoff_ms, error):
                self._count(step, outcome, error, outcome.at + backoff_ms)
            case Over(error, outbox):
                self._result(step, outcome, ok=False, value=error.encode())
                self._observed.outbox = outbox

    def _failed(self, step: ChainStep, outcome: Outcome, error: Failure) -> None:
        delay = DEFAULT_BACKOFF.delay_after(step.attempts + 1)
        self._count(step, outcome, error, outcome.at + delay)

    def _count_loss(self, now_ms: int) -> None:
        """Whoever held the run was lost with it. An attempt, unless it cannot have been running."""
        step = self._progress.current
        if step is None or step.result is not None or step.waiting or step.not_before > now_ms:
            return
        attempt = Outcome(step.type, step.attempts + 1, now_ms, now_ms)
        self._count(step, attempt, LEASE_EXPIRED, now_ms)

    def _count(self, step: ChainStep, outcome: Outcome, error: Failure, next_at: int) -> None:
        """An attempt has failed: another one is due, or that was the last."""
        attempts = step.attempts + 1
        if error.retryable is False or attempts >= step.max_attempts:
            self._result(step, outcome, ok=False, value=error.encode())
            return
        self._observe(
            step, FactState.FAILURE, attempts, outcome.at, outcome.started_at,
            ok=False, value=error.encode(), attempts=attempts, wake_at=next_at,
        )  # fmt: skip

    def _result(self, step: ChainStep, outcome: Outcome, *, ok: bool, value: bytes) -> None:
        self._observe(
            step, FactState.RESULT, 0, outcome.at, outcome.started_at,
            seq=step.seq + 1, ok=ok, value=value, attempts=step.attempts + (not ok),
        )  # fmt: skip

    def _observe(self, step: ChainStep, state: FactState, n: int, at: int, started_at: int, **rest: Any) -> None:
        fact = Fact(
            state, step.type, n, StepType.DO, at, started_at,
            max_attempts=step.max_attempts, timeout_ms=step.timeout_ms, **rest,
        )  # fmt: skip
        self._progress.apply(fact)
        self._moved_at = max(self._moved_at, at)
        self._observed.facts = [*self._observed.facts, fact]

    # --- waits

    def _open_wait(self, step: ChainStep, at: int, event_type: str, deadline: int) -> None:
        self._observe(step, FactState.START, step.waits, at, at, wake_at=deadline, event_type=event_type)
        self._opened = step

    def _wake(self, now_ms: int) -> None:
        """The wait of the current step is over if its event has come, or was not sent in time."""
        step = self._progress.current
        if step is None or not step.waiting:
            return
        mail = self._oldest(step.wait.event_type)
        if mail is not None and mail.created_at <= step.wait.wake_at:
            self._consume(mail, step.type, now_ms)
            self._woken(step, now_ms, mail.n)
        elif step is not self._opened and (mail is not None or step.wait.wake_at <= now_ms):
            # Not in the advance that opened it: an event may have come in time that was not read yet.
            self._woken(step, now_ms, None)

    def _woken(self, step: ChainStep, now_ms: int, event: int | None) -> None:
        self._observe(
            step, FactState.WOKEN, step.wait.n, now_ms, step.wait.at, event_type=step.wait.event_type, event=event
        )

    def _oldest(self, event_type: str) -> Mail | None:
        found = (mail for n, mail in self._mail.items() if mail.type == event_type and n not in self._used)
        return min(found, key=lambda mail: mail.n, default=None)

    def _consume(self, mail: Mail, by: str, now_ms: int) -> None:
        self._used.add(mail.n)
        self._observed.deliveries = [*self._observed.deliveries, Delivery(mail.n, by, now_ms)]

    # --- ends

    def _end(self, now_ms: int) -> Finish | Park | None:
        """Where the steps have led to."""
        if not self._progress.steps:
            return Park("NO_PLAN: it was started without steps, by a process that does not have the chain")
        step = self._progress.current
        if step is None:
            output = self._progress.steps[-1].result.value
            return self._with_next(Finish(Status.COMPLETE, output=output), now_ms)
        if step.result is None:
            return None
        return self._failed_finish(_dead(step), now_ms)

    def _failed_finish(self, error: Failure, now_ms: int) -> Finish:
        retry = self._options.retry
        names = error.lineage or (error.name,)
        retryable = error.retryable is not False and retry is not None and retry.retries(names)
        return self._with_next(Finish(Status.ERRORED, error=error.encode()), now_ms, retryable=retryable)

    def _with_next(self, finish: Finish, now_ms: int, *, retryable: bool = False) -> Finish:
        if self._options.retry is None and self._options.cron is None:
            return finish
        chance = Random(f"{self._run.seed}//{self._run.attempt}").random()  # noqa: S311  (spreads retries)
        following = self._options.successor(self._run, finish, retryable=retryable, now=now_ms, chance=chance)
        return replace(finish, next=following)

    def _steered(self, now_ms: int) -> Finish | None:
        """Somebody wants it to end: by a cancellation, or because a run that it is linked to fell."""
        while self._orders:
            mail = self._orders.pop(min(self._orders))
            self._consume(mail, mail.type, now_ms)
            content = codec.plain(mail.payload)
            if mail.type == CANCEL:
                reason = content["reason"] or "no reason given"
                error = Failure("CancelledError", reason, kind="Cancelled", retryable=False)
                return Finish(Status.CANCELLED, error=error.encode())
            if content["watch"] & Watch.LINK and content["status"] != Status.COMPLETE:
                return self._failed_finish(_link_down(mail.sender or "", content), now_ms)
        return None

    # --- rest

    def _rest(self, now_ms: int, started_at: int | None, end: Finish | Park | None) -> Rest:
        step = self._progress.current
        calls: Sequence[ChainCall] = ()
        wake_at: int | None = None
        retrying, topics = False, frozenset[str]()
        if end is None and step is not None and step.result is None and not self._holding:
            if step.waiting:
                wake_at, topics = step.wait.wake_at, frozenset({step.wait.event_type})
            elif step.not_before > now_ms:
                wake_at, retrying = step.not_before, True
            elif self._calling is None:
                calls, wake_at, end = self._call(step, now_ms)
        return Rest(
            observed=self._observed,
            follows=Follows(logs=self._said),
            calls=calls,
            cancelled=[self._calling.key] if end is not None and self._calling is not None else (),
            wake_at=wake_at,
            retrying=retrying,
            topics=topics,
            end=end,
            started_at=started_at,
            lease_ms=step.lease_ms if calls and step is not None else None,
        )

    def _call(self, step: ChainStep, now_ms: int) -> tuple[Sequence[ChainCall], int | None, Park | None]:
        """The call that is due; without a handler for it, when to look again, or the end of patience."""
        handler = self._program.handler(step.type)
        if handler is None:
            wake_at, park = self._leave(step, now_ms)
            return (), wake_at, park
        try:
            params = self._program.decode_params(codec.plain(self._run.params))
        except ParamsInvalidError as error:
            text = f"NON_DETERMINISTIC: the recorded params do not fit the chain's type any more: {error}"
            return (), None, self._park(text, now_ms)
        self._calling = ChainCall(
            step.type, step.attempts + 1, step.timeout_ms, self._values, (self._task(step, params),),
            handler, self._program.limits, last=step is self._progress.steps[-1], max_attempts=step.max_attempts,
            progress=None if step.heartbeat is None else step.heartbeat.value,
        )  # fmt: skip
        return [self._calling], None, None

    def _task(self, step: ChainStep, params: Any) -> ChainTask:
        event = None if step.woken is None or step.woken.event is None else self._mail[step.woken.event]
        outputs = {s.type: s.result.value for s in self._progress.steps[: step.seq]}
        return ChainTask(
            kind=_kind(step),
            params=params,
            event=None if event is None else _event(event),
            attempt=step.attempts + 1,
            outputs=Outputs(outputs),
            workflow=self._run.workflow,
            instance_id=self._run.instance_id,
            run_number=self._run.number,
            step_type=step.type,
            step_seq=step.seq,
            log=self._program.log,
        )

    def _leave(self, step: ChainStep, now_ms: int) -> tuple[int | None, Park | None]:
        """Another worker may have newer (or older) code: leave the step to it for a while, then ask for help."""
        text = f"NO_HANDLER: chain {self._program.name!r} has no handler here for step {step.type!r}"
        left_for = now_ms - max(self._moved_at, step.not_before)
        if left_for >= _PATIENCE_MS:
            return None, self._park(f"{text}; register one and resume it", now_ms)
        self._say(Level.WARN, f"{text}; it is left to other workers", now_ms)
        return now_ms + max(1000, left_for), None

    def _park(self, text: str, now_ms: int) -> Park:
        self._say(Level.ERROR, text, now_ms)
        return Park(text)

    def _say(self, level: Level, text: str, now_ms: int) -> None:
        """A system log line."""
        self._said.append(Log(level, "system", text[: self._program.limits.log_message], None, now_ms))


def _is_of(outcome: Outcome, step: ChainStep) -> bool:
    """Whether it came of an attempt that the step is, or may be, at."""
    if outcome.key != step.type or outcome.attempt != step.attempts + 1:
        return False
    return step.result is None and not step.waiting and step.not_before <= outcome.at


def _kind(step: ChainStep) -> ChainTaskKind:
    if step.woken is None:
        return ChainTaskKind.RUN
    return ChainTaskKind.WAITING_TIMEOUT if step.woken.event is None else ChainTaskKind.EVENT


def _event(mail: Mail) -> Event[Any]:
    return Event(mail.type, codec.plain(mail.payload), from_ms(mail.created_at), mail.sender)


def _dead(step: ChainStep) -> Failure:
    """The end of a chain whose step is dead: by which error, in which step."""
    error = Failure.decode(step.result.value)
    count = "1 attempt" if step.attempts == 1 else f"{step.attempts} attempts"
    message = f"step {step.type!r} is dead after {count}: {error.message}"
    return replace(error, message=message, args=None, cause=replace(error, traceback=None))


def _link_down(pid: str, content: Mapping[str, Any]) -> Failure:
    if content["error"] is None:
        why = f"linked run {pid} ended {content['status']}: {content['note'] or 'no reason given'}"
    else:
        error = Failure.from_content(content["error"])
        first = error.name == LinkDownError.__name__  # the message of the one that fell first
        why = error.message if first else f"linked run {pid} ended {content['status']}: {error.name}: {error.message}"
    return Failure.of(LinkDownError(why))
