"""The writes of a turn: commits of decisions, alone or merged with decisions that were buffered before."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from holdfast.core.model import Level
from holdfast.core.names import SYSTEM_CATEGORY
from holdfast.errors import StoreError
from holdfast.kernel.driver import Decision, Machine, Outcome
from holdfast.runner.calls import CallsInFlight
from holdfast.runner.outcomes import OutcomeQueue
from holdfast.runner.turn_context import TurnContext
from holdfast.store.protocol import (
    Claim,
    Commit,
    Committed,
    Fact,
    Following,
    Log,
    NewRun,
    Observed,
    RequestResult,
    Verdict,
)
from holdfast.store.retry import backoff

_log = logging.getLogger("holdfast")
_LOST = Verdict.LOST


class _BufferedDecision(NamedTuple):
    """A decision that is written with a later commit, and the outcomes that led to it."""

    decision: Decision
    outcomes: Sequence[Outcome]


class TurnWriter:
    """Writes the decisions of a turn. With ``persist="task"`` it buffers them as long as possible."""

    _warnings: Sequence[str] = ()
    """Warnings of the engine about this run that are not committed yet."""
    operation_results: Sequence[RequestResult] = ()
    """Results of written operations that the machine has not received yet."""
    _started_at: int | None = None
    """The time at which the run started, until it is written."""
    _unconfirmed = False
    """The task may have another owner since the run was loaded: the next commit is written even if it is empty."""
    counted_losses = False
    """The last advance counted lost attempts. They are written before any call starts."""
    _unknown_commits = 0
    """Consecutive commits of step transactions whose result is unknown."""

    def __init__(
        self, context: TurnContext, claim: Claim, calls: CallsInFlight, outcomes: OutcomeQueue, *, buffering: bool
    ) -> None:
        self.claim = claim
        self._context = context
        self._calls = calls
        self._outcomes = outcomes
        self.buffering = buffering
        """Decisions are written as late as possible (persist="task")."""
        self._buffer: list[_BufferedDecision] = []

    # --- before a commit

    def note(self, decision: Decision) -> None:
        """Note when the run started, and the warnings of a decision."""
        if decision.started_at is not None:
            self._started_at = decision.started_at
        if decision.following.logs:
            self._warnings = [*self._warnings, *(log.message for log in decision.following.logs if _is_warning(log))]

    def try_defer(self, decision: Decision) -> bool:
        """Buffer the decision if it need not be written yet (persist="task"); True if no commit is needed now."""
        if self._unconfirmed or self._warnings:
            return False  # a warning is committed before the calls that it concerns are started
        if self._buffer and (self._calls.postponed or self.has_operations):
            return False  # buffered during a live transaction: no other commit would write these decisions
        if decision.empty:
            # Buffered decisions are written before calls that follow from them start, a failure before its retry.
            return self.buffering or not self._buffer
        must_write = decision.transactional or decision.following.operations or self.counted_losses
        if self.buffering and not must_write:
            self._buffer_decision(decision)
            return True
        return False

    def postpone(self, decision: Decision) -> None:
        """Buffer the decision until the live transaction ends; its calls start after it is written."""
        self._buffer_decision(decision)
        self._calls.postpone(decision.calls)
        decision.calls = ()

    def _buffer_decision(self, decision: Decision) -> None:
        self._buffer.append(_BufferedDecision(decision, self._outcomes.taken))

    def check_fence(self) -> None:
        """Let the next decision be written even if it is empty, because the task may have another owner by now."""
        self._unconfirmed = True

    @property
    def has_buffered(self) -> bool:
        return bool(self._buffer)

    @property
    def has_operations(self) -> bool:
        """True if buffered decisions have operations. The machine needs their results, so the turn keeps the task."""
        return any(entry.decision.following.operations for entry in self._buffer)

    @property
    def has_unwritten(self) -> bool:
        """True if the next commit writes more than its own decision."""
        return bool(self._buffer) or self._started_at is not None

    # --- commit

    def write(self, commit: Commit, machine: Machine) -> Awaitable[Committed | None]:
        """Write a commit and the buffered decisions before it.

        None: the result of a step's transaction is unknown. The run has to be loaded again from the store.
        """
        buffered: list[_BufferedDecision] = []
        if self._buffer or self._started_at is not None:
            commit, buffered = self._merge(commit)
        if commit.following.operations:
            machine.number_operations(commit.following.operations)
            return self._write_operations(commit, buffered, machine)
        return self._write_commit(commit, buffered, machine)

    def flush(self, machine: Machine) -> Awaitable[Committed | None]:
        """Write the buffered decisions."""
        return self.write(Commit(self.claim.task, in_flight=1), machine)

    async def write_interim(self, observed: Observed) -> Committed | None:
        """Commit while calls run. Buffered decisions are written too, so that a long step does not delay them."""
        commit = Commit(self.claim.task, observed, in_flight=max(1, self._calls.running))
        if self._buffer and not self.has_operations:
            return await self._write_commit(*self._merge(commit), None)
        self._announce(observed)
        [committed] = await self._context.committer.commit([commit])
        if committed.verdict is _LOST:
            self._add_late((), observed.logs)
        return committed

    def _merge(self, commit: Commit) -> tuple[Commit, list[_BufferedDecision]]:
        commit.started_at, self._started_at = self._started_at, None
        buffered, self._buffer = self._buffer, []
        return _merged(buffered, commit) if buffered else commit, buffered

    async def _write_operations(
        self, commit: Commit, buffered: list[_BufferedDecision], machine: Machine
    ) -> Committed | None:
        """Write a commit with operations. Started children begin in this worker at once if slots are free."""
        host = self._context.host
        if self._context.ports.telemetry is not None:
            self._context.ports.telemetry.operations_planned(self.claim, commit.following.operations)
        children = [one.operation for one in commit.following.operations if isinstance(one.operation, NewRun)]
        reserved = sum(map(host.reserve_child, children))
        committed: Committed | None = None
        try:
            committed = await self._write_commit(commit, buffered, machine)
        finally:
            host.begin_children(reserved, committed.claimed_children if committed is not None else ())
        if committed is not None:
            self.operation_results = [*self.operation_results, *committed.operation_results]
        return committed

    async def _write_commit(
        self, commit: Commit, buffered: list[_BufferedDecision], machine: Machine | None
    ) -> Committed | None:
        """``machine``: only for a commit with a live transaction."""
        self._announce(commit.observed)
        if commit.observed.transaction is None:
            [done] = await self._context.committer.commit([commit])
            self._context.committed(self.claim.run, commit, done)
            if done.verdict is _LOST:
                self._add_refused(commit, buffered)
            if commit.observed.outbox:
                self._context.host.outbox_written()
            return done
        committed = await self._write_transaction(commit, buffered)
        if committed is not None:
            self._context.committed(self.claim.run, commit, committed)
            if committed.verdict is Verdict.LOST:
                self._add_refused(commit, buffered)
            if buffered and machine is not None and committed.verdict is Verdict.REJECTED:
                self._buffer = buffered  # only the live transaction was rejected, not the other outcomes
                await self.flush(machine)
        return committed

    async def _write_transaction(self, commit: Commit, buffered: list[_BufferedDecision]) -> Committed | None:
        """Commit a step's live transaction alone: other commits of a batch may wait for a lock that it holds."""
        try:
            [committed] = await self._context.store.commit([commit])
        except StoreError as error:
            # The commit may or may not be written: the turn reloads the run from the store.
            self._unknown_commits += 1
            self._unconfirmed = True
            pause = backoff(self._unknown_commits, self._context.random)
            run = self.claim.run.pid
            _log.warning(
                "the commit of a step transaction of run %s may or may not have been written; "
                "the run is reloaded in %.1f s: %s",
                run,
                pause,
                error,
            )
            # If the commit is not written, the buffered outcomes still count: their steps are not called again.
            self._calls.put_back([outcome for entry in buffered for outcome in entry.outcomes])
            await asyncio.sleep(pause)
            return None
        self._unknown_commits = 0
        return committed

    def _announce(self, observed: Observed) -> None:
        """Report outbound events to the telemetry before they are written."""
        if observed.outbox and self._context.ports.telemetry is not None:
            self._context.ports.telemetry.outbox_planned(self.claim, observed)

    # --- after a commit

    def applied(self) -> None:
        """The commit was applied: the task is this turn's, and the commit's warnings are logged."""
        self._unconfirmed = False
        if self._warnings:
            run = self.claim.run
            warnings, self._warnings = self._warnings, ()
            for message in warnings:
                _log.warning("%s (run %d): %s", run.pid, run.number, message)

    def drop_warnings(self) -> None:
        """Drop the warnings of a ``following`` part that was not written; the code repeats them."""
        self._warnings = ()

    def take_operation_results(self) -> Sequence[RequestResult]:
        results, self.operation_results = self.operation_results, ()
        return results

    def machine_dropped(self) -> None:
        """Drop the warnings, which the next machine repeats, and the operation results, which it reads as facts."""
        self._warnings, self.operation_results = (), ()

    def abandon(self, logs: Sequence[Log]) -> None:
        """Give up the buffer of a turn that can no longer commit. ``logs``: log lines of its cancelled attempts."""
        buffered, self._buffer = self._buffer, []
        buffered_logs = [log for entry in buffered for log in entry.decision.observed.logs]
        self._add_late(_results(buffered), [*buffered_logs, *logs])

    def _add_refused(self, commit: Commit, buffered: Sequence[_BufferedDecision]) -> None:
        """Pass the results of a lost commit to ``add_late``.

        The commit's own results are passed only with ``persist="task"`` and without a transaction, whose other writes
        are lost with the commit.
        """
        complete = self.buffering and not commit.observed.transactional
        self._add_late(commit.observed.facts if complete else _results(buffered), commit.observed.logs)

    def _add_late(self, results: Sequence[Fact], logs: Sequence[Log]) -> None:
        """Store results and log lines outside the turn; the store accepts them only if the run has ended."""
        if results or logs:
            self._context.host.add_late(self.claim.run, results, logs)


