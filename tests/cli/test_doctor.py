"""``holdfast doctor``: findings with their severity and the command that fixes them."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
from pathlib import Path
from typing import Any

import apsw
import asyncpg
import pytest
from typer.testing import CliRunner

from apps import MakeApp
from holdfast import Context, Holdfast, WorkerConfig
from holdfast.cli import doctor
from holdfast.cli.doctor import _examine
from holdfast.cli.main import cli
from holdfast.store.protocol.diagnosis import Counts, Finding, Severity, Waiting, examine_counts, examine_waiting
from holdfast.store.sqlite import doctor as sqlite_doctor

from .running import holdfast

UNSAFE = {"fsync", "full_page_writes"}


async def checks(app: Holdfast, *, with_app: bool = False) -> dict[str, Finding]:
    """Findings that are not in order, by the name of the check."""
    found = await _examine(app.url, app.schema, app if with_app else None)
    return {one.check: one for one in found if one.severity is not Severity.OK and one.check not in UNSAFE}


async def test_a_new_database_is_healthy(make_app: MakeApp) -> None:
    app = make_app()
    async with app.connect():
        assert await checks(app) == {}


async def test_a_database_that_cannot_be_opened_is_an_error(tmp_path: Path) -> None:
    for app, check in (
        (Holdfast(f"sqlite:///{tmp_path}/none.db"), "file"),
        (Holdfast("postgresql://127.0.0.1:1/none?connect_timeout=1"), "connection"),
    ):
        found = await checks(app)
        assert found[check].severity is Severity.ERROR


async def test_due_runs_that_no_worker_claims_are_errors(make_app: MakeApp) -> None:
    app = make_app(worker=WorkerConfig(version="v2"))
    old = make_app(worker=WorkerConfig(version="v1"))
    for one in (app, old):
        one.workflow(pinned=True)(pinned)
        one.workflow(free)
    async with old.connect():
        await old.start("pinned", id="p", queue="mail")
        await old.start("free", id="f")
        await age_tasks(old)
        assert (await checks(app))["workers"].text.endswith("and no worker is alive")
        async with app:
            await app.start("free", id="g", queue="night")
            await age_tasks(app)
            while not await app.workers():
                await asyncio.sleep(0.01)
            found = await checks(app)
            assert "queues" in found, found
            assert "no living worker has this queue" in found["queues"].text


async def pinned(ctx: Context) -> None: ...


async def free(ctx: Context) -> None: ...


async def age_tasks(app: Holdfast) -> None:
    """Make the tasks of the database look as if they had been due for an hour."""
    statement = "UPDATE holdfast_task SET run_at = run_at - 3600000 WHERE run_at IS NOT NULL"
    if app.url.startswith("sqlite"):
        # Not with the module sqlite3: two SQLite libraries in one process break each other's locks.
        file = apsw.Connection(app.url.removeprefix("sqlite:///"))
        file.execute(statement)
        file.close()
        return
    connection = await asyncpg.connect(app.url)
    await connection.execute(f'SET search_path = "{app.schema}"')
    await connection.execute(statement)
    await connection.close()


@pytest.mark.parametrize(
    ("waiting", "known", "check"),
    [
        (Waiting("flow", "default", "", 2, 99_000), None, "queue"),
        (Waiting("flow", "other", "", 2, 99_000), None, "queues"),
        (Waiting("flow", "default", "v1", 2, 99_000), None, "versions"),
        (Waiting("gone", "default", "", 2, 99_000), frozenset({"flow"}), "code"),
    ],
)
def test_waiting_tasks_are_explained(waiting: Waiting, known: frozenset[str] | None, check: str) -> None:
    [finding] = examine_waiting([waiting], frozenset({"default"}), frozenset({"v2"}), known)

    assert finding.check == check
    assert finding.fix is not None
    check_commands(finding.fix)


def check_commands(fix: str) -> None:
    """Check that the commands in an instruction exist, with these options."""
    for command in re.findall("`(holdfast [^`]+)`", fix) or [fix] * fix.startswith("holdfast"):
        done = CliRunner().invoke(cli, [*shlex.split(command)[1:], "--help"])
        assert done.exit_code == 0, (command, done.output)


def test_counts_that_need_attention_are_reported() -> None:
    counts = Counts("it was moved to x", 1, 2_000_000, 3, 4, 5, 2**62 + 1, ())

    findings = [*examine_counts(counts, retention=None)]
    found = [(one.severity, one.check) for one in findings]
    for one in findings:
        check_commands(one.fix or "")

    assert found == [
        (Severity.ERROR, "fence"),
        (Severity.OK, "runs"),
        (Severity.WARNING, "retention"),
        (Severity.WARNING, "parked runs"),
        (Severity.WARNING, "lost workers"),
        (Severity.WARNING, "outbox"),
        (Severity.ERROR, "sequence"),
    ]


async def test_settings_of_postgres_that_lose_data_are_found(make_app: MakeApp, store_kind: str) -> None:
    if store_kind != "postgres":
        pytest.skip("settings of a server")
    app = make_app()
    async with app.connect():
        found = await _examine(app.url, app.schema, None)

    # The servers of the tests do not sync, because their data need not survive.
    assert {one.check for one in found if one.severity is Severity.ERROR} == UNSAFE


async def test_problems_of_a_sqlite_file_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = Holdfast(f"sqlite:///{tmp_path}/shop.db")
    async with app.connect():
        pass
    (tmp_path / "shop.db").chmod(0o644)
    monkeypatch.setattr(sqlite_doctor, "_file_system", lambda path: "nfs4")
    monkeypatch.setattr(sqlite_doctor.shutil, "disk_usage", lambda path: os.statvfs_result([0] * 10) and _Usage())

    found = await checks(app)

    assert {check: one.severity for check, one in found.items()} == {
        "rights": Severity.WARNING,
        "file system": Severity.ERROR,
        "disk": Severity.ERROR,
    }


class _Usage:
    free = 1024


async def test_a_long_log_and_free_pages_of_a_sqlite_file_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_LONG_WAL", "_MANY_FREE_PAGES"):
        monkeypatch.setattr(sqlite_doctor, name, 1)
    app = Holdfast(f"sqlite:///{tmp_path}/shop.db")
    async with app.connect():
        file = apsw.Connection(str(tmp_path / "shop.db"))
        file.execute("CREATE TABLE mine AS SELECT zeroblob(2000000) AS data; DROP TABLE mine")
        file.close()
        found = await checks(app)

    assert found["wal"].severity is found["bloat"].severity is Severity.WARNING
    assert (found["bloat"].fix or "").startswith("holdfast prune")


async def test_a_damaged_sqlite_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    app = Holdfast(f"sqlite:///{path}")
    app.workflow(free)
    async with app.connect():
        await app.start("free", id="f")
    content = bytearray(path.read_bytes())
    tables = range(3 * 4096, len(content), 4096)
    for page in tables:
        content[page : page + 8] = b"\xff" * 8
    path.write_bytes(content)

    found = await checks(app)

    assert {one.severity for one in found.values()} == {Severity.ERROR}


async def test_a_file_of_another_release_is_an_error(tmp_path: Path) -> None:
    app = Holdfast(f"sqlite:///{tmp_path}/shop.db")
    async with app.connect():
        pass
    file = apsw.Connection(str(tmp_path / "shop.db"))
    file.execute("UPDATE holdfast_meta SET value = 99 WHERE key = 'schema_version'")
    file.close()

    assert (await checks(app))["schema"].severity is Severity.ERROR


def test_the_command_exits_with_1_only_for_errors(tmp_path: Path) -> None:
    holdfast("migrate", "sqlite:///shop.db", cwd=tmp_path)

    healthy = holdfast("doctor", "sqlite:///shop.db", cwd=tmp_path)
    (tmp_path / "shop.db").chmod(0o644)
    warned = holdfast("doctor", "sqlite:///shop.db", cwd=tmp_path)
    broken = holdfast("doctor", "sqlite:///none.db", cwd=tmp_path)

    assert (healthy.returncode, healthy.stdout.splitlines()[-1]) == (0, "0 errors, 0 warnings")
    assert (warned.returncode, warned.stdout.splitlines()[-1]) == (0, "0 errors, 1 warnings")
    assert "fix: chmod 600 shop.db" in warned.stdout
    assert (broken.returncode, broken.stdout.splitlines()[-1]) == (1, "1 errors, 0 warnings")


def test_errors_come_first() -> None:
    said: list[Any] = []
    findings = [Finding(Severity.ERROR, "a", "b", "c"), Finding(Severity.OK, "d", "e")]

    assert doctor.report(findings, said.append) is False
    assert said == ["error    a: b", "         fix: c", "ok       d: e", "1 errors, 0 warnings"]
