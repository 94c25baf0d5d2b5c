"""Step calls of workflow code: from the call to the result or error that the code receives."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Coroutine, Mapping
from typing import Any

from holdfast.core import codec
from holdfast.core.failure import Failure
from holdfast.core.limits import Limits
from holdfast.core.model import Level, StepType
from holdfast.core.names import check_step_name
from holdfast.errors import DamagedRunError, ParamsInvalidError
from holdfast.store.protocol import Fact
from holdfast.workflow import repeated_calls
from holdfast.workflow.attempt_tracker import AttemptTracker
from holdfast.workflow.execution import Execution
from holdfast.workflow.keys import Keys
from holdfast.workflow.loop import WorkflowLoop
from holdfast.workflow.pending import PendingStep
from holdfast.workflow.position import Position
from holdfast.workflow.repeated_calls import NamedCall
from holdfast.workflow.run_log import RunLog
from holdfast.workflow.step_await import await_step
from holdfast.workflow.steps import StepSpec

_DO = StepType.DO
_Future = asyncio.Future


class StepCalls:
    """The step calls of one run."""

    __slots__ = (
        "_aliases",
        "_attempts",
        "_counts",
        "_execution",
        "_first_calls",
        "_keys",
        "_limits",
        "_log",
        "_position",
        "_unstarted",
        "_values",
    )

    def __init__(
        self,
        keys: Keys,
        attempts: AttemptTracker,
        execution: Execution,
        position: Position,
        log: RunLog,
        limits: Limits,
        *,
        aliases: Mapping[str, str],
        values: Mapping[str, Any],
    ) -> None:
        """``aliases``: recorded keys of renamed steps, by new key. ``values``: the run's propagated context."""
        self._keys = keys
        self._attempts = attempts
        self._execution = execution
        self._position = position
        self._log = log
        self._limits = limits
        self._aliases = aliases
        self._values = values
        self._counts: dict[str, int] = {}
        """Number of the calls so far, by name."""
        self._first_calls: dict[str, NamedCall] = {}
        """The first ``ctx.do`` call of each name in this execution."""
        self._unstarted: dict[str, Coroutine[Any, Any, Any]] = {}
        """Calls that are not awaited yet."""

    @property
    def loop(self) -> WorkflowLoop:
        return self._execution.loop

    # --- calls

    def call(
        self,
        name: str,
        spec: StepSpec,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        registered: bool = True,
    ) -> Coroutine[Any, Any, Any]:
        """Call a step function by its own name. The key is the name, then name#2, name#3 in the order of the calls."""
        spec.check_arguments(name, args, kwargs)
        count = self._counts[name] = self._counts.get(name, 0) + 1
        key = name if count == 1 else f"{name}#{count}"
        if self._aliases:
            key = self._aliases.get(key, key)
        coro = await_step(self, key, name if registered else None, spec, args, kwargs)
        self._unstarted[key] = coro
        return coro

    def call_named(
        self, name: str, spec: StepSpec, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Coroutine[Any, Any, Any]:
        """Call a function under a key that the code gives. A repeated call returns the recorded result."""
        key = check_step_name(name, self._limits)
        spec.check_arguments(name, args, kwargs)
        if self._aliases:
            key = self._aliases.get(key, key)
        call = NamedCall(spec.function, args, kwargs)
        first = self._first_calls.setdefault(key, call)
        if first is not call:
            self._compare_calls(key, first, call)
        coro = await_step(self, key, None, spec, args, kwargs)
        if key not in self._unstarted:
            self._unstarted[key] = coro
        return coro

    def _compare_calls(self, key: str, first: NamedCall, again: NamedCall) -> None:
        how = repeated_calls.difference(first, again)
        if how is not None:
            self._log.warn_once(f"repeated {key}", repeated_calls.warning(key, how))

    # --- used by ``await_step``

    def begin(self, key: str) -> Fact | None:
        """Register the use of a key by a call that is awaited now. Returns the result, if it was delivered already."""
        self._unstarted.pop(key, None)
        return self._keys.use(key, _DO)

    def request(
        self, key: str, name: str | None, spec: StepSpec, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> PendingStep:
        """Queue the call; its future receives the result."""
        future: asyncio.Future[Any] = _Future(loop=self._execution.loop)
        step = PendingStep(
            key, name, future, self._position.now_ms, spec, args, kwargs, self._values, self._limits.result
        )
        self._keys.pending[key] = step
        self._attempts.add(step)
        return step

    def abandon(self, step: PendingStep) -> None:
        """Cancel a call whose ``await`` the code cancelled."""
        if self._keys.abandon(step):
            self._attempts.cancel(step)

    # --- results

    def resolve(self, step: PendingStep, result: Fact) -> None:
        """Resume the code that waits for a step with the decoded value of its result, or with its error."""
        try:
            step.future.set_result(self.value_of(result, step.spec))
        except BaseException as error:
            # The traceback refers to this future: keeping it would make a reference cycle.
            step.future.set_exception(error.with_traceback(None))

    def value_of(self, result: Fact, spec: StepSpec) -> Any:
        """The recorded value. Raises the error of a step that failed."""
        try:
            if result.ok:
                return spec.decode(codec.plain(result.value))
            failure = Failure.decode(result.value or b"{}")
        except ParamsInvalidError as error:
            self._execution.note_divergence(
                f"the recorded result of {result.key!r} does not fit the function's return annotation any more: "
                f"{error}",
                value=True,
            )
            return None
        except DamagedRunError as error:
            self._execution.note_damage(f"the recorded result of {result.key!r}", error)
            return None
        raise failure.as_exception(result.key, result.attempts, spec.raises)

    # --- the end

    def report_unstarted(self) -> None:
        """Warn about calls that were never awaited, after the code has ended."""
        for key, coro in self._unstarted.items():
            if inspect.getcoroutinestate(coro) == inspect.CORO_CREATED:
                coro.close()
                self._log.system(
                    Level.WARN,
                    f"step call {key!r} was never awaited, so the step did not run; add `await` to the call",
                )
        self._unstarted.clear()

    def close(self) -> None:
        """Close the calls that were never awaited, and break reference cycles, when the machine is dropped."""
        for coro in self._unstarted.values():
            coro.close()
        self._first_calls.clear()
