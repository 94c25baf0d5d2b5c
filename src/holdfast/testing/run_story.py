"""The runs of a harness as text, for the report of a failed test: status, reason, steps and log lines of each."""

from __future__ import annotations

from typing import Any

from holdfast.client import Handle
from holdfast.core.records import StepRecord
from holdfast.core.show import shown
from holdfast.errors import ErrorInfo
from holdfast.testing.harness import Harness

_MAX_RUNS = 10
_MAX_STEPS = 50
_MAX_LINES = 50


async def run_stories(harness: Harness) -> str:
    """Describe the runs of a harness, the oldest first."""
    page = await harness.app.list(limit=_MAX_RUNS, order="asc")
    stories = [await _story(await harness.app.get(item.workflow_name, item.id)) for item in page.items]
    if page.cursor is not None:
        stories.append("(there are more runs)")
    return "\n\n".join(stories)


async def _story(run: Handle[Any]) -> str:
    description = await run.describe()
    lines = [f"{run.pid} (run {description.run_number}) is {description.status}: {description.why}"]
    if description.error is not None:
        lines.append(f"  error {_error(description.error)}")
    lines += _bounded([_step(step) for step in (await run.history()).steps], _MAX_STEPS, "steps")
    logs = await run.logs()
    lines += _bounded(
        [f"  log {line.level}: {line.message}" for line in logs if not line.is_replay], _MAX_LINES, "lines"
    )
    return "\n".join(lines)


def _step(step: StepRecord) -> str:
    text = f"  {step.type} {step.step_key!r} {step.status}"
    if step.attempts > 1:
        text += f" after {step.attempts} attempts"
    if step.error is not None:
        return f"{text}: {_error(step.error)}"
    return f"{text}: {shown(step.result)}" if step.status == "completed" else text


def _error(error: ErrorInfo) -> str:
    return f"{error.name}: {error.message}"


def _bounded(lines: list[str], limit: int, what: str) -> list[str]:
    return lines if len(lines) <= limit else [*lines[:limit], f"  ({len(lines) - limit} more {what})"]
