"""Migrations give the same schema whichever process runs them, however often, and wherever they are interrupted."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from typing import Any

import asyncpg
import pytest

from holdfast.core.model import Status
from holdfast.errors import InvalidOptionError, SchemaVersionError, StoreUnavailableError
from holdfast.ports import SystemRandomness
from holdfast.store.postgres import PostgresStore, migrate
from holdfast.store.postgres.sql import Functions, Migration, functions, migrations
from holdfast.store.postgres.tx import Tx
from holdfast.store.protocol import (
    ClaimOutbox,
    DeliveryFailure,
    Finish,
    Migrated,
    Outbound,
    RedeliverOutbox,
    SettleOutbox,
)
from postgres_server import execute, server
from store.postgres.fault_tools import process
from store.processes import finish
from store.world import FLOW, FakeClock, World, done, result, unit

LATEST = migrations("holdfast")[-1].version
TWO = (
    Migration(1, "0001_one.sql", "CREATE TABLE s.one (a INTEGER);"),
    Migration(2, "0002_two.sql", "ALTER TABLE s.one ADD COLUMN b INTEGER; CREATE TABLE s.two (a INTEGER);"),
)
NO_FUNCTIONS = Functions(0, 0, "")
GRANTS = """
    GRANT USAGE ON SCHEMA holdfast TO {role};
    GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA holdfast TO {role};
    GRANT USAGE ON ALL SEQUENCES IN SCHEMA holdfast TO {role};
