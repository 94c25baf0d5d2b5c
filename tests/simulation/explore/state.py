"""The hash of a state: the contents of the database, and the position of each process.

The position of a process is the hash of everything that it has received, because a process is deterministic. Two states
with the same hash have the same continuations, and the same outcome of the checks.
"""

from __future__ import annotations

import hashlib

from simulation.explore.actions import Actions
from simulation.explore.loop import ExploredLoop
from simulation.explore.system import ExploredWorld

_TABLES = (
    "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' "
    "AND name NOT IN ('holdfast_worker', 'holdfast_migration') ORDER BY name"
)


class StateHash:
    """Computes the hash of the current state of a schedule."""

    def __init__(self, world: ExploredWorld, loop: ExploredLoop, actions: Actions) -> None:
        self._world = world
        self._loop = loop
        self._actions = actions
        self._tables: list[str] = []

    def __call__(self) -> bytes:
        world, table, rows = self._world, self._world.table, self._world.database.rows
        if not self._tables:
            self._tables = [f"SELECT * FROM {name}" for (name,) in rows(_TABLES)]
        state = (
            [rows(sql) for sql in self._tables],
            sorted(table.histories.items()),
            sorted((call.id, call.slow_since is not None) for call in table.pending.values()),
            sorted(table.held),
            sorted(table.notifications),
            [(node.alive, node.process is not None and node.process.stopped) for node in world.nodes.values()],
            sorted(self._actions.stopped_at.items()),
            [script.done for script in world.workload.scripts],
            sorted(self._actions.arrived),
            self._actions.fault_left,
            round(self._loop.time(), 6),
        )
        return hashlib.blake2b(repr(state).encode(), digest_size=16).digest()
