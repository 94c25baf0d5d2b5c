"""The scenarios: a few runs, and requests that race with them.

Each is small enough that all its schedules can be executed. Programs are those of the simulation (``program.py``), so
the checks of the simulation apply.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from simulation.explore.calls import ALL_FAULTS, CallEnd, FaultKind
from simulation.programs.names import BUFFERED_PROGRAM, GRAPH, PROGRAM

LEASE_MS = 1000
"""The lease of workers. Waits and sleeps of scenarios are shorter than the interval of heartbeats."""


@dataclass(frozen=True, slots=True)
class ExploredRequest:
    """A request that arrives at any moment."""

    node: str
    verb: str
    instance: str = "i1"
    type: str = ""
    payload: Any = None
    after: int | None = None
    """The number of the request that must be answered before this one is sent."""


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    program: Any
    """The parameters of the instance ``i1``; for a program: its rounds."""
    requests: tuple[ExploredRequest, ...]
    workflow: str = PROGRAM
    started_by: str = "w1"
    """The node that starts the instance. A worker owns a run that it starts."""
    concurrency: int = 10
    """Number of tasks that a worker owns at the same time."""
    begun: bool = False
    """True: the exploration begins when the run waits and no call is pending, not right after its start."""
    cached: bool = True
    """True: workers keep suspended runs in memory."""
    late_notifications: bool = False
    """True: notifications of workers arrive at any moment, not at once."""
    max_moves: int = 2
    """Number of moves of time after which no further request arrives."""
    faults: tuple[FaultKind, ...] = ALL_FAULTS
    faulty: tuple[str, ...] = ("w1", "w2")
    """Nodes in which the fault happens."""
    sent: frozenset[str] = field(default_factory=frozenset)
    """Types of the events that requests send."""


def _event(node: str, key: str) -> ExploredRequest:
    return ExploredRequest(node, "event", type=f"event.{key}", payload=key)


_STEP = ["step", "s1", 7, 0, 0]
_RETRY = ["retries", "r1", 7, 1, 0]
"""A step whose second attempt is called when the run wakes, without a commit before it."""
_E1 = frozenset({"event.e1"})

SCENARIOS = (
    Scenario(
        "an event against a deadline",
        [["seq", [["event", "e1", "event.e1", 100]]]],
        (_event("c1", "e1"),),
        begun=True,
        sent=_E1,
    ),
    Scenario(
        "an event against a deadline beside a step",
        [["par", [["event", "e1", "event.e1", 100], ["step", "s1", 7, 0, 200]]]],
        (_event("c1", "e1"),),
        begun=True,
        sent=_E1,
    ),
    Scenario(
        "an event against the deadline of another wait",
        [["par", [["event", "e1", "event.e1", 100], ["event", "e2", "event.e2", 50]]]],
        (_event("c1", "e1"),),
        begun=True,
        cached=False,
        max_moves=1,
        sent=_E1,
    ),
    Scenario("a takeover against a late commit", [["seq", [["tx", "t1", 5, 0]]]], ()),
    Scenario("a takeover against a late load", [["seq", [["sleep", "z1", 50], _STEP]]], (), begun=True, cached=False),
    Scenario("a pause against the completion", [["seq", [_STEP]]], (ExploredRequest("c1", "pause"),)),
    Scenario(
        "a cancellation against a saga's undo steps",
        [["seq", [["saga", "o1", 2, True]]]],
        (ExploredRequest("c1", "cancel"),),
    ),
    Scenario("a restart against a late commit", [["seq", [_STEP]]], (ExploredRequest("c1", "restart"),)),
    Scenario(
        "a termination against a step transaction",
        [["seq", [["stamp", "u0.1", 0], ["tx", "t1", 5, 0]]]],
        (ExploredRequest("c1", "terminate"),),
        workflow=BUFFERED_PROGRAM,
    ),
    Scenario(
        "continue-as-new against a message",
        [["seq", []], ["seq", [["messages", "m2", "topic", 1, 100]]]],
        (ExploredRequest("c1", "message", type="topic", payload=1),),
    ),
    Scenario(
        "a lost reply of a claim against an unknown claim",
        [["seq", [_RETRY]]],
        (),
        begun=True,
        faults=(CallEnd.LOST_REPLY, CallEnd.SLOW_REPLY),
    ),
    Scenario(
        "a predicted message against the message before it",
        [["seq", [["messages", "m1", "topic", 2, 5000]]]],
        (
            ExploredRequest("c1", "message", type="topic", payload=1),
            ExploredRequest("w1", "message", type="topic", payload=2, after=0),
        ),
        begun=True,
        late_notifications=True,
        max_moves=1,
    ),
    Scenario(
        "a cancellation against the end of a child",
        [["seq", [["child", "c1", ["seq", [["sleep", "z1", 10]]]]]]],
        (ExploredRequest("c1", "cancel"),),
    ),
    Scenario("an ask against the end of the replier", [["seq", [["ask", "k1", 5, False]]]], ()),
    Scenario(
        "two nodes of a graph end at once", ["i1", 3, 0], (), workflow=GRAPH, started_by="c1", concurrency=1, begun=True
    ),
)
BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
