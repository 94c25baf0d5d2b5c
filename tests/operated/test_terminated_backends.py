"""Connections that an operator terminates, again and again, under load."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import asyncpg

from chaos.server import Server

from .load import Load

_ROUNDS = 60
_BACKENDS = "SELECT pid FROM pg_stat_activity WHERE datname = $1 AND application_name = 'holdfast'"


async def test_a_storm_of_pg_terminate_backend_loses_nothing(server: Server, tmp_path: Path) -> None:
    terminated, rng = 0, random.Random(3)
    async with Load(server, tmp_path, copies=8, seconds=8).running() as load:
        await load.started(5)
        operator = await server.connect()
        for round_ in range(_ROUNDS):
            load.count_fault()
            terminated += await _terminate(operator, load.database, rng.choice([0.2, 0.5, 1.0]), rng)
            if round_ % 10 == 0:
                await load.check_nothing_lost()
            await asyncio.sleep(rng.uniform(0.02, 0.2))
        await operator.close()
        await load.complete()

    assert terminated > 2 * _ROUNDS


async def _terminate(operator: asyncpg.Connection, database: str, share: float, rng: random.Random) -> int:
    """Terminate a random share of the connections of the engine; returns their number."""
    pids = [row[0] for row in await operator.fetch(_BACKENDS, database) if rng.random() < share]
    await operator.execute("SELECT pg_terminate_backend(pid) FROM unnest($1::int[]) AS pid", pids)
    return len(pids)
