"""Events that are sent in the worker's own process: a run that the event wakes begins its turn here at once."""

from __future__ import annotations

import asyncio

from holdfast.kernel.definition import Registry
from holdfast.runner.background_tasks import BackgroundTasks
from holdfast.runner.cache import MachineCache
from holdfast.runner.lease_keeper import LeaseKeeper
from holdfast.runner.local_starts import LocalStarts
from holdfast.runner.prediction import PredictedTurn, predict
from holdfast.runner.slots import Slots
from holdfast.runner.turn_runner import TurnRunner
from holdfast.store.protocol import Claimant, NewEvent, Sent, Store


class EventSender:
    """Sends events with this worker as the claimant of the runs that they wake."""

    def __init__(
        self,
        store: Store,
        registry: Registry,
        claimant: Claimant,
        cache: MachineCache,
        slots: Slots,
        starts: LocalStarts,
        runner: TurnRunner,
        leases: LeaseKeeper,
        background: BackgroundTasks,
    ) -> None:
        self._store = store
        self._registry = registry
        self._claimant = claimant
        self._cache = cache
        self._slots = slots
        self._starts = starts
        self._runner = runner
        self._leases = leases
        self._background = background

    async def send(self, event: NewEvent) -> Sent:
        """Send an event. If a slot is free, a run that the event wakes begins its turn here at once."""
        if not self._starts.reserve_slot(event.workflow):
            [sent] = await self._store.send([event])
            return sent
        event.claimant = self._claimant
        predicted = self._predict(event)
        try:
            [sent] = await self._store.send([event])
        except BaseException as error:
            if predicted is not None:
                self._runner.discard(predicted)
            if isinstance(error, asyncio.CancelledError):
                # The event may have been written and the run claimed by this worker, without a turn for it.
                release = self._leases.release_instance(event.workflow, event.instance_id)
                self._background.run(release, "release a run that an event may have woken")
            raise
        finally:
            self._slots.end_reservation(1)
        if predicted is not None:
            self._begin_predicted(predicted, sent)
        elif sent.claim is not None and self._slots.accepting:
            self._runner.begin(sent.claim)
        return sent

    def _predict(self, event: NewEvent) -> PredictedTurn | None:
        """The predicted turn of an event whose run is suspended in this worker's cache; None: no prediction.

        There is no prediction while other commits are being written: batching commits with each other then costs less
        than writing each of them with its event.
        """
        context = self._runner.context
        if self._slots.reserved > 1 or context.committer.busy:
            return None
        return predict(event, self._cache, self._claimant.owner, self._registry, context)

    def _begin_predicted(self, turn: PredictedTurn, sent: Sent) -> None:
        """Begin the predicted turn, or an ordinary one if the prediction was wrong."""
        if not turn.confirm(sent):
            self._runner.discard(turn)
            if sent.claim is not None and self._slots.accepting:
                self._runner.begin(sent.claim)
        elif turn.over:
            self._runner.ended(turn)
            asyncio.get_running_loop().call_soon(turn.drop)  # callers that wait for the run's end resume first
        elif not self._slots.accepting or not self._runner.begin(turn.claim, turn=turn):
            self._runner.discard(turn)  # a stopping worker releases all its tasks at the end
