"""Replays the completed workflows of a simulation and compares the results with the recorded ones."""

from __future__ import annotations

from typing import Any

from holdfast.app import Holdfast
from holdfast.core import codec
from holdfast.core.model import Status, to_ms
from holdfast.core.show import shown
from holdfast.kernel.requests import Requests
from holdfast.ports import Runtime
from holdfast.store.protocol import Finish, RunRecord, RunsById, Snapshot, SnapshotQuery
from holdfast.testing.simulation.database import SimulatedDatabase
from holdfast.testing.simulation.ports import LoopClock
from holdfast.testing.simulation.scenario_loop import ScenarioLoop
from holdfast.testing.virtual import SeededRandomness


def replay_difference(app: Holdfast, database: SimulatedDatabase, loop: ScenarioLoop) -> str | None:
    """Return the first difference between a completed workflow and its replay, as text, or None."""
    complete = database.rows(  # only current runs: unread events of a continued run moved to its successor
        "SELECT id FROM holdfast_run WHERE kind = 'workflow' AND status = 'complete' AND current = 1 ORDER BY id"
    )
    for (run,) in complete:
        record, snapshot = loop.run_until_complete(_read(database, run))
        difference = _replay(app, loop, record, snapshot)
        if difference is not None:
            return f"{record.pid} {difference}"
    return None


async def _read(database: SimulatedDatabase, run: int) -> tuple[RunRecord, Snapshot]:
    [record] = await database.store.read(RunsById([run]))
    return record, await database.store.read(SnapshotQuery(run))


def _replay(app: Holdfast, loop: ScenarioLoop, record: RunRecord, snapshot: Snapshot) -> str | None:
    definition = app.registry.get(record.workflow)
    if definition.driver is None:
        return None
    clock = LoopClock(loop)
    requests = Requests(app.registry, app.limits, Runtime(clock, SeededRandomness(0)), clock)
    machine: Any = definition.driver.open(record, snapshot, requests)
    try:
        decision = machine.advance(to_ms(clock.now()))
    finally:
        machine.close()
    if isinstance(decision.end, Finish) and decision.end.status is Status.COMPLETE:
        if decision.end.output == record.output:
            return None
        return f"returned {_text(record.output)}, and {_text(decision.end.output)} when it was replayed"
    keys = ", ".join(repr(call.key) for call in decision.calls)
    return f"requested {keys or 'something'} when it was replayed, which it had not done before"


def _text(output: bytes | None) -> str:
    return shown(codec.plain(output))
