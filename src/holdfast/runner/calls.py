"""The calls of a turn: running attempts, outcomes that the machine has not received yet, and postponed calls."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence

from holdfast.kernel.driver import Call, Decision, Outcome
from holdfast.runner.attempts import RunningAttempt
from holdfast.runner.outcomes import OutcomeQueue
from holdfast.runner.turn_context import TurnContext
from holdfast.runner.turn_input import TurnInput
from holdfast.store.protocol import Claim, Fact, FactState, Heartbeat, LimitKey, Log
from holdfast.store.protocol.streams import settlement

_OUTCOMES = (FactState.RESULT, FactState.FAILURE)


class CallsInFlight:
    """Starts and cancels the calls of a turn and collects their outcomes."""

    unstarted = False
    """Calls were not started because the turn has to stop; the next owner of the task starts them."""
    _stopping = False
    postponed: Sequence[Call] = ()
    """Calls of postponed decisions; they start once those decisions are written."""
    _settled: Collection[tuple[str, int]] = ()
    """Keys and numbers of attempts whose settlements may be written already."""
    last_heartbeats: Sequence[Fact] = ()
    """Last heartbeats of failed attempts; they are stored before the failures."""
    recording: asyncio.Task[None] | None = None
    """Writes the records of running attempts; None: no records are being written."""

    def __init__(self, context: TurnContext, claim: Claim, outcomes: OutcomeQueue, turn_input: TurnInput) -> None:
        self.claim = claim
        self._context = context
        self._outcomes = outcomes
        self._input = turn_input
        self._running: dict[str, RunningAttempt] = {}
        self._limited = context.budget.steps is not None
        """The number of step calls is limited."""

    # --- start, postpone, cancel

    def start(self, calls: Iterable[Call]) -> None:
        """Start calls, except those that run already or whose outcome is in the queue."""
        for call in calls:
            known = self._running.get(call.key) if self._running else None
            if known is not None and known.number == call.attempt:
                continue
            if self._outcomes and self._outcomes.has(call.key):
                continue
            if self._stopping or (self._limited and not self._context.budget.take()):
                self.unstarted = True
                continue
            claim, ports = self.claim, self._context.ports
            attempt = RunningAttempt(call, claim.run, claim.task, ports, self._report, self.records_written)
            self._running[attempt.key] = attempt
            if self._context.permits is not None and (limits := _limits_of(call)):
                self._start_limited(attempt, limits)
            else:
                attempt.start()

    def _start_limited(self, attempt: RunningAttempt, limits: Sequence[LimitKey] | Exception) -> None:
        """Start an attempt when it has its permit, or fail it if the key of a limit cannot be computed."""
        permits, task, key, number = self._context.permits, self.claim.task, attempt.key, attempt.number
        if permits is None:
            raise AssertionError("no worker without limits starts a limited attempt")

        async def acquire() -> bool:
            if isinstance(limits, Exception):
                raise limits
            return await permits.acquire(task, key, number, limits, self.claim.run.priority)

        attempt.start_limited(acquire, lambda: permits.give_back(task, key, number))

    def stop(self) -> None:
        """Start no more calls. Attempts that wait for a permit are left to the next owner."""
        self._stopping = True
        for key in [key for key, running in self._running.items() if running.waiting]:
            self.unstarted = True
            self._running.pop(key).cancel()
        self._input.wake()

    @property
    def must_stop(self) -> bool:
        return self.unstarted or self._stopping or (self._limited and self._context.budget.spent)

    def postpone(self, calls: Sequence[Call]) -> None:
        self.postponed = [*self.postponed, *calls]

    def start_postponed(self) -> None:
        calls, self.postponed = self.postponed, ()
        self.start(calls)

    def drop_postponed(self) -> None:
        self.postponed = ()

    def cancel(self, keys: Iterable[str]) -> None:
        for key in keys:
            running = self._running.pop(key, None)
            if running is not None:
                running.cancel()
            elif self.postponed:
                self.postponed = [call for call in self.postponed if call.key != key]

    def cancel_transactions(self, keys: Iterable[str]) -> None:
        """Cancel those of the calls that have a live transaction."""
        self.cancel(key for key in keys if (running := self._running.get(key)) is not None and running.in_transaction)

    def cancel_all(self) -> Sequence[Log]:
        """Cancel all attempts of a turn that can no longer commit; returns their log lines."""
        logs = [log for running in self._running.values() for log in running.take_logs()]
        for running in self._running.values():
            running.cancel()
        self._running.clear()
        return logs

    # --- what is in flight

    @property
    def running(self) -> int:
        """Number of running attempts."""
        return len(self._running)

    @property
    def in_flight(self) -> int:
        """Number of running attempts, and of ended attempts whose outcomes the machine has not received yet."""
        return len(self._running) + len(self._outcomes)

    @property
    def in_transaction(self) -> bool:
        """True while a step has a live transaction.

        Another commit of this turn could deadlock with it: the commit would wait for the transaction's locks, and the
        transaction ends only with a commit of this turn.
        """
        return bool(self._running) and any(running.in_transaction for running in self._running.values())

    async def records_written(self) -> None:
        """Wait until the records that are being written are stored.

        A commit under way may contain buffered decisions. The commit of a live transaction does not wait for it, since
        it could wait for the locks of the transaction. So a live transaction begins only afterwards: its commit would
        overtake the decisions that came before it, and release the task without them.
        """
        if self.recording is not None:
            await asyncio.wait([self.recording])

    # --- outcomes

    @property
    def has_outcome(self) -> bool:
        """True if the next outcome can be committed now."""
        outcomes = self._outcomes
        if not outcomes or outcomes[0].writes is None:
            return bool(outcomes)
        return not (outcomes.needs_closed_transactions and self.in_transaction)

    def take_outcomes(self) -> Sequence[Outcome]:
        """Take the outcomes for the next advance."""
        outcomes = self._outcomes
        if outcomes and (outcomes[0].writes is None or self.has_outcome):
            return outcomes.take()
        return outcomes.take_nothing()

    def put_back(self, outcomes: Sequence[Outcome]) -> None:
        """Put outcomes of a commit whose result is unknown back, for the machine that is loaded next."""
        self._settled = {*self._settled, *((one.key, one.attempt) for one in outcomes if one.streamed)}
        self._outcomes.put_back(outcomes)

    def _report(self, outcome: Outcome) -> None:
        self._running.pop(outcome.key, None)
        if outcome.heartbeat is not None:
            self.last_heartbeats = [*self.last_heartbeats, outcome.heartbeat]
        self._outcomes.add(outcome)
        self._input.wake()

    # --- streams

    def settlements(self, decision: Decision, outcomes: Sequence[Outcome]) -> Sequence[Fact]:
        """Facts that decide whether the items of ended attempts belong to the output."""
        ended = [one for one in outcomes if one.streamed]
        if not ended and not decision.cancelled:
            return ()
        dropped = [
            running
            for running in filter(None, map(self._running.get, decision.cancelled))
            if running.streams is not None and running.streams.used
        ]
        if not ended and not dropped:
            return []
        task, now = self.claim.task, self._context.ports.now_ms()
        recorded = [fact for fact in decision.observed.facts if fact.state in _OUTCOMES]
        kept = {fact.key for fact in recorded if fact.ok and fact.state != FactState.FAILURE}
        # The settlement of an attempt may be written before its outcome arrives: with the cancellation of the attempt,
        # or with an earlier commit of the outcome whose reply was lost. If the outcome is recorded nevertheless, that
        # commit was not written.
        keys = {fact.key for fact in recorded}
        ended = [one for one in ended if one.key in keys or (one.key, one.attempt) not in self._settled]
        self._settled = {*self._settled, *((running.key, running.number) for running in dropped)}
        return [
            settlement(task, one.key, one.attempt, now, succeeded=one.succeeded and one.key in kept) for one in ended
        ] + [settlement(task, running.key, running.number, now, succeeded=False) for running in dropped]

    # --- records of running attempts

    def take_logs(self, keys: Iterable[str]) -> list[Log]:
        """Take the log lines of these attempts."""
        return [log for attempt in filter(None, map(self._running.get, keys)) for log in attempt.take_logs()]

    def new_records(self) -> tuple[list[Fact], list[Log]]:
        """START facts and log lines of running attempts that are not stored yet."""
        facts: list[Fact] = []
        logs: list[Log] = []
        for running in self._running.values():
            new_facts, new_logs = running.new_records()
            facts.extend(new_facts)
            logs.extend(new_logs)
        return facts, logs

    def heartbeats(self) -> list[Heartbeat]:
        """Heartbeats of running attempts that are not stored yet."""
        facts = [running.new_heartbeat() for running in self._running.values()]
        return [Heartbeat(self.claim.task, fact) for fact in facts if fact is not None]

    def take_last_heartbeats(self) -> list[Heartbeat]:
        """Take the last heartbeats of failed attempts."""
        facts, self.last_heartbeats = self.last_heartbeats, ()
        return [Heartbeat(self.claim.task, fact) for fact in facts]


def _limits_of(call: Call) -> Sequence[LimitKey] | Exception:
    """The limits of a call, or the error of the user's function that computes a key."""
    try:
        return call.limited_by
    except Exception as error:  # the attempt fails with it
        return error
