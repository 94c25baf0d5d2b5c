"""``holdfast migrate`` as a user runs it."""

from __future__ import annotations

import re
import sqlite3
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from holdfast.cli.redaction import without_password
from holdfast.store_url import migrate

from .shop import Shop

SECRET = "s3/cr:e%74"


async def latest() -> int:
    return (await migrate("sqlite://")).after


async def test_a_new_file_is_created_and_migrated(shop: Shop) -> None:
    first = shop.holdfast("migrate", "sqlite:///new.db")
    second = shop.holdfast("migrate", "sqlite:///new.db")

    assert (first.returncode, first.stderr) == (0, "")
    assert first.stdout == f"sqlite:///new.db: schema migrated from version 0 to {await latest()}\n"
    assert (second.returncode, second.stderr) == (0, "")
    assert second.stdout == f"sqlite:///new.db: schema version {await latest()}, nothing to do\n"


def test_the_url_may_come_from_the_environment(shop: Shop) -> None:
    done = shop.holdfast("migrate", HOLDFAST_DATABASE_URL="sqlite:///other.db")

    assert done.returncode == 0
    assert done.stdout.startswith("sqlite:///other.db: schema migrated")


def test_concurrent_migrations_all_succeed(shop: Shop) -> None:
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(lambda _: shop.holdfast("migrate", "sqlite:///new.db"), range(4)))

    assert [process.returncode for process in done] == [0] * 4, done
    assert shop.holdfast("migrate", "--check", "sqlite:///new.db").returncode == 0


def test_a_check_fails_if_a_migration_is_needed_and_changes_nothing(shop: Shop) -> None:
    file = shop.folder / "empty.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE mine (x)")
        connection.execute("PRAGMA journal_mode = wal")

    refused(shop.holdfast("migrate", "--check", "sqlite:///empty.db"), "empty.db has schema version 0")
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("SELECT name FROM sqlite_schema").fetchall() == [("mine",)]

    assert shop.holdfast("migrate", "sqlite:///empty.db").returncode == 0
    done = shop.holdfast("migrate", "--check", "sqlite:///empty.db")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith(", nothing to do\n")


def test_a_check_creates_no_file(shop: Shop) -> None:
    refused(shop.holdfast("migrate", "--check", "sqlite:///new.db"), "new.db does not exist")

    assert not (shop.folder / "new.db").exists()


@pytest.mark.parametrize("check", [[], ["--check"]])
def test_a_newer_database_is_refused(shop: Shop, check: list[str]) -> None:
    assert shop.holdfast("migrate", "sqlite:///new.db").returncode == 0
    with closing(sqlite3.connect(shop.folder / "new.db")) as connection, connection:
        connection.execute("UPDATE holdfast_meta SET value = 999")

    refused(shop.holdfast("migrate", *check, "sqlite:///new.db"), "newer than this Holdfast knows")


def test_an_invalid_database_is_refused_in_one_line(shop: Shop) -> None:
    refused(shop.holdfast("migrate", "sqlite:///shop.py"), "shop.py is not a SQLite database")
    refused(shop.holdfast("migrate", "sqlite:///nowhere/new.db"), "does not exist")
    refused(shop.holdfast("migrate", f"sqlite:///{shop.folder}"), "directory")
    refused(shop.holdfast("migrate", "mysql://db/shop"), "'mysql://db/shop' is not a database URL")
    refused(shop.holdfast("migrate", "--schema", "x", "sqlite:///new.db"), "only with a PostgreSQL URL")


@pytest.mark.promise("no-secrets", store=None)
@pytest.mark.parametrize(
    "url",
    [
        f"mysql://app:{SECRET}@db/shop",
        f"postgres:app:{SECRET}@db/shop",
        f"app:{SECRET}@db/shop",
        f"mysql://db/shop?user=app&password={SECRET}",
        f"postgresql://app:{SECRET}@127.0.0.1:1/shop?connect_timeout=1",
        f"postgresql://127.0.0.1:1/shop?connect_timeout=1&user=app&password={SECRET}",
    ],
)
def test_no_password_is_shown(shop: Shop, url: str) -> None:
    for done in (shop.holdfast("migrate", url), shop.holdfast("migrate", HOLDFAST_DATABASE_URL=url)):
        refused(done, "")
        assert "cr:e" not in done.stdout + done.stderr


@pytest.mark.promise("no-secrets", store=None)
@pytest.mark.parametrize(
    ("url", "text", "shown"),
    [
        ("postgresql://app:pass%20word@db/x", "no 'pass word' for app", "no '…' for app"),
        ("postgresql://app:secret@db/x?opt=a@b", "secret is wrong", "… is wrong"),
        ("postgresql://app@db/x", "app is not known", "app is not known"),
        ("postgresql://db/x?password=secret&a=b", "password=secret&a=b", "password=…&a=b"),
        ("sqlite:///shop.db", "sqlite:///shop.db", "sqlite:///shop.db"),
    ],
)
def test_a_password_is_removed_in_every_form(url: str, text: str, shown: str) -> None:
    assert without_password(text, url) == shown


@pytest.mark.parametrize("arguments", [[], ["sqlite://", "extra"], ["--nope", "sqlite://"]])
def test_wrong_usage_exits_with_2(shop: Shop, arguments: list[str]) -> None:
    done = shop.holdfast("migrate", *arguments)

    assert done.returncode == 2
    assert done.stderr.count("Error: ") == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["worker", "migrate"])
def test_help_has_examples(shop: Shop, command: str) -> None:
    done = shop.holdfast(command, "--help")

    assert done.returncode == 0
    assert "Examples:" in done.stdout
    assert f"\n    holdfast {command} " in done.stdout


def refused(done: subprocess.CompletedProcess[str], reason: str) -> None:
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(r"holdfast: .+\n", done.stderr), done.stderr
    assert reason in done.stderr
