"""The world of a simulation: its processes, from the first boot to the end.

A phase with faults is followed by a phase without. In the second phase every run must end within a bound of virtual
time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from holdfast.store.protocol import ResumeRun
from holdfast.testing.simulation.faults import Faults
from holdfast.testing.simulation.loop import SimulatedLoop
from holdfast.testing.simulation.streams import chance, stream
from holdfast.testing.simulation.trace import Trace
from simulation.checks.bulk_actions import WatchedAction
from simulation.checks.database import WatchedDatabase
from simulation.features.pairs import Pair, met_pairs
from simulation.features.table import REQUESTS
from simulation.payloads import with_payloads
from simulation.programs.external_system import ExternalSystem
from simulation.system.clients import Clients
from simulation.system.database_move import move_database
from simulation.system.fault_injector import FaultInjector
from simulation.system.faults import Fault
from simulation.system.node import Node, Shared
from simulation.system.step_observer import StepObserver
from simulation.system.workload import Workload, workload

FAULT_SECONDS = 3.0
BOUND_SECONDS = 180.0
"""Time in which all runs end without faults: up to seven queued ticks follow each other, of up to 20 s each."""
_AFTERMATH_SECONDS = 3.5
"""Time after the phase of faults in which delayed store calls may still arrive and workers may still be stopping."""
_CHECK_SECONDS = 0.5
_SETTLE_CHECKS = 100
_SHUTDOWN_SECONDS = 3
_MOVED = 0.15
"""Part of the seeds in which the database is moved."""


class Stuck(AssertionError):
    """A run or a client's script did not end within the bound."""


