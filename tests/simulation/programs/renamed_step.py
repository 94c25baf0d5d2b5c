"""The first step of every program, which has another name in each version of the code.

Both versions run at the same time, so each declares the other's name. A run that has the step recorded under one name
must not call it again under the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.app import Holdfast
from holdfast.kernel.step_info import step_info
from holdfast.store.protocol import FactState
from holdfast.testing.simulation.database import SimulatedDatabase
from holdfast.workflow.steps import Step
from simulation.programs.names import BUFFERED_PROGRAM
from simulation.programs.retries import UNLIMITED

_NAMES = ("greeting", "salutation")


def register_renamed_step(app: Holdfast, work: Any, version: int) -> Step[[], None]:
    """Register the step. ``work`` is the function of the external system that the step calls."""
    name, other = _NAMES if version == 1 else reversed(_NAMES)

    @app.step(name=name, renamed_from=other, retry=UNLIMITED)
    async def renamed_step() -> None:
        info = step_info()
        await work([info.instance_id, info.run_number, info.step_key], 0, 0, 0, "step")

    return renamed_step


def renamed_step_repeats(database: SimulatedDatabase) -> Iterator[str]:
    """Report runs that have the step recorded under both of its names.

    Two workers may add buffered results to a terminated run, each under the name that its version of the code has.
    """
    for instance, number in database.rows(
        "SELECT r.instance_id, r.number FROM holdfast_fact AS f JOIN holdfast_run AS r ON r.id = f.run "
        "WHERE f.state = ? AND f.key IN (?, ?) AND NOT (r.status = 'terminated' AND r.workflow = ?) "
        "GROUP BY f.run HAVING count(*) > 1 ORDER BY 1, 2",
        int(FactState.RESULT),
        *_NAMES,
        BUFFERED_PROGRAM,
    ):
        yield f"{instance} (run {number}) called a step again that was recorded under its other name"
