"""Calls of a user's step functions: counted, and subject to injected faults.

The user's own function runs, once for each call. Simulated are the circumstances of the call: how long it takes,
whether the worker survives until the result is recorded, whether the reply arrives.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from holdfast.core.show import shown
from holdfast.errors import HoldfastError
from holdfast.kernel.attempt import RequestFactory, StepTx, Transaction, current_attempt
from holdfast.kernel.driver import Call
from holdfast.testing.simulation.fault_plan import AFTER, BEFORE, FAILING, MAX_DEATHS, WITHIN, FaultKind, FaultPlan
from holdfast.testing.simulation.loop import Process, SimulatedLoop
from holdfast.testing.simulation.streams import chance

_MAX_JITTER_SECONDS = 0.03
_MAX_DELAY_SECONDS = 20.0
_MAX_PART_OF_TIMEOUT = 0.25
"""Maximum delay of a call, as a part of the step's timeout."""
_MAX_WAITS = 3
_MAX_STOP_LEASES = 3.0
"""Maximum time for which a worker stops, in leases."""

Step = tuple[str, str]
"""Pid of the run and key of the step."""


class AttemptNeeds(NamedTuple):
    """Attempts that a step takes without faults, and its maximum number of attempts (None: unlimited)."""

    attempts: int
    maximum: int | None


@dataclass(slots=True, eq=False)
class StepCall:
    """One call of a user's function."""

    step: Step
    place: str
    process: Process | None
    outcome: str | None = None
    """The result or the error as text; None if the call did not end."""
    waits: int = 0
    """Number of times the function was suspended."""
    in_transaction: bool = False
    """The call has a live transaction. There is no second one, so the function cannot be called twice in a row."""


