"""Programs, which describe the operations of a simulated workflow as JSON, and the results that are possible.

A program is a list: its kind, then its arguments. ``fits`` decides whether a result is possible for a program, without
using the engine. ``generator.py`` generates programs, and ``interpreter.py`` runs them.

::

    ["step", key, value, fails, ms]    call a step that raises in its first ``fails`` calls and takes ``ms``
    ["plain", key, value, fails]       the same with a function that is not async
    ["tx", key, value, ms]             call a step that writes a row through ``StepTx``
    ["live", key, value, ms]           call a step that writes a row in a live transaction
    ["gives_up", key]                  call a step that raises in all its attempts
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
    ["saga", key, n, fails]            call n steps, which are undone if one more fails
    ["graph", key, n, fails]           run a graph as a child
    ["version", key, value]            call a step that depends on ``ctx.version``; not within another part
    ["stamp", key, ms]                 call a step that takes ``ms``, and whose result is the number of its calls so far
    ["seq" | "par" | "race", programs]
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Program = list[Any]

FAILED = "failed"
LATE = "late"
DELIVERED = "told"
NOT_FOUND = "nobody"
REFUSED = "refused"
DOWN = "down"
PEER_TOPIC = "gossip"
"""The topic of messages between instances."""
PARCEL = "parcel"
"""The event type that the workflow declares."""
INVALID_PARCELS: list[Any] = [None, 7, {"number": 1}, {"number": "1", "label": "one"}, {"number": 1, "label": None}]
"""Payloads that do not fit the declared type of ``PARCEL``."""


def parcel(number: int) -> dict[str, Any]:
    """A payload that fits the declaration."""
    return {"number": number, "label": f"parcel {number}"}


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


def certain_parts(program: Program) -> Iterator[Program]:
    """Parts that a run has executed completely, and not in a child, if it completed the program."""
    match program:
        case ["seq" | "par", inner]:
            for part in inner:
                yield from certain_parts(part)
        case _:
            yield program


def fits(program: Program, result: Any, sent: frozenset[str]) -> bool:
    """Return True if the result is possible for the program. ``sent``: types of the events that clients send."""
    match program:
        case ["step" | "plain" | "tx" | "live" | "poison", _, value, *_]:
            return bool(result == value)
        case ["too_slow", _]:
            return result in (FAILED, LATE, 0)  # a clock jump may hide the timeout
        case ["gives_up", _]:
            return result in (FAILED, LATE)
        case ["stamp", _, _]:
            return isinstance(result, int) and result > 0
        case ["sleep" | "abandon", *_]:
            return result is None
        case ["tell", *_]:
            return result in (DELIVERED, NOT_FOUND)
        case ["ask", _, value, refuse]:
            return result in (LATE, NOT_FOUND, REFUSED if refuse else value + 1)
        case ["link", _, value, dies]:
            return bool(result == (DOWN if dies else value))
        case ["bound", _]:
            return bool(result == FAILED)
        case ["saga", _, n, fails]:
            return bool(result == (FAILED if fails else list(range(n))))
        case ["graph", _, n, _]:
            return bool(result == graph_result(n))
        case ["version", _, value]:
            return result in ([1, value], [2, value])
        case ["event", key, type_, _]:
            return result == LATE or (type_ in sent and result == key)
        case ["misfit", *_]:
            return bool(result == REFUSED)
        case ["messages", _, _, n, _] | ["parcels", _, n, _]:
            return isinstance(result, list) and len(result) <= n and _in_order(result)
        case ["child", _, inner]:
            return fits(inner, result, sent)
        case ["seq" | "par", inner]:
            if not isinstance(result, list) or len(result) != len(inner):
                return False
            return all(fits(part, value, sent) for part, value in zip(inner, result, strict=True))
        case ["race", inner]:
            return isinstance(result, list) and len(result) == 2 and fits(inner[result[0]], result[1], sent)
        case _:
            raise ValueError(f"not a program: {program!r}")


def messages(rounds: list[Program], results: list[Any], kind: str = "messages") -> list[list[int]]:
    """The messages that an instance received in each of its rounds. Rounds without messages are left out."""
    received = [
        [number for part, value in zip(program[1], result, strict=True) if part[0] == kind for number in value]
        for program, result in zip(rounds, results, strict=True)
    ]
    return [numbers for numbers in received if numbers]


def _in_order(numbers: list[int]) -> bool:
    """True if each number is one more than the number before it."""
    return numbers == list(range(numbers[0], numbers[0] + len(numbers))) if numbers else True
