"""The calls of a user's steps: each is counted, and what is to befall it does.

The user's own function runs, once for each call. What is simulated is what lies around it: how long it takes, whether
its worker lives to record what it returned, whether its answer arrives.
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
from holdfast.kernel.attempt import Outgoing, StepTx, Transaction, current_attempt
from holdfast.kernel.driver import Call
from holdfast.testing.simulation.loop import Process, SimulatedLoop
from holdfast.testing.simulation.streams import chance
from holdfast.testing.users.mishaps import AFTER, BEFORE, FAILING, MOST_DEATHS, WITHIN, Mishap, Mishaps

_JITTER = 0.03
_LONGEST_DELAY = 20.0
_OF_THE_TIMEOUT = 0.25
"""So much of its time limit may be spent before a call begins."""
_MOST_WAITS = 3
_LONGEST_REST = 3.0
"""For how many leases a worker stands still."""

Step = tuple[str, str]
"""Pid and key."""


class Needs(NamedTuple):
    """Of a step, without faults: how many attempts it takes, of how many it has (None: of any number)."""

    attempts: int
    most: int | None


@dataclass(slots=True, eq=False)
class Called:
    """One call of a user's function."""

    step: Step
    place: str
    by: Process | None
    outcome: str | None = None
    """What came of it; None: it did not end."""
    waits: int = 0
    """How often it has waited for something."""
    in_transaction: bool = False
    """It had an open one, of which there is no second: it cannot be called twice in a row."""


