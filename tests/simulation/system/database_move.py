"""The move of all rows of the simulated database to another one, as ``holdfast move`` does it, with kills on the way.

The rows are read, written, finished and compared by the code of the command. At the end the simulated database has the
content of the target, so that everything that the move loses is missing for the rest of the simulation.
"""

from __future__ import annotations

from random import Random
from typing import Any

import apsw

from holdfast.cli.transfer import _checksum, _pages
from holdfast.core.model import Status
from holdfast.errors import HoldfastError
from holdfast.store.protocol import PruneRuns
from holdfast.store.protocol.transfer import Fence
from holdfast.store.sqlite.transfer import SqliteTransfer
from holdfast.testing.simulation.database import SimulatedDatabase, _Store
from simulation.programs.external_system import EFFECT_TABLE

_NEVER_PARK = 2**31 - 1
_MAX_KILLS = 3
_FENCE = Fence("token", "it is being moved", None)


async def move_database(database: SimulatedDatabase, draw: Random) -> str | None:
    """Move all rows to an empty database. Returns why that is not possible yet: a worker or a task has a lease."""
    await database.call("operator", "reap", (_NEVER_PARK,), {})
    await database.call("operator", "maintain", (PruneRuns("", Status.COMPLETE, 0, limit=1),), {})
    async with database._write_lock:
        source = _transfer(database, database.connection)
        refusal = await source.close_source(_FENCE)
        if refusal is not None:
            return refusal
        other = apsw.Connection(":memory:")
        other.deserialize("main", _Store._image)
        await _transfer(database, other).close_target(_FENCE)
        target = _transfer(database, other)
        try:
            for _ in range(draw.randint(0, _MAX_KILLS)):
                await _copy(source, _transfer(database, other), batches=draw.randint(0, 8))
            await _copy(source, target)
            await target.finish(await source.last_id())
        except HoldfastError as error:
            database.violate(f"a move of the database failed: {error}", "operator")
        for difference in (await _checksum(source)).differences(await _checksum(target)):
            database.violate(f"a move of the database changed rows: {difference}", "operator")
        await target.release()
        _adopt(database.connection, other)
    return None


def _transfer(database: SimulatedDatabase, connection: Any) -> SqliteTransfer:
    transfer = SqliteTransfer(":memory:", lambda: database.now_ms)
    transfer._connection = connection
    return transfer


async def _copy(source: SqliteTransfer, target: SqliteTransfer, batches: int | None = None) -> None:
    """Copy the rows after the position of the target; ``batches``: kill the process after this many."""
    fence = await target.fence()
    done = 0
    async for part in _pages(source, None if fence is None else fence.position, batch=5):
        if done == batches:
            return
        await target.write(part.table, part.rows, part.position)
        done += 1


def _adopt(connection: apsw.Connection, other: apsw.Connection) -> None:
    """Replace the content of a database by that of another one. The table of the users' steps stays."""
    effects = connection.execute(f"SELECT * FROM {EFFECT_TABLE}").fetchall()
    create = connection.execute("SELECT sql FROM sqlite_schema WHERE name = ?", (EFFECT_TABLE,)).get
    other.execute(create)
    if effects:
        marks = ", ".join("?" * len(effects[0]))
        other.executemany(f"INSERT INTO {EFFECT_TABLE} VALUES ({marks})", effects)
    with connection.backup("main", other, "main") as backup:
        backup.step()
    other.close()
