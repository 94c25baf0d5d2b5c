"""Users' statements and users' connections: one transaction with the engine's rows, and nothing else of it touched."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from holdfast.errors import InputError, InvalidOptionError
from holdfast.ports import SystemRandomness
from holdfast.store.postgres import PostgresStore
from holdfast.store.postgres.guard import numbered
from holdfast.store.protocol import NewEvent, NewRun, Statement, TaskRef, Verdict
from store.world import FLOW, FakeClock, World, result


@pytest.fixture
async def task(world: World) -> TaskRef:
    task = await world.begin("a")
    await world.commit(task, facts=[result("s")], statements=[Statement("CREATE TABLE mine (a INTEGER UNIQUE)", ())])
    return task


SLY = """
    CREATE FUNCTION sly() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN DELETE FROM holdfast.holdfast_fact; RETURN NEW; END $$;
    CREATE TRIGGER sly AFTER INSERT ON mine FOR EACH ROW EXECUTE FUNCTION sly();
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
async def test_a_statement_cannot_get_at_what_is_not_its_own(
    world: World, task: TaskRef, other: asyncpg.Connection, sql: str, way: str
) -> None:
    await other.execute(SLY)

    if way == "statement":
        answer = await world.commit(task, facts=[result("t")], statements=[Statement(sql, ())])
    else:
        live = await world.store.begin()
        await live.execute(sql, ())
        answer = await world.commit(task, facts=[result("t")], transaction=live)

    assert answer.verdict is Verdict.REJECTED
    assert "engine's" in answer.message
    assert await world.keys(task.run) == ["s"]


@pytest.mark.parametrize(
    "sql", ["COMMIT", "/* now */ ROLLBACK", "-- now\nEND", "SAVEPOINT x", "PREPARE TRANSACTION 'x'", "SELECT 1; COMMIT"]
)
async def test_a_statement_cannot_end_the_transaction(world: World, task: TaskRef, sql: str) -> None:
    answer = await world.commit(task, facts=[result("t")], statements=[Statement(sql, ())])
    live = await world.store.begin()
    with pytest.raises((InputError, asyncpg.PostgresError)):
        await live.execute(sql, ())
    await live.rollback()

    assert answer.verdict is Verdict.REJECTED
    assert await world.keys(task.run) == ["s"]


async def test_what_a_statement_sets_is_gone_with_it(world: World, task: TaskRef) -> None:
    await world.commit(task, statements=[Statement("SELECT set_config('synchronous_commit', 'off', true)", ())])
    for _ in range(8):
        await world.commit(task, statements=[Statement("SET statement_timeout = 60000", ())])
        live = await world.store.begin()
        await live.execute("SET statement_timeout = 60000", ())
        await world.commit(task, transaction=live)
    for _ in range(8):
        live = await world.store.begin()
        [row] = await live.fetch("SELECT current_setting('statement_timeout') AS found", ())
        await live.rollback()

        assert row["found"] == "0"


async def test_a_store_that_was_told_not_to_be_durable_is(
    url: str, other: asyncpg.Connection, clock: FakeClock
) -> None:
    store = PostgresStore(f"{url}&synchronous_commit=off", clock=clock, random=SystemRandomness())
    await store.open()

    async def asked(tx: Any, _: None) -> str:
        await tx.connection.execute("BEGIN")
        await tx.connection.fetchval("SELECT holdfast.holdfast_begin(NULL)")
        found: str = await tx.connection.fetchval("SHOW synchronous_commit")
        await tx.connection.execute("ROLLBACK")
        return found

    assert store._database is not None
    assert await store._database.call(asked, None) == "on"
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
def test_question_marks_become_numbers_where_they_are_placeholders(
    sql: str, args: tuple[Any, ...], expected: str
) -> None:
    assert numbered(Statement(sql, args)) == expected


# --- the caller's own connection


async def test_a_start_and_a_message_are_part_of_the_callers_transaction(
    world: World, store: PostgresStore, other: asyncpg.Connection
) -> None:
    await world.wait("waiter", "go")
    await other.execute("CREATE TABLE orders (a INTEGER)")

    async with other.transaction():
        await other.execute("INSERT INTO orders VALUES (1)")
        [made] = await store.create([NewRun(FLOW, "b")], connection=other)
        [sent] = await store.send([NewEvent(FLOW, "waiter", "go")], connection=other)
        assert await store.find(FLOW, "b") is None

    assert (made.created, sent.woken) == (True, True)
    assert await world.find("b") == made.run
    assert sorted(await world.claimed_ids()) == ["b", "waiter"]


async def test_without_a_transaction_it_is_done_at_once(
    world: World, store: PostgresStore, other: asyncpg.Connection
) -> None:
    await store.create([NewRun(FLOW, "b")], connection=other)

    assert await world.ids() == ["b"]


async def test_a_connection_of_a_pool_is_one_too(url: str, world: World, store: PostgresStore) -> None:
    async with asyncpg.create_pool(url, min_size=1, max_size=1) as pool, pool.acquire() as connection:
        undone = connection.transaction()
        await undone.start()
        await store.create([NewRun(FLOW, "b")], connection=connection)
        await undone.rollback()
        await store.create([NewRun(FLOW, "c")], connection=connection)

    assert await world.ids() == ["c"]


@pytest.mark.parametrize("given", [object(), "postgresql://x", 7])
async def test_anything_else_is_refused(store: PostgresStore, given: Any) -> None:
    with pytest.raises(InvalidOptionError, match=r"asyncpg connection, or SQLAlchemy's AsyncConnection"):
        await store.create([NewRun(FLOW, "b")], connection=given)
    with pytest.raises(InvalidOptionError):
        await store.send([], connection=given)


@pytest.fixture
async def engine(url: str) -> AsyncIterator[Any]:
    import sqlalchemy.ext.asyncio as sqlalchemy

    engine = sqlalchemy.create_async_engine(url.replace("postgresql://", "postgresql+asyncpg://"))
    yield engine
    await engine.dispose()


@pytest.mark.parametrize("before", [True, False], ids=["in use", "fresh"])
@pytest.mark.parametrize("kind", ["AsyncConnection", "AsyncSession"])
async def test_sqlalchemy_on_asyncpg(world: World, store: PostgresStore, engine: Any, kind: str, before: bool) -> None:
    from sqlalchemy import text
    from sqlalchemy.ext import asyncio as sa

    for name, commits in (("undone", False), ("kept", True)):
        given = sa.AsyncSession(engine) if kind == "AsyncSession" else engine.connect()
        async with given as connection:
            if before:
                await connection.execute(text("SELECT 1"))
            [made] = await store.create([NewRun(FLOW, name)], connection=connection)
            assert made.created
            await (connection.commit() if commits else connection.rollback())

    assert await world.ids() == ["kept"]
