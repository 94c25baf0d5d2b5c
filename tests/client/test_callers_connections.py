"""Runs and events on a caller's connection of ``sqlite3``, psycopg 3 or SQLAlchemy share the caller's transaction."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.orm import Session

from holdfast import Context, Holdfast
from holdfast.errors import InvalidOptionError, InvalidUrlError, StoreBusyError, StoreError
from holdfast.store.postgres.psycopg import text
from postgres_server import new_database

Make = Callable[[], Any]


def _workflows(app: Holdfast) -> Holdfast:
    @app.workflow
    async def echo(ctx: Context, value: str) -> str:
        event = await ctx.wait_for_event("go", type="go")
        return f"{value} {event.payload}"

    return app


@pytest.fixture
def sqlite_app(tmp_path: Path) -> Holdfast:
    return _workflows(Holdfast(f"sqlite:///{tmp_path}/app.db?driver=sqlite3"))


@pytest.fixture(scope="module")
def url() -> str:
    return new_database(migrated=True)


@pytest.fixture
def postgres_app(url: str) -> Iterator[Holdfast]:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DELETE FROM holdfast.holdfast_run; DELETE FROM holdfast.holdfast_task")
    return _workflows(Holdfast(url))


def _engine(app: Holdfast) -> sqlalchemy.Engine:
    url = app.url.partition("?driver")[0].replace("postgresql://", "postgresql+psycopg://")
    return sqlalchemy.create_engine(url, poolclass=sqlalchemy.NullPool)


@pytest.fixture(params=["sqlite3", "psycopg", "session on sqlite3", "session on psycopg", "connection on psycopg"])
def case(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Holdfast, Make]:
    """An app, and a function that opens a caller's connection to its database."""
    app: Holdfast = request.getfixturevalue("sqlite_app" if "sqlite3" in request.param else "postgres_app")
    makers: dict[str, Make] = {
        "sqlite3": lambda: sqlite3.connect(tmp_path / "app.db"),
        "psycopg": lambda: psycopg.connect(app.url),
        "session on sqlite3": lambda: Session(_engine(app)),
        "session on psycopg": lambda: Session(_engine(app)),
        "connection on psycopg": lambda: _engine(app).connect(),
    }
    return app, makers[request.param]


def test_a_blocking_client_starts_and_sends_in_the_transaction_of_the_calling_thread(
    case: tuple[Holdfast, Make],
) -> None:
    app, make = case
    with app.sync(worker=True) as client, closing(make()) as connection:
        run = client.start("echo", "a\x00\ud800", id="kept", connection=connection)
        client.start("echo", "b", id="kept", connection=connection)
        connection.commit()
        client.start("echo", "b", id="lost", connection=connection)
        connection.rollback()

        run.send_event("go", {"n": 1}, connection=connection)
        connection.commit()

        assert run.result(timeout=60) == "a\x00\ud800 {'n': 1}"
        assert [one.id for one in client.list("echo").items] == ["kept"]


async def test_async_code_starts_in_the_transaction_of_a_blocking_connection(case: tuple[Holdfast, Make]) -> None:
    app, make = case
    async with app.connect():
        with closing(make()) as connection:
            run = await app.start(
                "echo", "a", id="x", connection=connection, search={"n": 5}, memo={"m": 'q"\\'}, messages=[("go", 1)]
            )
            connection.rollback()
            assert (await app.list("echo")).items == []

            await app.start("echo", "a", id="x", connection=connection, search={"n": 5}, memo={"m": 'q"\\'})
            connection.commit()

        [found] = (await app.list("echo", search={"n": 5})).items
        assert found.id == run.id
        assert (await (await app.get("echo", "x")).describe()).memo == {"m": 'q"\\'}


async def test_an_async_connection_of_psycopg_is_accepted(postgres_app: Holdfast) -> None:
    async with postgres_app.connect(), await psycopg.AsyncConnection.connect(postgres_app.url) as connection:
        await postgres_app.start("echo", "a", id="x", connection=connection)
        assert (await postgres_app.list("echo")).items == []

        await connection.commit()

        assert [one.id for one in (await postgres_app.list("echo")).items] == ["x"]


async def test_a_start_in_autocommit_mode_is_committed_at_once(sqlite_app: Holdfast, tmp_path: Path) -> None:
    async with sqlite_app.connect():
        with closing(sqlite3.connect(tmp_path / "app.db", isolation_level=None)) as connection:
            connection.row_factory, connection.text_factory = sqlite3.Row, bytes
            await sqlite_app.start("echo", "a", id="x", connection=connection)

            assert not connection.in_transaction
            assert connection.text_factory is bytes
        assert [one.id for one in (await sqlite_app.list("echo")).items] == ["x"]


def test_a_deferred_transaction_waits_for_the_lock_before_its_first_read(sqlite_app: Holdfast, tmp_path: Path) -> None:
    with sqlite_app.sync() as client, _deferred(tmp_path) as callers, _deferred(tmp_path) as others:
        run = client.start("echo", "a", id="x")
        others.execute("BEGIN IMMEDIATE")
        others.execute("UPDATE holdfast_meta SET value = value")
        commit = threading.Timer(0.2, others.execute, ["COMMIT"])
        commit.start()
        callers.execute("BEGIN")

        run.send_event("go", 1, connection=callers)
        callers.execute("COMMIT")
        commit.join()

    with closing(sqlite3.connect(tmp_path / "app.db")) as connection:
        assert connection.execute("SELECT type FROM holdfast_event").fetchall() == [("go",)]


