"""The run of a tick."""

from __future__ import annotations

from holdfast.kernel.requests import Requests, ScheduledStart
from holdfast.kernel.schedule_content import ScheduleContent
from holdfast.store.protocol import NewRun, ScheduleRow, TickRow


def scheduled_run(requests: Requests, row: ScheduleRow, content: ScheduleContent, tick: TickRow) -> NewRun:
    """The run to create for a tick of a schedule."""
    return requests.scheduled_run(
        ScheduledStart(
            row.name,
            tick.tick,
            tick.workflow,
            tick.instance_id,
            row.params,
            content.queue,
            content.priority,
            content.options,
            row.result if row.result_n else None,
        )
    )
