"""Promotion of a standby under load, with synchronous and with asynchronous replication."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from chaos.server import Server, Stop
from chaos.waiting import until
from holdfast.cli.doctor import _examine
from holdfast.store.protocol.diagnosis import Finding, Severity
from holdfast.store_url import migrate

from .load import Load
from .standby import Standby, url_of_all

_SYNCHRONOUS = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"


@pytest.fixture
async def primary() -> AsyncIterator[Server]:
    server = Server(wal_keep_size="256MB")
    await server.start()
    yield server
    server.destroy()


@pytest.fixture
async def standby(primary: Server) -> AsyncIterator[Standby]:
    standby = Standby(primary)
    await standby.start()
    yield standby
    standby.destroy()


def _load(primary: Server, standby: Standby, folder: Path, **size: int) -> Load:
    return Load(primary, folder, lambda database: url_of_all([primary, standby], database), **size)


async def test_a_promotion_with_synchronous_replication_loses_nothing_that_was_acknowledged(
    primary: Server, standby: Standby, tmp_path: Path
) -> None:
    await primary.execute("ALTER SYSTEM SET synchronous_standby_names = 'standby'")
    await primary.execute("SELECT pg_reload_conf()")

    async def is_synchronous() -> bool:
        connection = await primary.connect()
        try:
            return bool(await connection.fetchval(_SYNCHRONOUS))
        finally:
            await connection.close()

    await until(is_synchronous, "the standby is not synchronous")

    async with _load(primary, standby, tmp_path).running() as load:
        await load.started(25)
        await load.check_nothing_lost()
        await primary.stop(Stop.IMMEDIATE)
        await standby.promote()
        await load.move_to(standby)
        await load.check_nothing_lost()
        await load.complete()

    assert not load.started_again
    assert "has failed over" in load.log_text()


async def test_after_a_promotion_with_asynchronous_replication_lost_runs_are_reported_and_all_others_are_correct(
    primary: Server, standby: Standby, tmp_path: Path
) -> None:
    async with _load(primary, standby, tmp_path, copies=8, seconds=8).running() as load:
        await load.started(20)
        await standby.stop()  # what follows does not reach it
        await load.started(50)
        await primary.stop(Stop.IMMEDIATE)
        await standby.start()
        await standby.promote()
        await load.move_to(standby, lost_executions=5)
        await load.complete()

    assert "parked" not in load.log_text()
    assert load.started_again, "nothing was lost: the test is too weak"
    assert load.errors["InstanceNotFoundError"], "no client was told that its run is lost: the test is too weak"


async def test_the_doctor_names_a_standby(primary: Server, standby: Standby) -> None:
    await primary.execute("CREATE DATABASE shop")
    await migrate(url_of_all([primary], "shop"))
    at_standby = url_of_all([standby], "shop").replace("&target_session_attrs=read-write", "")

    async def examined() -> dict[str, Finding]:
        found = {one.check: one for one in await _examine(at_standby, None, None)}
        return {} if {"schema", "connection"} & found.keys() else found

    found = await until(examined, "the schema does not reach the standby")

    assert found["standby"].severity is Severity.ERROR