class Calls:
    """Those of one run of a scene. ``needed``: by the steps without faults.

    Whoever dies takes an attempt of each step that was about to be called. So a worker has to live while any step
    could not spare one; but for steps with a single attempt: those are lost with it, which users want to know.

    ``rehearsed``: steps that are called once more before the call that counts, up to their n-th wait (0: to the end).
    """

    def __init__(
        self,
        loop: SimulatedLoop,
        mishaps: Mishaps,
        needed: Mapping[Step, Needs],
        rehearsed: Mapping[Step, int],
        *,
        most_attempts: Callable[[Step], int | None],
        finished: Callable[[Step], bool],
        kill: Callable[[Process | None, str], None],
        stop: Callable[[Process | None, float], None],
        note: Callable[[str, str], None],
    ) -> None:
        self.made: list[Called] = []
        self.needs: dict[Step, Needs] = {}
        self.deaths = 0
        self._loop = loop
        self._mishaps = mishaps
        self._needed = needed
        self._rehearsed = rehearsed
        self._abandoned: list[Any] = []
        """Kept to the end: what dies with a worker does not clean up."""
        self._most_attempts = most_attempts
        self._finished = finished
        self._kill = kill
        self._stop = stop
        self._note = note
        self._jitters = mishaps.has(Mishap.JITTER, "calls")
        self._failed: Counter[Step] = Counter()
        """Attempts that were made to fail."""
        self._counts: Counter[Step] = Counter()

    # --- put around functions

    def function(self, call: Call) -> Callable[..., Any]:
        return _Async(self, call) if call.is_async else Plain(self, call)

    async def run(self, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        await asyncio.sleep(self.delay(call.timeout_ms))
        one = self._begin(call)
        if self._befalls(BEFORE, call, one, f"before.{one.place}"):
            await asyncio.get_running_loop().create_future()
        place = self._called(one)
        dies_at = 0
        if self._mishaps.at(WITHIN, "step", f"within.{place}"):
            dies_at = 1 + int(_MOST_WAITS * chance(self._mishaps.seed, f"waits.{place}"))
        try:
            if one.step in self._rehearsed:
                await self._rehearse(call, args, kwargs, self._rehearsed[one.step])

            def waits() -> None:
                one.waits += 1
                if one.waits == dies_at:
                    self._kill(one.by, f"within step {one.step[1]!r}")

            value = await _Watched(call.function(*args, **kwargs), waits)
        except Exception as error:
            self._ended(one, f"raised {type(error).__name__}: {error}")
            raise
        self._ended(one, f"returned {shown(value)}")
        if self._befalls(AFTER, call, one, f"after.{place}"):
            await asyncio.get_running_loop().create_future()
        await asyncio.sleep(0)  # a worker that was stopped stands still here
        return value

    def run_plain(self, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        one = self._begin(call)
        if self._befalls(BEFORE, call, one, f"before.{one.place}"):
            return None  # which nobody hears
        place = self._called(one)
        try:
            if one.step in self._rehearsed:
                call.function(*_apart(args), **kwargs)
            value = call.function(*args, **kwargs)
        except Exception as error:
            self._ended(one, f"raised {type(error).__name__}: {error}")
            raise
        self._ended(one, f"returned {shown(value)}")
        self._befalls(AFTER, call, one, f"after.{place}")
        return value

    async def _rehearse(self, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any], until: int) -> None:
        """Call it to its end, or up to a wait at which it is left alone."""
        waited = 0

        def waits() -> None:
            nonlocal waited
            waited += 1
            if waited == until:
                raise _LeftAlone

        begun = call.function(*_apart(args), **kwargs)
        self._abandoned.append(begun)
        with suppress(_LeftAlone):
            await _Watched(begun, waits)

    def delay(self, timeout_ms: int | None) -> float:
        """How long it takes until the function is called."""
        pid, key = step = _current()
        place = _place(step, self._counts[step] + 1)
        seconds = _JITTER * chance(self._mishaps.seed, f"jitter.{place}") if self._jitters else 0.0
        if self._mishaps.at([Mishap.SLOW], "step", f"slow.{place}"):
            most = _LONGEST_DELAY if timeout_ms is None else min(_LONGEST_DELAY, _OF_THE_TIMEOUT * timeout_ms / 1000)
            slow: float = most * 10 ** (-3 * chance(self._mishaps.seed, f"seconds.{place}"))
            self._note(pid, f"step {key!r} is slow: it begins {slow:.3f} s later")
            seconds += slow
        return seconds

    # --- what is lost with a worker

    def spare_worker(self) -> bool:
        """Whether none may die now: enough have, or a step could not be tried again."""
        tight = [
            step for step, needs in self._needed.items() if needs.most != 1 and not self._has_spare(step, needs.most)
        ]
        return self.deaths >= MOST_DEATHS or not all(self._finished(step) for step in tight)

    # --- one call

    def _begin(self, call: Call) -> Called:
        step = _current()
        self._counts[step] += 1
        self.needs[step] = Needs(call.attempt, self._most(call, step))
        number, in_transaction = self._counts[step], call.wants_tx is Transaction
        return Called(step, _place(step, number), self._loop.running, in_transaction=in_transaction)

    def _called(self, one: Called) -> str:
        """The place of it: of calls that were made, whatever came before them."""
        self.made.append(one)
        times = sum(other.step == one.step for other in self.made)
        again = "" if times == 1 else f" again (call {times})"
        self._note(one.step[0], f"step {one.step[1]!r} is called{again}")
        return _place(one.step, times)

    def _ended(self, one: Called, how: str) -> None:
        one.outcome = how
        self._note(one.step[0], f"step {one.step[1]!r} {how}")

    def _befalls(self, kinds: tuple[Mishap, ...], call: Call, one: Called, place: str) -> bool:
        """Whether the call goes no further."""
        step = one.step
        failing, dying = self._may_fail(call, step), not self.spare_worker()
        kinds = tuple(kind for kind in kinds if (failing if kind in FAILING else dying))
        kind = self._mishaps.at(kinds, "step", place)
        match kind:
            case Mishap.FAILS_BEFORE:
                self._failed[step] += 1
                self._note(step[0], f"step {step[1]!r} fails before it is called")
                raise ConnectionError("simulated: nothing could be reached")
            case Mishap.FAILS_AFTER:
                self._failed[step] += 1
                self._note(step[0], "its answer gets lost on the way: the attempt has failed")
                raise ConnectionError("simulated: the answer was lost")
            case Mishap.DIES_BEFORE:
                self._kill(one.by, f"before step {step[1]!r} is called")
                return True
            case Mishap.DIES_AFTER:
                self._kill(one.by, "before that is recorded")
                return True
            case Mishap.STOPS_AFTER:
                self.deaths += 1  # for its runs it is one
                rest = 1 + (_LONGEST_REST - 1) * chance(self._mishaps.seed, f"rest.{place}")
                self._stop(one.by, rest)
        return False

    def _may_fail(self, call: Call, step: Step) -> bool:
        """Whether an attempt may fail without changing what comes of the step."""
        spec = getattr(call, "spec", None)  # a chain's step has none, and retries whatever is raised
        names = [cls.__name__ for cls in ConnectionError.__mro__]
        retried = spec is None or spec.retry.retries(names)
        return retried and self._has_spare(step, self._most(call, step))

    def _most(self, call: Call, step: Step) -> int | None:
        spec = getattr(call, "spec", None)
        if spec is None:
            return self._most_attempts(step)
        most: int | None = spec.retry.max_attempts
        return most

    def _has_spare(self, step: Step, most: int | None) -> bool:
        needed = self._needed[step].attempts if step in self._needed else 1
        return most is None or needed + self._failed[step] + self.deaths < most


@dataclass(slots=True, eq=False)
class _Async:
    calls: Calls
    call: Call

    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return await self.calls.run(self.call, args, kwargs)


@dataclass(slots=True, eq=False)
class Plain:
    """A function that is not async."""

    calls: Calls
    call: Call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.calls.run_plain(self.call, args, kwargs)

    def delay(self) -> float:
        return self.calls.delay(self.call.timeout_ms)


class _LeftAlone(BaseException):
    """Somebody does not want to wait for a call any more. Outside Exception, as control flow is."""


class _Watched:
    """Awaits something, and calls ``waits`` whenever it waits in turn."""

    def __init__(self, awaited: Any, waits: Callable[[], None]) -> None:
        self._awaited = awaited
        self._waits = waits

    def __await__(self) -> Generator[Any, Any, Any]:
        inner = self._awaited.__await__()
        go_on, given = inner.send, None
        while True:
            try:
                awaited = go_on(given)
            except StopIteration as returned:
                return returned.value
            self._waits()
            try:
                go_on, given = inner.send, (yield awaited)
            except BaseException as error:  # it was cancelled
                go_on, given = inner.throw, error


def _apart(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """With a transaction of their own, which nobody commits."""
    return tuple(StepTx(Outgoing(arg._new_run, arg._new_event)) if isinstance(arg, StepTx) else arg for arg in args)


def _current() -> Step:
    attempt = current_attempt.get()
    if attempt is None:
        raise HoldfastError("a step is called outside of an attempt")
    return attempt.pid, attempt.key


def _place(step: Step, number: int) -> str:
    return f"{step[0]}.{step[1]}#{number}"
