"""Makers of the parts of programs, one for each feature that has a part. ``program.py`` describes the parts."""

from __future__ import annotations

from simulation.features.feature import PartMaker
from simulation.programs.chain_and_graph import BREAKABLE, broken_chain_params, chain_params
from simulation.programs.failing_items import draw_items
from simulation.programs.program import Program
from simulation.programs.step_leases import chain_with_leases_params

INSTANCES = 5
"""Maximum number of instances of a seed that clients start."""
_SECONDS_OF_EVENTS = 1600


def step(make: PartMaker) -> Program:
    return make.step()


def plain_step(make: PartMaker) -> Program:
    return ["plain", make.key("p"), make.draw.randrange(100), make.draw.choice([0, 0, 1])]


def streams(make: PartMaker) -> Program:
    return [
        "stream",
        make.key("w"),
        make.draw.randrange(1, 6),
        make.draw.choice([0, 0, 1]),
        make.draw.choice([0, 5, 60]),
    ]


def retries(make: PartMaker) -> Program:
    return ["retries", make.key("r"), make.draw.randrange(100), make.draw.choice([1, 2]), make.draw.choice([0, 5, 60])]


def exhausted_retries(make: PartMaker) -> Program:
    return ["gives_up", make.key("g")]


def failing_step(make: PartMaker) -> Program:
    """A step, a step of a chain or a node of a graph that fails until the run has been retried."""
    key, number, times = make.key("b"), make.draw.randrange(100), make.draw.choice([1, 1, 2])
    choices: list[Program] = [
        ["broken", key, number, times],
        ["broken", key, number, times],
        ["broken_chain", key, broken_chain_params(make.draw, times)],
        ["broken_graph", key, number % 10, [make.draw.choice(BREAKABLE), times]],
    ]
    return make.draw.choice(choices)


def timeouts(make: PartMaker) -> Program:
    return ["too_slow", make.key("l")]


def fatal_step(make: PartMaker) -> Program:
    return ["poison", make.key("x"), make.draw.randrange(100)]


def step_tx(make: PartMaker) -> Program:
    return ["tx", make.key("t"), make.draw.randrange(100), make.draw.choice([0, 0, 60, 250])]


def live_transaction(make: PartMaker) -> Program:
    """A live transaction, alone or with other steps in parallel, whose outcomes are written with it."""
    live = ["live", make.key("v"), make.draw.randrange(100), make.draw.choice([0, 0, 20, 80])]
    beside: list[Program] = make.draw.choice(
        [
            [],
            [make.step(), make.step()],
            [retries(make), retries(make)],
            [retries(make), message_to_run(make)],
            [["race", [retries(make), make.step(ms=60)]], make.step()],
        ]
    )
    return ["par", [live, *beside]] if beside else live


def saga(make: PartMaker) -> Program:
    return ["saga", make.key("o"), make.draw.randint(1, 3), make.draw.random() < 0.6]


def version(make: PartMaker) -> Program:
    return ["version", make.key("w"), make.draw.randrange(100)]


def sleep(make: PartMaker) -> Program:
    return ["sleep", make.key("z"), make.draw.choice([1, 20, 150, 700])]


def event(make: PartMaker) -> Program:
    """A wait, alone or beside a step during which the run stays owned, so that the event must reach the owner."""
    key = make.key("e")
    wait = ["event", key, f"event.{key}", make.draw.choice([30, 300, 1500])]
    return ["par", [wait, make.step(ms=_SECONDS_OF_EVENTS)]] if make.draw.random() < 0.2 else wait


def messages(make: PartMaker) -> Program:
    return ["messages", make.key("m"), "topic", make.draw.randint(1, 3), make.draw.choice([300, 1500])]


def declared_events(make: PartMaker) -> Program:
    return ["parcels", make.key("y"), make.draw.randint(1, 3), make.draw.choice([300, 1500])]


def invalid_events(make: PartMaker) -> Program:
    return ["misfit", make.key("y"), _any_instance(make)]


def message_to_run(make: PartMaker) -> Program:
    return ["tell", make.key("q"), _any_instance(make)]


def ask(make: PartMaker) -> Program:
    return ["ask", make.key("k"), make.draw.randrange(100), make.draw.random() < 0.3]


def link(make: PartMaker) -> Program:
    return ["link", make.key("n"), make.draw.randrange(100), make.draw.random() < 0.5]


def linked_failure(make: PartMaker) -> Program:
    return ["bound", make.key("b")]


def monitor(make: PartMaker) -> Program:
    return ["monitor", make.key("h"), make.draw.randrange(100), make.draw.random() < 0.5, make.draw.choice([1, 300])]


def child_chain(make: PartMaker) -> Program:
    return ["chain", make.key("f"), chain_params(make.draw)]


def chain_leases(make: PartMaker) -> Program:
    return ["leased", make.key("j"), chain_with_leases_params(make.draw)]


def child_graph(make: PartMaker) -> Program:
    """A graph, alone, two in parallel, or one that is cancelled if it takes too long."""
    first, second = (["graph", make.key("d"), make.draw.randrange(10), make.draw.choice([0, 0, 1])] for _ in range(2))
    timeout = ["sleep", make.key("z"), make.draw.choice([5, 50, 200])]
    choices: list[Program] = [first, ["par", [first, second]], ["race", [first, timeout]]]
    return make.draw.choice(choices)


def nodes_with_runs(make: PartMaker) -> Program:
    """A graph whose nodes run a program, a chain, another graph, and a workflow that may fail."""
    number, failures, child_fails = make.draw.randrange(10), make.draw.choice([0, 0, 1]), make.draw.random() < 0.3
    return ["family", make.key("a"), number, failures, child_fails, make.nested(), chain_params(make.draw)]


def failing_items(make: PartMaker) -> Program:
    return ["sieve", make.key("i"), *draw_items(make.draw)]


def _any_instance(make: PartMaker) -> str:
    return f"i{make.draw.randint(1, INSTANCES)}"
