"""Replays what a simulation has recorded once more, and looks whether the code comes to the same end."""

from __future__ import annotations

from typing import Any

from holdfast.app import Holdfast
from holdfast.core import codec
from holdfast.core.model import Status, to_ms
from holdfast.core.show import shown
from holdfast.kernel.requests import Requests
from holdfast.ports import Runtime
from holdfast.store.protocol import Finish, RunRecord, Snapshot
from holdfast.testing.simulation.database import SimulatedDatabase
from holdfast.testing.simulation.ports import LoopClock
from holdfast.testing.users.loop import UsersLoop
from holdfast.testing.virtual import SeededRandomness


def replayed_otherwise(app: Holdfast, database: SimulatedDatabase, loop: UsersLoop) -> str | None:
    """What a replay of the completed workflows does differently; None: nothing."""
    complete = database.rows(  # what a run that was continued has not read went on with the next
        "SELECT id FROM holdfast_run WHERE kind = 'workflow' AND status = 'complete' AND current = 1 ORDER BY id"
    )
    for (run,) in complete:
        record, snapshot = loop.run_until_complete(_read(database, run))
        found = _replay(app, loop, record, snapshot)
        if found is not None:
            return f"{record.pid} {found}"
    return None


async def _read(database: SimulatedDatabase, run: int) -> tuple[RunRecord, Snapshot]:
    [record] = await database.store.get([run])
    return record, await database.store.load(run)


def _replay(app: Holdfast, loop: UsersLoop, record: RunRecord, snapshot: Snapshot) -> str | None:
    definition = app.registry.get(record.workflow)
    if definition.driver is None:
        return None
    clock = LoopClock(loop)
    requests = Requests(app.registry, app.limits, Runtime(clock, SeededRandomness(0)), clock)
    machine: Any = definition.driver.open(record, snapshot, requests)
    try:
        rest = machine.advance(to_ms(clock.now()))
    finally:
        machine.close()
    if isinstance(rest.end, Finish) and rest.end.status is Status.COMPLETE:
        if rest.end.output == record.output:
            return None
        return f"returned {_told(record.output)}, and {_told(rest.end.output)} when it was replayed"
    asked = ", ".join(repr(call.key) for call in rest.calls)
    return f"asked for {asked or 'something'} when it was replayed, which it had not done before"


def _told(output: bytes | None) -> str:
    return shown(codec.plain(output))
