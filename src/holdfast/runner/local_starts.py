"""Runs and units that begin without a separate claim: the write that makes them due also claims them."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.model import TaskKind
from holdfast.kernel.definition import Registry
from holdfast.kernel.notify import Hub
from holdfast.runner.run_cache import RunCaches
from holdfast.runner.slots import Slots
from holdfast.runner.turn_runner import TurnRunner
from holdfast.runner.turn_table import TurnTable
from holdfast.store.protocol import FIRST_EPOCH, Claim, Claimant, Created, Fact, MailboxPage, NewRun, TaskRef

_UNREAD = MailboxPage((), complete=True, last=0)
"""The mailbox of a unit that was claimed by an advance: it has not been read."""


class LocalStarts:
    """Reserves slots for runs and units that are about to be written, and begins their turns afterwards."""

    def __init__(
        self,
        registry: Registry,
        hub: Hub,
        claimant: Claimant,
        table: TurnTable,
        slots: Slots,
        run_caches: RunCaches,
        runner: TurnRunner,
    ) -> None:
        self._registry = registry
        self._hub = hub
        self._claimant = claimant
        self._table = table
        self._slots = slots
        self._run_caches = run_caches
        self._runner = runner

    # --- runs

    def reserve_slot(self, workflow: str) -> bool:
        """Reserve a slot for a run of this workflow; False if there is none, or the workflow does not run here."""
        return workflow in self._registry.runnable() and self._slots.reserve()

    def reserve(self, new: NewRun) -> int:
        """Reserve slots for a run that is about to be created; returns their number, 0 if the run cannot begin here.

        Sets this worker as the owner of the run. The caller must call ``begin`` or end the reservation afterwards.
        """
        if new.queue not in self._claimant.queues or not self.reserve_slot(new.workflow):
            return 0
        new.owner, new.lease_ms = self._claimant.owner, self._claimant.lease_ms
        if new.units:
            new.claim_limit = 1 + self.reserve_units(sum(unit.missing == 0 for unit in new.units) - 1)
        return max(1, new.claim_limit)

    def begin(self, created: Created, slots: int, plan: Sequence[Fact] = ()) -> None:
        """Begin the turns of a run that was created claimed by this worker, or of its claimed units.

        ``slots``: the number of reserved slots to give up. ``plan``: the PLAN facts, if the caller has them.
        """
        self._slots.end_reservation(slots)
        if not self._slots.accepting:
            return  # the worker is stopping and releases all its tasks at the end
        if not created.units and created.run.owner != self._claimant.owner:
            self._hub.work()  # it was created without a claim, or for an id that this worker had before a failover
            return
        page = MailboxPage(created.events, complete=True, last=len(created.events))
        for unit in created.units or (0,):
            if (created.run.run, unit) in self._table:
                continue  # two callers started the same run, and the creation of one of them was cancelled
            task = TaskRef(created.run.run, unit, self._claimant.owner, FIRST_EPOCH if unit else created.epoch)
            claim = Claim(task, TaskKind.RUN, lost=False, run=created.run, mailbox_page=page)
            self._runner.begin(claim, plan=plan)

    def reserve_child(self, new: NewRun) -> int:
        return 0 if new.delay_ms or not new.eager else self.reserve(new)

    def begin_children(self, slots: int, claimed_children: Sequence[Created]) -> None:
        self._slots.end_reservation(slots)
        for created in claimed_children:
            self.begin(created, 0)

    # --- units that an advance makes due

    def reserve_units(self, most: int) -> int:
        """Reserve up to this many slots for units; returns their number."""
        return self._slots.reserve_units(most)

    def begin_units(self, slots: int, tasks: Sequence[TaskRef], more: bool) -> None:
        """End the reservation, and begin the turns of the claimed units. ``more``: other units are due, too."""
        self._slots.end_reservation(slots)
        for task in tasks:
            run_cache = self._run_caches.get(task.run)
            if run_cache is not None:
                claim = Claim(task, TaskKind.RESUME, lost=False, run=run_cache.run, mailbox_page=_UNREAD)
                self._runner.begin(claim)
        if more:
            self._hub.work()
