"""SQL triggers that report writes which break a promise of the engine, at the moment of the write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_TRIGGERS = {
    "a fact was changed": ("UPDATE ON holdfast_fact", "old.state <> 7", "new.run", "new.key"),
    "a fact was deleted": ("DELETE ON holdfast_fact", "NOT deleting()", "old.run", "old.key"),
    "a fact was written to a run that had ended": (
        "INSERT ON holdfast_fact",
        "(SELECT completed_at FROM holdfast_run WHERE id = new.run) IS NOT NULL AND NOT adding_late()",
        "new.run",
        "new.key",
    ),
    "a fact was written to a paused run": (  # running nodes of a paused graph may end; no node may start
        "INSERT ON holdfast_fact",
        "(SELECT status FROM holdfast_run WHERE id = new.run AND (kind <> 'graph' OR new.state = 1)) = 'paused'",
        "new.run",
        "new.key",
    ),
    "a run that had ended was changed": (
        "UPDATE ON holdfast_run",
        "old.completed_at NOTNULL AND (new.status, new.output, new.error) IS NOT (old.status, old.output, old.error)",
        "new.id",
        "new.status",
    ),
    "an event was consumed twice": (
        "UPDATE ON holdfast_event",
        "old.consumed_by IS NOT NULL AND new.consumed_by IS NOT old.consumed_by",
        "new.run",
        "new.type",
    ),
    "a task was taken without a new epoch": (
        "UPDATE ON holdfast_task",
        "new.owner IS NOT NULL AND new.owner IS NOT old.owner AND new.epoch <= old.epoch",
        "new.run",
        "new.owner",
    ),
    "an epoch went back": ("UPDATE ON holdfast_task", "new.epoch < old.epoch", "new.run", "new.epoch"),
    "a task was taken from an owner whose lease had not expired": (
        "UPDATE ON holdfast_task",
        "new.owner <> old.owner AND min(old.lease_until, ifnull(old.expires_at, old.lease_until)) > simulated_now()",
        "new.run",
        "new.owner",
    ),
}
"""Violations that triggers report: statement, condition, run, detail."""


def create_triggers(
    connection: Any,
    *,
    violate: Callable[[str], None],
    now_ms: Callable[[], int],
    adding_late: Callable[[], bool],
    deleting: Callable[[], bool],
) -> None:
    """Create the triggers, which call ``violate`` with each violation.

    ``adding_late`` returns True while late results are added to a run that has ended, and ``deleting`` while ended runs
    are deleted: both are permitted.
    """

    def report(violation: str, run: int, detail: Any) -> None:
        violate(f"{violation}: run {run}, {detail}")

    connection.create_scalar_function("broken", report, deterministic=False)
    connection.create_scalar_function("simulated_now", now_ms, 0)
    connection.create_scalar_function("adding_late", adding_late, 0)
    connection.create_scalar_function("deleting", deleting, 0)
    for number, (violation, (event, when, run, detail)) in enumerate(_TRIGGERS.items()):
        connection.execute(
            f"CREATE TEMP TRIGGER watch_{number} AFTER {event} WHEN {when} "
            f"BEGIN SELECT broken('{violation}', {run}, {detail}); END"
        )
