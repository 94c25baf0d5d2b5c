"""Schedules of a simulation: drawn with the workload, and stored before the processes boot.

The first tick of the schedule ``FIRST`` starts a run that clients know, so every other feature meets schedules. The
schedule ``OVERDUE`` has ticks before the start of the simulation, at which no worker was running.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from random import Random
from typing import Any

from holdfast.client.schedules import new_row
from holdfast.core import codec
from holdfast.core.limits import Limits
from holdfast.core.model import to_ms
from holdfast.kernel.schedule_options import declare
from holdfast.kernel.schedule_rules import instance_id
from holdfast.store.protocol import ScheduleChange
from holdfast.testing.simulation.ports import START
from simulation.programs.names import PROGRAM, PROGRAMS

FIRST, OVERDUE = "s1", "s2"
OVERLAPS = ("skip", "queue_one", "queue_all", "cancel_running", "terminate_running", "allow")
ENDING = {"cancel_running": "cancel", "terminate_running": "terminate"}
"""The request by which a tick ends an earlier run, for the policies that do so."""
_OVERDUE_SECONDS = 60
_OVERDUE_INTERVAL = 5


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule whose ticks are at a distance of ``every`` seconds; times are seconds since the start."""

    name: str
    workflow: str
    params: Any
    overlap: str
    first: int
    last: int
    every: int = 1
    catch_up: int | str | None = None
    """In seconds; None: missed ticks are skipped."""
    jitter: float | None = None

    def instance(self, seconds: int) -> str:
        """The id of the run of a tick."""
        return instance_of(self.name, seconds)

    @property
    def ticks(self) -> range:
        return range(self.first, self.last + 1, self.every)

    def stored(self) -> ScheduleChange:
        """The change that stores the schedule as if it had been created before its first tick."""
        params = [self.params, []] if self.workflow in PROGRAMS else self.params
        options = {
            "every": self.every,
            "end": START + timedelta(seconds=self.last),
            "overlap": self.overlap,
            "catch_up": self.catch_up,
            "jitter": self.jitter,
        }
        encoded = codec.encode(params, what="params")
        declared = declare(self.name, self.workflow, encoded, paused=False, options=options, limits=Limits())
        return ScheduleChange(self.name, 0, new_row(declared, _ms(self.first) - 1, declaration=None))


def instance_of(schedule: str, seconds: int) -> str:
    """The id of the run of a tick."""
    return instance_id(schedule, _ms(seconds))


def _ms(seconds: int) -> int:
    return to_ms(START + timedelta(seconds=seconds))


def first_tick(draw: Random) -> int:
    return draw.choice([0, 1, 1, 2])


def draw_first(draw: Random, first: int, workflow: str, params: Any) -> Schedule:
    """The schedule whose first run clients know."""
    return Schedule(
        FIRST,
        workflow,
        params,
        draw.choice(OVERLAPS),
        first,
        first + draw.choice([0, 1, 1, 2, 3]),
        jitter=draw.choice([None, 0.4]),
    )


def draw_overdue(draw: Random) -> Schedule:
    """A schedule with missed ticks, whose runs take between nothing and two intervals."""
    program = ["seq", [["step", "s1", draw.randrange(100), draw.choice([0, 1]), draw.choice([0, 400, 8000])]]]
    return Schedule(
        OVERDUE,
        PROGRAM,
        [program],
        draw.choice(OVERLAPS),
        -_OVERDUE_SECONDS,
        _OVERDUE_INTERVAL,
        _OVERDUE_INTERVAL,
        draw.choice([None, "last", 25]),
    )
