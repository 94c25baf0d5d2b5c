"""The life of turns in a worker: begin, run, end."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Sequence

from holdfast.errors import DamagedRunError, PayloadError
from holdfast.kernel.attempt import current_attempt, current_run
from holdfast.kernel.definition import Registry
from holdfast.kernel.notify import Hub
from holdfast.kernel.options import RunOptions
from holdfast.runner import notifications, report
from holdfast.runner.cache import MachineCache
from holdfast.runner.claim_schedule import ClaimSchedule
from holdfast.runner.damaged_turn import DamagedTurn
from holdfast.runner.idle_turns import IdleTurns
from holdfast.runner.permits import Permits
from holdfast.runner.run_cache import RunCaches
from holdfast.runner.slots import Slots
from holdfast.runner.turn import Turn
from holdfast.runner.turn_context import TurnContext
from holdfast.runner.turn_table import AnyTurn, TurnTable
from holdfast.runner.unbegun_runs import UnbegunRuns
from holdfast.runner.unit_turns import GraphRunTurn, UnitTurn
from holdfast.runner.unknown_claims import UnknownClaims
from holdfast.store.protocol import (
    CANCEL,
    SUSPECT_LOSSES,
    Claim,
    Commit,
    Fact,
    Following,
    Log,
    Park,
    Signal,
    TaskRef,
    Verdict,
)

_log = logging.getLogger("holdfast")


class TurnRunner:
    """Begins turns, runs each of them in an asyncio task, and processes the results of ended turns."""

    context: TurnContext
    """Set by the worker after construction, because parts of the context hold this object in order to begin turns."""

    def __init__(
        self,
        registry: Registry,
        hub: Hub,
        table: TurnTable,
        slots: Slots,
        cache: MachineCache,
        run_caches: RunCaches,
        unknown_claims: UnknownClaims,
        schedule: ClaimSchedule,
    ) -> None:
        self._registry = registry
        self._hub = hub
        self._table = table
        self._slots = slots
        self._cache = cache
        self._unbegun = UnbegunRuns()
        self._run_caches = run_caches
        self._unknown_claims = unknown_claims
        self._schedule = schedule
        self._idle_turns = IdleTurns(lambda: asyncio.get_running_loop().time())

    # --- begin

    def begin(
        self, claim: Claim, context: TurnContext | None = None, plan: Sequence[Fact] = (), turn: Turn | None = None
    ) -> bool:
        """Begin the turn of a claim; False if the claim is stale. ``turn``: a predicted turn to use for it."""
        if self._is_stale(claim.task):
            return False
        known = self._table.get(claim.task[:2])
        if known is not None:  # its lease expired, and this worker claimed the task again
            known.signal(None)
        begun = turn or self._make_turn(claim, context or self.context, plan)
        if claim.run.expires_at is not None:
            self._schedule.due(claim.run.expires_at)
        task = asyncio.get_running_loop().create_task(self._run(begun), context=_outside_steps())
        self._table.add(begun, task)
        return True

    def _is_stale(self, task: TaskRef) -> bool:
        """True if the claim was released as unknown before its reply arrived, or a later claim has a turn already."""
        if self._unknown_claims.was_released(task):
            return True
        known = self._table.get(task[:2])
        return known is not None and known.task.owner == task.owner and known.task.epoch >= task.epoch

    def _make_turn(self, claim: Claim, context: TurnContext, plan: Sequence[Fact]) -> AnyTurn:
        try:
            return self._open_turn(claim, context, plan)
        except Exception as error:
            return DamagedTurn(claim, error)

    def _open_turn(self, claim: Claim, context: TurnContext, plan: Sequence[Fact]) -> AnyTurn:
        if claim.run.damage is not None:
            raise DamagedRunError(claim.run.damage)
        task, definition = claim.task, self._registry.get(claim.run.workflow)
        if definition.unit_driver is None:
            machine = self._cache.take(task.run, task.epoch)
            return Turn(context, claim, definition, machine, plan, is_new=self._unbegun.is_new(claim))
        run_cache = self._run_caches.own(task, claim.run, definition.unit_driver, plan, context)
        return UnitTurn(context, claim, run_cache) if task.unit else GraphRunTurn(context, claim, run_cache)

    # --- run

    async def _run(self, turn: AnyTurn) -> None:
        current_run.set(turn.claim.run)
        ports = self.context.ports
        if ports.telemetry is not None:
            ports.telemetry.turn_began(turn.claim, ports.now_ms())
        try:
            if self._idle_turns:
                await self._delay_idle_turn(turn)
            if self.context.permits is None or await self._enter(turn, self.context.permits):
                await turn.run()
            elif isinstance(turn, Turn):
                turn.drop()
                if turn.is_new:
                    self._unbegun.add(turn.task)
        except Exception as error:
            if turn.lost:  # the run may be deleted, or another worker owns it and meets the same error
                _log.info("the turn of run %s ended with its task: %s", report.named(turn.claim.run), error)
            else:
                await self._park(turn, error)
        finally:
            self.ended(turn)

    async def _enter(self, turn: AnyTurn, permits: Permits) -> bool:
        """Request the permit of a run with limits. False: the run is due when its permit is granted.

        A run whose cancellation is requested does not wait: its code cleans up.
        """
        run = turn.claim.run
        definition = None if isinstance(turn, DamagedTurn) else self._registry.get(run.workflow)
        if definition is None or not isinstance(turn, Turn):
            return True
        of_queue = permits.of_queue(run)
        if not definition.limits and not of_queue:
            return True
        if any(event.type == CANCEL for event in turn.claim.mailbox_page.events):
            return True
        limits = [*definition.limits_of(run.params, RunOptions.decode(run.options).key), *of_queue]
        return await permits.enter(turn.task, limits, priority=run.priority, until_end=definition.hold == "until_end")

    async def _delay_idle_turn(self, turn: AnyTurn) -> None:
        """Wait before a turn of a run that makes no progress. The worker keeps renewing the lease meanwhile."""
        try:
            await asyncio.sleep(self._idle_turns.pause_before(turn.task[:2]))
        except asyncio.CancelledError:
            if isinstance(turn, Turn):
                turn.drop()
            raise

    async def _park(self, turn: AnyTurn, error: Exception) -> None:
        """Park a run after an error of the engine or in the run's data; the note is the error. Other runs continue.

        A run that was ended and deleted after the claim cannot be read, and its worker may not know it yet: the commit
        is refused then, and nothing is wrong.
        """
        run, context = turn.claim.run, self.context
        note = _park_note(error)
        line = Log("error", "system", note[:2000], None, context.ports.now_ms())
        commit = Commit(turn.task, following=Following(logs=[line], next=Park(note)))
        try:
            [parked] = await context.committer.commit([commit])
            if parked.verdict is Verdict.LOST:
                _log.info("the turn of run %s ended with its task: %s", report.named(run), error)
                return
            if isinstance(error, DamagedRunError):
                report.parked(run, note)
            else:
                _log.error("run %s is parked after an unexpected error", report.named(run), exc_info=error)
            if turn.task.unit:
                await context.store.release([turn.task])  # the commit paused the run, but the unit is still owned
            if context.ports.telemetry is not None:
                context.ports.telemetry.parked(run, "engine_error")
        except Exception:
            _log.exception("could not park run %s after an unexpected error: %s", report.named(run), error)

    # --- end

    def ended(self, turn: AnyTurn) -> None:
        """Process an ended turn: cache its machine, notify of the run's end, and note when the task is due again."""
        run, unit = task_key = turn.task[:2]
        if self.context.ports.telemetry is not None:
            self.context.ports.telemetry.turn_ended(turn.claim, turn.finish)
        if turn.idle:
            self._idle_turns.idle(turn.claim)
        elif self._idle_turns:
            self._idle_turns.forget(task_key)
        if self._table.remove(turn):
            self._run_caches.disown(turn.task)
        if turn.suspended is not None:
            self._cache.put(turn.suspended)
        if turn.finish is not None:
            notifications.run_ended(self._hub, run, turn.finish, turn.claim.run.options)
        elif unit == 0 and turn.suspended is None:
            self._hub.ended(run, None)  # another writer may have ended the run: waiting callers read the store
        if turn.due_at is not None:
            self._schedule.due(turn.due_at)
        self._slots.turn_ended()
        if self.context.permits is not None:
            self.context.permits.wake()  # the end of the turn may have returned permits
        if turn.suspect or turn.claim.run.losses >= SUSPECT_LOSSES:
            self._schedule.wake()  # the next suspect task may be claimed now

    def discard(self, turn: Turn) -> None:
        """Drop a predicted turn that does not begin."""
        turn.drop()
        self._hub.ended(turn.task.run, None)  # the run's state is unknown here: waiting callers read the store

    # --- signals

    def signal(self, run: int, signal: Signal | None) -> None:
        """Pass a signal to the turn of a run; None, for a run that has ended, also to the turns of its units."""
        turn = self._table.get((run, 0))
        if turn is not None:
            turn.signal(signal)
        elif signal is None:
            self._cache.drop(run)
        if signal is None:
            for unit in self._run_caches.owned_units(run):
                unit_turn = self._table.get((run, unit))
                if unit_turn is not None:
                    unit_turn.signal(None)


def _park_note(error: Exception) -> str:
    if isinstance(error, PayloadError):
        return f"PAYLOAD_UNREADABLE: {error}; resume the run when a worker with the key runs"
    if isinstance(error, DamagedRunError):
        return f"RUN_DAMAGED: {error}; repair the row and resume the run, or restart it"
    return f"the engine failed on this run ({type(error).__name__}: {error}); resume it to try again"


def _outside_steps() -> contextvars.Context | None:
    """Context variables for a new turn, without the current attempt; None: there is no current attempt.

    A step that starts a run or sends an event may begin turns that are not part of the step.
    """
    if current_attempt.get() is None:
        return None
    context = contextvars.copy_context()
    context.run(current_attempt.set, None)
    return context
