"""Limits and start policies on simulated workers that crash; planted bugs are found."""

from __future__ import annotations

import pytest

from flow.planted_flow import BUGS, planted
from flow.simulated_starts import fairness, run_seed

FOUND_BY = {name: 1 for name in BUGS if name != "starved key"} | {
    "lost key": 2, "lost wake-up of a singleton": 7, "two singletons": 7,
}  # fmt: skip
"""Seeds that find the bugs."""


def test_starts_with_policies_and_limits_keep_their_promises_under_crashes(request: pytest.FixtureRequest) -> None:
    seeds = range(1, 201 if request.config.getoption("--long") else 3)

    failures = {seed: found for seed in seeds if (found := run_seed(seed))}

    assert failures == {}


@pytest.mark.parametrize("name", FOUND_BY)
@pytest.mark.interpreted("a planted bug replaces functions that a compiled build calls directly")
def test_a_planted_bug_of_flow_control_is_found(name: str, request: pytest.FixtureRequest) -> None:
    if name == "lost key" and not request.config.getoption("--long"):
        pytest.skip("takes a while: nothing wakes the run")
    with planted(name):
        assert run_seed(FOUND_BY[name]) != []


@pytest.mark.interpreted("a planted bug replaces functions that a compiled build calls directly")
async def test_a_key_is_not_starved_and_a_planted_bug_that_starves_it_is_found() -> None:
    assert await fairness() == []

    with planted("starved key"):
        assert await fairness() != []
