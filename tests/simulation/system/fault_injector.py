"""Injects faults into processes at the times that the seed determines."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

from holdfast.testing.simulation.faults import Faults
from holdfast.testing.simulation.loop import Process
from simulation.system.faults import TIMED_FAULTS, Fault
from simulation.system.node import Node

_MAX_CLOCK_JUMP = 3600.0
_STALLED_BY = "w1"
"""The node whose faults stall the database. The others have none of this kind, because there is one database."""


class FaultInjector:
    """``restart`` shuts a node down and boots it with a version of the code. ``schedule`` calls a function later."""

    def __init__(
        self,
        faults: Faults,
        database: Process,
        *,
        restart: Callable[[Node, int], None],
        schedule: Callable[..., None],
        note: Callable[[str, str], None],
    ) -> None:
        self._faults = faults
        self._database = database
        self._restart = restart
        self._schedule = schedule
        self._note = note

    def plan(self, nodes: Iterable[Node], span: float) -> None:
        """Schedule the faults of the next ``span`` seconds."""
        nodes = list(nodes)
        for kind in TIMED_FAULTS:
            for node in nodes:
                if node.works == (kind is Fault.CLIENT_CRASH) or (kind is Fault.STALL and node.name != _STALLED_BY):
                    continue
                for place, at in self._faults.times(kind, node.name, span):
                    self._schedule(at, self._inject, kind, node, place)

    def _inject(self, kind: Fault, node: Node, place: str) -> None:
        if self._faults.over or not node.alive or not self._faults.happens(kind, "world", place):
            return
        draw = self._faults.draw(f"{kind}.{place}.how")
        lease = node.config.lease_ms / 1000
        process = node.process
        match kind:
            case Fault.CRASH | Fault.CLIENT_CRASH:
                node.kill("at once")
            case Fault.STOP if process is not None:
                self._stop(process, draw.uniform(0.5, 3) * lease)
            case Fault.RESTART | Fault.DEPLOY:
                self._restart(node, 2 if kind is Fault.DEPLOY else node.version)
            case Fault.PARTITION:
                self._partition(node, draw.uniform(0.5, 3) * lease)
            case Fault.STALL:
                self._stop(self._database, draw.uniform(0.05, 1.5) * lease)
            case Fault.CLOCK_JUMP:
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
