"""``ctx.info``: properties of a run, for its code."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from holdfast.core.model import from_ms
from holdfast.core.scheduled_start import tick_of

if TYPE_CHECKING:
    from holdfast.store.protocol import RunRecord
    from holdfast.workflow.position import Position


@dataclass(frozen=True, slots=True)
class RunInfo:
    """Properties of the run that are the same on every replay."""

    workflow: str
    instance_id: str
    run_number: int
    """The number of the run; after a retry that of the run that failed, because the code has used it."""
    queue: str
    attempt: int
    history_length: int
    """Number of results that the code has received so far."""
    history_size: int
    """Size of these results in bytes."""
    started_at: datetime
    parent: str | None
    pid: str
    scheduled_for: datetime | None = None
    """The tick, for a run that a schedule started."""
    last_result: Any = None
    """The output of the schedule's last successful run before this one, as plain JSON; None: there is none."""

    @classmethod
    def of(cls, run: RunRecord, position: Position) -> RunInfo:
        scheduled_for, last_result = tick_of(run.options)
        return cls(
            workflow=run.workflow,
            instance_id=run.instance_id,
            run_number=run.replayed_number,
            queue=run.queue,
            attempt=run.attempt,
            history_length=position.history_length,
            history_size=position.history_size,
            started_at=from_ms(position.started_ms),
            parent=run.parent,
            pid=f"{run.workflow}/{run.instance_id}",
            scheduled_for=scheduled_for,
            last_result=last_result,
        )
