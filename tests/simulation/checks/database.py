"""The simulated database with the watches that know the programs of the engine's simulation."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from holdfast.store.protocol import TaskRef
from holdfast.testing.simulation.database import SimulatedDatabase
from holdfast.testing.simulation.loop import SimulatedLoop
from holdfast.testing.simulation.trace import Trace
from simulation.checks.buffered_results import ResultWatch
from simulation.checks.bulk_actions import BulkWatch, create_bulk_triggers
from simulation.checks.lease_watch import LeaseWatch
from simulation.checks.repairs import RepairWatch, create_removal_triggers
from simulation.checks.schedules import ScheduleWatch
from simulation.payloads import opened_value
from simulation.programs.external_system import CREATE_EFFECT_TABLE, Effect


class WatchedDatabase(SimulatedDatabase):
    def __init__(self, loop: SimulatedLoop, trace: Trace) -> None:
        super().__init__(loop, trace)
        self.results = ResultWatch(self.rows)
        self._leases = LeaseWatch()
        self.repairs = RepairWatch(self.rows)
        self.ticks = ScheduleWatch(self.rows, self._now_ms)
        self.bulk = BulkWatch(self.rows, self._now_ms)
        self.watches += [self.results, self._leases, self.repairs, self.ticks, self.bulk]
        self.version_of: Callable[[str], str | None] = lambda owner: None
        """The version of a worker."""

    def rows(self, sql: str, *args: Any) -> list[tuple[Any, ...]]:
        """Query the current rows, with their values as the engine sees them."""
        found = super().rows(sql, *args)
        return [tuple(opened_value(self.connection, value) for value in row) for row in found]

    async def open(self) -> None:
        await super().open()
        self.connection.execute(CREATE_EFFECT_TABLE)
        opened = partial(opened_value, self.connection)
        self.connection.create_scalar_function("opened", opened, 1, deterministic=False)
        create_removal_triggers(
            self.connection, self.repairs, violate=self.violate, pruning=lambda: self.deleting == "maintain"
        )
        create_bulk_triggers(self.connection, self.bulk)
        self._report_granted_leases()
        self._report_terminations()
        self._report_claims_of_other_versions()

    async def _execute_checked(
        self, caller: str, operation: str, args: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        answer = await super()._execute_checked(caller, operation, args, options)
        self.bulk.executed(caller, operation, args, answer)
        return answer

    def watch_lease(self, owner: str, effect: Effect, lease_ms: int, *, safe: bool) -> None:
        """Watch the lease of a chain step that a worker calls, if the worker still owns the run.

        ``safe``: no fault is active, so the worker renews the lease until the step ends.
        """
        instance, number, step = effect
        for row in self.rows(
            "SELECT t.run, t.unit, t.owner, t.epoch FROM holdfast_task AS t JOIN holdfast_run AS r ON r.id = t.run "
            "WHERE r.instance_id = ? AND r.number = ? AND t.owner = ?",
            instance,
            number,
            owner,
        ):
            for violation in self._leases.called(TaskRef(*row), step, lease_ms, safe=safe):
                self.violate(violation, owner)

    def _report_granted_leases(self) -> None:
        """Let triggers report each granted lease to the lease watch."""

        def granted(run: int, unit: int, owner: str, epoch: int, ms: int) -> None:
            for violation in self._leases.granted(TaskRef(run, unit, owner, epoch), ms):
                self.violate(violation)

        self.connection.create_scalar_function("granted", granted, deterministic=False)
        for event in ("INSERT", "UPDATE OF lease_until"):
            self.connection.execute(
                f"CREATE TEMP TRIGGER granted_by_{event[:6]} AFTER {event} ON holdfast_task "
                "WHEN new.lease_until IS NOT NULL BEGIN SELECT granted(new.run, new.unit, new.owner, new.epoch, "
                "new.lease_until - simulated_now()); END"
            )

    def _report_claims_of_other_versions(self) -> None:
        """Let a trigger report each claim of a pinned run by a worker of another version.

        Any worker may end an expired run, and the run of a graph whose nodes are done: neither runs user code.
        """

        def claimed(run: int, owner: str, version: str) -> None:
            if self.version_of(owner) != version:
                self.violate(f"run {run}, pinned to {version}, was claimed by a worker of another version", owner)

        self.connection.create_scalar_function("claimed", claimed, deterministic=False)
        self.connection.execute(
            "CREATE TEMP TRIGGER claimed AFTER UPDATE OF owner ON holdfast_task WHEN new.owner IS NOT NULL "
            "AND new.owner IS NOT old.owner AND ifnull(old.expires_at, simulated_now() + 1) > simulated_now() "
            "BEGIN SELECT claimed(id, new.owner, version) FROM holdfast_run "
            "WHERE id = new.run AND pinned = 1 AND NOT (kind = 'graph' AND new.unit = 0); END"
        )

    def _report_terminations(self) -> None:
        """Let a trigger report each claim that a termination ends to the result watch."""
        self.connection.create_scalar_function("terminated", self.results.terminated, deterministic=False)
        self.connection.execute(
            "CREATE TEMP TRIGGER terminated AFTER UPDATE OF status ON holdfast_run WHEN new.status = 'terminated' "
            "BEGIN SELECT terminated(run, owner, epoch) FROM holdfast_task "
            "WHERE run = new.id AND unit = 0 AND owner IS NOT NULL; END"
        )
