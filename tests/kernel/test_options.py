"""Options of runs: their stored form is decoded once if all runs of a definition have it."""

from __future__ import annotations

from holdfast import Retry
from holdfast.kernel.options import NO_OPTIONS, RunOptions


def test_options_that_a_definition_gives_to_its_runs_are_decoded_once() -> None:
    stored = RunOptions(version=7, retry=Retry(limit=3), task_ms=1_234).encode()
    assert stored is not None

    first, second = RunOptions.decode(stored), RunOptions.decode(bytes(bytearray(stored)))

    assert first is second
    assert (first.version, first.task_ms) == (7, 1_234)
    assert (first.retry and first.retry.limit) == 3


def test_values_of_one_run_are_not_those_of_another_with_equal_options() -> None:
    stored = RunOptions(version=7, context={"tenant": {"name": "a"}}).encode()

    RunOptions.decode(stored).context["tenant"]["name"] = "b"

    assert RunOptions.decode(stored).context == {"tenant": {"name": "a"}}


def test_a_run_without_options_has_the_defaults() -> None:
    assert RunOptions().encode() is None
    assert RunOptions.decode(None) is NO_OPTIONS
