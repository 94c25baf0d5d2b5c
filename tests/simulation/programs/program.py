"""Programs, which describe the operations of a simulated workflow as JSON.

A program is a list: its kind, then its arguments. ``generator.py`` generates programs from the table of features,
``interpreter.py`` runs them, and ``possible_results.py`` decides whether a result is possible.

::

    ["step", key, value, fails, ms]    call a step that raises in its first ``fails`` calls and takes ``ms``
    ["retries", key, value, fails, ms] the same, with ``fails`` greater than 0
    ["plain", key, value, fails]       the same with a function that is not async
    ["stream", key, n, fails, ms]      call a step that writes n items to a stream, between two items of the code
    ["tx", key, value, ms]             call a step that writes a row through ``StepTx``
    ["live", key, value, ms]           call a step that writes a row in a live transaction
    ["gives_up", key]                  call a step that raises in all its attempts
    ["broken", key, value, times]      call a step that raises in its first ``times`` calls in all runs
    ["broken_chain", key, params]      run a chain with such a step as a child
    ["broken_graph", key, n, broken]   run a graph with such a node as a child
    ["too_slow", key]                  call a step that takes longer than its timeout
    ["poison", key, value]             call a step that may kill its worker
    ["sleep", key, ms]
    ["event", key, type, ms]           wait for an event for at most ``ms``
    ["messages", key, topic, n, ms]    receive up to n messages, waiting for each at most ``ms``
    ["parcels", key, n, ms]            the same with an event type that the workflow declares
    ["misfit", key, instance]          send another instance a parcel that does not fit the declaration
    ["child", key, program]            run a child
    ["abandon", key, program]          start a child and do not wait for it
    ["tell", key, instance]            send a message to another instance, if it exists
    ["ask", key, value, refuse]        ask a child, which replies or rejects the ask
    ["link", key, value, dies]         link to a child, and wait for its exit event
    ["bound", key]                     run a child that is linked to a failing run
    ["monitor", key, value, dies, ms]  monitor a run that is no child, after ``ms``, and wait for its exit event
    ["saga", key, n, fails]            call n steps, which are undone if one more fails
    ["chain", key, params]             run a chain with waits and an outbox as a child
    ["leased", key, params]            run a chain whose steps have their own leases as a child
    ["graph", key, n, fails]           run a graph as a child
    ["family", key, *params]           run a graph whose nodes run other instances as a child
    ["sieve", key, items, strict]      run a graph with failing items as a child
    ["version", key, value]            call a step that depends on ``ctx.version``; not within another part
    ["stamp", key, ms]                 call a step that takes ``ms``, and whose result is the number of its calls so far
    ["seq" | "par" | "race", programs]
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Program = list[Any]

FAILED = "failed"
BROKEN = "broken until it is repaired"
"""The message of errors that end a run."""
LATE = "late"
DELIVERED = "told"
NOT_FOUND = "nobody"
REFUSED = "refused"
DOWN = "down"
CHILD_PROGRAM = 4
"""Position of the program that a node runs in the parameters of a graph of runs."""
PEER_TOPIC = "gossip"
"""The topic of messages between instances."""
PARCEL = "parcel"
"""The event type that the workflow declares."""
INVALID_PARCELS: list[Any] = [None, 7, {"number": 1}, {"number": "1", "label": "one"}, {"number": 1, "label": None}]
"""Payloads that do not fit the declared type of ``PARCEL``."""


BREAKING = ("broken", "broken_chain", "broken_graph")
"""Kinds of parts that end the run with an error, until it has been repaired often enough."""


def parcel(number: int) -> dict[str, Any]:
    """A payload that fits the declaration."""
    return {"number": number, "label": f"parcel {number}"}


def resolved(key: str) -> list[str]:
    """The result with which clients resolve a step."""
    return ["resolved", key]


def resolve_token(key: str) -> str:
    """The member of ``sent`` for a step that clients may resolve."""
    return f"resolve.{key}"


def stopped_token(key: str) -> str:
    """The member of ``sent`` for a child that may have been cancelled or terminated."""
    return f"stopped.{key}"


def breaks(program: Program) -> bool:
    """True if a part of the program may end its run, or the run of a child, with an error."""
    return any(part[0] in BREAKING for part in parts(program))


def graph_result(n: int) -> dict[str, Any]:
    """The result of the graph that programs run, for the parameter ``n``."""
    even = {"even": n} if n % 2 == 0 else {}
    return {"source": [n, n + 1], "each": [2 * n, 2 * n + 2], "total": 4 * n + 2} | even


def parts(program: Program) -> Iterator[Program]:
    """Iterate over a program and all parts nested in it."""
    yield program
    match program:
        case ["seq" | "par" | "race", inner]:
            for part in inner:
                yield from parts(part)
        case ["child" | "abandon", _, inner]:
            yield from parts(inner)
        case ["family", *params]:
            yield from parts(params[CHILD_PROGRAM])


def certain_parts(program: Program) -> Iterator[Program]:
    """Parts that a run has executed completely, and not in a child, if it completed the program."""
    match program:
        case ["seq" | "par", inner]:
            for part in inner:
                yield from certain_parts(part)
        case _:
            yield program


def messages(rounds: list[Program], results: list[Any], kind: str = "messages") -> list[list[int]]:
    """The messages that an instance received in each of its rounds. Rounds without messages are left out."""
    received = [
        [number for part, value in zip(program[1], result, strict=True) if part[0] == kind for number in value]
        for program, result in zip(rounds, results, strict=True)
    ]
    return [numbers for numbers in received if numbers]
