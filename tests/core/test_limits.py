"""Defaults and validation of limits."""

from __future__ import annotations

from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.limits import Limits
from holdfast.errors import InvalidOptionError


def test_the_defaults_are_the_documented_ones() -> None:
    limits = Limits()
    assert (limits.workflow_name, limits.instance_id, limits.event_type, limits.step_name) == (
        64,
        100,
        100,
        256,
    )
    assert limits.params == limits.result == limits.event_payload == limits.log_data == 1024 * 1024
    assert (limits.log_message, limits.log_category, limits.steps) == (2048, 64, 1024)
    assert limits.sleep_ms == limits.event_wait_max_ms == 365 * 86_400_000
    assert limits.event_wait_min_ms == 1000
    assert limits.output == 8 * 1024 * 1024
    assert limits.body > 3 * limits.params


def test_a_duration_limit_accepts_every_form_of_a_duration() -> None:
    assert Limits(sleep=timedelta(days=2)).sleep_ms == Limits(sleep="48 hours").sleep_ms == 172_800_000


@pytest.mark.parametrize("value", [0, -1, True, 1.5, "10", None])
@pytest.mark.parametrize("name", ["steps", "params", "workflow_name", "body", "page_size"])
def test_the_error_for_an_invalid_count_names_the_field(name: str, value: Any) -> None:
    with pytest.raises(InvalidOptionError, match=rf"Limits\.{name} "):
        Limits(**{name: value})


@pytest.mark.parametrize("value", ["soon", -1, None, float("nan")])
@pytest.mark.parametrize("name", ["sleep", "event_wait_min", "event_wait_max"])
def test_the_error_for_an_invalid_duration_names_the_field(name: str, value: Any) -> None:
    with pytest.raises(InvalidOptionError, match=rf"Limits\.{name}: "):
        Limits(**{name: value})


def test_the_minimum_wait_must_not_exceed_the_maximum() -> None:
    with pytest.raises(InvalidOptionError, match="event_wait_min"):
        Limits(event_wait_min="2 minutes", event_wait_max="1 minute")


def test_every_limit_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "concepts.md").read_text()
    section = page.partition("\n## Limits\n")[2].partition("\n## ")[0]
    assert [limit.name for limit in fields(Limits) if limit.init and f"`{limit.name}`" not in section] == []
