"""The first step of every simulated program: the next release of the code knows it by another name.

Releases run side by side here, so each declares the other's name. Whichever name a run has recorded, no release may
call the step again under its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from holdfast.app import Holdfast
from holdfast.core.retry import Retry
from holdfast.kernel.step_info import step_info
from holdfast.store.protocol import FactState
from holdfast.testing.simulation.database import SimulatedDatabase
from holdfast.workflow.steps import Step

_NAMES = ("greeting", "salutation")
_UNLIMITED = Retry(limit=math.inf, delay="40 ms", backoff="constant")


def register_greeting(app: Holdfast, work: Any, version: int) -> Step[[], None]:
    """``work``: the step of the world outside that it calls."""
    name, other = _NAMES if version == 1 else reversed(_NAMES)

    @app.step(name=name, renamed_from=other, retry=_UNLIMITED)
    async def greet() -> None:
        info = step_info()
        await work([info.instance_id, info.run_number, info.step_key], 0, 0, 0, "step")

    return greet


def renamed_step_repeats(database: SimulatedDatabase) -> Iterator[str]:
    """Runs that have the step recorded under both of its names."""
    for instance, number in database.rows(
        "SELECT r.instance_id, r.number FROM holdfast_fact AS f JOIN holdfast_run AS r ON r.id = f.run "
        "WHERE f.state = ? AND f.key IN (?, ?) GROUP BY f.run HAVING count(*) > 1 ORDER BY 1, 2",
        int(FactState.RESULT),
        *_NAMES,
    ):
        yield f"{instance} (run {number}) has called a step again that has another name now"
