"""Decides whether a result is possible for a program, without using the engine."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from simulation.programs.chain_and_graph import fits_chain, fits_graph
from simulation.programs.failing_items import fails_with_items, fits_failing_items
from simulation.programs.graph_of_runs import FAILING_NODE, TWINS, nested_params
from simulation.programs.program import (
    DELIVERED,
    DOWN,
    FAILED,
    LATE,
    NOT_FOUND,
    REFUSED,
    Program,
    breaks,
    graph_result,
    resolve_token,
    resolved,
    stopped_token,
)
from simulation.programs.step_leases import fits_chain_with_leases

_NOTHING_SENT: frozenset[str] = frozenset()


def fits(program: Program, result: Any, sent: frozenset[str]) -> bool:
    """Return True if the result is possible for the program. ``sent``: types of the events that clients send."""
    match program:
        case ["child", _, inner]:
            return fits(inner, result, sent)
        case ["seq" | "par", inner]:
            if not isinstance(result, list) or len(result) != len(inner):
                return False
            return all(fits(part, value, sent) for part, value in zip(inner, result, strict=True))
        case ["race", inner]:
            return isinstance(result, list) and len(result) == 2 and fits(inner[result[0]], result[1], sent)
        case ["event", key, type_, _]:
            return result == LATE or (type_ in sent and result == key)
        case [("link" | "monitor" | "ask" | "tell" | "bound"), key, *_]:
            return _fits_other_run(program, result) or (stopped_token(key) in sent and result == DOWN)
        case [("chain" | "leased" | "graph" | "broken_chain" | "broken_graph" | "family" | "sieve"), key, *_]:
            return _fits_other_run(program, result) or (stopped_token(key) in sent and result == FAILED)
        case _:
            return _fits_own_part(program, result, sent)


def _fits_own_part(program: Program, result: Any, sent: frozenset[str]) -> bool:
    match program:
        case ["retries" | "broken", key, value, *_]:
            return bool(result == value or (result == resolved(key) and resolve_token(key) in sent))
        case ["step" | "plain" | "tx" | "live" | "poison" | "stream", _, value, *_]:
            return bool(result == value)
        case ["too_slow", _]:
            return result in (FAILED, LATE, 0)  # a clock jump may hide the timeout
        case ["gives_up", _]:
            return result in (FAILED, LATE)
        case ["stamp", _, _]:
            return isinstance(result, int) and result > 0
        case ["sleep" | "abandon", *_]:
            return result is None
        case ["saga", _, n, fails]:
            return bool(result == (FAILED if fails else list(range(n))))
        case ["version", _, value]:
            return result in ([1, value], [2, value])
        case ["misfit", *_]:
            return bool(result == REFUSED)
        case ["messages", _, _, n, _] | ["parcels", _, n, _]:
            return isinstance(result, list) and len(result) <= n and _in_order(result)
        case _:
            raise ValueError(f"not a program: {program!r}")


def _fits_other_run(program: Program, result: Any) -> bool:
    match program:
        case ["tell", *_]:
            return result in (DELIVERED, NOT_FOUND)
        case ["ask", _, value, refuse]:
            return result in (LATE, NOT_FOUND, REFUSED if refuse else value + 1)
        case ["link" | "monitor", _, value, dies, *_]:
            return bool(result == (DOWN if dies else value))
        case ["bound", _]:
            return bool(result == FAILED)
        case ["chain" | "broken_chain", _, params]:
            return fits_chain(params, result, _NOTHING_SENT)
        case ["leased", _, params]:
            return fits_chain_with_leases(params, result)
        case ["graph" | "broken_graph", _, n, _]:
            return bool(result == graph_result(n))
        case ["family", _, *params]:
            if params[2]:
                return bool(result == FAILED)
            return (breaks(params[3]) and result == FAILED) or fits_graph_of_runs(["", *params], result)
        case ["sieve", _, *params]:
            fails = fails_with_items(["", *params])
            return bool(result == FAILED) if fails else fits_failing_items(["", *params], result)
        case _:
            raise ValueError(f"not a program: {program!r}")


def fits_graph_of_runs(params: list[Any], result: Any) -> bool:
    _, n, _, child_fails, program, steps = params
    twins = [*range(n, n + TWINS)]
    rest = {"source": twins, "twins": twins, "total": sum(twins), FAILING_NODE: n, "last": n}
    return (
        not child_fails
        and isinstance(result, dict)
        and {key: value for key, value in result.items() if key in rest} == rest
        and fits(program, result["flow"][0], _NOTHING_SENT)
        and fits_chain(steps, result["relay"], _NOTHING_SENT)
        and fits_graph(nested_params(params), result["nested"])
    )


def _in_order(numbers: list[int]) -> bool:
    """True if each number is larger than the number before it.

    A message that was sent while the run was errored was refused, and the run that a retry creates receives the later
    ones. ``checks/instances.py`` checks that no other message is missing.
    """
    return all(earlier < later for earlier, later in pairwise(numbers))
