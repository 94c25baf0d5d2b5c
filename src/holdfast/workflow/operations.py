"""Operations on other runs that workflow code has requested: queued for the next commit, or waiting for results."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any

from holdfast.core import codec
from holdfast.core.model import StepType
from holdfast.errors import InstanceNotFoundError, InstanceTerminalError
from holdfast.store.protocol import Fact, FactState, Operation, RecordedOperation, RequestResult
from holdfast.workflow import guard
from holdfast.workflow.execution import Execution
from holdfast.workflow.keys import ANONYMOUS, Keys
from holdfast.workflow.pending import PendingOperation
from holdfast.workflow.position import Position
from holdfast.workflow.recorded_history import RecordedHistory


class Operations:
    """The operations of one run. The store executes an operation in the commit that records it."""

    __slots__ = ("_counts", "_execution", "_history", "_keys", "_numbered", "_position", "new")

    def __init__(self, keys: Keys, execution: Execution, position: Position, history: RecordedHistory) -> None:
        self._keys = keys
        self._execution = execution
        self._position = position
        self._history = history
        self._counts: dict[str, int] = {}
        """Number of the operations so far, by kind and name."""
        self.new: list[PendingOperation] = []
        """Operations for the next commit."""
        self._numbered: Sequence[RecordedOperation] = ()
        """Operations of the last commit whose results are not known yet."""

    # --- requested by workflow code

    def next_key(self, kind: StepType, name: str) -> str:
        """The next key for an operation of this kind and name."""
        guard.check(self._execution.loop, name)
        base = f"{ANONYMOUS}{kind} {name}"
        count = self._counts[base] = self._counts.get(base, 0) + 1
        return base if count == 1 else f"{base}#{count}"

    def is_recorded(self, key: str) -> bool:
        """True if the history of the run has a fact under this key."""
        return key in self._history.kinds

    def is_requested(self, key: str) -> bool:
        """True if the code has requested the operation with this key in this execution."""
        base, _, count = key.rpartition("#")
        if count.isdigit() and base in self._counts:
            return self._counts[base] >= int(count)
        return key in self._counts

    def recorded_id(self, key: str) -> str | None:
        """The instance id of the child that the operation with this key has started, if it is recorded.

        A run that continues from the history of another run has children whose ids were made for that run, also if the
        code makes them from ``ctx.info``.
        """
        start = self._history.starts.get((key, 0))
        return None if start is None or start.name is None else start.name.partition("/")[2]

    async def perform(
        self, key: str, kind: StepType, name: str, operation: Operation, *, opens: bool = False
    ) -> RequestResult:
        """Commit an operation and return its result. ``opens``: a later event has the same key."""
        fact = self._keys.started_operation(key) if opens else self._keys.result(key)
        if fact is None:
            pending = self._add(key, (kind, name, operation))
            pending.state = FactState.START if opens else FactState.RESULT
            try:
                fact = await pending.future
            except asyncio.CancelledError:
                self._keys.abandon(pending)
                raise
        return RequestResult(codec.plain(fact.value))

    def perform_next(self, kind: StepType, name: str, operation: Operation) -> Coroutine[Any, Any, RequestResult]:
        """Commit an operation under the next key of its kind and name, and return its result."""
        return self.perform(self.next_key(kind, name), kind, name, operation)

    def queue(self, kind: StepType, name: str, operation: Operation) -> None:
        """Add an operation to the next commit without waiting for its result."""
        key = self.next_key(kind, name)
        if self._keys.result(key) is None:
            self._add(key, (kind, name, operation))

    def _add(self, key: str, described: tuple[StepType, str, Operation]) -> PendingOperation:
        pending = PendingOperation(key, asyncio.Future(loop=self._execution.loop), self._position.now_ms, described)
        self._keys.pending[key] = pending
        self.new.append(pending)
        return pending

    # --- commits

    def take(self) -> Sequence[RecordedOperation]:
        """Take the operations for the next commit, without those that the code cancelled.

        A recorded operation is not written again: if the code of a forked run ends as that of its origin, the results
        of the last operations are not delivered.
        """
        if not self.new:
            return ()
        operations, self.new = self.new, []
        if self._execution.failed or self._execution.divergence is not None:
            return ()
        new = [pending for pending in operations if not pending.closed and not self.is_recorded(pending.key)]
        return [pending.to_recorded(self._position.now_ms) for pending in new]

    def number(self, operations: Sequence[RecordedOperation]) -> None:
        """Set the sequence numbers of operations that are about to be written: after the last delivered fact."""
        for seq, operation in enumerate(operations, self._position.seq + len(self._numbered) + 1):
            operation.fact = operation.fact._replace(seq=seq)
        self._numbered = [*self._numbered, *operations]

    def take_results(self, results: Sequence[RequestResult]) -> Iterator[Fact]:
        """The facts of the last commit's operations with their results. That commit has recorded them."""
        operations, self._numbered = self._numbered, ()
        for operation, result in zip(operations, results, strict=True):  # both in commit order
            yield operation.fact._replace(ok=result.ok, value=codec.encode(result, what="result of an operation"))


def check_reached(result: RequestResult, pid: str, *, ended: bool = True) -> None:
    """Raise if an operation found no run; ``ended``: also if the run has ended."""
    if result is RequestResult.MISSING or (ended and result is RequestResult.ENDED):
        why = "has ended" if result is RequestResult.ENDED else "does not exist"
        raise InstanceNotFoundError(f"run {pid} {why}")


def check_controlled(result: RequestResult, pid: str, action: str) -> None:
    if result is RequestResult.ENDED:
        raise InstanceTerminalError(f"run {pid} has ended and cannot be {action}")
    check_reached(result, pid)
