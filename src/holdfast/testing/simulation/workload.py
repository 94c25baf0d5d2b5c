"""What the clients of a simulation do: start instances, send them events and messages, and ask things of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

from holdfast.testing.simulation.code import BUFFERED, GRAPH, PROGRAMS, WORKFLOW
from holdfast.testing.simulation.families import FAMILY, family_params, family_program
from holdfast.testing.simulation.faults import OF_A_RUN, Faults, Kind
from holdfast.testing.simulation.leased import LEASED, leased_params
from holdfast.testing.simulation.models import CHAIN, chain_params, graph_params
from holdfast.testing.simulation.programs import (
    MISFITS,
    PARCEL,
    Program,
    Writer,
    is_buffered,
    parcel,
    with_graphs,
    with_parcels,
    with_stamps,
)
from holdfast.testing.simulation.sieve import SIEVE, sieve_params
from holdfast.testing.simulation.streams import stream

_WITH_CHILDREN = 0.5
_WITH_LEASES = 0.5
_WITH_FAILING_ITEMS = 0.6


@dataclass(slots=True)
class Request:
    """One thing that a client asks, tried again until it is answered."""

    after: float
    """Seconds after the one before, or after the start."""
    verb: str
    type: str = ""
    payload: Any = None


@dataclass(slots=True)
class Script:
    """Requests about one instance, one after the other. It outlives the process that works on it."""

    instance: str
    node: str
    requests: list[Request]
    done: int = 0
    """How many of them were answered."""

    @property
    def finished(self) -> bool:
        return self.done == len(self.requests)


@dataclass(slots=True)
class Instance:
    """What is known of an instance from outside."""

    id: str
    workflow: str
    params: Any
    """Of a program: its rounds."""
    sent: frozenset[str]
    started: bool = False
    """Its start was acknowledged."""
    asked: set[str] = field(default_factory=set)
    """What people asked of it besides: cancel, terminate, restart, pause. Whether or not it was answered."""
    terminated: bool = False
    """Somebody was told that it is."""
    cancelled: bool = False
    """Its cancellation was acknowledged."""
    acknowledged: set[str] = field(default_factory=set)
    """Events, by their id."""
    misfits: list[Any] = field(default_factory=list)
    """Payloads that do not fit, and were acknowledged all the same."""
    results: list[Any] = field(default_factory=list)
    """What clients were told that it returned."""

    @property
    def programs(self) -> list[Program]:
        """Those that it, or a child of its graph, runs."""
        if self.workflow in PROGRAMS:
            return list(self.params)
        return [family_program(self.params)] if self.workflow == FAMILY else []


@dataclass(slots=True)
class Workload:
    instances: dict[str, Instance]
    scripts: list[Script]


def workload(seed: int, nodes: list[str], span: float, faults: Faults, without: frozenset[str]) -> Workload:
    """``without``: instances that are left out, so that a failure gets smaller."""
    draw = stream(seed, "workload")
    made = Workload({}, [])
    for n in range(1, draw.randint(2, 6)):
        name = f"i{n}"
        if name not in without:
            planner = _Planner(made, name, stream(seed, f"instance.{n}"), nodes, span)
            planner.plan(faults, stream(seed, f"graphs.{n}"), stream(seed, f"buffered.{n}"))
    for instance in made.instances:
        _move_senders(made, instance, stream(seed, f"senders.{instance}"))
    return made


class _Planner:
    """Thinks up what is done with one instance."""

    def __init__(self, made: Workload, name: str, draw: Random, nodes: list[str], span: float) -> None:
        self._made = made
        self._name = name
        self._draw = draw
        self._nodes = nodes
        self._span = span
        self._begin = draw.uniform(0, span / 3)

    def plan(self, faults: Faults, others: Random, buffered: Random) -> None:
        """``others``: draws for the kinds that were added later, so that other instances stay what they were.

        ``buffered``: the same for ``persist="task"``.
        """
        draw = self._draw
        workflow = draw.choices([WORKFLOW, CHAIN, GRAPH], [70, 15, 15])[0]
        if workflow == WORKFLOW:
            rounds = with_parcels(with_graphs(Writer(draw).rounds(), others), others)
            if is_buffered(buffered):
                workflow, rounds = BUFFERED, with_stamps(rounds, buffered)
            self._add(workflow, rounds, _waits(rounds))
            if any(part[0] == "messages" for program in rounds for part in program[1]):
                self._send_messages()
            if any(part[0] == "parcels" for program in rounds for part in program[1]):
                self._send_parcels(others)
        elif workflow == CHAIN and others.random() < _WITH_LEASES:
            self._add(LEASED, leased_params(others), [])
        elif workflow == CHAIN:
            params = chain_params(draw)
            self._add(workflow, params, [(type_, type_) for kind, type_, _ in params if kind == "wait"])
        elif others.random() < _WITH_CHILDREN:
            self._add(FAMILY, family_params(others, self._name), [])
        elif others.random() < _WITH_FAILING_ITEMS:
            self._add(SIEVE, sieve_params(others, self._name), [])
        else:
            self._add(workflow, graph_params(draw, self._name), [])
        for kind in OF_A_RUN:
            for place, at in faults.times(kind, self._name, self._span):
                if faults.happens(kind, "client", place):
                    self._script(*_asking(kind, at))

    def _add(self, workflow: str, params: Any, waits: list[tuple[str, str]]) -> None:
        """``waits``: types of events it waits for, with what is sent."""
        sent = [wait for wait in waits if self._draw.random() < 0.8]
        types = frozenset(type_ for type_, _ in sent)
        self._made.instances[self._name] = Instance(self._name, workflow, params, types)
        self._script(Request(self._begin, "start"), Request(0, "result"))
        for type_, payload in sent:
            self._script(Request(self._begin + self._draw.uniform(0, 1.5), "event", type_, payload))

    def _send_messages(self) -> None:
        draw = self._draw
        start_events = [Request(draw.uniform(0, 0.5), "message", "topic", n) for n in range(1, draw.randint(2, 6))]
        start_events[0].after += self._begin
        self._script(*start_events)

    def _send_parcels(self, draw: Random) -> None:
        """Numbered parcels, with some between them that are refused."""
        requests = []
        for n in range(1, draw.randint(2, 5)):
            if draw.random() < 0.6:
                requests.append(Request(draw.uniform(0, 0.3), "misfit", PARCEL, draw.choice(MISFITS)))
            requests.append(Request(draw.uniform(0, 0.5), "message", PARCEL, parcel(n)))
        requests[0].after += self._begin
        self._script(*requests)

    def _script(self, *requests: Request) -> None:
        self._made.scripts.append(Script(self._name, self._draw.choice(self._nodes), list(requests)))


def _move_senders(made: Workload, instance: str, draw: Random) -> None:
    """Many events are sent from where the instance was started, and so perhaps from where it rests."""
    mine = [script for script in made.scripts if script.instance == instance]
    for script in mine:
        if script.requests[0].verb == "event" and draw.random() < 0.6:
            script.node = mine[0].node


def _waits(rounds: list[Program]) -> list[tuple[str, str]]:
    """For what the instance itself waits, and not a child of it."""
    return [(part[2], part[1]) for program in rounds for part in _own(program) if part[0] == "event"]


def _own(program: Program) -> list[Program]:
    if program[0] in ("seq", "par", "race"):
        return [part for inner in program[1] for part in _own(inner)]
    return [program]


def _asking(kind: Kind, at: float) -> list[Request]:
    verb = kind.value.removesuffix("_run")
    asked = [Request(at, verb)]
    if kind is Kind.PAUSE_RUN:
        asked.append(Request(0.3, "resume"))
    return asked
