"""Delta debugging."""

from __future__ import annotations

from holdfast.testing.simulation.minimize import minimize


def test_the_smallest_part_that_fails_is_found() -> None:
    assert minimize(range(100), lambda part: {17, 61} <= set(part)) == [17, 61]


def test_minimize_returns_no_items_if_the_empty_list_fails() -> None:
    assert minimize([1, 2, 3], lambda _: True) == []