def test_a_transaction_that_read_before_another_process_wrote_is_refused_with_advice(
    sqlite_app: Holdfast, tmp_path: Path
) -> None:
    with sqlite_app.sync() as client, _deferred(tmp_path) as callers:
        callers.execute("BEGIN")
        callers.execute("SELECT count(*) FROM holdfast_run").fetchall()
        client.start("echo", "a", id="other")

        with pytest.raises(StoreBusyError, match="begin it with BEGIN IMMEDIATE"):
            client.start("echo", "a", id="x", connection=callers)


@contextmanager
def _deferred(folder: Path) -> Iterator[sqlite3.Connection]:
    """A connection whose transactions begin as the program says; the timer of a test uses it, too."""
    connection = sqlite3.connect(folder / "app.db", isolation_level=None, check_same_thread=False)
    with closing(connection):
        yield connection


async def test_a_start_on_a_callers_connection_cannot_retry_a_failed_run(sqlite_app: Holdfast) -> None:
    async with sqlite_app.connect():
        with closing(sqlite3.connect(":memory:")) as connection, pytest.raises(InvalidOptionError, match="connection"):
            await sqlite_app.start("echo", "a", id="a", on_reuse="retry_if_failed", connection=connection)

        assert (await sqlite_app.list("echo")).items == []


async def test_a_store_on_apsw_refuses_a_connection_of_sqlite3_with_the_reason(tmp_path: Path) -> None:
    app = _workflows(Holdfast(f"sqlite:///{tmp_path}/app.db"))

    async with app.connect():
        connection = sqlite3.connect(":memory:")  # of the file itself, the open and close alone would drop locks
        with closing(connection), pytest.raises(InvalidOptionError, match=r"open the app with \?driver=sqlite3"):
            await app.start("echo", "a", connection=connection)


def test_two_copies_of_sqlite_in_one_process_lose_a_commit(tmp_path: Path) -> None:
    """The reason for the driver ``sqlite3``; in a process of its own, because it damages a file."""
    program = """
        import apsw, sqlite3, sys
        first = apsw.Connection(sys.argv[1])
        first.pragma("journal_mode", "wal")
        first.execute("CREATE TABLE t (x)")
        second = sqlite3.connect(sys.argv[1], isolation_level=None)
        for connection, value in ((first, 1), (second, 2)):
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(f"INSERT INTO t VALUES ({value})")
        second.execute("COMMIT")
        first.execute("COMMIT")
        print([x for (x,) in apsw.Connection(sys.argv[1]).execute("SELECT x FROM t")])
    """

    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), str(tmp_path / "t.db")], capture_output=True, check=False
    )

    assert done.stdout.decode().strip() in ("[1]", "[2]", "")  # not both


async def test_errors_of_psycopg_are_errors_of_the_store(postgres_app: Holdfast) -> None:
    async with postgres_app.connect():
        with psycopg.connect(postgres_app.url) as connection:
            connection.execute("SET default_transaction_read_only = on")
            connection.commit()
            with pytest.raises(StoreError, match="read only"):
                await postgres_app.start("echo", "a", connection=connection)
            connection.rollback()
        with pytest.raises(InvalidOptionError, match="closed"):
            await postgres_app.start("echo", "a", connection=connection)


@pytest.mark.above_the_store
def test_arguments_have_the_text_format_of_postgresql() -> None:
    assert [text(value) for value in (None, True, 7, "a", b"\x00\xff")] == [None, "t", "7", "a", "\\x00ff"]
    assert text([1, None, 'a"\\,{', b"\x01"]) == '{"1",NULL,"a\\"\\\\,{","\\\\x01"}'
    assert text(()) == "{}"


def test_an_interrupted_call_leaves_the_client_usable(sqlite_app: Holdfast, tmp_path: Path) -> None:
    with sqlite_app.sync() as client, closing(sqlite3.connect(tmp_path / "app.db")) as connection:
        with pytest.raises(KeyboardInterrupt):
            client._running().call_lending(connection, _interrupting)

        client.start("echo", "a", id="x", connection=connection)
        connection.commit()

        assert [one.id for one in client.list("echo").items] == ["x"]


async def _interrupting(lent: Any) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    await lent.run(interrupt)


@pytest.mark.parametrize("url", ["sqlite:///a.db?driver=other", "sqlite:///a.db?driver="])
def test_a_url_with_an_unknown_driver_is_refused(url: str) -> None:
    with pytest.raises(InvalidUrlError, match="apsw, sqlite3"):
        Holdfast(url)


def test_the_checkpointer_of_langgraph_refuses_a_file_that_is_opened_with_sqlite3(sqlite_app: Holdfast) -> None:
    pytest.importorskip("langgraph")
    from holdfast.ext.langgraph.database import database

    with pytest.raises(InvalidOptionError, match="a file of its own"):
        database(sqlite_app.url, None)
