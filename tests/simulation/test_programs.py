"""Programs, and the decision whether a result is possible for a program."""

from __future__ import annotations

import json
from typing import Any

import pytest

from simulation.programs.failing_items import fits_failing_items, fits_failing_items_error
from simulation.programs.generator import ProgramGenerator
from simulation.programs.possible_results import fits, fits_graph_of_runs
from simulation.programs.program import DELIVERED, DOWN, FAILED, LATE, REFUSED, Program, parts
from simulation.programs.step_leases import fits_chain_with_leases

SENT = frozenset({"event.e1"})


@pytest.mark.parametrize(
    ("program", "result"),
    [
        (["step", "s1", 7, 2, 0], 7),
        (["gives_up", "g1"], FAILED),
        (["event", "e1", "event.e1", 10], "e1"),
        (["event", "e1", "event.e1", 10], LATE),
        (["messages", "m1", "topic", 3, 10], [4, 5]),
        (["parcels", "y2", 3, 10], [1, 2]),
        (["misfit", "y1", "i2"], REFUSED),
        (["stamp", "u1", 100], 2),
        (["seq", [["sleep", "z1", 1], ["plain", "p1", 3, 0]]], [None, 3]),
        (["race", [["sleep", "z1", 1], ["plain", "p1", 3, 0]]], [1, 3]),
        (["child", "c1", ["seq", []]], []),
        (["monitor", "h1", 3, True, 1], DOWN),
        (["chain", "f1", [["say", 5, 0]]], 5),
        (["leased", "j1", [[5, 0, 0, 20]]], [5]),
        (["sieve", "i1", [[0, 5, 0, True]], True], FAILED),
        (["graph", "d1", 3, 0], {"source": [3, 4], "each": [6, 8], "total": 14}),
    ],
)
def test_a_possible_result_fits(program: Program, result: Any) -> None:
    assert fits(program, result, SENT)


@pytest.mark.parametrize(
    ("program", "result"),
    [
        (["step", "s1", 7, 2, 0], 8),
        (["gives_up", "g1"], 0),
        (["event", "e2", "event.e2", 10], "e2"),
        (["messages", "m1", "topic", 3, 10], [1, 1]),
        (["messages", "m1", "topic", 3, 10], [2, 1]),
        (["parcels", "y2", 3, 10], [1, 1]),
        (["misfit", "y1", "i2"], DELIVERED),
        (["stamp", "u1", 100], 0),
        (["seq", [["sleep", "z1", 1], ["plain", "p1", 3, 0]]], [None]),
        (["race", [["sleep", "z1", 1], ["plain", "p1", 3, 0]]], [0, 3]),
        (["monitor", "h1", 3, True, 1], 3),
        (["chain", "f1", [["wait", "event.A", 5]]], "event.A"),
        (["sieve", "i1", [[0, 5, 0, True]], False], FAILED),
        (["graph", "d1", 4, 0], {"source": [4, 5], "each": [8, 10], "total": 18}),
    ],
)
def test_an_impossible_result_does_not_fit(program: Program, result: Any) -> None:
    assert not fits(program, result, SENT)


def test_programs_are_json_and_their_keys_are_unique() -> None:
    for seed in range(50):
        rounds = ProgramGenerator(seed, "i1").rounds()
        assert json.loads(json.dumps(rounds)) == rounds
        keys = [part[1] for program in rounds for part in _own_parts(program)]
        assert len(keys) == len(set(keys))


def _own_parts(program: Program) -> list[Program]:
    """Parts with a key, without those that a node of a graph runs: these belong to another run."""
    nested = [part for whole in parts(program) if whole[0] == "family" for part in parts(whole) if part is not whole]
    return [part for part in parts(program) if part[0] not in ("seq", "par", "race") and part not in nested]


def test_a_graph_of_runs_fails_exactly_if_its_child_fails() -> None:
    params = ["i1", 2, 0, False, ["seq", [["plain", "p1", 3, 0]]], [["say", 5, 0]]]
    nested = {"source": [2, 3], "each": [4, 6], "total": 10, "even": 2}
    rest = {"source": [2, 3, 4], "twins": [2, 3, 4], "total": 9, "mortal": 2, "last": 2}
    result = {**rest, "flow": [[3]], "relay": 5, "nested": nested}

    assert fits_graph_of_runs(params, result)
    assert not fits_graph_of_runs([*params[:3], True, *params[4:]], result)
    assert not fits_graph_of_runs(params, result | {"twins": [2, 3]})
    assert not fits_graph_of_runs(params, result | {"flow": [[4]]})


def test_the_result_of_a_chain_with_leases_lists_the_values_of_its_steps() -> None:
    params = [[5, 0, 0, 20], [6, 1, 2, 0]]

    assert fits_chain_with_leases(params, [5, 6])
    assert not fits_chain_with_leases(params, [5])


def test_a_node_that_collects_errors_lists_each_item() -> None:
    params = ["i1", [[0, 5, 0, False], [1, 6, 1, True]], False]
    failed = {"error": {"name": "NonRetryableError", "message": "as it had to be"}}
    lost = {"error": {"name": "StepMaxAttemptsExceeded", "message": ""}}
    child = {"error": {"name": "ChildError", "message": ""}}
    strict = {"source": params[1], "strict": [5, 6], "total": 11}
    collected = {"lenient": [{"value": 5}, failed], "brief": [lost, failed], "children": [{"value": 5}, child]}
    result = {**strict, **collected, "summary": [5, 1]}

    assert fits_failing_items(params, result)
    assert not fits_failing_items(params, result | {"lenient": [failed]})
    assert not fits_failing_items(params, result | {"lenient": [lost, failed]})
    assert not fits_failing_items(params, result | {"children": [child, child]})


def test_the_error_of_a_mapped_node_names_exactly_its_failed_items() -> None:
    params = ["i1", [[0, 5, 0, False], [1, 6, 1, True], [2, 7, 0, True]], True]
    error = "node 'strict' failed: NonRetryableError: 2 of 3 items failed: item 1: E: x; item 2: E: x"

    assert fits_failing_items_error(params, error)
    assert not fits_failing_items_error(params, error.replace("item 2", "item 0"))
    assert not fits_failing_items_error([*params[:2], False], error)
