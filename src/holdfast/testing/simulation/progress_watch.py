"""Finds tasks that are claimed many times in a row without progress.

A claim makes progress if the run has another fact, event, delivery or loss than at the previous claim. The START facts
of a graph do not count, because each claim of a node writes one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from holdfast.store.protocol import TaskRef
from holdfast.testing.simulation.watch import Rows

MAX_IDLE_CLAIMS = 30
"""Faults do not cause this many in a row: each idle claim needs an expired lease or a lost answer."""
_STATE = """
SELECT r.workflow || '/' || r.instance_id,
       (SELECT count(*) FROM holdfast_fact AS f WHERE f.run = r.id AND (f.state <> 1 OR r.kind <> 'graph')),
       (SELECT count(*) FROM holdfast_event AS e WHERE e.run = r.id),
       (SELECT count(*) FROM holdfast_event AS e WHERE e.run = r.id AND e.delivered_at IS NOT NULL),
       t.losses, t.missing
  FROM holdfast_run AS r JOIN holdfast_task AS t ON t.run = r.id AND t.unit = ?2 WHERE r.id = ?1
"""


class ProgressWatch:
    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._idle: dict[tuple[int, int], tuple[tuple[Any, ...], int]] = {}
        """For each task: the state at its last claim, and the number of claims in a row that found this state."""

    def before(self, _operation: str, _args: tuple[Any, ...]) -> None:
        return None

    def after(self, operation: str, _args: tuple[Any, ...], answer: Any, _before: None) -> Iterator[str]:
        match operation:
            case "claim":
                yield from self.claimed([claim.task for claim in answer.claims])
            case "advance":
                yield from self.claimed(answer.claimed)
            case _:
                pass

    def claimed(self, tasks: Iterable[TaskRef]) -> Iterator[str]:
        """Report each task that is claimed too often without progress, once per sequence of idle claims."""
        for task in tasks:
            place = task.run, task.unit
            for state in self._rows(_STATE, *place):
                before, times = self._idle.get(place, (state, 0))
                times = times + 1 if before == state else 1
                self._idle[place] = state, times
                if times == MAX_IDLE_CLAIMS:
                    yield f"{state[0]} (unit {task.unit}) was claimed {times} times in a row without progress"
