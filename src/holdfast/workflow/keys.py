"""The keys of one run: the requests of its code, those that are pending, and the results that were delivered."""

from __future__ import annotations

from typing import NoReturn

from holdfast.core.limits import Limits
from holdfast.core.model import StepType
from holdfast.errors import DuplicateStepError, InvalidNameError, MaxStepsExceededError, StepTypeMismatchError
from holdfast.store.protocol import Fact, FactState
from holdfast.workflow import guard
from holdfast.workflow.execution import Execution
from holdfast.workflow.loop import current_loop
from holdfast.workflow.naming import Leftovers
from holdfast.workflow.pending import Pending, PendingStep
from holdfast.workflow.recorded_history import RecordedHistory

ANONYMOUS = "#"
"""Prefix of the engine's own keys, such as those of unnamed timers. No step key begins so: in ``name#2`` the name is
never empty."""


_DO = StepType.DO
_START = FactState.START


class Keys:
    """Matches the requests of the code with delivered facts, by key. Either of the two may come first."""

    __slots__ = (
        "_execution",
        "_history",
        "_kinds",
        "_leftovers",
        "_max_steps",
        "_operations",
        "_results",
        "_steps",
        "pending",
    )

    def __init__(self, history: RecordedHistory, leftovers: Leftovers, execution: Execution, limits: Limits) -> None:
        self._history = history
        self._leftovers = leftovers
        self._execution = execution
        self._max_steps = limits.steps
        self._steps = 0
        self._kinds: dict[str, StepType] = {}
        """Kind of each key that the code has used."""
        self.pending: dict[str, Pending] = {}
        """Requests of the code whose results were not delivered yet, by key."""
        self._results: dict[str, Fact] = {}
        """Delivered results. A result that the code has not requested yet is kept until the code requests it."""
        self._operations: dict[str, Fact] = {}
        """START facts of operations whose result (a child's end, a reply) is delivered later under the same key."""

    # --- requests of the code

    def use(self, key: str, kind: StepType) -> Fact | None:
        """Check and register the use of a key by the code. Returns the key's result, if it was delivered already."""
        execution = self._execution
        if current_loop() is not execution.loop:
            guard.check(execution.loop, key)
        if key[:1] == ANONYMOUS:
            raise InvalidNameError(f"step name {key!r} begins with {ANONYMOUS!r}, which is reserved for the engine")
        known = self._kinds.get(key)
        if known is not None and known is not kind:
            raise StepTypeMismatchError(
                f"{key!r} is used for a {known} and for a {kind} in the same run; give one of them another name"
            )
        recorded = self._history.kinds.get(key)
        if recorded is not None and recorded != kind:
            execution.note_divergence(f"the history has {key!r} recorded as {recorded}, the code requests it as {kind}")
            kind = StepType(recorded)
        if known is None:
            self._kinds[key] = kind
            if kind is _DO:
                self._steps += 1
                if self._steps > self._max_steps:
                    self._refuse_step()
        if key in self.pending:
            raise DuplicateStepError(f"{key!r} is running already; a name can be awaited once at a time")
        if self._leftovers.by_key:
            self._leftovers.discard(key)
        return self._results.get(key)

    def _refuse_step(self) -> NoReturn:
        raise MaxStepsExceededError(
            f"this run requested more than {self._max_steps} steps; split it into several runs, or raise Limits(steps=)"
        )

    def abandon(self, pending: Pending) -> bool:
        """Close a wait that the code cancelled. False if the wait was over already."""
        future = pending.future
        if future.done() and not future.cancelled():
            return False
        if self._execution.ended or self.pending.get(pending.key) is not pending:
            return False
        del self.pending[pending.key]
        pending.closed = True
        return True

    # --- delivery

    def settle(self, fact: Fact) -> Pending | None:
        """Keep a delivered fact by its key. Returns what the code waits for under the key, and closes it."""
        key = fact.key
        (self._operations if fact.state == _START else self._results)[key] = fact
        pending = self.pending.pop(key, None)
        if pending is None:
            self._leftovers.add(fact)
        else:
            pending.closed = True
        return pending

    # --- the state of a key

    def pending_steps(self) -> list[PendingStep]:
        return [pending for pending in self.pending.values() if isinstance(pending, PendingStep)]

    def result(self, key: str) -> Fact | None:
        return self._results.get(key)

    def started_operation(self, key: str) -> Fact | None:
        """The START fact of an operation, if the operation is known to be executed."""
        return self._operations.get(key)

    def is_used(self, key: str) -> bool:
        """True if the code has requested this key. Keys of operations are not counted here."""
        return key in self._kinds

    def unused_results(self) -> list[str]:
        """Keys of delivered results that the code has not requested."""
        return [key for key in self._results if key not in self._kinds and not key.startswith(ANONYMOUS)]

    def clear(self) -> None:
        """Break reference cycles when the machine is dropped: what is pending holds futures of the code."""
        self.pending.clear()
