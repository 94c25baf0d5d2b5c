"""Users' statements and connections share a transaction with the engine's rows, and cannot change other engine rows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from holdfast.errors import InputError, InvalidOptionError
from holdfast.ports import SystemRandomness
from holdfast.store.postgres import PostgresStore
from holdfast.store.postgres.guard import numbered
from holdfast.store.protocol import NewEvent, NewRun, RunByName, Statement, TaskRef, Verdict
from store.world import FLOW, FakeClock, World, result


@pytest.fixture
async def task(world: World) -> TaskRef:
    task = await world.start_claimed("a")
    await world.commit(task, facts=[result("s")], statements=[Statement("CREATE TABLE mine (a INTEGER UNIQUE)", ())])
    return task


WRITING_TRIGGER = """
    CREATE FUNCTION delete_facts() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN DELETE FROM holdfast.holdfast_fact; RETURN NEW; END $$;
    CREATE TRIGGER delete_facts AFTER INSERT ON mine FOR EACH ROW EXECUTE FUNCTION delete_facts();
"""


@pytest.mark.parametrize(
    "sql",
    [
        'DELETE FROM "holdfast"."holdfast_fact"',
        "WITH x AS (DELETE FROM holdfast_fact RETURNING 1) SELECT count(*) FROM x",
        "DO $$ BEGIN DELETE FROM holdfast.holdfast_task; END $$",
        "DO $$ BEGIN EXECUTE 'DELETE FROM holdfast.' || 'holdfast_task'; END $$",
        "TRUNCATE holdfast.holdfast_log",
        "DROP TABLE holdfast.holdfast_log",
        "DROP SCHEMA holdfast CASCADE",
        "ALTER TABLE holdfast.holdfast_fact DISABLE TRIGGER ALL",
        "SELECT nextval('holdfast.holdfast_run_id')",
        "SELECT ended FROM holdfast.holdfast_cancel(NULL, 'x', 'flow', 'a', NULL, NULL, NULL)",
        "CREATE INDEX mine ON holdfast.holdfast_fact (at)",
        "INSERT INTO mine VALUES (7)",
    ],
)
@pytest.mark.parametrize("way", ["statement", "transaction"])
async def test_a_statement_that_changes_engine_tables_is_rejected(
    world: World, task: TaskRef, other: asyncpg.Connection, sql: str, way: str
) -> None:
    await other.execute(WRITING_TRIGGER)

    if way == "statement":
        committed = await world.commit(task, facts=[result("t")], statements=[Statement(sql, ())])
    else:
        live = await world.store.begin()
        await live.execute(sql, ())
        committed = await world.commit(task, facts=[result("t")], transaction=live)

    assert committed.verdict is Verdict.REJECTED
    assert "engine's" in committed.message
    assert await world.keys(task.run) == ["s"]


@pytest.mark.parametrize(
    "sql", ["COMMIT", "/* now */ ROLLBACK", "-- now\nEND", "SAVEPOINT x", "PREPARE TRANSACTION 'x'", "SELECT 1; COMMIT"]
)
async def test_a_statement_cannot_end_the_transaction(world: World, task: TaskRef, sql: str) -> None:
    committed = await world.commit(task, facts=[result("t")], statements=[Statement(sql, ())])
    live = await world.store.begin()
    with pytest.raises((InputError, asyncpg.PostgresError)):
        await live.execute(sql, ())
    await live.rollback()

    assert committed.verdict is Verdict.REJECTED
    assert await world.keys(task.run) == ["s"]


async def test_settings_of_a_statement_do_not_outlive_its_transaction(world: World, task: TaskRef) -> None:
    await world.commit(task, statements=[Statement("SELECT set_config('synchronous_commit', 'off', true)", ())])
    for _ in range(8):
        await world.commit(task, statements=[Statement("SET statement_timeout = 60000", ())])
        live = await world.store.begin()
        await live.execute("SET statement_timeout = 60000", ())
        await world.commit(task, transaction=live)
    for _ in range(8):
        live = await world.store.begin()
        [row] = await live.fetch("SELECT current_setting('statement_timeout') AS value", ())
        await live.rollback()

        assert row["value"] == "0"


@pytest.mark.promise("durability")
async def test_writes_are_durable_even_if_the_url_turns_synchronous_commit_off(
    url: str, other: asyncpg.Connection, clock: FakeClock
) -> None:
    store = PostgresStore(f"{url}&synchronous_commit=off", clock=clock, random=SystemRandomness())
    await store.open()

    async def read_setting(tx: Any, _: None) -> str:
        await tx.connection.execute("BEGIN")
        await tx.connection.fetchval("SELECT holdfast.holdfast_begin(NULL)")
        setting: str = await tx.connection.fetchval("SHOW synchronous_commit")
        await tx.connection.execute("ROLLBACK")
        return setting

    assert store._database is not None
    assert await store._database.call(read_setting, None) == "on"
    await store.close()


@pytest.mark.parametrize(
    ("sql", "args", "expected"),
    [
        ("a = ? AND b = ?", (1, 2), "a = $1 AND b = $2"),
        ("a = '?' AND \"b?\" = ?", (1,), "a = '?' AND \"b?\" = $1"),
        ("a = 'it''s ?' -- why?\n AND /* ? */ b = ?", (1,), "a = 'it''s ?' -- why?\n AND /* ? */ b = $1"),
        ("DO $x$ ? $x$ ?", (1,), "DO $x$ ? $x$ $1"),
        ("doc ? $1", ("k",), "doc ? $1"),
        ("doc ? 'k'", (), "doc ? 'k'"),
        ("a = ? AND b = ?", (1,), "a = ? AND b = ?"),
    ],
)
def test_question_mark_placeholders_become_numbered_placeholders(
    sql: str, args: tuple[Any, ...], expected: str
) -> None:
    assert numbered(Statement(sql, args)) == expected


# --- the caller's own connection


async def test_a_start_and_a_message_are_part_of_the_callers_transaction(
    world: World, store: PostgresStore, other: asyncpg.Connection
) -> None:
    await world.start_waiting("waiter", "go")
    await other.execute("CREATE TABLE orders (a INTEGER)")

    async with other.transaction():
        await other.execute("INSERT INTO orders VALUES (1)")
        [created] = await store.create([NewRun(FLOW, "b")], connection=other)
        [sent] = await store.send([NewEvent(FLOW, "waiter", "go")], connection=other)
        assert not await store.read(RunByName(FLOW, "b"))

    assert (created.created, sent.woken) == (True, True)
    assert await world.find("b") == created.run
    assert sorted(await world.claimed_ids()) == ["b", "waiter"]


async def test_a_write_on_a_connection_without_a_transaction_is_committed_at_once(
    world: World, store: PostgresStore, other: asyncpg.Connection
) -> None:
    await store.create([NewRun(FLOW, "b")], connection=other)

    assert await world.ids() == ["b"]


async def test_a_connection_of_an_asyncpg_pool_is_accepted(url: str, world: World, store: PostgresStore) -> None:
    async with asyncpg.create_pool(url, min_size=1, max_size=1) as pool, pool.acquire() as connection:
        rolled_back = connection.transaction()
        await rolled_back.start()
        await store.create([NewRun(FLOW, "b")], connection=connection)
        await rolled_back.rollback()
        await store.create([NewRun(FLOW, "c")], connection=connection)

    assert await world.ids() == ["c"]


@pytest.mark.parametrize("connection_of_wrong_type", [object(), "postgresql://x", 7])
async def test_an_object_that_is_not_a_connection_is_refused(
    store: PostgresStore, connection_of_wrong_type: Any
) -> None:
    with pytest.raises(InvalidOptionError, match=r"connection of asyncpg or psycopg 3"):
        await store.create([NewRun(FLOW, "b")], connection=connection_of_wrong_type)
    with pytest.raises(InvalidOptionError):
        await store.send([], connection=connection_of_wrong_type)


@pytest.fixture
async def engine(url: str) -> AsyncIterator[Any]:
    import sqlalchemy.ext.asyncio as sqlalchemy

    engine = sqlalchemy.create_async_engine(url.replace("postgresql://", "postgresql+asyncpg://"))
    yield engine
    await engine.dispose()


@pytest.mark.parametrize("in_use", [True, False], ids=["in use", "fresh"])
@pytest.mark.parametrize("kind", ["AsyncConnection", "AsyncSession"])
async def test_a_sqlalchemy_connection_on_asyncpg_is_accepted(
    world: World, store: PostgresStore, engine: Any, kind: str, in_use: bool
) -> None:
    from sqlalchemy import text
    from sqlalchemy.ext import asyncio as sa

    for name, commits in (("rolled-back", False), ("committed", True)):
        connecting = sa.AsyncSession(engine) if kind == "AsyncSession" else engine.connect()
        async with connecting as connection:
            if in_use:
                await connection.execute(text("SELECT 1"))
            [created] = await store.create([NewRun(FLOW, name)], connection=connection)
            assert created.created
            await (connection.commit() if commits else connection.rollback())

    assert await world.ids() == ["committed"]
