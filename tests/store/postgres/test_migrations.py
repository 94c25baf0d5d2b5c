"""Migrations: one result, whoever runs them, however often, and wherever they are killed."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import asyncpg
import pytest

from holdfast.errors import InvalidOptionError, SchemaVersionError, StoreUnavailableError
from holdfast.ports import SystemRandomness
from holdfast.store.postgres import PostgresStore, migrate
from holdfast.store.postgres.sql import Migration, migrations
from holdfast.store.postgres.tx import Tx
from holdfast.store.protocol import Migrated, Outbound, Undelivered
from postgres_server import execute, server
from store.postgres.inside import finish, process
from store.world import FakeClock, World, done, result, unit

LATEST = migrations("holdfast")[-1].version
TWO = (
    Migration(1, "0001_one.sql", "CREATE TABLE s.one (a INTEGER);"),
    Migration(2, "0002_two.sql", "ALTER TABLE s.one ADD COLUMN b INTEGER; CREATE TABLE s.two (a INTEGER);"),
)
RIGHTS = """
    GRANT USAGE ON SCHEMA holdfast TO {role};
    GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA holdfast TO {role};
    GRANT USAGE ON ALL SEQUENCES IN SCHEMA holdfast TO {role};
"""


def new_store(url: str, **options: Any) -> PostgresStore:
    return PostgresStore(url, random=SystemRandomness(), **options)


async def shape(connection: asyncpg.Connection, schema: str) -> list[tuple[object, ...]]:
    """All that a schema consists of."""
    found = await connection.fetch(
        """
        SELECT 'column', table_name, column_name, data_type, is_nullable FROM information_schema.columns
         WHERE table_schema = $1
        UNION ALL
        SELECT 'index', tablename, indexname, replace(indexdef, $1 || '.', ''), '' FROM pg_indexes WHERE schemaname = $1
        UNION ALL
        SELECT 'function', proname,
               replace(replace(prosrc, '"' || $1 || '".', ''), 'holdfast_' || $1 || '''', ''''), proconfig::text, ''
          FROM pg_proc
         WHERE pronamespace = to_regnamespace($1)
         ORDER BY 1, 2, 3
        """,
        schema,
    )
    return [tuple(row.values()) for row in found]


def test_migrations_are_numbered_without_gaps() -> None:
    assert [one.version for one in migrations("holdfast")] == list(range(1, LATEST + 1))


async def test_opening_tells_what_was_migrated(url: str) -> None:
    first, second = new_store(url), new_store(url)

    assert await first.open() == Migrated(0, LATEST)
    assert await second.open() == Migrated(LATEST, LATEST)
    await first.close()
    await second.close()


async def test_a_database_migrated_step_by_step_is_like_a_new_one(other: asyncpg.Connection) -> None:
    def on(schema: str) -> tuple[Tx, list[Migration]]:
        return Tx(other, schema, None, "x"), [
            one._replace(script=one.script.replace("s.", f"{schema}.")) for one in TWO
        ]

    (old, steps), (new, same_steps) = on("old"), on("new")
    for n in range(1, len(TWO) + 1):
        await migrate.migrate(old, steps[:n])
    await migrate.migrate(new, same_steps)

    assert await shape(other, "old") == await shape(other, "new")
    await migrate.verify(old, steps)


async def test_an_older_schema_is_refused_without_migrating(other: asyncpg.Connection) -> None:
    tx = Tx(other, "s", None, "x")
    await migrate.migrate(tx, TWO[:1])

    with pytest.raises(SchemaVersionError, match=r"has version 1, this Holdfast needs 2.*holdfast migrate"):
        await migrate.verify(tx, TWO)


async def test_a_migration_that_fails_leaves_no_trace(other: asyncpg.Connection) -> None:
    tx = Tx(other, "s", None, "x")
    broken = Migration(2, "0002_broken.sql", "CREATE TABLE s.two (a INTEGER); CREATE TABLE s.two (a INTEGER);")

    with pytest.raises(asyncpg.DuplicateTableError):
        await migrate.migrate(tx, (TWO[0], broken))

    assert await migrate.version(tx) == 0
    assert not await other.fetchval("SELECT to_regnamespace('s') IS NOT NULL")


async def test_a_missing_schema_says_what_to_do(url: str) -> None:
    with pytest.raises(SchemaVersionError, match="holdfast migrate"):
        await new_store(url).open(migrate=False)


@pytest.mark.parametrize("migrating", [True, False])
async def test_a_newer_schema_is_refused(url: str, other: asyncpg.Connection, migrating: bool) -> None:
    store = new_store(url)
    await store.open()
    await store.close()
    await other.execute(f"UPDATE holdfast.holdfast_meta SET value = {LATEST + 1}")

    with pytest.raises(SchemaVersionError, match="newer than this Holdfast knows"):
        await store.open(migrate=migrating)


async def test_a_schema_of_ones_own(url: str, clock: FakeClock) -> None:
    one, two = new_store(url, schema="One_1", clock=clock), new_store(url, schema="two", clock=clock)
    await one.open()
    await two.open()

    await World(one, clock).start("a")

    assert await World(one, clock).ids() == ["a"]
    assert await World(two, clock).ids() == []
    await one.close()
    await two.close()


@pytest.mark.parametrize("schema", ["", "1a", 'a"b', "a b", "a;b", "pg_mine", "x" * 51, "ä", None])
def test_a_name_that_cannot_be_a_schema_is_refused(schema: Any) -> None:
    with pytest.raises(InvalidOptionError):
        new_store("postgresql://localhost/x", schema=schema)


@pytest.mark.parametrize("migrating", [True, False])
async def test_a_role_without_the_right_to_create_anything_is_enough(
    url: str, other: asyncpg.Connection, clock: FakeClock, migrating: bool
) -> None:
    owner = new_store(url)
    await owner.open()
    await owner.close()
    await _role("least")
    await other.execute(RIGHTS.format(role="least"))

    store = new_store(url.replace("postgres@", "least@"), clock=clock)
    await store.open(migrate=migrating)

    world = World(store, clock)
    task = await world.begin("a")
    await world.commit(task, facts=[result("s")])
    await store.heartbeat("w1", 1000)
    await store.reap(3)
    assert await world.keys(task.run) == ["s"]
    [first] = await world.graph("graph", unit(1), unit(2, 1))
    await world.advance(done(first, 2), room=1)
    await world.commit(task, outbox=[Outbound("t", None, "s")])
    [event] = (await store.outbox_claim("w1", 1000, 9)).rows
    assert await store.outbox_settle("w1", [Undelivered(event.run, event.n, "no", None)]) == 1
    assert await store.outbox_retry(event.run) == 1
    await store.close()


async def test_a_role_without_the_right_to_migrate_is_told(url: str) -> None:
    await _role("powerless")

    with pytest.raises(StoreUnavailableError, match=r"lacks a right.*holdfast migrate"):
        await new_store(url.replace("postgres@", "powerless@")).open()


async def _role(name: str) -> None:
    await execute(
        server().url(),
        f"DO $$ BEGIN CREATE ROLE {name} LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$",
    )


async def test_eight_processes_that_start_at_once_make_one_schema_although_one_is_killed(
    url: str, other: asyncpg.Connection
) -> None:
    await other.execute("SELECT pg_advisory_lock(7)")
    slow = process(
        """
        from holdfast.store.postgres import migrate
        [first, *_] = migrations("holdfast")
        migrate.migrations = lambda _: (first._replace(script=first.script + "SELECT pg_advisory_lock(7);"),)
        asyncio.run(new_store().open())
        """,
        url,
    )
    await _wait_for_waiters(other, 1)
    code = """
        async def main():
            store = new_store()
            sys.stdin.readline()  # nobody begins before all are ready
            await store.open()
            await store.create([NewRun("flow", sys.argv[2])])
            await store.close()

        asyncio.run(main())
    """
    started = [process(code, url, f"r{n}") for n in range(7)]
    for one in started:
        assert one.stdin is not None
        one.stdin.write("\n")
        one.stdin.flush()
    await _wait_for_waiters(other, 3)

    os.kill(slow.pid, signal.SIGKILL)
    slow.communicate()
    await other.execute("SELECT pg_advisory_unlock(7)")  # only now does its server see that it is gone
    for one in started:
        await asyncio.to_thread(finish, one)

    fresh = new_store(url, schema="fresh")
    await fresh.open()
    await fresh.close()
    assert await shape(other, "holdfast") == await shape(other, "fresh")
    assert await other.fetchval("SELECT count(*) FROM holdfast.holdfast_run") == 7


async def _wait_for_waiters(connection: asyncpg.Connection, n: int) -> None:
    waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    while await connection.fetchval(waiting) < n:
        await asyncio.sleep(0.01)
