"""The turn of a run: everything a worker does between the claim of its task and the release.

Load the machine, then repeat: advance the machine → plan one commit → write it → start the step calls of the decision →
wait for an outcome, an event, a timer or a signal. The turn ends when the run ends or suspends. ``Turn.run`` is the
loop; the other methods are its steps.

The parts of a turn: ``MachineLoader`` opens the machine, ``CallsInFlight`` runs the step calls and fills the
``OutcomeQueue``, ``TurnInput`` reads events and receives signals, ``TurnWriter`` writes commits, ``RunningRecords``
records steps that are still running.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NoReturn

from holdfast.core import failure
from holdfast.core.failure import Failure
from holdfast.core.model import Status, TaskKind
from holdfast.kernel.definition import Definition
from holdfast.kernel.driver import Decision, Machine
from holdfast.kernel.options import RunOptions
from holdfast.runner.cache import SuspendedRun
from holdfast.runner.calls import CallsInFlight
from holdfast.runner.machine_loader import MachineLoader
from holdfast.runner.outcomes import OutcomeQueue
from holdfast.runner.running_records import RunningRecords, record_heartbeats
from holdfast.runner.turn_context import TurnContext
from holdfast.runner.turn_input import TurnInput
from holdfast.runner.turn_writer import TurnWriter
from holdfast.store.protocol import (
    NOTHING_FOLLOWS,
    PLAINLY_APPLIED,
    SUSPECT_LOSSES,
    Claim,
    Commit,
    Committed,
    Fact,
    Finish,
    Heartbeat,
    Lease,
    Park,
    Release,
    Signal,
    Verdict,
)

_APPLIED = Verdict.APPLIED
_NO_SIGNAL = Signal.NONE
_MAX_UNWRITTEN_ADVANCES = 8
"""Number of advances without a commit after which the loop runs other code."""


class TurnOver(BaseException):
    """Raised to leave the turn: the run suspended or ended, or its task is lost.

    Control flow, therefore not an ``Exception``.
    """


class Turn:
    """The turn of one claimed run."""

    lease_ms: int | None = None
    """The task's own lease; None: the worker's."""
    idle = False
    """The task was released and the turn wrote nothing."""
    finish: Finish | None = None
    suspended: SuspendedRun | None = None
    """Set when the run suspended: the machine can be cached for the next turn."""
    due_at: int | None = None
    """The time at which the released task is due again; None: not at a known time."""
    _planned: Finish | Park | Release | None = None
    _progressed = False
    _records: RunningRecords | None = None
    """None: no step of this turn has run long enough to be recorded."""
    _unwritten_advances = 0
    """Number of advances since the last commit."""

    def __init__(
        self,
        context: TurnContext,
        claim: Claim,
        definition: Definition,
        machine: Machine | None,
        plan: Sequence[Fact] = (),
        *,
        is_new: bool = False,
    ) -> None:
        """``plan``: the PLAN facts, for a run that was created by the caller; otherwise they are loaded.

        ``is_new``: no turn of the run has recorded anything.
        """
        self.claim = claim
        self.is_new = is_new
        self.task = claim.task
        self.machine = machine
        self._context = context
        self._task_ms = RunOptions.decode(claim.run.options).task_ms
        self._attempts_lost = claim.lost
        self._input = TurnInput(context, claim)
        self._outcomes = OutcomeQueue(context.host)
        self._calls = CallsInFlight(context, claim, self._outcomes, self._input)
        self._writer = TurnWriter(context, claim, self._calls, self._outcomes, buffering=definition.persist == "task")
        self._loader = MachineLoader(
            context, claim, definition, plan, self._writer, is_new=is_new, cached=machine is not None
        )

    async def run(self) -> None:
        try:
            if self.machine is None:
                self.machine = await self._loader.load()
            while True:
                decision = self._advance()
                committed = await self._commit(decision)
                self._handle_verdict(committed)
                if decision.calls and decision.lease_ms != self.lease_ms:
                    await self._set_lease(decision.lease_ms)
                self._start_calls(decision)
                if not self._can_continue(decision, committed):
                    await self._wait_for_input(decision)
        except TurnOver:
            pass
        finally:
            self.drop()

    # --- called by the worker

    def signal(self, signal: Signal | None) -> None:
        """Handle a signal to the owner of the task; None: the task is lost."""
        if signal is None:
            self._input.lose_task()
            self._cancel_calls()
        else:
            self._input.signal(signal)

    def stop(self) -> None:
        """Start no more calls; release the task once the calls in flight have ended."""
        self._calls.stop()

    @property
    def suspect(self) -> bool:
        """True if the task was lost several times in a row and this turn has not committed anything yet."""
        return self.claim.run.losses >= SUSPECT_LOSSES and not self._progressed

    @property
    def lost(self) -> bool:
        """True if the task has another owner by now, or none."""
        return self._input.task_lost

    @property
    def waiting(self) -> bool:
        """True while the turn waits for calls in flight, a timer or a signal."""
        return self._input.waiting

    def record_running(self) -> asyncio.Task[None] | None:
        """Write START facts and log lines of running attempts; returns the writing asyncio task, if there is one."""
        if self._records is None:
            self._records = RunningRecords(self.claim.run.pid, self.task.owner, self._calls, self._writer)
        return self._records.write(self.signal)

    def heartbeats(self) -> list[Heartbeat]:
        """Heartbeats of running attempts that are not stored yet."""
        return self._calls.heartbeats()

    def drop(self) -> None:
        """Cancel everything that runs, and close the machine unless the run suspended."""
        self._input.clear_alarm()
        self._cancel_calls()
        self._outcomes.roll_back()
        if self.suspended is None:
            self._drop_machine()

    # --- advance

    def _advance(self) -> Decision:
        machine, writer, now_ms = self.machine, self._writer, self._context.ports.now_ms
        if machine is None:
            raise RuntimeError("the machine was dropped")
        if self._input.pausing:
            machine.halt()
        began = now_ms()
        events, at = self._input.take_events(began)
        lost, self._attempts_lost = self._attempts_lost, False
        outcomes = self._calls.take_outcomes()
        results = writer.take_operation_results() if writer.operation_results else ()
        decision = machine.advance(at, outcomes, events, operation_results=results, lost=lost)
        if self._task_ms is not None:
            _check_time(decision, now_ms() - began, self._task_ms)
        if outcomes and outcomes[0].writes is not None and decision.observed.transaction is None:
            self._outcomes.roll_back_taken()  # the code cancelled the step, so its outcome is not written
        if settled := self._calls.settlements(decision, outcomes):
            decision.observed.facts = [*decision.observed.facts, *settled]
        writer.counted_losses = lost
        if decision.started_at is not None or decision.following is not NOTHING_FOLLOWS:
            writer.note(decision)
        return decision

    # --- plan and commit

    async def _commit(self, decision: Decision) -> Committed | None:
        """Write what must be durable before the calls start; None: nothing is written, or the result is unknown."""
        calls, writer, machine, observed = self._calls, self._writer, self._open_machine(), decision.observed
        if decision.cancelled:  # the attempts are cancelled after the commit
            observed.logs = [*observed.logs, *calls.take_logs(decision.cancelled)]
        planned = self._planned = self._plan(decision)
        may_defer = planned is None and (writer.buffering or not observed.facts) and not self._input.pausing
        if may_defer and writer.try_defer(decision):
            return None
        if decision.cancelled:
            calls.cancel_transactions(decision.cancelled)
        if observed.transaction is None:
            if calls.last_heartbeats and not calls.in_transaction:
                await record_heartbeats(self._context.store, calls.take_last_heartbeats())
            if planned is None and calls.in_transaction:
                writer.postpone(decision)
                return None
            if calls.recording is not None:
                await calls.records_written()
            if writer.has_buffered and decision.transactional:
                # The database may reject the statements; buffered decisions must not be rejected with them.
                await writer.flush(machine)
        following = decision.following
        if planned is not None:
            self.idle = (
                isinstance(planned, Release) and decision.empty and not self._progressed and not writer.has_unwritten
            )
            following = following.then(planned)
        commit = Commit(self.task, observed, following, calls.in_flight, None, self._input.seen)
        committed = await writer.write(commit, machine)
        if committed is None:
            self._drop_machine()
        return committed

    def _plan(self, decision: Decision) -> Finish | Park | Release | None:
        """Decide what happens to the task: it ends, is parked or released; None: the turn keeps it."""
        if decision.end is not None:
            return decision.end
        calls = self._calls
        if calls.running or self._outcomes or self._input.pausing:
            return None
        if decision.calls and not calls.must_stop:
            return None
        if decision.following.operations or self._writer.has_operations:
            return None
        if not self._input.has_all(decision.topics):
            return None
        if decision.calls or calls.postponed or calls.unstarted:
            return (
                Release(self._context.ports.now_ms(), TaskKind.RESUME, status=Status.ACTIVE)
                if calls.must_stop
                else None
            )
        kind = TaskKind.RETRY if decision.retrying else TaskKind.WAKE
        return Release(decision.wake_at, kind, decision.topics)

    # --- the verdict

    def _handle_verdict(self, committed: Committed | None) -> None:
        if committed is None:
            return
        if committed.verdict is _APPLIED:
            self._applied(committed)
        elif committed.verdict is Verdict.PAUSING:
            self._input.signal(Signal.PAUSE)
            self._writer.drop_warnings()
        elif committed.verdict is Verdict.REJECTED:
            self._outcomes.fail_taken(_rejection(committed))
            self._drop_machine()  # it has processed the outcomes as successes
        else:  # lost or paused
            raise TurnOver

    def _applied(self, committed: Committed) -> None:
        self._writer.applied()
        self._context.host.streams_written(self.claim.run.run)
        if committed is not PLAINLY_APPLIED:
            self._context.host.notify(committed)
        if self._planned is not None:
            self._end_turn(self._planned, committed)
        if self._input.pausing:
            self._drop_machine()  # the pause was withdrawn: a new machine replays what is written
            self._input.withdraw_pause()
        self._progressed = True
        if committed.signal is not _NO_SIGNAL:
            self.signal(committed.signal)

    def _end_turn(self, planned: Finish | Park | Release, committed: Committed) -> NoReturn:
        if isinstance(planned, Finish):
            self.finish = planned
        elif isinstance(planned, Release):
            self._release(planned, due_now=committed.due_now)
        raise TurnOver

    def _release(self, released: Release, *, due_now: bool) -> None:
        self.due_at = self._context.ports.now_ms() if due_now else released.run_at
        if released.status is Status.WAITING and not self._input.task_lost:
            run, machine = self.claim.run, self._open_machine()
            run.status = Status.WAITING
            self.suspended = SuspendedRun(
                run, self.task.epoch, machine, released.topics, self.due_at, self._input.known
            )

    # --- start calls

    async def _set_lease(self, lease_ms: int | None) -> None:
        """Set the lease that the calls require. It is stored before they start, so a takeover respects it."""
        self.lease_ms = lease_ms
        store, lease = self._context.store, Lease(self.task, lease_ms or self._context.lease_ms)
        self._context.host.heartbeat_within(lease.lease_ms)
        what = f"set the lease of run {self.claim.run.pid}"
        [held] = await self._context.call(what, lambda: store.set_leases([lease]))
        if not held:
            raise TurnOver

    def _start_calls(self, decision: Decision) -> None:
        if self.machine is None:
            return  # the decision is not written; the next machine decides again what to cancel and call
        calls = self._calls
        if decision.cancelled:
            calls.cancel(decision.cancelled)
        if self._input.pausing or self._input.task_lost:
            return
        if calls.postponed and not self._writer.has_buffered:
            calls.start_postponed()
        calls.start(decision.calls)

    # --- wait

    def _can_continue(self, decision: Decision, committed: Committed | None) -> bool:
        """True if the machine can be advanced at once, because a call has ended already.

        The loop runs other code between two advances: while the turn waits for its commit to be written in a batch, or
        else after a few advances.
        """
        if self.machine is None or not self._calls.has_outcome:
            return False
        if self._input.task_lost or self._input.must_read_events(decision.topics, decision.wake_at):
            return False
        if committed is not None:
            self._unwritten_advances = 0
            return not self._context.committer.is_alone()
        self._unwritten_advances += 1
        return self._unwritten_advances % _MAX_UNWRITTEN_ADVANCES != 0

    async def _wait_for_input(self, decision: Decision) -> None:
        """Wait for an outcome, a due timer, an event or a signal, then read new events if there may be any."""
        if self.machine is None:
            self.machine = await self._loader.load()
            await self._input.read_from_start(decision.topics)
            return
        if self._calls.has_outcome:
            await asyncio.sleep(0)
        while not self._has_input(decision):
            await self._input.wait(decision.wake_at)
        self._input.clear_alarm()
        if self._input.task_lost:
            raise TurnOver
        if self._input.must_read_events(decision.topics, decision.wake_at):
            await self._input.read_events(decision.topics)

    def _has_input(self, decision: Decision) -> bool:
        calls, turn_input = self._calls, self._input
        if turn_input.task_lost or self._writer.operation_results or calls.has_outcome:
            return True
        if turn_input.pausing:
            return not calls.running
        if calls.unstarted and not calls.running:
            return True
        return turn_input.may_have_events(decision.topics) or turn_input.is_due(decision.wake_at)

    # --- drop

    def _open_machine(self) -> Machine:
        if self.machine is None:
            raise RuntimeError("the machine was dropped")
        return self.machine

    def _drop_machine(self) -> None:
        """Close the machine. The next one repeats the warnings and calls that are not written."""
        if self.machine is not None:
            self.machine.close()
            self.machine = None
            self._writer.machine_dropped()
            self._calls.drop_postponed()

    def _cancel_calls(self) -> None:
        """Cancel all attempts of a turn that can no longer commit."""
        self._writer.abandon(self._calls.cancel_all())


def _rejection(committed: Committed) -> Failure:
    """The failure of the outcomes in a rejected commit."""
    if committed.unique:
        return failure.unique_violation(committed.message)
    if committed.unreachable:
        return Failure("InstanceNotFoundError", committed.message, kind="NotFound", retryable=False)
    return Failure("StatementError", committed.message)


def _check_time(decision: Decision, took_ms: int, limit: int) -> None:
    """Park the run if its code ran longer than its task_timeout; what the code did is discarded."""
    if took_ms > limit:
        decision.following, decision.calls = NOTHING_FOLLOWS, ()
        decision.end = Park(
            f"TASK_TIMEOUT: the code ran for {took_ms} ms between two waits, and its task_timeout is {limit} ms; "
            "resume to try again"
        )
