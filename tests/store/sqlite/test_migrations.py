"""Migrations: the same schema, whichever process runs them, however often, and wherever they are killed."""

from __future__ import annotations

import apsw
import pytest

from holdfast.errors import SchemaVersionError
from holdfast.store.sqlite import SqliteStore, migrate
from holdfast.store.sqlite.sql import Migration, migrations
from store.processes import finish
from store.sqlite.internals import process
from store.world import FakeClock

TWO = (
    Migration(1, "0001_one.sql", "CREATE TABLE one (a);"),
    Migration(2, "0002_two.sql", "ALTER TABLE one ADD COLUMN b; CREATE TABLE two (a);"),
)


def schema(connection: apsw.Connection) -> list[tuple[object, ...]]:
    return connection.execute("SELECT type, name, sql FROM sqlite_schema ORDER BY type, name").fetchall()


def test_migrations_are_numbered_without_gaps() -> None:
    assert [one.version for one in migrations()] == list(range(1, len(migrations()) + 1))


def test_migrating_twice_changes_nothing() -> None:
    connection = apsw.Connection(":memory:")
    migrate.migrate(connection, "x")
    before = schema(connection)

    migrate.migrate(connection, "x")

    assert schema(connection) == before
    assert migrate.version(connection) == migrations()[-1].version


@pytest.mark.parametrize("steps", [TWO, migrations()], ids=["two", "all"])
def test_a_database_migrated_step_by_step_is_like_a_new_one(steps: tuple[Migration, ...]) -> None:
    old, new = apsw.Connection(":memory:"), apsw.Connection(":memory:")
    answers = [migrate.migrate(old, "x", steps[:n]) for n in range(1, len(steps) + 1)]

    migrate.migrate(new, "x", steps)

    assert schema(old) == schema(new)
    assert answers == [(n, n + 1) for n in range(len(steps))]
    assert migrate.verify(old, "x", steps) == (len(steps), len(steps))


def test_an_older_schema_is_refused_without_migrating() -> None:
    connection = apsw.Connection(":memory:")
    migrate.migrate(connection, "x", TWO[:1])

    with pytest.raises(SchemaVersionError, match="has schema version 1, this Holdfast needs 2"):
        migrate.verify(connection, "x", TWO)


def test_a_migration_that_fails_leaves_no_trace() -> None:
    connection = apsw.Connection(":memory:")
    broken = Migration(2, "0002_broken.sql", "CREATE TABLE two (a); CREATE TABLE two (a);")

    with pytest.raises(apsw.SQLError):
        migrate.migrate(connection, "x", (TWO[0], broken))

    assert migrate.version(connection) == 1
    assert "two" not in {row[1] for row in schema(connection)}


async def test_eight_processes_that_start_at_once_make_one_schema(path: str, clock: FakeClock) -> None:
    code = """
        async def main():
            store = SqliteStore(path, clock=FakeClock())
            sys.stdin.readline()  # all processes begin at the same time
            await store.open()
            await store.create([NewRun(FLOW, sys.argv[2])])
            await store.close()

        asyncio.run(main())
    """
    started = [process(code, path, f"r{n}") for n in range(8)]

    for one in started:
        assert one.stdin is not None
        one.stdin.write("\n")
        one.stdin.flush()
    for one in started:
        finish(one)

    store = SqliteStore(path, clock=clock)
    await store.open(migrate=False)
    await store.close()
    connection = apsw.Connection(path)
    fresh = apsw.Connection(":memory:")
    migrate.migrate(fresh, "x")
    assert schema(connection) == schema(fresh)
    assert connection.execute("SELECT count(*) FROM holdfast_run").get == 8


def test_a_migration_killed_at_any_statement_is_completed_by_the_next_open(
    path: str, request: pytest.FixtureRequest
) -> None:
    """Without ``--long`` the migration is killed at every fifth statement."""
    stride = 1 if request.config.getoption("--long") else 5
    output = finish(
        process(
            """
            from holdfast.store.sqlite import migrate

            def open_store(file, kill_at):
                seen = 0
                def trace(cursor, sql, bindings):
                    nonlocal seen
                    seen += 1
                    if seen == kill_at:
                        os.kill(os.getpid(), signal.SIGKILL)
                    return True
                def hook(connection):
                    connection.exec_trace = trace
                apsw.connection_hooks.append(hook)
                async def opening():
                    store = SqliteStore(file, clock=FakeClock())
                    await store.open()
                    await store.create([NewRun(FLOW, "a")])
                    await store.close()
                asyncio.run(opening())

            def ended(file, kill_at):
                child = os.fork()
                if child == 0:
                    try:
                        open_store(file, kill_at)
                        os._exit(0)
                    except BaseException as error:
                        print(repr(error), file=sys.stderr, flush=True)
                        os._exit(1)
                return os.waitpid(child, 0)[1]

            kills = 0
            while True:
                file = f"{path}{kills}"
                status = ended(file, kills * stride + 1)
                if status == 0:
                    break
                assert os.WTERMSIG(status) == signal.SIGKILL, status
                kills += 1
                assert ended(file, 0) == 0
                found = apsw.Connection(file)
                migrate.verify(found, file)
                assert found.pragma("integrity_check") == "ok"
                assert found.execute("SELECT count(*) FROM holdfast_run").get == 1
                found.close()
            print(kills)
            """.replace("stride", str(stride)),
            path,
        )
    )

    assert int(output) * stride > 15
