"""Loading: a machine for a claimed run, from the facts in the store."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.kernel.definition import Definition
from holdfast.kernel.driver import Driver, Machine
from holdfast.runner.turn_context import TurnContext
from holdfast.runner.turn_writer import TurnWriter
from holdfast.store.protocol import Claim, Fact, RunsById, Snapshot, SnapshotQuery


class MachineLoader:
    """Opens the machines of one turn."""

    def __init__(
        self,
        context: TurnContext,
        claim: Claim,
        definition: Definition,
        plan: Sequence[Fact],
        writer: TurnWriter,
        *,
        is_new: bool,
        cached: bool,
    ) -> None:
        """``plan``: the PLAN facts of a new run, if the caller has them. ``is_new``: no turn has recorded anything.

        ``cached``: the turn begins with a machine.
        """
        if definition.driver is None:
            raise RuntimeError(f"{definition.name} cannot be run here")
        self._context = context
        self._claim = claim
        self._driver: Driver = definition.driver
        self._plan = plan
        self._has_plan = definition.blueprint is not None
        self._is_new = is_new
        self._writer = writer
        self._loaded = cached
        self._claimed_at = context.ports.now_ms() if claim.at is None else claim.at

    async def load(self) -> Machine:
        context, run = self._context, self._claim.run
        new = self._is_new and not self._loaded
        snapshot: Snapshot | None = None
        if new and self._plan:
            snapshot = Snapshot(self._plan, {}, 0)
        elif not new or self._has_plan:
            store = context.store
            snapshot = await context.call_store(run, lambda: store.read(SnapshotQuery(run.run)))
            if self._loaded:  # the first time, the record of the claim is as new as the snapshot
                [run] = await context.call_store(run, lambda: store.read(RunsById([run.run])))
            if context.ports.now_ms() >= self._claimed_at + context.lease_ms // 2:
                self._writer.check_fence()  # the read took so long that another worker may own the task by now
        self._loaded = True
        return self._driver.open(run, snapshot, context.ports.requests, strict=context.strict)