class World:
    def __init__(
        self, seed: int, loop: SimulatedLoop, trace: Trace, faults: Faults, without: frozenset[str] = frozenset()
    ) -> None:
        draw = stream(seed, "world")
        self._loop = loop
        self._trace = trace
        self._faults = faults
        self._seed = seed
        self._moving = False
        """True while the database is moved: no process may run."""
        self.nodes: dict[str, Node] = {}
        self.database = WatchedDatabase(loop, trace)
        safe_from = FAULT_SECONDS + _AFTERMATH_SECONDS
        self.steps = StepObserver(loop, self.database, faults, self.nodes, self._note, safe_from)
        self.external = ExternalSystem(self.steps.on_call, self.steps.result_seen)
        self.external.common = ("codec_and_blobs",) if with_payloads(seed) else ()
        shared = Shared(seed, loop, self.database, faults, self.external)
        workers = [Node(f"w{n}", shared, self._died, works=True) for n in range(1, draw.randint(2, 4))]
        clients = [Node(f"c{n}", shared, self._died, works=False) for n in range(1, 3)]
        self.nodes.update((node.name, node) for node in [*workers, *clients])
        self.database.version_of = self._version_of
        self.workload: Workload = workload(seed, [*self.nodes], FAULT_SECONDS, faults, without)
        for node in self.nodes.values():
            node.runs_bulk_jobs = bool(self.workload.bulk_actions)
        self.database.bulk.acted = self._bulk_acted
        self._clients = Clients(self.workload, faults, self._note, self.database.repairs.is_removed)
        self._injector = FaultInjector(
            faults, self.database.process, restart=self._restart, schedule=self._schedule, note=self._note
        )

    def _version_of(self, worker: str) -> str | None:
        return next((node.config.version for node in self.nodes.values() if worker in node.workers), None)

    @property
    def deployed(self) -> bool:
        """True if a process had the second version of the code."""
        return any(node.version > 1 for node in self.nodes.values())

    @property
    def progress_kept(self) -> bool:
        """True if no call that stores heartbeats failed."""
        return self._never_failed("record_heartbeats")

    @property
    def late_results_kept(self) -> bool:
        """True if no call that adds late results failed."""
        return self._never_failed("add_late_results")

    @property
    def living_workers(self) -> frozenset[str]:
        """The ids of the workers that are alive."""
        apps = [node.opened for node in self.nodes.values() if node.alive and node.opened is not None]
        return frozenset(app.worker.id for app in apps if app.worker is not None)

    def met_pairs(self) -> set[Pair]:
        """The pairs of features that met."""
        for instance in self.workload.instances.values():
            self.external.reached(instance.id, *instance.acknowledged_requests)
            if instance.scheduled:
                self.external.reached(instance.id, "schedule")
        return met_pairs(self.external.features, self.database.repairs.runs)

    def _never_failed(self, operation: str) -> bool:
        return not any(failed == operation for _, failed in self._faults.counts)

    # --- the phases

    async def run(self) -> None:
        self._loop.spawn(self.database.process, self.database.open())
        await asyncio.sleep(0.001)
        if self.workload.schedules:
            self.database.ticks.schedules = {schedule.name: schedule for schedule in self.workload.schedules}
            changes = [schedule.stored() for schedule in self.workload.schedules]
            await self.database.call("operator", "change_schedules", (changes,), {})
        for node in self.nodes.values():
            self._boot(node)
        self._injector.plan(self.nodes.values(), FAULT_SECONDS)
        await asyncio.sleep(FAULT_SECONDS)
        self._end_faults()
        if chance(self._seed, "database_move") < _MOVED:
            await self._move_database()
        await self._wait_for_ends()
        await self._settle()

    def end(self) -> None:
        """Release the memory of all processes."""
        for node in self.nodes.values():
            node.end()
        self.database.close()

    def _end_faults(self) -> None:
        """End the faults that are active, and give all workers the newest version of the code."""
        self._note("the world", "no more faults")
        self._faults.over = True
        self.database.process.stopped = False
        newest = max(node.version for node in self.nodes.values())
        for node in self.nodes.values():
            if node.process is not None:
                node.process.stopped = False
            if node.store is not None:
                node.store.unreachable = False
            if node.version != newest and node.works:
                self._restart(node, newest)
                node.version = newest

    async def _move_database(self) -> None:
        """Stop all processes, move the database once all leases have expired, and boot the processes again."""
        self._moving = True
        for node in self.nodes.values():
            node.kill("for a move of the database")
        draw = stream(self._seed, "database_move")
        while await self._loop.spawn(self.database.process, move_database(self.database, draw)) is not None:
            await asyncio.sleep(_CHECK_SECONDS)
        self._note("the world", "the database is moved")
        for instance in {row[0] for row in self._open_runs()} & self.workload.instances.keys():
            self.external.reached(instance, "database_move")
        self._moving = False
        for node in self.nodes.values():
            self._boot(node)

    async def _wait_for_ends(self) -> None:
        deadline = self._loop.time() + BOUND_SECONDS
        while True:
            await asyncio.sleep(_CHECK_SECONDS)
            await self._resume_paused()
            if all(script.finished for script in self.workload.scripts) and not self._unfinished():
                return
            if self._loop.time() > deadline:
                waiting = [f"{s.instance}: {s.requests[s.done].verb}" for s in self.workload.scripts if not s.finished]
                raise Stuck(f"after {BOUND_SECONDS:g} s without faults: {self._unfinished()}, requests {waiting}")

    async def _settle(self) -> None:
        """Wait for a moment at which no worker is busy, for example with a claim; give up after some checks."""
        for _ in range(_SETTLE_CHECKS):
            await asyncio.sleep(_CHECK_SECONDS / 10)
            if not any(node.busy for node in self.nodes.values()):
                return

    async def _resume_paused(self) -> None:
        """Resume paused runs, among them those that the engine parked because of faults."""
        for target in self.database.rows(
            "SELECT workflow, instance_id FROM holdfast_run WHERE status = 'paused' AND current = 1 ORDER BY id"
        ):
            await self.database.call("operator", "control", (ResumeRun(*target),), {})

    def _unfinished(self) -> list[tuple[Any, ...]]:
        """Return the runs, outbound events, schedules and bulk jobs that have not ended."""
        jobs = self.database.rows("SELECT 'bulk', id, position, owner FROM holdfast_bulk WHERE ended_at IS NULL")
        return [*self._open_runs(), *self._unfinished_schedules(), *jobs]

    def _unfinished_schedules(self) -> list[tuple[Any, ...]]:
        return self.database.rows(
            "SELECT 'schedule', name, next_tick, due_at, seq FROM holdfast_schedule WHERE due_at IS NOT NULL"
        )

    def _open_runs(self) -> list[tuple[Any, ...]]:
        return self.database.rows(
            "SELECT r.instance_id, r.number, r.status, t.owner, t.run_at FROM holdfast_run AS r "
            "LEFT JOIN holdfast_task AS t ON t.run = r.id "
            "WHERE t.run IS NOT NULL OR r.completed_at IS NULL ORDER BY r.id, t.unit"
        ) + self.database.rows("SELECT 'outbox', run, n, owner, due_at FROM holdfast_outbox WHERE delivered_at IS NULL")

    def _bulk_acted(self, caller: str, action: WatchedAction, name: str, accepted: bool) -> None:
        """Note a request of a bulk action on an instance; with a fault, the process that sent it dies."""
        self.external.reached(name, "bulk")
        instance = self.workload.instances.get(name)
        if instance is not None and action.action in REQUESTS:
            instance.control_requests.add(action.action)
        place = f"{caller}.{action.reason}.{name}"
        if accepted and self._faults.at([Fault.BULK_CRASH], action.action, place):
            for node in self.nodes.values():
                if caller == f"{node.name}.{node.lives}":
                    node.kill(f"after {action} had acted on {name}")

    # --- processes

    def _boot(self, node: Node) -> None:
        if self._moving or node.alive:
            return
        process = node.boot()
        self._note(node.name, f"boots, with code version {node.version}" if node.works else "boots")
        for script in self.workload.scripts:
            if script.node == node.name and not script.finished:
                self._loop.spawn(process, self._clients.follow(script, node))

    def _died(self, node: Node, how: str) -> None:
        self._note(node.name, f"dies {how}")
        delay = self._faults.draw(f"again.{node.name}.{node.lives}").uniform(0.02, 1.0)
        self._schedule(delay, self._boot, node)

    def _restart(self, node: Node, version: int) -> None:
        """Shut a node down in an orderly way. It boots again with this version of the code."""
        process = node.process
        if process is None or not process.alive:
            return
        self._note(node.name, "is stopped in order")
        node.version = version
        process.shut_down = True

        async def shut_down() -> None:
            try:
                async with asyncio.timeout(_SHUTDOWN_SECONDS):
                    await node.shut_down()
            except TimeoutError:
                self._note(node.name, "does not stop, and is killed")
            node.kill("after it left")

        self._loop.spawn(process, shut_down())

    def _schedule(self, delay: float, call: Callable[..., None], *args: Any) -> None:
        """Call a function after ``delay`` seconds, outside of the simulated processes."""
        self._loop.call_later(delay, call, *args, context=self._loop.main.context())

    def _note(self, process: str, text: str) -> None:
        """Add an entry to the trace."""
        self._trace.add(self._loop.time(), process, text)
