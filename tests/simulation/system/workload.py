"""The workload of a simulation: instances, and the requests of clients about them."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

from holdfast.testing.simulation.faults import Faults
from holdfast.testing.simulation.streams import stream
from simulation.features.feature import PartMaker
from simulation.features.parts import INSTANCES, nodes_with_runs
from simulation.features.table import REQUESTS
from simulation.programs import names
from simulation.programs.chain_and_graph import chain_params, graph_params
from simulation.programs.failing_items import draw_items
from simulation.programs.generator import ProgramGenerator
from simulation.programs.graph_of_runs import child_program
from simulation.programs.names import BUFFERED_PROGRAM, GRAPH_OF_RUNS, PROGRAM, PROGRAMS
from simulation.programs.program import INVALID_PARCELS, PARCEL, Program, parcel
from simulation.programs.step_leases import chain_with_leases_params
from simulation.system.faults import request_kind

_MODELS = {
    PROGRAM: 70,
    names.CHAIN: 8,
    names.CHAIN_WITH_LEASES: 6,
    names.GRAPH: 4,
    names.GRAPH_OF_RUNS: 6,
    names.GRAPH_WITH_FAILING_ITEMS: 6,
}
"""Weights of the models of instances that clients start."""
_FOLLOW_UP_SECONDS = 0.3


@dataclass(slots=True)
class Request:
    """A request of a client, which repeats it until it is answered."""

    after: float
    """Delay in seconds after the previous request of the script, or after the start of the simulation."""
    verb: str
    type: str = ""
    payload: Any = None


@dataclass(slots=True)
class Script:
    """A sequence of requests about one instance. It survives the process that executes it."""

    instance: str
    node: str
    requests: list[Request]
    done: int = 0
    """The number of requests that were answered."""

    @property
    def finished(self) -> bool:
        return self.done == len(self.requests)


@dataclass(slots=True)
class Instance:
    """An instance as clients know it."""

    id: str
    workflow: str
    params: Any
    """The parameters; for a workflow that runs programs: its rounds."""
    sent: frozenset[str]
    """Types of the events that clients send it."""
    started: bool = False
    """True if its start was acknowledged."""
    control_requests: set[str] = field(default_factory=set)
    """Names of the features whose control requests were sent to it, acknowledged or not."""
    acknowledged_requests: set[str] = field(default_factory=set)
    """Names of the features whose control requests were acknowledged."""
    acknowledged: set[str] = field(default_factory=set)
    """The ids of acknowledged events."""
    accepted_invalid: list[Any] = field(default_factory=list)
    """Payloads that do not fit their declared type and were acknowledged."""
    results: list[Any] = field(default_factory=list)
    """Results of the instance that clients received."""

    @property
    def begins_again(self) -> bool:
        """True if the code of the instance may have run again from its beginning."""
        return any(REQUESTS[name].begins_again for name in self.control_requests)

    @property
    def programs(self) -> list[Program]:
        """The programs that the instance, or a child of its graph, runs."""
        if self.workflow in PROGRAMS:
            return list(self.params)
        return [child_program(self.params)] if self.workflow == GRAPH_OF_RUNS else []


@dataclass(slots=True)
class Workload:
    instances: dict[str, Instance]
    scripts: list[Script]


def workload(seed: int, nodes: list[str], span: float, faults: Faults, without: frozenset[str]) -> Workload:
    """Generate the workload of a seed. ``without``: instances that are left out, to shrink a failure."""
    draw = stream(seed, "workload")
    planned = Workload({}, [])
    for n in range(1, draw.randint(2, INSTANCES + 1)):
        name = f"i{n}"
        if name not in without:
            _Planner(planned, name, stream(seed, f"instance.{n}"), nodes, span).plan(faults)
    for instance in planned.instances:
        _move_senders(planned, instance, stream(seed, f"senders.{instance}"))
    return planned


class _Planner:
    """Adds one instance and its scripts to a workload."""

    def __init__(self, planned: Workload, name: str, draw: Random, nodes: list[str], span: float) -> None:
        self._workload = planned
        self._name = name
        self._draw = draw
        self._nodes = nodes
        self._span = span
        self._begin = draw.uniform(0, span / 3)

    def plan(self, faults: Faults) -> None:
        """Choose the workflow of the instance, its parameters and the requests."""
        model = self._draw.choices([*_MODELS], [*_MODELS.values()])[0]
        if model == PROGRAM:
            self._plan_program(ProgramGenerator(faults.seed, self._name))
        else:
            self._plan_other(model, faults.seed)
        for name, request in REQUESTS.items():
            for place, at in faults.times(request_kind(name), self._name, self._span):
                if faults.happens(request_kind(name), "client", place):
                    follow_up = [] if request.then is None else [Request(_FOLLOW_UP_SECONDS, request.then)]
                    self._script(Request(at, name), *follow_up)

    def _plan_program(self, generator: ProgramGenerator) -> None:
        rounds = generator.rounds()
        self._add(BUFFERED_PROGRAM if generator.buffered else PROGRAM, rounds, _waits(rounds))
        kinds = {part[0] for program in rounds for part in program[1]}
        if "messages" in kinds:
            self._send_messages()
        if "parcels" in kinds:
            self._send_parcels()

    def _plan_other(self, model: str, seed: int) -> None:
        draw, name = self._draw, self._name
        match model:
            case names.CHAIN:
                params = chain_params(draw)
                self._add(model, params, [(type_, type_) for kind, type_, _ in params if kind == "wait"])
            case names.CHAIN_WITH_LEASES:
                self._add(model, chain_with_leases_params(draw), [])
            case names.GRAPH:
                self._add(model, graph_params(draw, name), [])
            case names.GRAPH_WITH_FAILING_ITEMS:
                self._add(model, [name, *draw_items(draw)], [])
            case _:
                maker = PartMaker(draw, ProgramGenerator(seed, f"{name}.node").nested)
                self._add(model, [name, *nodes_with_runs(maker)[2:]], [])

    def _add(self, workflow: str, params: Any, waits: list[tuple[str, str]]) -> None:
        """Add the instance. ``waits``: event types that it waits for, each with the payload to send."""
        sent = [wait for wait in waits if self._draw.random() < 0.8]
        types = frozenset(type_ for type_, _ in sent)
        self._workload.instances[self._name] = Instance(self._name, workflow, params, types)
        self._script(Request(self._begin, "start"), Request(0, "result"))
        for type_, payload in sent:
            self._script(Request(self._begin + self._draw.uniform(0, 1.5), "event", type_, payload))

    def _send_messages(self) -> None:
        draw = self._draw
        requests = [Request(draw.uniform(0, 0.5), "message", "topic", n) for n in range(1, draw.randint(2, 6))]
        requests[0].after += self._begin
        self._script(*requests)

    def _send_parcels(self) -> None:
        """Send numbered parcels, with invalid parcels among them."""
        draw = self._draw
        requests = []
        for n in range(1, draw.randint(2, 5)):
            if draw.random() < 0.6:
                requests.append(Request(draw.uniform(0, 0.3), "misfit", PARCEL, draw.choice(INVALID_PARCELS)))
            requests.append(Request(draw.uniform(0, 0.5), "message", PARCEL, parcel(n)))
        requests[0].after += self._begin
        self._script(*requests)

    def _script(self, *requests: Request) -> None:
        self._workload.scripts.append(Script(self._name, self._draw.choice(self._nodes), list(requests)))


def _move_senders(planned: Workload, instance: str, draw: Random) -> None:
    """Send some events from the node that starts the instance, whose worker may have the suspended run in its cache."""
    scripts = [script for script in planned.scripts if script.instance == instance]
    for script in scripts:
        if script.requests[0].verb == "event" and draw.random() < 0.6:
            script.node = scripts[0].node


def _waits(rounds: list[Program]) -> list[tuple[str, str]]:
    """Event types that the instance, and not a child of it, waits for, each with the payload to send."""
    return [(part[2], part[1]) for program in rounds for part in _own_parts(program) if part[0] == "event"]


def _own_parts(program: Program) -> list[Program]:
    if program[0] in ("seq", "par", "race"):
        return [part for inner in program[1] for part in _own_parts(inner)]
    return [program]
