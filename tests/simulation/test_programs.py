"""Programs and the second opinion on what may come of them."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from holdfast.testing.simulation.programs import FAILED, LATE, Program, Writer, fits, parts

SENT = frozenset({"event.e1"})


@pytest.mark.parametrize(
    ("program", "result"),
    [
        (["step", "s1", 7, 2, 0], 7),
        (["gives_up", "g1"], FAILED),
        (["event", "e1", "event.e1", 10], "e1"),
        (["event", "e1", "event.e1", 10], LATE),
        (["messages", "m1", "topic", 3, 10], [4, 5]),
        (["seq", [["sleep", "z1", 1], ["plain", "p1", 3, 0]]], [None, 3]),
        (["race", [["sleep", "z1", 1], ["plain", "p1", 3, 0]]], [1, 3]),
        (["child", "c1", ["seq", []]], []),
    ],
)
def test_what_a_program_may_give(program: Program, result: Any) -> None:
    assert fits(program, result, SENT)


@pytest.mark.parametrize(
    ("program", "result"),
    [
        (["step", "s1", 7, 2, 0], 8),
        (["gives_up", "g1"], 0),
        (["event", "e2", "event.e2", 10], "e2"),
        (["messages", "m1", "topic", 3, 10], [1, 1]),
        (["messages", "m1", "topic", 3, 10], [2, 1]),
        (["seq", [["sleep", "z1", 1], ["plain", "p1", 3, 0]]], [None]),
        (["race", [["sleep", "z1", 1], ["plain", "p1", 3, 0]]], [0, 3]),
    ],
)
def test_what_a_program_cannot_give(program: Program, result: Any) -> None:
    assert not fits(program, result, SENT)


def test_programs_are_json_and_no_key_is_used_twice() -> None:
    for seed in range(50):
        rounds = Writer(Random(seed)).rounds()
        assert json.loads(json.dumps(rounds)) == rounds
        keys = [part[1] for program in rounds for part in parts(program) if part[0] not in ("seq", "par", "race")]
        assert len(keys) == len(set(keys))
