"""``holdfast doctor``: each finding about a server, a file and their rows is reported when its cause exists."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import apsw
import asyncpg
import pytest

from apps import MakeApp
from driving import until
from holdfast import Context, Holdfast
from holdfast.cli.doctor import _examine
from holdfast.ports import SystemClock
from holdfast.store.postgres import doctor as postgres_doctor
from holdfast.store.postgres.doctor import PostgresDoctor
from holdfast.store.protocol import diagnosis
from holdfast.store.protocol.diagnosis import Finding, Severity
from holdfast.store.sqlite import doctor as sqlite_doctor
from holdfast.store_url import migrate
from postgres_harness import CleanSchemas

DAY_MS = 86_400_000
UNSAFE = {"fsync", "full_page_writes"}
"""Settings of the test servers, whose data need not survive."""


@pytest.fixture
async def postgres() -> AsyncIterator[tuple[str, str]]:
    """The URL of a database, and a migrated schema in it."""
    with CleanSchemas.one() as (url, schema):
        await migrate(url, schema=schema)
        yield url, schema


async def settings(url: str, schema: str, *, lease_ms: int = 30_000, later_ms: int = 0) -> dict[str, Finding]:
    """Findings about a server that are not in order. ``later_ms``: error of the clock of this host."""
    clock = SystemClock()
    doctor = PostgresDoctor(url, schema, lambda: round(clock.now().timestamp() * 1000) + later_ms, clock)
    assert await doctor.open() is None
    try:
        found = await doctor.settings(lease_ms)
    finally:
        await doctor.close()
    return {one.check: one for one in found if one.severity is not Severity.OK and one.check not in UNSAFE}


@asynccontextmanager
async def connection_to(url: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close()


# --- the server


async def test_a_server_without_problems_has_no_findings(postgres: tuple[str, str]) -> None:
    assert await settings(*postgres) == {}


async def test_a_schema_that_does_not_exist_is_an_error(postgres: tuple[str, str]) -> None:
    doctor = PostgresDoctor(postgres[0], "no_such_schema", lambda: 0, SystemClock())

    finding = await doctor.open()
    await doctor.close()

    assert finding is not None
    assert (finding.severity, finding.check) == (Severity.ERROR, "schema")


async def test_latency_clock_and_connections_of_a_server_are_compared_with_the_worker(
    postgres: tuple[str, str],
) -> None:
    url, schema = postgres

    assert [*await settings(url, schema, lease_ms=0)] == ["latency"]
    assert [*await settings(url, schema, later_ms=DAY_MS)] == ["clock"]
    many = await settings(f"{url}{'&' if '?' in url else '?'}pool_size=100000", schema)
    assert [*many] == ["connections"]
    assert "another worker needs up to 100003" in many["connections"].text


async def test_a_role_that_lacks_one_right_on_one_table_is_an_error(postgres: tuple[str, str]) -> None:
    url, schema = postgres
    role = f"doctor_{schema}"
    async with connection_to(url) as connection:
        await connection.execute(
            f"CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA {schema} TO {role};"
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role};"
            f"REVOKE DELETE ON {schema}.holdfast_task FROM {role};"
            f"REVOKE SELECT ON {schema}.holdfast_worker FROM {role}"
        )
        try:
            own = url.replace("postgresql://postgres@", f"postgresql://{role}@")
            assert own != url
            found = await _examine(own, schema, None)
        finally:
            await connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")

    [finding] = found
    assert (finding.severity, finding.check) == (Severity.ERROR, "rights")
    assert finding.text == "this role lacks rights on holdfast_task, holdfast_worker"


async def test_settings_of_a_server_that_lose_data_or_space_are_found(postgres: tuple[str, str]) -> None:
    url, schema = postgres
    asynchronous = f"{url}{'&' if '?' in url else '?'}synchronous_commit=off"
    async with connection_to(url) as connection:
        await connection.execute("ALTER SYSTEM SET autovacuum = off")
        await connection.execute("SELECT pg_reload_conf()")
        try:
            await until(lambda: _setting(connection, "autovacuum", "off"))
            found = await settings(asynchronous, schema)
        finally:
            await connection.execute("ALTER SYSTEM RESET autovacuum")
            await connection.execute("SELECT pg_reload_conf()")

    assert found["autovacuum"].severity is Severity.ERROR
    assert found["synchronous_commit"].severity is Severity.WARNING


async def _setting(connection: Any, name: str, value: str) -> bool:
    found: str = await connection.fetchval("SELECT current_setting($1)", name)
    return found == value


async def test_limits_of_a_server_are_findings_once_they_are_reached(
    postgres: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_doctor, "_OLDEST", 10_000_000)
    monkeypatch.setattr(postgres_doctor, "_FULL_QUEUE", -1)
    monkeypatch.setattr(postgres_doctor, "_NEAR_WRAPAROUND", -1)
    monkeypatch.setattr(diagnosis, "_LOW_SPACE", 2**62)

    found = await settings(*postgres)

    assert {check: one.severity for check, one in found.items()} == {
        "version": Severity.ERROR,
        "notifications": Severity.WARNING,
        "wraparound": Severity.WARNING,
        "disk": Severity.WARNING,
    }
    monkeypatch.setattr(postgres_doctor, "_WRAPAROUND", -1)
    monkeypatch.setattr(diagnosis, "_LITTLE_SPACE", 2**62)
    found = await settings(*postgres)
    assert found["wraparound"].severity is found["disk"].severity is Severity.ERROR


async def test_dead_rows_long_transactions_and_unused_slots_are_found(
    postgres: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, schema = postgres
    monkeypatch.setattr(postgres_doctor, "_MANY_DEAD_ROWS", 0)
    monkeypatch.setattr(postgres_doctor, "_LONG_TRANSACTION_S", 0)
    monkeypatch.setattr(postgres_doctor, "_KEPT_WAL", -1)
    slot = f"slot_{schema}"
    async with connection_to(url) as connection, connection_to(url) as other:
        table = f"{schema}.holdfast_fence"
        await connection.execute(f"INSERT INTO {table} (id, reason, token) VALUES (1, 'x', 'x'); DELETE FROM {table}")
        await connection.execute("SELECT pg_stat_force_next_flush()")
        await connection.fetchval("SELECT pg_create_physical_replication_slot($1, true)", slot)
        transaction = other.transaction()
        await transaction.start()
        await other.fetchval("SELECT 1")
        try:
            await until(lambda: _has_dead_rows(connection, schema))
            found = await settings(url, schema)
        finally:
            await transaction.rollback()
            await connection.fetchval("SELECT pg_drop_replication_slot($1)", slot)

    assert {*found} == {"bloat", "transactions", "wal"}
    assert (found["bloat"].fix or "").startswith(f"VACUUM {schema}.holdfast_")
    assert found["wal"].fix == f"SELECT pg_drop_replication_slot('{slot}')"


async def _has_dead_rows(connection: Any, schema: str) -> bool:
    dead: int | None = await connection.fetchval(
        "SELECT n_dead_tup FROM pg_stat_user_tables WHERE schemaname = $1 AND relname = 'holdfast_fence'", schema
    )
    return bool(dead)


async def test_the_free_space_of_a_server_on_this_host_is_shown_unless_its_folder_is_not_known(
    postgres: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    known = await _examine(*postgres, None)
    monkeypatch.setattr(postgres_doctor, "_free_space", lambda directory: None)
    unknown = await _examine(*postgres, None)

    texts = [[one.text for one in found if one.check == "disk"] for found in (known, unknown)]
    assert len(texts[0]) == len(texts[1]) == 1
    assert texts[0][0].endswith("MB are free")
    assert "is not known here" in texts[1][0]


# --- a file


async def test_a_journal_that_is_not_a_write_ahead_log_is_an_error(tmp_path: Path) -> None:
    app = Holdfast(f"sqlite:///{tmp_path}/shop.db")
    async with app.connect():
        pass
    doctor = sqlite_doctor.SqliteDoctor(str(tmp_path / "shop.db"), lambda: 0)
    assert await doctor.open() is None
    doctor._connection.pragma("journal_mode", "delete")

    found = {one.check: one for one in await doctor.settings(30_000)}
    await doctor.close()

    assert found["journal"].severity is Severity.ERROR


async def test_little_space_on_the_disk_of_a_file_is_first_a_warning_and_then_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = Holdfast(f"sqlite:///{tmp_path}/shop.db")
    async with app.connect():
        pass
    found = []
    for name in ("_LOW_SPACE", "_LITTLE_SPACE"):
        monkeypatch.setattr(diagnosis, name, 2**62)
        found += [one.severity for one in await _examine(app.url, None, None) if one.check == "disk"]

    assert found == [Severity.WARNING, Severity.ERROR]


# --- rows


async def execute(app: Holdfast, statement: str) -> None:
    """Execute SQL on the database of an app."""
    if app.url.startswith("sqlite"):
        # Not with the module sqlite3: two SQLite libraries in one process break each other's locks.
        file = apsw.Connection(app.url.removeprefix("sqlite:///"))
        file.execute(statement)
        file.close()
        return
    async with connection_to(app.url) as connection:
        await connection.execute(f'SET search_path = "{app.schema}"; {statement}')


async def test_rows_that_need_attention_are_findings(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis, "_MANY_RUNS", 1)
    monkeypatch.setattr(diagnosis, "_NEAR_OVERFLOW", 0)
    app = make_app()

    @app.workflow
    async def order(ctx: Context) -> None: ...

    async with app.connect():
        for name in ("parked", "suspect", "outbox"):
            await app.start(order, id=name, delay="1 day")
        note = "'NON_DETERMINISTIC: x'"
        await execute(app, f"UPDATE holdfast_run SET status = 'paused', note = {note} WHERE instance_id = 'parked'")
        run = "(SELECT id FROM holdfast_run WHERE instance_id = '{}')"
        await execute(app, f"UPDATE holdfast_task SET bucket = 2 WHERE run = {run.format('suspect')}")
        columns = "run, n, step, type, created_at, attempts, run_at, parked_at"
        await execute(
            app, f"INSERT INTO holdfast_outbox ({columns}) VALUES ({run.format('outbox')}, 1, 'A', 'a', 0, 9, 0, 1)"
        )
        await execute(app, "INSERT INTO holdfast_fence (id, reason, token) VALUES (1, 'it was moved to x', 't')")
        try:
            found = {one.check: one for one in await _examine(app.url, app.schema, None)}
        finally:
            await execute(app, "DELETE FROM holdfast_fence")

    expected = {
        "fence": Severity.ERROR,
        "retention": Severity.WARNING,
        "parked runs": Severity.WARNING,
        "lost workers": Severity.WARNING,
        "outbox": Severity.WARNING,
        "sequence": Severity.ERROR,
    }
    assert {check: found[check].severity for check in expected if check in found} == expected
    assert all(found[check].text.startswith("1 ") for check in ("parked runs", "lost workers", "outbox"))
    assert all(found[check].fix for check in expected)


async def test_due_tasks_of_a_version_without_workers_and_of_an_unknown_workflow_are_errors(make_app: MakeApp) -> None:
    app, other = make_app(), make_app()

    @other.workflow
    async def order(ctx: Context) -> None: ...

    async with other.connect():
        await other.start(order, id="pinned")
        await execute(other, "UPDATE holdfast_task SET pin = 'v1', run_at = run_at - 3600000")
        async with app:
            while not await app.workers():
                await asyncio.sleep(0.01)
            without_app = {one.check for one in await _examine(app.url, app.schema, None)}
            with_app = {one.check for one in await _examine(app.url, app.schema, app)}

    assert "versions" in without_app
    assert "code" in with_app
