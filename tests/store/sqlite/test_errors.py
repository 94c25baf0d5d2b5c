"""Errors of files: each has its own class, and a message with the cause and the remedy."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast.errors import (
    NotADatabaseError,
    SchemaVersionError,
    StoreBusyError,
    StoreCorruptError,
    StoreFullError,
    StoreUnavailableError,
)
from holdfast.store.protocol import NewRun, Verdict
from holdfast.store.sqlite import SqliteStore, job_runner, opening
from store.processes import finish
from store.sqlite.internals import on_writer, process
from store.world import FLOW, LEASE, FakeClock, World, result


async def test_a_missing_directory_is_named(tmp_path: Path, clock: FakeClock) -> None:
    path = tmp_path / "nowhere" / "store.db"

    with pytest.raises(StoreUnavailableError, match=r"nowhere.* does not exist") as caught:
        await SqliteStore(str(path), clock=clock).open()

    assert str(path) in str(caught.value)


async def test_a_directory_as_path_is_refused(tmp_path: Path, clock: FakeClock) -> None:
    with pytest.raises(StoreUnavailableError, match="is a directory"):
        await SqliteStore(str(tmp_path), clock=clock).open()


async def test_a_file_that_is_no_database_is_refused_and_left_alone(path: str, clock: FakeClock) -> None:
    Path(path).write_text("Dear diary, today I was not a database. " * 100)
    before = Path(path).read_bytes()

    with pytest.raises(NotADatabaseError, match="not a SQLite database"):
        await SqliteStore(path, clock=clock).open()

    assert Path(path).read_bytes() == before


async def test_a_damaged_file_is_noticed_when_it_is_opened(path: str, clock: FakeClock) -> None:
    store = SqliteStore(path, clock=clock)
    await store.open()
    await store.create([NewRun(FLOW, f"r{n}", b"x" * 500) for n in range(500)])
    await store.close()
    content = bytearray(Path(path).read_bytes())
    content[4096 * 20 : 4096 * 40] = os.urandom(4096 * 20)
    Path(path).write_bytes(content)

    with pytest.raises(StoreCorruptError, match="damaged"):
        await store.open()


async def test_damage_that_appears_in_use_is_an_error_of_the_call(world: World, store: SqliteStore, path: str) -> None:
    await store.create([NewRun(FLOW, f"r{n}", b"x" * 500) for n in range(500)])
    await on_writer(store, lambda found: found.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE))
    with Path(path).open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(Path(path).stat().st_size - 4096))
    await on_writer(store, lambda found: found.pragma("shrink_memory"))

    with pytest.raises(StoreCorruptError):
        await store.create([NewRun(FLOW, f"s{n}", b"x" * 500) for n in range(500)])


@pytest.mark.parametrize("migrate", [True, False])
async def test_a_database_of_a_newer_version_is_refused(path: str, clock: FakeClock, migrate: bool) -> None:
    store = SqliteStore(path, clock=clock)
    await store.open()
    await on_writer(store, lambda found: found.execute("UPDATE holdfast_meta SET value = 999"))
    await store.close()

    with pytest.raises(SchemaVersionError, match="Upgrade Holdfast"):
        await store.open(migrate=migrate)


async def test_a_missing_file_is_not_created_just_to_be_verified(path: str, clock: FakeClock) -> None:
    with pytest.raises(StoreUnavailableError, match="does not exist"):
        await SqliteStore(path, clock=clock).open(migrate=False)

    assert not Path(path).exists()


async def test_a_file_without_the_schema_is_refused_when_only_verified(path: str, clock: FakeClock) -> None:
    apsw.Connection(path).execute("CREATE TABLE users_own (a)")

    with pytest.raises(SchemaVersionError, match="Run the migrations"):
        await SqliteStore(path, clock=clock).open(migrate=False)


async def test_a_store_shares_a_file_with_the_users_tables(path: str, clock: FakeClock) -> None:
    apsw.Connection(path).execute("CREATE TABLE users_own (a); INSERT INTO users_own VALUES (7)")

    store = SqliteStore(path, clock=clock)
    await store.open()
    await World(store, clock).start("a")
    await store.close()

    assert apsw.Connection(path).execute("SELECT a FROM users_own").get == 7


@pytest.mark.promise("durability")
async def test_a_full_disk_is_an_error_and_acknowledged_writes_are_kept(world: World, store: SqliteStore) -> None:
    pages = await on_writer(store, lambda found: found.pragma("page_count"))
    await on_writer(store, lambda found: found.pragma("max_page_count", pages + 20))
    acknowledged: list[str] = []

    async def fill() -> None:
        for n in range(1_000):
            await world.start(f"r{n}", params=b"x" * 1_000)
            acknowledged.append(f"r{n}")

    with pytest.raises(StoreFullError, match="Free disk space"):
        await fill()
    assert await world.ids(limit=2_000) == acknowledged[::-1]
    await on_writer(store, lambda found: found.pragma("max_page_count", 10**9))
    await world.start("after", params=b"x" * 1_000)
    assert await on_writer(store, lambda found: found.pragma("integrity_check")) == "ok"


async def test_a_locked_file_is_waited_for(world: World, path: str) -> None:
    other = apsw.Connection(path)
    other.execute("BEGIN IMMEDIATE")

    waiting = asyncio.create_task(world.start("a"))
    await world.ids()  # reads continue
    assert not waiting.done()
    other.execute("COMMIT")

    assert (await waiting).instance_id == "a"


async def test_a_file_that_stays_locked_is_an_error_and_then_usable_again(
    world: World, store: SqliteStore, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_runner, "BUSY_S", 1)  # the inline attempt sets the busy timeout to this value again
    await on_writer(store, lambda found: found.set_busy_timeout(20))
    other = apsw.Connection(path)
    other.execute("BEGIN IMMEDIATE")

    errors = await asyncio.gather(*(world.start(f"r{n}") for n in range(20)), return_exceptions=True)
    other.execute("ROLLBACK")

    assert {type(error) for error in errors} == {StoreBusyError}
    assert len({id(error) for error in errors}) == 20
    await world.start("a")
    assert await world.ids() == ["a"]


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """A directory that other users can read; pytest's own directories are private."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


