"""The workload of a simulation: instances, and the requests of clients about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from holdfast.testing.simulation.faults import Faults
from holdfast.testing.simulation.streams import chance, stream
from simulation.features.bulk import BulkAction
from simulation.features.feature import ControlRequest, PartMaker
from simulation.features.parts import INSTANCES, nodes_with_runs
from simulation.features.table import REQUESTS
from simulation.programs import names, scheduled
from simulation.programs.chain_and_graph import BREAKABLE, chain_params, graph_params, with_broken_step
from simulation.programs.failing_items import draw_items
from simulation.programs.generator import ProgramGenerator
from simulation.programs.graph_of_runs import child_program
from simulation.programs.names import BUFFERED_PROGRAM, GRAPH_OF_RUNS, PROGRAM, PROGRAMS
from simulation.programs.program import INVALID_PARCELS, PARCEL, Program, breaks, parcel, resolve_token
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
_SCHEDULED = 0.3
"""Part of the seeds with a schedule whose first run clients know."""
_OVERDUE = 0.15
"""Part of the seeds with a schedule that has missed ticks."""
_TRIGGERED = 0.2
"""Part of the instances in these seeds whose client triggers the schedule."""
_BROKEN = 0.4
"""Part of the chains and graphs that fail until they are repaired."""


@dataclass(slots=True)
class Request:
    """A request of a client, which repeats it until it is answered."""

    after: float
    """Delay in seconds after the previous request of the script, or after the start of the simulation."""
    verb: str
    type: str = ""
    payload: Any = None
    refusals: int = 0
    """Number of answers that the run is in no state for the request."""

    def repeats(self, requests: Mapping[str, ControlRequest]) -> bool:
        """Count a refusal; return True if the client sends the request again."""
        self.refusals += 1
        return self.verb in requests and self.refusals <= requests[self.verb].tries


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
    """Types of the events that clients send it, and tokens of the steps that they resolve."""
    started: bool = False
    """True if its start was acknowledged."""
    scheduled: bool = False
    """True if the first tick of a schedule starts the instance, and no client does."""
    control_requests: set[str] = field(default_factory=set)
    """Names of the features whose control requests were sent to it, acknowledged or not."""
    acknowledged_requests: set[str] = field(default_factory=set)
    """Names of the features whose control requests were acknowledged."""
    acknowledged: set[str] = field(default_factory=set)
    """The ids of acknowledged events."""
    accepted_invalid: list[Any] = field(default_factory=list)
    """Payloads that do not fit their declared type and were acknowledged."""
    unfit: list[str] = field(default_factory=list)
    """Differences that a check of the open runs on the newest code reported."""
    forks: list[Any] = field(default_factory=list)
    """The edited results of the requested fork."""
    results: list[Any] = field(default_factory=list)
    """Results of the instance that clients received."""

    @property
    def begins_again(self) -> bool:
        """True if the code of the instance may have run again from its beginning."""
        return any(REQUESTS[name].begins_again for name in self.control_requests)

    @property
    def breaks(self) -> bool:
        """True if the run, or a child of it, fails until it is repaired."""
        match self.workflow:
            case names.CHAIN:
                return any(step[0] == "break" for step in self.params)
            case names.GRAPH:
                return len(self.params) > 3
            case _:
                return any(map(breaks, self.programs))

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
    schedules: list[scheduled.Schedule] = field(default_factory=list)

    @property
    def bulk_actions(self) -> list[BulkAction]:
        """The requested bulk actions, each of which may act on any instance."""
        requests = [request for script in self.scripts for request in script.requests]
        return [request.payload for request in requests if request.verb == "bulk"]


def workload(seed: int, nodes: list[str], span: float, faults: Faults, without: frozenset[str]) -> Workload:
    """Generate the workload of a seed. ``without``: instances that are left out, to shrink a failure."""
    draw = stream(seed, "workload")
    planned = Workload({}, [])
    for n in range(1, draw.randint(2, INSTANCES + 1)):
        name = f"i{n}"
        if name not in without:
            _Planner(planned, name, stream(seed, f"instance.{n}"), nodes, span).plan(faults)
    if chance(seed, "scheduled") < _SCHEDULED:
        _plan_schedule(planned, nodes, span, faults, without)
    if chance(seed, "overdue") < _OVERDUE and scheduled.OVERDUE not in without:
        _plan_overdue(planned, nodes, span, stream(seed, "overdue"))
    for instance in planned.instances:
        _move_senders(planned, instance, stream(seed, f"senders.{instance}"))
    types = {action.event_type for action in planned.bulk_actions if action.event_type is not None}
    for one in planned.instances.values():
        one.sent |= types
    return planned


def _plan_schedule(planned: Workload, nodes: list[str], span: float, faults: Faults, without: frozenset[str]) -> None:
    """Add a schedule, and the instance of its first tick with the requests of clients."""
    draw = stream(faults.seed, "scheduled")
    first = scheduled.first_tick(draw)
    name = scheduled.instance_of(scheduled.FIRST, first)
    if name in without:
        return
    _Planner(planned, name, stream(faults.seed, "instance.scheduled"), nodes, span).plan(faults)
    instance = planned.instances[name]
    schedule = scheduled.draw_first(draw, first, instance.workflow, instance.params)
    planned.schedules.append(schedule)
    instance.scheduled = True
    if schedule.overlap in scheduled.ENDING:
        instance.control_requests.add(scheduled.ENDING[schedule.overlap])
    [start] = [script for script in planned.scripts if script.instance == name and script.requests[0].verb == "start"]
    start.requests[0].verb = "result"
    del start.requests[1:]


def _plan_overdue(planned: Workload, nodes: list[str], span: float, draw: Random) -> None:
    """Add a schedule with missed ticks, which clients trigger."""
    planned.schedules.append(scheduled.draw_overdue(draw))
    for instance in planned.instances:
        if draw.random() < _TRIGGERED:
            trigger = Request(draw.uniform(0, span), "trigger", payload=scheduled.OVERDUE)
            planned.scripts.append(Script(instance, draw.choice(nodes), [trigger]))


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
        instance = self._workload.instances[self._name]
        for name, request in REQUESTS.items():
            for place, at in self._times(instance, name, request, faults):
                if faults.happens(request_kind(name), "client", place):
                    self._control(instance, name, request, at, faults.draw(f"details.{name}.{place}"))

    def _times(self, instance: Instance, name: str, request: ControlRequest, faults: Faults) -> list[tuple[str, float]]:
        """Times of a control request: those of the seed, and two more if the run fails until it is repaired."""
        times = faults.times(request_kind(name), self._name, self._span)
        place = f"{self._name}.broken"
        if instance.breaks and chance(faults.seed, f"{name}.{place}") < request.if_it_breaks:
            draw = faults.draw(f"{name}.{place}")
            times += [(f"{place}#{n}", draw.uniform(0, self._span)) for n in (1, 2)]
        return times

    def _control(self, instance: Instance, name: str, request: ControlRequest, at: float, draw: Random) -> None:
        details = None
        if request.details is not None:
            details = request.details(draw, instance.workflow, instance.params)
            if details is None:
                return
        if name == "resolve":
            instance.sent |= {resolve_token(str(details))}
        if name == "fork":
            if instance.forks:  # the id of a fork is used once
                return
            instance.forks.append(details)
        follow_up = [] if request.then is None else [Request(_FOLLOW_UP_SECONDS, request.then)]
        self._workload.scripts.append(
            Script(self._name, draw.choice(self._nodes), [Request(at, name, payload=details), *follow_up])
        )

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
                if chance(seed, f"broken.{name}") < _BROKEN:
                    params = with_broken_step(params, stream(seed, f"broken.{name}"), 1)
                self._add(model, params, [(type_, type_) for kind, type_, _ in params if kind == "wait"])
            case names.CHAIN_WITH_LEASES:
                self._add(model, chain_with_leases_params(draw), [])
            case names.GRAPH:
                params = graph_params(draw, name)
                if chance(seed, f"broken.{name}") < _BROKEN:
                    params.append([stream(seed, f"broken.{name}").choice(BREAKABLE), 1])
                self._add(model, params, [])
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
