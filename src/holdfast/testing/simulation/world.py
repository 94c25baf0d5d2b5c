"""The world of a simulation: its processes, and the faults that are injected into them.

A phase with faults is followed by a phase without. In the second phase every run must end within a bound of virtual
time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from holdfast.kernel.step_info import step_info
from holdfast.testing.simulation.clients import Clients
from holdfast.testing.simulation.code import Effect, ExternalSystem
from holdfast.testing.simulation.database import SimulatedDatabase
from holdfast.testing.simulation.faults import TIMED_FAULTS, Faults, Kind
from holdfast.testing.simulation.leased import lease_ms_of
from holdfast.testing.simulation.loop import Process, SimulatedLoop
from holdfast.testing.simulation.node import Node, Shared
from holdfast.testing.simulation.step_infos import CallInfo
from holdfast.testing.simulation.streams import stream
from holdfast.testing.simulation.trace import Trace
from holdfast.testing.simulation.workload import Workload, workload

FAULT_SECONDS = 3.0
BOUND_SECONDS = 90.0
_AFTERMATH_SECONDS = 3.5
"""Time after the phase of faults in which delayed store calls may still arrive and workers may still be stopping."""
_CHECK_SECONDS = 0.5
_SETTLE_CHECKS = 100
_MAX_CLOCK_JUMP = 3600.0


class Stuck(AssertionError):  # noqa: N818  (reads like the assertion it is)
    """A run or a client's script did not end within the bound."""


