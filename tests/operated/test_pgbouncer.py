"""The workload through a real PgBouncer in transaction mode."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from chaos.server import Server, Stop

from .load import Load
from .pgbouncer import PgBouncer, version
from .standby import Standby

pytestmark = pytest.mark.skipif(version() is None, reason="pgbouncer is not installed")
_PREPARED = (1, 21)
"""The first version of PgBouncer that keeps prepared statements in transaction mode."""


@pytest.fixture(params=["statement_cache_size=0", "statement_cache_size=100"])
def options(request: pytest.FixtureRequest) -> str:
    if "=0" not in request.param and (version() or (0,)) < _PREPARED:
        pytest.skip("this PgBouncer does not keep prepared statements in transaction mode: 1.21 or newer does")
    return str(request.param)


@pytest.fixture
async def pooler(server: Server, options: str) -> AsyncIterator[PgBouncer]:
    settings = {} if "=0" in options else {"max_prepared_statements": 200}
    pooler = PgBouncer(server, **settings)
    await pooler.start()
    yield pooler
    await pooler.stop()


def _load(server: Server, pooler: PgBouncer, options: str, folder: Path) -> Load:
    return Load(server, folder, lambda database: f"{server.url(database, sockets=pooler.sockets)}&{options}")


async def test_the_workload_completes_through_a_transaction_pooler(
    server: Server, pooler: PgBouncer, options: str, tmp_path: Path
) -> None:
    async with _load(server, pooler, options, tmp_path).running() as load:
        await load.complete()

    assert not load.errors


async def test_the_workload_survives_a_restart_of_the_server_behind_the_pooler(
    server: Server, pooler: PgBouncer, options: str, tmp_path: Path
) -> None:
    async with _load(server, pooler, options, tmp_path).running() as load:
        await load.started(20)
        load.count_fault()
        await server.restart(Stop.IMMEDIATE)
        await load.complete()


async def test_a_failover_behind_the_pooler_is_noticed(
    server: Server, pooler: PgBouncer, options: str, tmp_path: Path
) -> None:
    standby = Standby(server)
    try:
        await standby.start()
        async with _load(server, pooler, options, tmp_path).running() as load:
            await load.started(15)
            await standby.stop()
            await load.started(35)
            await server.stop(Stop.IMMEDIATE)
            await standby.start()
            await standby.promote()
            pooler.lead_to(standby)
            await load.move_to(standby, lost_executions=5)
            await load.complete()
    finally:
        standby.destroy()

    assert load.started_again
    assert "has failed over" in load.log_text()
