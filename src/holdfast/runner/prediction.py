"""Prediction: the turn that an event will cause is computed before the event is sent, and both are written together.

An event that wakes a run cached in the sender's own process then costs one transaction instead of two. The prediction
assumes that nothing has changed the run since it suspended; the store checks this under the run's lock. If the
assumption is wrong, nothing of the turn is written, the event is sent as any other, the machine is dropped, and the
next owner replays the run, as after a crash. The predicted code has no side effects: calls start only after the commit
is written.
"""

from __future__ import annotations

from holdfast.core.model import TaskKind
from holdfast.kernel.definition import Registry
from holdfast.kernel.driver import Decision
from holdfast.runner.cache import MachineCache, SuspendedRun
from holdfast.runner.turn import Turn, TurnOver
from holdfast.runner.turn_context import TurnContext
from holdfast.store.protocol import (
    Claim,
    Commit,
    Committed,
    MailboxPage,
    NewEvent,
    Prediction,
    Sent,
    StoredEvent,
    TaskRef,
)


def predict(
    event: NewEvent, cache: MachineCache, owner: str, registry: Registry, context: TurnContext
) -> PredictedTurn | None:
    """The turn that the event will cause, advanced to its first decision; sets ``event.prediction``.

    None: the event's run is not cached, or something else may wake it, or its code raised an error and the machine was
    dropped.
    """
    now = context.ports.now_ms()
    suspended = cache.find(event.workflow, event.instance_id)
    if suspended is None or not suspended.is_ready_for(event, now):
        return None
    cache.pop(suspended.run.run)
    claim = _predicted_claim(event, now, suspended, owner)
    turn = PredictedTurn(context, claim, registry.get(event.workflow), suspended.machine)
    try:
        event.prediction = turn.predict()
    except Exception:  # the ordinary turn after the send raises the same error and reports it
        turn.drop()
        return None
    return turn


def _predicted_claim(event: NewEvent, at: int, suspended: SuspendedRun, owner: str) -> Claim:
    stored = StoredEvent((suspended.seen or 0) + 1, event.type, event.payload, at, event.sender, trace=event.trace)
    task = TaskRef(suspended.run.run, 0, owner, suspended.epoch + 1)
    page = MailboxPage((stored,), complete=True, last=stored.n)
    return Claim(task, TaskKind.WAKE, lost=False, run=suspended.run, mailbox_page=page, at=at)


class PredictedTurn(Turn):
    """A turn whose first decision is made before its event is sent."""

    over = False
    """The turn ended with its predicted commit; ``run`` must not be called."""
    _decision: Decision | None = None
    """The predicted decision, until ``run`` continues from it."""
    _prediction: Prediction | None = None
    _written = False
    """The store wrote the predicted commit together with the event, and the verdict was handled."""

    def predict(self) -> Prediction:
        """Advance the machine to its first decision as if the only event of the claim had been sent already."""
        [event] = self.claim.mailbox_page.events
        decision = self._advance()
        self._planned = self._plan(decision)
        commit = Commit(self.task, decision.observed, decision.following.then(self._planned), seen=event.n)
        self._decision, self._prediction = decision, Prediction(self.claim.run, event.n, event.created_at, commit)
        return self._prediction

    def confirm(self, sent: Sent) -> bool:
        """True if the prediction held; sets ``over`` if the turn is finished."""
        prediction = self._prediction
        if prediction is None:
            return False
        if sent.claim is not None and prediction.holds_for(sent.claim):
            self.claim = self._calls.claim = self._writer.claim = sent.claim
            return True
        if sent.committed is None:
            return False
        self._written = True
        self._context.committed(self.claim.run, prediction.commit, sent.committed)
        try:
            self._handle_verdict(sent.committed)
        except TurnOver:
            self.over = True
        return True

    def _advance(self) -> Decision:
        decision, self._decision = self._decision, None
        return super()._advance() if decision is None else decision

    async def _commit(self, decision: Decision) -> Committed | None:
        if self._written:
            self._written = False
            return None
        return await super()._commit(decision)
