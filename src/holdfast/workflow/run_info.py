"""``ctx.info``: properties of a run, for its code."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from holdfast.core.model import from_ms

if TYPE_CHECKING:
    from holdfast.store.protocol import RunRecord
    from holdfast.workflow.position import Position


@dataclass(frozen=True, slots=True)
class RunInfo:
    """Properties of the run that are the same on every replay."""

    workflow: str
    instance_id: str
    run_number: int
    queue: str
    attempt: int
    history_length: int
    """Number of results that the code has received so far."""
    history_size: int
    """Size of these results in bytes."""
    started_at: datetime
    parent: str | None
    pid: str

    @classmethod
    def of(cls, run: RunRecord, position: Position) -> RunInfo:
        return cls(
            workflow=run.workflow,
            instance_id=run.instance_id,
            run_number=run.number,
            queue=run.queue,
            attempt=run.attempt,
            history_length=position.history_length,
            history_size=position.history_size,
            started_at=from_ms(position.started_ms),
            parent=run.parent,
            pid=f"{run.workflow}/{run.instance_id}",
        )
