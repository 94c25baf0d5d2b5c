"""Migrations: one result, whoever runs them, however often, and wherever they are killed."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from holdfast.errors import SchemaVersionError
from holdfast.store.protocol import Delivery, WorkerCard
from holdfast.store.sqlite import SqliteStore, migrate
from holdfast.store.sqlite.sql import Migration, migrations
from store.sqlite.inside import finish, process
from store.world import FLOW, LEASE, FakeClock, World

TWO = (
    Migration(1, "0001_one.sql", "CREATE TABLE one (a);"),
    Migration(2, "0002_two.sql", "ALTER TABLE one ADD COLUMN b; CREATE TABLE two (a);"),
)

OLD_RUN = """
INSERT INTO holdfast_run (id, instance, workflow, instance_id, number, current, kind, status, queue, priority,
                          created_at, updated_at, seed)
VALUES (1, 1, ?, 'a', 0, 1, 'workflow', 'active', 'default', 0, 1, 1, 0);
INSERT INTO holdfast_task (run, unit, workflow, queue, bucket, kind, priority, run_at, epoch, losses, lost, signal,
                           topics)
VALUES (1, 0, ?, 'default', 1, 3, 0, 1, 0, 0, 0, 0, '');
INSERT INTO holdfast_event (run, n, type, created_at) VALUES (1, 1, 'go', 1);
"""
"""A run as the first version wrote it."""


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


@pytest.mark.parametrize("version", range(1, len(migrations())))
async def test_a_database_of_an_older_version_is_brought_up_to_date_with_what_is_in_it(
    path: str, clock: FakeClock, version: int
) -> None:
    old = apsw.Connection(path)
    migrate.migrate(old, path, migrations()[:version])
    old.execute(OLD_RUN, (FLOW, FLOW))
    old.close()

    store = SqliteStore(path, clock=clock)
    migrated = await store.open()

    assert migrated == (version, migrations()[-1].version)
    claim = await World(store, clock).take()
    assert (claim.run.instance_id, claim.run.attempt, claim.run.current) == ("a", 1, True)
    assert [mail.type for mail in claim.mailbag.mail] == ["go"]
    await store.enroll(WorkerCard("w1", "here", 1, ("default",), 1), LEASE)
    await store.close()


def test_what_followed_in_an_older_version_is_one_line() -> None:
    old = apsw.Connection(":memory:")
    migrate.migrate(old, "x", migrations()[:4])
    cron, limited, later = b'{"cron":"0 * * * *"}', b'{"cron":"0 * * * *","executionEnd":9}', b'{"executionEnd":10}'
    run = _Older(old)
    continued = run("a", note="continued as run 1"), run("a", status="errored"), run("a", attempt=2), run("a")
    ticks = run("b", options=cron), run("b", options=cron, status="terminated", note="restarted"), run("b")
    out_of_time = run("c", options=limited, status="errored"), run("c", options=later)
    ended = run("d", status="terminated", note="continued as run 1"), run("d", number=1), run("d", number=3, attempt=3)
    got = [(0, "k"), (1, "k"), (2, "k"), (2, "l"), (3, "k")]
    old.executemany(
        "INSERT INTO holdfast_event (run, n, type, created_at, dedup) VALUES (?, ?, 'go', 1, ?)",
        [(continued[to], n, key) for n, (to, key) in enumerate(got)],
    )

    migrate.migrate(old, "x")

    lines = dict(old.execute("SELECT id, coalesce(line, id) FROM holdfast_run"))
    first, _, _, restarted = continued
    assert [lines[one] for one in continued] == [first, first, first, restarted]
    assert [lines[one] for one in ticks] == [ticks[0], ticks[0], ticks[2]]
    assert [lines[one] for one in (*out_of_time, *ended)] == [*out_of_time, *ended]
    known = old.execute("SELECT line, dedup FROM holdfast_event ORDER BY n").fetchall()
    assert known == [(first, "k"), (continued[1], "k"), (continued[2], "k"), (first, "l"), (restarted, "k")]


async def test_an_id_that_an_older_version_got_is_known_after_continue_as_new(path: str, clock: FakeClock) -> None:
    old = apsw.Connection(path)
    migrate.migrate(old, path, migrations()[:4])
    old.execute(OLD_RUN, (FLOW, FLOW))
    old.execute("UPDATE holdfast_event SET dedup = 'k'")
    old.close()
    store = SqliteStore(path, clock=clock)
    await store.open()
    world = World(store, clock)
    task = (await world.take()).task
    await world.commit(task, deliveries=[Delivery(1, "s", 1)])

    await world.gone_on(task)

    assert (await world.send("go", dedup="k")).duplicate
    await store.close()


class _Older:
    """Makes runs as the fourth version did, each the next one of its instance."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self._first: dict[str, int] = {}
        self._last = 0

    def __call__(self, id: str, *, number: int | None = None, status: str = "complete", **fields: object) -> int:
        self._last += 1
        first = self._first.setdefault(id, self._last)
        if number is None:
            number = self._connection.execute("SELECT count(*) FROM holdfast_run WHERE instance = ?", (first,)).get
        more = {"note": None, "attempt": 1, "options": None} | fields
        self._connection.execute(
            "INSERT INTO holdfast_run (id, instance, workflow, instance_id, number, current, kind, status, queue,"
            " priority, created_at, updated_at, seed, note, attempt, options)"
            " VALUES (?, ?, 'flow', ?, ?, 0, 'workflow', ?, 'default', 0, 1, 1, 0, ?, ?, ?)",
            (self._last, first, id, number, status, more["note"], more["attempt"], more["options"]),
        )
        return self._last


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


@pytest.mark.parametrize("version", [0, len(migrations()) - 1])
async def test_eight_processes_that_start_at_once_make_one_schema(path: str, clock: FakeClock, version: int) -> None:
    if version:
        migrate.migrate(apsw.Connection(path), path, migrations()[:version])
    code = """
        async def main():
            store = SqliteStore(path, clock=FakeClock())
            sys.stdin.readline()  # nobody begins before all are ready
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


def test_a_migration_killed_at_any_statement_is_done_by_the_next(path: str, tmp_path: Path) -> None:
    said = finish(
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
                status = ended(file, kills + 1)
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
            """,
            path,
        )
    )

    assert int(said) > 15
