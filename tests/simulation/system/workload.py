"""The workload of a simulation: instances, and the requests of clients about them."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

from holdfast.testing.simulation.faults import Faults
from holdfast.testing.simulation.streams import stream
from simulation.programs.chain_and_graph import chain_params, graph_params
from simulation.programs.failing_items import failing_items_params
from simulation.programs.generator import ProgramGenerator, is_buffered, with_graphs, with_parcels, with_stamps
from simulation.programs.graph_of_runs import child_program, graph_of_runs_params
from simulation.programs.names import (
    BUFFERED_PROGRAM,
    CHAIN,
    CHAIN_WITH_LEASES,
    GRAPH,
    GRAPH_OF_RUNS,
    GRAPH_WITH_FAILING_ITEMS,
    PROGRAM,
    PROGRAMS,
)
from simulation.programs.program import INVALID_PARCELS, PARCEL, Program, parcel
from simulation.programs.step_leases import chain_with_leases_params
from simulation.system.faults import CONTROL_FAULTS, Fault

_GRAPH_OF_RUNS_PROBABILITY = 0.5
_STEP_LEASES_PROBABILITY = 0.5
_FAILING_ITEMS_PROBABILITY = 0.6


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
    """Verbs of the control requests (pause, cancel, terminate, restart) on it, acknowledged or not."""
    terminated: bool = False
    """True if its termination was acknowledged."""
    cancelled: bool = False
    """True if its cancellation was acknowledged."""
    acknowledged: set[str] = field(default_factory=set)
    """The ids of acknowledged events."""
    accepted_invalid: list[Any] = field(default_factory=list)
    """Payloads that do not fit their declared type and were acknowledged."""
    results: list[Any] = field(default_factory=list)
    """Results of the instance that clients received."""

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
    for n in range(1, draw.randint(2, 6)):
        name = f"i{n}"
        if name not in without:
            planner = _Planner(planned, name, stream(seed, f"instance.{n}"), nodes, span)
            planner.plan(faults, stream(seed, f"graphs.{n}"), stream(seed, f"buffered.{n}"))
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

    def plan(self, faults: Faults, others: Random, buffered: Random) -> None:
        """Choose the workflow of the instance, its parameters and the requests.

        ``others`` is the stream for kinds that were added to the simulation later, and ``buffered`` the one for
        ``persist="task"``: with their own streams they do not change the other instances of a seed.
        """
        draw = self._draw
        workflow = draw.choices([PROGRAM, CHAIN, GRAPH], [70, 15, 15])[0]
        if workflow == PROGRAM:
            rounds = with_parcels(with_graphs(ProgramGenerator(draw).rounds(), others), others)
            if is_buffered(buffered):
                workflow, rounds = BUFFERED_PROGRAM, with_stamps(rounds, buffered)
            self._add(workflow, rounds, _waits(rounds))
            if any(part[0] == "messages" for program in rounds for part in program[1]):
                self._send_messages()
            if any(part[0] == "parcels" for program in rounds for part in program[1]):
                self._send_parcels(others)
        elif workflow == CHAIN and others.random() < _STEP_LEASES_PROBABILITY:
            self._add(CHAIN_WITH_LEASES, chain_with_leases_params(others), [])
        elif workflow == CHAIN:
            params = chain_params(draw)
            self._add(workflow, params, [(type_, type_) for kind, type_, _ in params if kind == "wait"])
        elif others.random() < _GRAPH_OF_RUNS_PROBABILITY:
            self._add(GRAPH_OF_RUNS, graph_of_runs_params(others, self._name), [])
        elif others.random() < _FAILING_ITEMS_PROBABILITY:
            self._add(GRAPH_WITH_FAILING_ITEMS, failing_items_params(others, self._name), [])
        else:
            self._add(workflow, graph_params(draw, self._name), [])
        for kind in CONTROL_FAULTS:
            for place, at in faults.times(kind, self._name, self._span):
                if faults.happens(kind, "client", place):
                    self._script(*_control_requests(kind, at))

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

    def _send_parcels(self, draw: Random) -> None:
        """Send numbered parcels, with invalid parcels among them."""
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


def _control_requests(kind: Fault, at: float) -> list[Request]:
    verb = kind.value.removesuffix("_run")
    requests = [Request(at, verb)]
    if kind is Fault.PAUSE_RUN:
        requests.append(Request(0.3, "resume"))
    return requests
