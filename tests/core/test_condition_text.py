"""The text of conditions on search attributes, which queries over HTTP and the command line share."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.condition_text import parse_condition


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        ("acme", "acme"),
        ('"42"', "42"),
        ("42", 42),
        ("-1.5e3", -1500.0),
        ("true", True),
        ("True", "True"),
        ("007", "007"),
        ('"open', '"open'),
        (">=100", (">=", 100)),
        ("<acme", ("<", "acme")),
        ("<=", ("<=", "")),
        ("", ""),
        ("9007199254740992", 2**53),
        ("100000000000000000", 1e17),
    ],
)
def test_a_text_is_a_value_or_an_operator_with_a_value(text: str, condition: Any) -> None:
    parsed = parse_condition(text)
    assert (parsed, type(parsed)) == (condition, type(condition))
