"""Records the calls of steps, and injects the faults of steps."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Mapping

from holdfast.kernel.step_info import step_info
from holdfast.runner.turn import Turn
from holdfast.store.protocol import TaskRef
from holdfast.testing.simulation.faults import Faults
from holdfast.testing.simulation.loop import Process, SimulatedLoop
from simulation.checks.database import WatchedDatabase
from simulation.checks.step_infos import CallInfo
from simulation.programs.external_system import Effect
from simulation.programs.step_leases import lease_ms_of
from simulation.system.faults import Fault
from simulation.system.node import Node

_SLOW_SECONDS = 0.3


class StepObserver:
    """Observes and disturbs calls of steps. ``nodes``: the processes by name.

    From the time ``safe_from`` on, no fault can take a lease from a worker.
    """

    def __init__(
        self,
        loop: SimulatedLoop,
        database: WatchedDatabase,
        faults: Faults,
        nodes: Mapping[str, Node],
        note: Callable[[str, str], None],
        safe_from: float,
    ) -> None:
        self.calls: list[tuple[Effect, Process]] = []
        """Calls of steps, each with the process that made it."""
        self.infos: list[CallInfo] = []
        """The value of ``step_info()`` in each of these calls."""
        self._loop = loop
        self._database = database
        self._faults = faults
        self._nodes = nodes
        self._note = note
        self._safe_from = safe_from

    def on_call(self, effect: Effect, number: int, kind: str) -> float:
        """Record a call of a step; return its delay in seconds, or kill the calling worker.

        For the delivery of an outbound event, return 1.0 if it fails.
        """
        place = f"{effect[0]}.{effect[1]}.{effect[2]}#{number}"
        if kind == "delivery":
            return float(self._faults.at([Fault.DELIVERY_FAILS], "delivery", place) is not None)
        self._note("a step", f"is called: {place}")
        running = self._loop.running
        if kind == "leased":
            self._watch_lease(effect)
        if running is not None:
            self.calls.append((effect, running))
            self.infos.append(CallInfo.of(step_info(), running))
        if kind == "poison" and self._faults.at([Fault.POISON], "step", place):
            for node in self._running_nodes():
                node.kill(f"by the step {place}")
        if kind != "plain" and self._faults.at([Fault.SLOW_STEP], "step", f"slow.{place}"):
            return _SLOW_SECONDS
        return 0.0

    def result_seen(self, effect: Effect, stamp: int) -> None:
        """Record that workflow code received a result."""
        instance, number, key = effect
        task = self._executing_claim(instance, number)
        if task is not None:
            self._database.results.result_seen(task, key, stamp)

    def _executing_claim(self, instance: str, number: int) -> TaskRef | None:
        """The claim under which the code of this run is being executed; None: a predicted turn executes it.

        The turn is not looked up in the worker's table: if the lease has expired and the same worker has claimed the
        run again, the table has the turn of the new claim, and the turn of the old claim may still execute code.
        """
        current = asyncio.current_task(self._loop)
        coroutine = None if current is None else current.get_coro()
        turn = inspect.getcoroutinelocals(coroutine).get("turn") if isinstance(coroutine, Coroutine) else None
        if not isinstance(turn, Turn):
            return None
        run = turn.claim.run
        return turn.task if (run.instance_id, run.number) == (instance, number) else None

    def _watch_lease(self, effect: Effect) -> None:
        """Watch the lease of a chain step that the running node calls."""
        safe = self._loop.time() > self._safe_from
        for node in self._running_nodes():
            if node.opened is not None and node.opened.worker is not None:
                lease_ms = lease_ms_of(effect[2]) or node.config.lease_ms
                self._database.watch_lease(node.opened.worker.id, effect, lease_ms, safe=safe)

    def _running_nodes(self) -> list[Node]:
        return [node for node in self._nodes.values() if node.process is self._loop.running]
