"""The workflows of examples/processes have the same result when their worker is lost after any commit."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from holdfast.testing import Harness

PROCESSES = Path(__file__).parents[2] / "examples" / "processes"

CASES = [
    ("order", "order_workflow", {"id": "c", "total": 80, "address": ""}),
    ("saga", "buy", {"item": "tea", "card": "visa", "address": "the moon"}),
    ("worker_pool", "pool", {"workers": 2, "jobs": 3}),
    ("spawn_monitored", "at_once", ["bob", "cem"]),
    ("spawn_monitored", "gathered", ["dana", "eli"]),
    ("spawn_named", "shop", None),
    ("child_errors", "awaits", "c-2"),
    ("child_errors", "watches", None),
    ("links", "traps", None),
    ("timers", "three_ticks", None),
]


@pytest.mark.parametrize(("example", "workflow", "params"), CASES, ids=[f"{e}-{w}" for e, w, _ in CASES])
async def test_a_crash_at_any_commit_does_not_change_the_result(example: str, workflow: str, params: Any) -> None:
    module = runpy.run_path(str(PROCESSES / f"{example}.py"))

    async with Harness(module["app"]) as h:
        result = await h.crash_everywhere(workflow, params)  # raises CrashMismatch

    assert result
