"""What the clients of a simulation do: start instances, send them events and messages, and ask things of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from holdfast.testing.simulation.faults import OF_A_RUN, Faults, Kind
from holdfast.testing.simulation.programs import Program, Writer, parts
from holdfast.testing.simulation.streams import stream


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
    rounds: list[Program]
    sent: frozenset[str]
    started: bool = False
    """Its start was acknowledged."""
    asked: set[str] = field(default_factory=set)
    """What people asked of it besides: cancel, terminate, restart, pause. Whether or not it was answered."""
    acknowledged: set[str] = field(default_factory=set)
    """Events, by their id."""
    results: list[Any] = field(default_factory=list)
    """What clients were told that it returned."""


@dataclass(slots=True)
class Workload:
    instances: dict[str, Instance]
    scripts: list[Script]


def workload(seed: int, nodes: list[str], span: float, faults: Faults, without: frozenset[str]) -> Workload:
    """``without``: instances that are left out, so that a failure gets smaller."""
    draw = stream(seed, "workload")
    made = Workload({}, [])
    for n in range(1, draw.randint(2, 6)):
        one = stream(seed, f"instance.{n}")
        name = f"i{n}"
        if name not in without:
            _add(made, name, Writer(one).rounds(), one, nodes, span, faults)
    return made


def _add(
    made: Workload, id: str, rounds: list[Program], draw: Any, nodes: list[str], span: float, faults: Faults
) -> None:
    waits = [part for program in rounds for part in parts(program) if part[0] == "event"]
    sent = [part for part in waits if draw.random() < 0.8 and _reachable(rounds, part)]
    made.instances[id] = Instance(id, rounds, frozenset(part[2] for part in sent))
    begin = draw.uniform(0, span / 3)

    def script(*requests: Request) -> None:
        made.scripts.append(Script(id, draw.choice(nodes), list(requests)))

    script(Request(begin, "start"), Request(0, "result"))
    for part in sent:
        script(Request(begin + draw.uniform(0, 1.5), "event", part[2], part[1]))
    if any(part[0] == "messages" for program in rounds for part in program[1]):
        letters = [Request(draw.uniform(0, 0.5), "message", "topic", n) for n in range(1, draw.randint(2, 6))]
        letters[0].after += begin
        script(*letters)
    for kind in OF_A_RUN:
        for place, at in faults.times(kind, id, span):
            if faults.happens(kind, "client", place):
                script(*_asking(kind, at))


def _reachable(rounds: list[Program], event: Program) -> bool:
    """Whether it is the instance itself that waits for it, and not a child of it."""
    return any(part is event for program in rounds for part in _own(program))


def _own(program: Program) -> list[Program]:
    if program[0] in ("seq", "par", "race"):
        return [part for inner in program[1] for part in _own(inner)]
    return [program]


def _asking(kind: Kind, at: float) -> list[Request]:
    verb = kind.value.removesuffix("_run")
    asked = [Request(at, verb)]
    if kind is Kind.PAUSE_RUN:
        asked.append(Request(0.7, "resume"))
    return asked
