"""The processes of one schedule: two workers and a client, with the programs and checks of the simulation."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from holdfast.kernel.definition import Registry
from holdfast.runner.config import WorkerConfig
from holdfast.testing.simulation.faults import Faults
from holdfast.testing.simulation.node_store import NodeStore
from holdfast.testing.simulation.trace import Trace
from simulation.checks.database import WatchedDatabase
from simulation.explore.calls import CallTable, ExploredStore
from simulation.explore.loop import ExploredLoop
from simulation.explore.scenarios import LEASE_MS, Scenario
from simulation.programs.external_system import ExternalSystem
from simulation.system.clients import Clients
from simulation.system.node import Node, Shared
from simulation.system.step_observer import StepObserver
from simulation.system.workload import Instance, Request, Script, Workload
from simulation.system.world import World

WORKERS = ("w1", "w2")
_NODES = (*WORKERS, "c1")
_POLL_SECONDS = 1000
"""Longer than a schedule: workers are notified of every write."""


class ExploredNode(Node):
    def __init__(
        self, name: str, shared: Shared, died: Callable[[Node, str], None], table: CallTable, scenario: Scenario
    ) -> None:
        self._table = table
        self._scenario = scenario
        super().__init__(name, shared, died, works=name in WORKERS)

    def _settings(self) -> WorkerConfig:
        return WorkerConfig(
            lease=LEASE_MS / 1000,
            poll=_POLL_SECONDS,
            drain=0.5,
            concurrency=self._scenario.concurrency,
            cache=10 if self._scenario.cached else 0,
        )

    def _new_store(self, life: str) -> NodeStore:
        store = ExploredStore(
            life,
            self._shared.database,
            self._estimate,
            self._shared.faults,
            kill=partial(self.kill, process=self.process),
            max_delay=0,
            max_wait=_POLL_SECONDS,
        )
        if self.process is None:
            raise RuntimeError(f"{self.name} has not booted")
        store.table, store.process = self._table, self.process
        return store


class ExploredWorld(World):
    """The world of one schedule. A worker that dies does not boot again: the other worker takes over."""

    def __init__(self, scenario: Scenario, loop: ExploredLoop, trace: Trace, code: SharedCode) -> None:
        self._loop = loop
        self._trace = trace
        self._faults = Faults(0)
        self.table = CallTable()
        self.nodes = {}
        self.database = WatchedDatabase(loop, trace)
        self.steps = StepObserver(loop, self.database, self._faults, self.nodes, self._note, float("inf"))
        self.external = code.external
        self.external.reset(self.steps.on_call, self.steps.result_seen)
        shared = Shared(0, loop, self.database, self._faults, self.external, code.registries)
        code.prepare(shared)
        for name in _NODES:
            self.nodes[name] = ExploredNode(name, shared, self._died, self.table, scenario)
        self.workload = _workload(scenario)
        self._clients = Clients(self.workload, self._faults, self._note, self.database.repairs.is_removed)

    @property
    def unfinished(self) -> list[tuple[Any, ...]]:
        """Runs that have not ended."""
        return self._unfinished()

    def note_fault(self, kind: str, operation: str) -> None:
        """Count a fault, for checks that hold only if an operation never failed."""
        self._faults.counts[kind, operation] += 1

    def follow(self, script: Script) -> None:
        """Let a node execute a script."""
        node = self.nodes[script.node]
        if node.process is not None and node.alive:
            self._loop.spawn(node.process, self._clients.follow(script, node))

    def _died(self, node: Node, how: str) -> None:
        """A request that the dead process was executing is not repeated."""
        self._note(node.name, f"dies {how}")
        for script in self.workload.scripts:
            if script.node == node.name:
                script.done = len(script.requests)


class SharedCode:
    """The registered programs, which all schedules share: to register them takes longer than a schedule."""

    def __init__(self) -> None:
        self.external = ExternalSystem(lambda *_: 0.0, lambda *_: None)
        self.registries: dict[int, Registry] = {}

    def prepare(self, shared: Shared) -> None:
        """Register the programs, without the outbox: its loop would only add calls that find nothing."""
        if not self.registries:
            shared.code(1).outbox = None


def _workload(scenario: Scenario) -> Workload:
    instance = Instance("i1", scenario.workflow, scenario.program, scenario.sent)
    scripts = [Script("i1", scenario.started_by, [Request(0, "start")])]
    for request in scenario.requests:
        requests = [Request(0, request.verb, request.type, request.payload)]
        if request.verb == "pause":
            requests.append(Request(0, "resume"))
        scripts.append(Script(request.instance, request.node, requests))
    return Workload({"i1": instance}, scripts)