class StepCalls:
    """The step calls of one seed run. ``needed``: attempts that each step takes in the baseline.

    The death of a worker costs an attempt of each step that was about to be called. No worker is therefore killed while
    an unfinished step has no attempt left for that. Steps with a single attempt are exempt: such a step fails when
    its worker dies, and the simulation is to show this.

    ``extra_calls``: steps whose function is called once more before the call that counts, up to its n-th suspension
    (0: to its end).
    """

    def __init__(
        self,
        loop: SimulatedLoop,
        faults: FaultPlan,
        needed: Mapping[Step, AttemptNeeds],
        extra_calls: Mapping[Step, int],
        *,
        max_attempts_of: Callable[[Step], int | None],
        finished: Callable[[Step], bool],
        kill: Callable[[Process | None, str], None],
        stop: Callable[[Process | None, float], None],
        note: Callable[[str, str], None],
    ) -> None:
        self.made: list[StepCall] = []
        self.needs: dict[Step, AttemptNeeds] = {}
        self.deaths = 0
        self._loop = loop
        self._faults = faults
        self._needed = needed
        self._extra_calls = extra_calls
        self._abandoned: list[Any] = []
        """Coroutines of interrupted extra calls, referenced until the end: their cleanup code must not run."""
        self._max_attempts_of = max_attempts_of
        self._finished = finished
        self._kill = kill
        self._stop = stop
        self._note = note
        self._jitter = faults.has(FaultKind.JITTER, "calls")
        self._failed: Counter[Step] = Counter()
        """Number of attempts that were made to fail."""
        self._counts: Counter[Step] = Counter()

    # --- wrappers of step functions

    def function(self, call: Call) -> Callable[..., Any]:
        return _AsyncFunction(self, call) if call.is_async else PlainFunction(self, call)

    async def run(self, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        await asyncio.sleep(self.delay(call.timeout_ms))
        step_call = self._begin(call)
        if self._inject(BEFORE, call, step_call, f"before.{step_call.place}"):
            await asyncio.get_running_loop().create_future()
        place = self._record(step_call)
        dies_at = 0
        if self._faults.at(WITHIN, "step", f"within.{place}"):
            dies_at = 1 + int(_MAX_WAITS * chance(self._faults.seed, f"waits.{place}"))
        try:
            if step_call.step in self._extra_calls:
                await self._call_extra(call, args, kwargs, self._extra_calls[step_call.step])

            def on_suspension() -> None:
                step_call.waits += 1
                if step_call.waits == dies_at:
                    self._kill(step_call.process, f"within step {step_call.step[1]!r}")

            value = await _WithSuspensionHook(call.function(*args, **kwargs), on_suspension)
        except Exception as error:
            self._ended(step_call, f"raised {type(error).__name__}: {error}")
            raise
        self._ended(step_call, f"returned {shown(value)}")
        if self._inject(AFTER, call, step_call, f"after.{place}"):
            await asyncio.get_running_loop().create_future()
        await asyncio.sleep(0)  # a stopped worker remains suspended here
        return value

    def run_plain(self, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        step_call = self._begin(call)
        if self._inject(BEFORE, call, step_call, f"before.{step_call.place}"):
            return None  # the worker is dead and does not use the value
        place = self._record(step_call)
        try:
            if step_call.step in self._extra_calls:
                call.function(*_with_separate_transactions(args), **kwargs)
            value = call.function(*args, **kwargs)
        except Exception as error:
            self._ended(step_call, f"raised {type(error).__name__}: {error}")
            raise
        self._ended(step_call, f"returned {shown(value)}")
        self._inject(AFTER, call, step_call, f"after.{place}")
        return value

    async def _call_extra(self, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any], until: int) -> None:
        """Call the function to its end, or abandon it at its suspension number ``until``."""
        suspensions = 0

        def on_suspension() -> None:
            nonlocal suspensions
            suspensions += 1
            if suspensions == until:
                raise _CallAbandoned

        coroutine = call.function(*_with_separate_transactions(args), **kwargs)
        self._abandoned.append(coroutine)
        with suppress(_CallAbandoned):
            await _WithSuspensionHook(coroutine, on_suspension)

    def delay(self, timeout_ms: int | None) -> float:
        """Return the seconds until the function of the current attempt is called."""
        pid, key = step = _current_step()
        place = _place(step, self._counts[step] + 1)
        seconds = _MAX_JITTER_SECONDS * chance(self._faults.seed, f"jitter.{place}") if self._jitter else 0.0
        if self._faults.at([FaultKind.SLOW], "step", f"slow.{place}"):
            maximum = (
                _MAX_DELAY_SECONDS
                if timeout_ms is None
                else min(_MAX_DELAY_SECONDS, _MAX_PART_OF_TIMEOUT * timeout_ms / 1000)
            )
            slow: float = maximum * 10 ** (-3 * chance(self._faults.seed, f"seconds.{place}"))
            self._note(pid, f"step {key!r} is slow: it begins {slow:.3f} s later")
            seconds += slow
        return seconds

    # --- deaths of workers

    def spare_worker(self) -> bool:
        """Return True if no worker may be killed now: enough were, or a step has no attempt left for a retry."""
        tight = [
            step
            for step, needs in self._needed.items()
            if needs.maximum != 1 and not self._has_spare(step, needs.maximum)
        ]
        return self.deaths >= MAX_DEATHS or not all(self._finished(step) for step in tight)

    # --- one call

    def _begin(self, call: Call) -> StepCall:
        step = _current_step()
        self._counts[step] += 1
        self.needs[step] = AttemptNeeds(call.attempt, self._max_attempts(call, step))
        number, in_transaction = self._counts[step], call.wants_tx is Transaction
        return StepCall(step, _place(step, number), self._loop.running, in_transaction=in_transaction)

    def _record(self, step_call: StepCall) -> str:
        """Record a call that is made now; return its place, which does not count calls prevented by faults."""
        self.made.append(step_call)
        times = sum(other.step == step_call.step for other in self.made)
        again = "" if times == 1 else f" again (call {times})"
        self._note(step_call.step[0], f"step {step_call.step[1]!r} is called{again}")
        return _place(step_call.step, times)

    def _ended(self, step_call: StepCall, outcome: str) -> None:
        step_call.outcome = outcome
        self._note(step_call.step[0], f"step {step_call.step[1]!r} {outcome}")

    def _inject(self, kinds: tuple[FaultKind, ...], call: Call, step_call: StepCall, place: str) -> bool:
        """Inject a fault of these kinds if the plan has one here; return True if the worker died."""
        step = step_call.step
        failing, dying = self._may_fail(call, step), not self.spare_worker()
        kinds = tuple(kind for kind in kinds if (failing if kind in FAILING else dying))
        kind = self._faults.at(kinds, "step", place)
        match kind:
            case FaultKind.FAILS_BEFORE:
                self._failed[step] += 1
                self._note(step[0], f"step {step[1]!r} fails before it is called")
                raise ConnectionError("simulated: the service is unreachable")
            case FaultKind.FAILS_AFTER:
                self._failed[step] += 1
                self._note(step[0], "the reply of the step is lost: the attempt has failed")
                raise ConnectionError("simulated: the reply was lost")
            case FaultKind.DIES_BEFORE:
                self._kill(step_call.process, f"before step {step[1]!r} is called")
                return True
            case FaultKind.DIES_AFTER:
                self._kill(step_call.process, "before the result is recorded")
                return True
            case FaultKind.STOPS_AFTER:
                self.deaths += 1  # its runs are taken over, as after a death
                leases = 1 + (_MAX_STOP_LEASES - 1) * chance(self._faults.seed, f"rest.{place}")
                self._stop(step_call.process, leases)
        return False

    def _may_fail(self, call: Call, step: Step) -> bool:
        """Return True if an attempt may fail without changing the final result of the step."""
        spec = getattr(call, "spec", None)  # a chain step has no spec, and retries every exception
        names = [cls.__name__ for cls in ConnectionError.__mro__]
        retried = spec is None or spec.retry.retries(names)
        return retried and self._has_spare(step, self._max_attempts(call, step))

    def _max_attempts(self, call: Call, step: Step) -> int | None:
        spec = getattr(call, "spec", None)
        if spec is None:
            return self._max_attempts_of(step)
        maximum: int | None = spec.retry.max_attempts
        return maximum

    def _has_spare(self, step: Step, maximum: int | None) -> bool:
        needed = self._needed[step].attempts if step in self._needed else 1
        return maximum is None or needed + self._failed[step] + self.deaths < maximum


@dataclass(slots=True, eq=False)
class _AsyncFunction:
    calls: StepCalls
    call: Call

    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return await self.calls.run(self.call, args, kwargs)


@dataclass(slots=True, eq=False)
class PlainFunction:
    """Wrapper of a step function that is not async."""

    calls: StepCalls
    call: Call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.calls.run_plain(self.call, args, kwargs)

    def delay(self) -> float:
        return self.calls.delay(self.call.timeout_ms)


class _CallAbandoned(BaseException):
    """Interrupts an extra call. Not an ``Exception``, so that step code does not catch it."""


class _WithSuspensionHook:
    """An awaitable that calls ``on_suspension`` whenever ``awaited`` is suspended."""

    def __init__(self, awaited: Any, on_suspension: Callable[[], None]) -> None:
        self._awaited = awaited
        self._on_suspension = on_suspension

    def __await__(self) -> Generator[Any, Any, Any]:
        inner = self._awaited.__await__()
        resume, value = inner.send, None
        while True:
            try:
                awaited = resume(value)
            except StopIteration as returned:
                return returned.value
            self._on_suspension()
            try:
                resume, value = inner.send, (yield awaited)
            except BaseException as error:  # the call was cancelled
                resume, value = inner.throw, error


def _with_separate_transactions(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Replace each step transaction by a new one, which is never committed."""
    return tuple(
        StepTx(RequestFactory(arg._new_run, arg._new_event)) if isinstance(arg, StepTx) else arg for arg in args
    )


def _current_step() -> Step:
    attempt = current_attempt.get()
    if attempt is None:
        raise HoldfastError("a step function was called outside an attempt")
    return attempt.pid, attempt.key


def _place(step: Step, number: int) -> str:
    return f"{step[0]}.{step[1]}#{number}"