"""


def new_store(url: str, **options: Any) -> PostgresStore:
    return PostgresStore(url, random=SystemRandomness(), **options)


async def schema_objects(connection: asyncpg.Connection, schema: str) -> list[tuple[object, ...]]:
    """The columns, indexes and functions of a schema."""
    rows = await connection.fetch(
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
    return [tuple(row.values()) for row in rows]


def test_migrations_are_numbered_without_gaps() -> None:
    assert [one.version for one in migrations("holdfast")] == list(range(1, LATEST + 1))


async def test_open_returns_the_versions_before_and_after(url: str) -> None:
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
        await migrate.migrate(old, steps[:n], NO_FUNCTIONS)
    await migrate.migrate(new, same_steps, NO_FUNCTIONS)

    assert await schema_objects(other, "old") == await schema_objects(other, "new")
    await migrate.verify(old, steps, NO_FUNCTIONS)


async def test_an_older_schema_is_refused_without_migrating(other: asyncpg.Connection) -> None:
    tx = Tx(other, "s", None, "x")
    await migrate.migrate(tx, TWO[:1], NO_FUNCTIONS)

    with pytest.raises(SchemaVersionError, match=r"has version 1, this Holdfast needs 2.*holdfast migrate"):
        await migrate.verify(tx, TWO, NO_FUNCTIONS)


async def test_a_migration_that_fails_leaves_no_trace(other: asyncpg.Connection) -> None:
    tx = Tx(other, "s", None, "x")
    broken = Migration(2, "0002_broken.sql", "CREATE TABLE s.two (a INTEGER); CREATE TABLE s.two (a INTEGER);")

    with pytest.raises(asyncpg.DuplicateTableError):
        await migrate.migrate(tx, (TWO[0], broken), NO_FUNCTIONS)

    assert not await other.fetchval("SELECT to_regnamespace('s') IS NOT NULL")


async def test_the_error_for_a_missing_schema_names_the_remedy(url: str) -> None:
    with pytest.raises(SchemaVersionError, match="holdfast migrate"):
        await new_store(url).open(migrate=False)


@pytest.mark.parametrize("migrating", [True, False])
async def test_a_newer_schema_is_refused(url: str, other: asyncpg.Connection, migrating: bool) -> None:
    store = new_store(url)
    await store.open()
    await store.close()
    await other.execute(f"UPDATE holdfast.holdfast_meta SET value = {LATEST + 1} WHERE key = 'schema_version'")

    with pytest.raises(SchemaVersionError, match="newer than this Holdfast knows"):
        await store.open(migrate=migrating)


def next_release(schema: str = "holdfast") -> Functions:
    """The functions of a later release, which differ in their bodies."""
    now = functions(schema)
    return Functions(now.release + 1, now.digest + 1, now.script.replace("BEGIN\n", "BEGIN -- another release\n"))


async def functions_with(connection: asyncpg.Connection, text: str) -> int:
    sql = "SELECT count(*) FROM pg_proc WHERE pronamespace = 'holdfast'::regnamespace AND prosrc LIKE $1"
    count: int = await connection.fetchval(sql, f"%{text}%")
    return count


async def test_workers_continue_while_a_newer_release_replaces_the_functions(
    world: World, store: PostgresStore, other: asyncpg.Connection
) -> None:
    replaced = asyncio.Event()

    async def keep_working(prefix: str) -> int:
        finished = 0
        while not replaced.is_set() or finished < 20:
            task = await world.start_claimed(f"{prefix}{finished}")
            await world.commit(task, facts=[result("s")], then=Finish(Status.COMPLETE))
            finished += 1
        return finished

    working = [asyncio.ensure_future(keep_working(prefix)) for prefix in "abc"]
    await migrate.migrate(Tx(other, "holdfast", None, "x"), new=next_release())
    replaced.set()

    assert all(count >= 20 for count in await asyncio.gather(*working))
    assert await functions_with(other, "another release") > 20


async def test_an_older_release_does_not_replace_the_functions_of_a_newer_one(
    url: str, other: asyncpg.Connection
) -> None:
    older = new_store(url)
    await older.open()
    await older.close()
    await migrate.migrate(Tx(other, "holdfast", None, "x"), new=next_release())

    for migrating in (True, False):
        await older.open(migrate=migrating)
        await older.close()

    assert await functions_with(other, "another release") > 20


async def test_changed_functions_of_the_same_release_are_replaced(url: str, other: asyncpg.Connection) -> None:
    store = new_store(url)
    await store.open()
    await store.close()
    await migrate.migrate(Tx(other, "holdfast", None, "x"), new=next_release()._replace(release=functions("x").release))
    assert await functions_with(other, "another release") > 20

    with pytest.raises(SchemaVersionError, match=r"has the functions of another release.*holdfast migrate"):
        await store.open(migrate=False)
    await store.open()
    await store.close()

    assert await functions_with(other, "another release") == 0


def test_a_function_has_one_signature() -> None:
    """Two functions of one name would make calls of the previous release ambiguous."""
    names = re.findall(r"CREATE OR REPLACE FUNCTION (\S+?)\(", functions("holdfast").script)

    assert len(names) > 70
    assert len(names) == len(set(names))


async def test_stores_in_different_schemas_are_separate(url: str, clock: FakeClock) -> None:
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
async def test_a_role_without_the_right_to_create_objects_can_use_the_store(
    url: str, other: asyncpg.Connection, clock: FakeClock, migrating: bool
) -> None:
    owner = new_store(url)
    await owner.open()
    await owner.close()
    await _create_role("least")
    await other.execute(GRANTS.format(role="least"))

    store = new_store(url.replace("postgres@", "least@"), clock=clock)
    await store.open(migrate=migrating)

    world = World(store, clock)
    task = await world.start_claimed("a")
    await world.commit(task, facts=[result("s")])
    await store.heartbeat("w1", 1000)
    await store.reap(3)
    assert await world.keys(task.run) == ["s"]
    [first] = await world.graph("graph", unit(1), unit(2, 1))
    await world.advance(done(first, 2), claim_limit=1)
    await world.commit(task, outbox=[Outbound("t", None, "s")])
    [event] = (await store.outbox(ClaimOutbox("w1", 1000, 9))).rows
    assert await store.outbox(SettleOutbox("w1", [DeliveryFailure(event.run, event.n, "no", None)])) == 1
    assert (await store.control(RedeliverOutbox(FLOW, "a"))).redelivered == 1
    await store.close()


async def test_a_role_without_the_right_to_migrate_gets_an_error_that_names_the_remedy(url: str) -> None:
    await _create_role("powerless")

    with pytest.raises(StoreUnavailableError, match=r"lacks a right.*holdfast migrate"):
        await new_store(url.replace("postgres@", "powerless@")).open()


async def _create_role(name: str) -> None:
    await execute(
        server().url(),
        f"DO $$ BEGIN CREATE ROLE {name} LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$",
    )


async def test_eight_processes_that_start_at_once_create_one_schema_even_if_one_is_killed(
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
            sys.stdin.readline()  # begin when all processes are ready
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
    await other.execute("SELECT pg_advisory_unlock(7)")  # now its server process notices that the client is dead
    for one in started:
        await asyncio.to_thread(finish, one)

    fresh = new_store(url, schema="fresh")
    await fresh.open()
    await fresh.close()
    assert await schema_objects(other, "holdfast") == await schema_objects(other, "fresh")
    assert await other.fetchval("SELECT count(*) FROM holdfast.holdfast_run") == 7


async def _wait_for_waiters(connection: asyncpg.Connection, n: int) -> None:
    waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    while await connection.fetchval(waiting) < n:
        await asyncio.sleep(0.01)
