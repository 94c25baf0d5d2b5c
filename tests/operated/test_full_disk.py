"""A full disk under load: typed errors, nothing acknowledged is lost, and the work continues when there is space."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import asyncpg
import pytest

from chaos.server import Server
from chaos.waiting import until

from .load import Load
from .small_disk import SmallDisk


@pytest.fixture
async def disk(server: Server) -> AsyncIterator[SmallDisk]:
    disk = SmallDisk(server.folder / "small", 48, server.user)
    yield disk
    server.destroy()
    disk.unmount()


async def test_a_full_disk_of_the_tables_gives_store_full_errors_until_there_is_space(
    server: Server, disk: SmallDisk, tmp_path: Path
) -> None:
    await server.execute(f"CREATE TABLESPACE small LOCATION '{disk.folder}'")
    load = Load(server, tmp_path, seconds=4)
    load.database = "small"
    await server.execute("CREATE DATABASE small TABLESPACE small")

    async with load.running():
        await load.started(20)
        load.count_fault()
        filling = asyncio.create_task(_keep_full(disk))
        await until(lambda: load.errors["StoreFullError"], lambda: f"no StoreFullError but {load.errors}", 60)
        filling.cancel()
        disk.free()
        await load.check_nothing_lost()
        await load.complete()

    assert set(load.errors) == {"StoreFullError"}


async def test_a_full_disk_of_the_write_ahead_log_stops_the_server_and_loses_nothing_that_was_acknowledged(
    server: Server, tmp_path: Path
) -> None:
    await server.stop()
    disk = SmallDisk(server.folder / "wal", 64, server.user)
    try:
        server.move_wal(disk.folder)
        await server.start()
        async with Load(server, tmp_path, seconds=4).running() as load:
            await load.started(20)
            load.count_fault()
            filling = asyncio.create_task(_keep_full(disk))
            while server.running:  # the load alone takes minutes until it needs another file of the log
                with suppress(asyncpg.PostgresError, OSError, asyncpg.InterfaceError):
                    await server.execute("SELECT pg_switch_wal() FROM pg_logical_emit_message(true, '', 'more')")
                await asyncio.sleep(0.05)
            filling.cancel()
            disk.free()
            await server.start()
            await load.check_nothing_lost()
            await load.complete()
    finally:
        server.destroy()
        disk.unmount()

    assert set(load.errors) <= {"StoreUnavailableError", "StoreFullError"}


async def _keep_full(disk: SmallDisk) -> None:
    """Fill the disk again and again: PostgreSQL frees space, for example when it truncates a table or removes WAL."""
    while True:
        disk.fill()
        await asyncio.sleep(0.02)
