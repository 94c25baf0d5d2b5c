"""The order of a timeline's entries that have the same millisecond."""

from __future__ import annotations

from holdfast.cli.response_fields import Fields
from holdfast.cli.timeline import timeline

EARLY, LATE = "2030-01-01T00:00:00.100Z", "2030-01-01T00:00:00.900Z"


def texts(updated_at: str) -> list[str]:
    """The entries of a step that begins at ``EARLY``, and of a line that the workflow logs in the same millisecond."""
    step = {"stepKey": "charge", "type": "do", "status": "completed", "createdAt": EARLY, "updatedAt": updated_at}
    log = {"level": "info", "message": "order received", "createdAt": EARLY}
    entries = timeline([Fields(step | {"attempts": 1})], [], [Fields(log)], None)
    return [" ".join(entry.text.plain.split()[:2]) for entry in entries]


def test_a_line_of_the_workflow_comes_before_a_step_that_began_in_the_same_millisecond() -> None:
    assert texts(LATE) == ["log info", "charge began", "charge completed"]


def test_a_line_of_the_workflow_comes_after_a_step_that_ended_in_the_same_millisecond() -> None:
    assert texts(EARLY) == ["charge began", "charge completed", "log info"]