class World:
    def __init__(
        self, seed: int, loop: SimulatedLoop, trace: Trace, faults: Faults, without: frozenset[str] = frozenset()
    ) -> None:
        draw = stream(seed, "world")
        self.database = SimulatedDatabase(loop, trace)
        self.external = ExternalSystem(self._on_step_call, self._result_seen)
        shared = Shared(seed, loop, self.database, faults, self.external)
        workers = [Node(f"w{n}", shared, self._died, works=True) for n in range(1, draw.randint(2, 4))]
        clients = [Node(f"c{n}", shared, self._died, works=False) for n in range(1, 3)]
        self.nodes = {node.name: node for node in [*workers, *clients]}
        self.workload: Workload = workload(seed, [*self.nodes], FAULT_SECONDS, faults, without)
        self._clients = Clients(self.workload, faults, self._note)
        self._loop = loop
        self._trace = trace
        self._faults = faults
        self.calls: list[tuple[Effect, Process]] = []
        """Calls of steps, each with the process that made it."""
        self.call_infos: list[CallInfo] = []
        """The value of ``step_info()`` in each of these calls."""

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

    def _never_failed(self, operation: str) -> bool:
        return not any(failed == operation for _, failed in self._faults.counts)

    # --- the phases

    async def run(self) -> None:
        self._loop.spawn(self.database.process, self.database.open())
        await asyncio.sleep(0.001)
        for node in self.nodes.values():
            self._boot(node)
        self._plan_faults()
        await asyncio.sleep(FAULT_SECONDS)
        self._end_faults()
        await self._wait_for_ends()
        await self._settle()

    async def _settle(self) -> None:
        """Wait for a moment at which no worker is busy, for example with a claim; give up after some checks."""
        for _ in range(_SETTLE_CHECKS):
            await asyncio.sleep(_CHECK_SECONDS / 10)
            if not any(node.busy for node in self.nodes.values()):
                return

    def end(self) -> None:
        for node in self.nodes.values():
            node.end()
        self.database.close()

    def _end_faults(self) -> None:
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

    async def _resume_paused(self) -> None:
        """Resume paused runs, among them those that the engine parked because of faults."""
        for target in self.database.rows(
            "SELECT workflow, instance_id FROM holdfast_run WHERE status = 'paused' AND current = 1 ORDER BY id"
        ):
            await self.database.call("operator", "resume", target, {})

    def _unfinished(self) -> list[tuple[Any, ...]]:
        return self.database.rows(
            "SELECT r.instance_id, r.number, r.status, t.owner, t.run_at FROM holdfast_run AS r "
            "LEFT JOIN holdfast_task AS t ON t.run = r.id "
            "WHERE t.run IS NOT NULL OR r.completed_at IS NULL ORDER BY r.id, t.unit"
        ) + self.database.rows("SELECT 'outbox', run, n, owner, due_at FROM holdfast_outbox WHERE delivered_at IS NULL")

    # --- processes

    def _boot(self, node: Node) -> None:
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
        process = node.process
        if process is None or not process.alive:
            return
        self._note(node.name, "is stopped in order")
        node.version = version
        process.shut_down = True

        async def shut_down() -> None:
            try:
                async with asyncio.timeout(3):
                    await node.shut_down()
            except TimeoutError:
                self._note(node.name, "does not stop, and is killed")
            node.kill("after it left")

        self._loop.spawn(process, shut_down())

    def _schedule(self, delay: float, call: Callable[..., None], *args: Any) -> None:
        """Call a function after ``delay`` seconds, outside of the simulated processes."""
        self._loop.call_later(delay, call, *args, context=self._loop.main.context())

    # --- faults

    def _plan_faults(self) -> None:
        for kind in TIMED_FAULTS:
            for node in self.nodes.values():
                if node.works == (kind is Kind.CLIENT_CRASH) or (kind is Kind.STALL and node.name != "w1"):
                    continue
                for place, at in self._faults.times(kind, node.name, FAULT_SECONDS):
                    self._schedule(at, self._inject, kind, node, place)

    def _inject(self, kind: Kind, node: Node, place: str) -> None:
        if self._faults.over or not node.alive or not self._faults.happens(kind, "world", place):
            return
        draw = self._faults.draw(f"{kind}.{place}.how")
        lease = node.config.lease_ms / 1000
        process = node.process
        match kind:
            case Kind.CRASH | Kind.CLIENT_CRASH:
                node.kill("at once")
            case Kind.STOP if process is not None:
                self._stop(process, draw.uniform(0.5, 3) * lease)
            case Kind.RESTART | Kind.DEPLOY:
                self._restart(node, 2 if kind is Kind.DEPLOY else node.version)
            case Kind.PARTITION:
                self._partition(node, draw.uniform(0.5, 3) * lease)
            case Kind.STALL:
                self._stop(self.database.process, draw.uniform(0.05, 1.5) * lease)
            case Kind.CLOCK_JUMP:
                node.clock.error = timedelta(seconds=draw.uniform(-_MAX_CLOCK_JUMP, _MAX_CLOCK_JUMP))
                self._note(node.name, f"its clock is now wrong by {node.clock.error.total_seconds():.3f} s")
            case _:
                raise ValueError(f"{kind} is not a fault of a process")

    def _stop(self, process: Any, seconds: float) -> None:
        self._note(process.name, f"stands still for {seconds:.3f} s")
        process.stopped = True

        def proceed() -> None:
            process.stopped = False

        self._schedule(seconds, proceed)

    def _partition(self, node: Node, seconds: float) -> None:
        self._note(node.name, f"cannot reach the store for {seconds:.3f} s")
        store = node.store
        if store is None:
            return
        store.unreachable = True

        def reconnect() -> None:
            store.unreachable = False

        self._schedule(seconds, reconnect)

    def _on_step_call(self, effect: Effect, kind: str) -> float:
        """Record a call of a step and inject its faults: return its delay in seconds, or kill the calling worker."""
        place = f"{effect[0]}.{effect[1]}.{effect[2]}#{self.external.effects[effect]}"
        if kind == "delivery":
            return float(self._faults.at([Kind.DELIVERY_FAILS], "delivery", place) is not None)
        self._note("a step", f"is called: {place}")
        running = self._loop.running
        if kind == "leased":
            self._watch_lease(effect)
        if running is not None:
            self.calls.append((effect, running))
            self.call_infos.append(CallInfo.of(step_info(), running))
        if kind == "poison" and self._faults.at([Kind.POISON], "step", place):
            self._kill_running(f"by the step {place}")
        if kind != "plain" and self._faults.at([Kind.SLOW_STEP], "step", f"slow.{place}"):
            return 0.3
        return 0.0

    def _result_seen(self, effect: Effect, stamp: int) -> None:
        """Record that workflow code on the running node received this result."""
        instance, number, key = effect
        for task in (node.task_of(instance, number) for node in self._running_nodes()):
            if task is not None:
                self.database.results.result_seen(task, key, stamp)

    def _watch_lease(self, effect: Effect) -> None:
        """Watch the lease of a chain step, which may have its own, when the running node calls the step."""
        safe = self._loop.time() > FAULT_SECONDS + _AFTERMATH_SECONDS
        for node in self._running_nodes():
            if node.opened is not None and node.opened.worker is not None:
                lease_ms = lease_ms_of(effect[2]) or node.config.lease_ms
                self.database.watch_lease(node.opened.worker.id, effect, lease_ms, safe=safe)

    def _kill_running(self, how: str) -> None:
        for node in self._running_nodes():
            node.kill(how)

    def _running_nodes(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.process is self._loop.running]

    def _note(self, who: str, what: str) -> None:
        self._trace.add(self._loop.time(), who, what)