def _results(buffer: Sequence[_BufferedDecision]) -> list[Fact]:
    return [fact for entry in buffer for fact in entry.decision.observed.facts]


def _is_warning(log: Log) -> bool:
    return log.category == SYSTEM_CATEGORY and log.level == Level.WARN


def _merged(buffer: list[_BufferedDecision], last: Commit) -> Commit:
    """Merge buffered decisions and the last commit, in their order, into one commit."""
    observed = Observed(transaction=last.observed.transaction)
    parts: list[Observed | Following] = [*(entry.decision.observed for entry in buffer), last.observed]
    for name in ("facts", "deliveries", "logs", "statements", "starts", "sends", "outbox"):
        setattr(observed, name, _joined(parts, name))
    parts = [*(entry.decision.following for entry in buffer), last.following]
    changes = [part.attributes for part in parts if isinstance(part, Following) and part.attributes is not None]
    following = Following(
        facts=_joined(parts, "facts"),
        logs=_joined(parts, "logs"),
        attributes=changes[-1] if changes else None,
        operations=_joined(parts, "operations"),
        streams=_joined(parts, "streams"),
        next=last.following.next,
    )
    return replace(last, observed=observed, following=following)


def _joined(parts: Sequence[Observed | Following], name: str) -> list[Any]:
    return [item for part in parts for item in getattr(part, name)]