AS_NOBODY = """
if os.geteuid() == 0:
    os.setgid(65534); os.setuid(65534)
try:
    asyncio.run(SqliteStore(path, clock=FakeClock()).open())
except StoreError as error:
    print(type(error).__name__, error)
"""


async def test_a_file_without_write_permission_is_a_named_error(open_to_all: Path, clock: FakeClock) -> None:
    path = open_to_all / "store.db"
    store = SqliteStore(str(path), clock=clock)
    await store.open()
    await store.close()
    path.chmod(0o444)

    output = finish(process(AS_NOBODY, str(path)))

    assert output.startswith("StoreReadOnlyError")
    assert str(path) in output


async def test_a_file_without_read_permission_is_a_named_error(open_to_all: Path, clock: FakeClock) -> None:
    path = open_to_all / "store.db"
    store = SqliteStore(str(path), clock=clock)
    await store.open()
    await store.close()
    path.chmod(0o000)

    output = finish(process(AS_NOBODY, str(path)))

    assert output.startswith("StoreUnavailableError")
    assert str(path) in output


def test_a_directory_without_write_permission_is_a_named_error(open_to_all: Path) -> None:
    open_to_all.chmod(0o555)

    output = finish(process(AS_NOBODY, str(open_to_all / "store.db")))

    assert output.startswith("StoreReadOnlyError")
    assert str(open_to_all) in output


def test_an_old_sqlite_is_refused() -> None:
    opening.check_library("3.51.3")
    opening.check_library("4.0.0")

    for version in ("3.40.1", "3.51.2"):
        with pytest.raises(StoreUnavailableError, match="Upgrade the apsw package"):
            opening.check_library(version)


@pytest.mark.parametrize("replaced", [False, True])
async def test_a_deleted_or_replaced_file_is_noticed_by_the_heartbeat(world: World, path: str, replaced: bool) -> None:
    await world.start_claimed("a")
    Path(path).rename(path + ".old")
    if replaced:
        Path(path).touch()

    with pytest.raises(StoreUnavailableError, match="deleted or replaced"):
        await world.store.heartbeat("w1", LEASE)


class FailingCommit:
    """A connection whose COMMIT raises an error of the disk."""

    def __init__(self, connection: apsw.Connection, error: type[apsw.Error]) -> None:
        self._connection = connection
        self._error = error
        self.closed = False

    def execute(self, sql: str, *args: Any, **options: Any) -> Any:
        if sql == "COMMIT":
            raise self._error
        return self._connection.execute(sql, *args, **options)

    def close(self, force: bool = False) -> None:
        self.closed = True
        self._connection.close(force)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


@pytest.mark.promise("durability")
@pytest.mark.parametrize(
    ("error", "expected"), [(apsw.IOError, StoreUnavailableError), (apsw.CorruptError, StoreCorruptError)]
)
async def test_after_a_failed_fsync_the_handle_is_not_used_again(
    world: World, store: SqliteStore, error: type[apsw.Error], expected: type[Exception]
) -> None:
    task = await world.start_claimed("a")
    writer = store._writer
    assert writer is not None
    failing = FailingCommit(writer.tx.connection, error)
    writer.tx.connection = failing  # type: ignore[assignment]

    with pytest.raises(expected):
        await world.commit(task, facts=[result("s")])

    assert not writer.tx.connected
    assert (await world.commit(task, facts=[result("s")])).verdict is Verdict.APPLIED
    assert await world.keys(task.run) == ["s"]
    assert failing.closed


@pytest.mark.promise("no-secrets")
async def test_new_files_are_private(store: SqliteStore, world: World, path: str) -> None:
    await world.start("a")

    modes = {name: Path(name).stat().st_mode & 0o777 for name in (path, path + "-wal", path + "-shm")}

    assert set(modes.values()) == {0o600}


async def test_a_failed_open_leaves_no_thread_and_can_be_tried_again(tmp_path: Path, clock: FakeClock) -> None:
    store = SqliteStore(str(tmp_path / "later" / "store.db"), clock=clock)
    with pytest.raises(StoreUnavailableError):
        await store.open()

    (tmp_path / "later").mkdir()
    await store.open()

    assert await World(store, clock).ids() == []
    await store.close()


def test_a_forked_child_must_open_its_own_store(path: str) -> None:
    output = finish(
        process(
            """
            async def main():
                store = SqliteStore(path, clock=FakeClock())
                await store.open()
                child = os.fork()
                if not child:
                    try:
                        await store.read(RunByName(FLOW, "a"))
                    except StoreUnavailableError as error:
                        print(error, flush=True)
                    await store.close()
                    os._exit(0)
                os.waitpid(child, 0)
                await store.create([NewRun(FLOW, "a")])
                await store.close()

            asyncio.run(main())
            """,
            path,
        )
    )

    assert "forked" in output
