"""What goes wrong with a server is told by type, says what to do, and keeps the password to itself."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest

from holdfast.errors import (
    HoldfastError,
    InvalidUrlError,
    SchemaVersionError,
    StateError,
    StoreBusyError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
    StoreUnavailableError,
)
from holdfast.ports import SystemRandomness
from holdfast.store.postgres import PostgresStore
from holdfast.store.postgres.errors import translate
from holdfast.store.protocol import NewRun
from postgres_server import execute, server
from store.world import FLOW, FakeClock, World


def new_store(url: str, **options: Any) -> PostgresStore:
    return PostgresStore(f"{url}&connect_timeout=0.2", random=SystemRandomness(), **options)


async def test_a_server_that_is_not_there(tmp_path: Any) -> None:
    with pytest.raises(StoreUnavailableError, match="cannot be reached"):
        await new_store(f"postgresql://me:secret@/x?host={tmp_path}").open()


async def test_a_database_that_is_not_there() -> None:
    with pytest.raises(StoreUnavailableError, match="does not exist"):
        await new_store(server().url("nowhere")).open()


async def test_a_wrong_password(url: str) -> None:
    await execute(
        server().url(),
        """DO $$ BEGIN CREATE ROLE with_password LOGIN PASSWORD 'right'; EXCEPTION WHEN duplicate_object THEN NULL;
        END $$""",
    )

    with pytest.raises(StoreUnavailableError, match="refused the login") as caught:
        await new_store(url.replace("postgres@", "with_password:wrong-one@")).open()

    assert "wrong-one" not in str(caught.value)
    assert "28P01" in str(caught.value)


async def test_no_connection_left(url: str) -> None:
    await execute(
        server().url(),
        """DO $$ BEGIN CREATE ROLE crowded LOGIN SUPERUSER CONNECTION LIMIT 0; EXCEPTION WHEN duplicate_object
        THEN NULL; END $$; ALTER ROLE crowded NOSUPERUSER""",
    )

    with pytest.raises(StoreUnavailableError, match="no connection left"):
        await new_store(url.replace("postgres@", "crowded@")).open()


async def test_a_database_that_only_reads(url: str, store: PostgresStore) -> None:
    reading = new_store(f"{url}&default_transaction_read_only=on")
    await reading.open()

    with pytest.raises(StoreReadOnlyError, match="25006"):
        await reading.create([NewRun(FLOW, "a")])

    assert await reading.find(FLOW, "a") is None
    await reading.close()


@pytest.mark.parametrize(
    ("setting", "what"), [("statement_timeout=50ms", "statement_timeout"), ("lock_timeout=50ms", "lock_timeout")]
)
async def test_locks_that_last(
    url: str, world: World, other: asyncpg.Connection, clock: FakeClock, setting: str, what: str
) -> None:
    await world.start("a")
    await other.execute("BEGIN")
    await other.execute("SELECT FROM holdfast.holdfast_task FOR UPDATE")
    impatient = new_store(f"{url}&{setting}", clock=clock)
    await impatient.open()

    with pytest.raises(StoreBusyError, match=what):
        await impatient.terminate(FLOW, "a")

    await other.execute("ROLLBACK")
    assert await impatient.terminate(FLOW, "a") is not None
    await impatient.close()


async def test_a_right_that_is_missing(url: str, store: PostgresStore, other: asyncpg.Connection) -> None:
    await execute(
        server().url(),
        "DO $$ BEGIN CREATE ROLE reader LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$",
    )
    await other.execute(
        "GRANT USAGE ON SCHEMA holdfast TO reader; GRANT SELECT ON ALL TABLES IN SCHEMA holdfast TO reader"
    )
    reader = new_store(url.replace("postgres@", "reader@"))
    await reader.open()

    with pytest.raises(StoreUnavailableError, match=r"lacks a right.*42501"):
        await reader.create([NewRun(FLOW, "a")])

    await reader.close()


async def test_a_schema_that_is_dropped_while_it_is_in_use(store: PostgresStore, other: asyncpg.Connection) -> None:
    await other.execute("DROP SCHEMA holdfast CASCADE")

    with pytest.raises(SchemaVersionError, match="holdfast migrate"):
        await store.create([NewRun(FLOW, "a")])


async def test_a_number_that_is_too_large_is_not_the_stores_fault(world: World) -> None:
    with pytest.raises(StateError):
        await world.create("a", priority=2**70)

    assert (await world.create("a")).created


async def test_a_bad_one_among_calls_that_are_merged_fails_alone(world: World) -> None:

    made = await asyncio.gather(
        *(world.create(f"r{n}", priority=2**70 if n == 7 else 0) for n in range(20)), return_exceptions=True
    )

    assert [n for n, one in enumerate(made) if isinstance(one, StateError)] == [7]
    assert len(await world.ids(limit=50)) == 19


@pytest.mark.parametrize(
    ("state", "meaning"),
    [
        ("53100", StoreFullError),
        ("53200", StoreUnavailableError),
        ("57P01", StoreUnavailableError),
        ("57P02", StoreUnavailableError),
        ("57P03", StoreUnavailableError),
        ("58030", StoreUnavailableError),
        ("08006", StoreUnavailableError),
        ("28000", StoreUnavailableError),
        ("40001", StoreBusyError),
        ("40P01", StoreBusyError),
        ("23514", StateError),
        ("XX000", StoreError),
    ],
)
def test_what_cannot_be_provoked_here(state: str, meaning: type[HoldfastError]) -> None:
    error = asyncpg.PostgresError.new({"C": state, "M": "said the server"})

    found = translate(error, "PostgreSQL at x")

    assert type(found) is meaning
    assert state in str(found)
    assert "said the server" in str(found)


@pytest.mark.parametrize(
    "url", ["mysql://x", "postgresql://x/y?pool_size=many", "postgresql://x/y?connect_timeout=-1", "x"]
)
def test_a_url_that_is_none(url: str) -> None:
    with pytest.raises(InvalidUrlError):
        PostgresStore(url, random=SystemRandomness())


async def test_the_password_is_in_no_message_and_no_repr() -> None:
    store = PostgresStore("postgresql://me:hunter2@localhost:1/x?connect_timeout=0.1", random=SystemRandomness())

    with pytest.raises(StoreUnavailableError) as caught:
        await store.open()

    assert "localhost:1/x" in str(caught.value)
    assert "hunter2" not in str(caught.value) + repr(store) + repr(caught.value)
