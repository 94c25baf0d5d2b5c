"""Errors of the server have a type, say what to do, and do not contain the password."""

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
from holdfast.store.protocol import NewRun, RunByName, TerminateRun
from postgres_server import execute, server
from store.world import FLOW, FakeClock, World


def new_store(url: str, **options: Any) -> PostgresStore:
    return PostgresStore(f"{url}&connect_timeout=0.2", random=SystemRandomness(), **options)


async def test_an_unreachable_server_is_store_unavailable(tmp_path: Any) -> None:
    with pytest.raises(StoreUnavailableError, match="cannot be reached"):
        await new_store(f"postgresql://me:secret@/x?host={tmp_path}").open()


async def test_a_missing_database_is_store_unavailable() -> None:
    with pytest.raises(StoreUnavailableError, match="does not exist"):
        await new_store(server().url("nowhere")).open()


@pytest.mark.promise("no-secrets")
async def test_a_wrong_password_is_store_unavailable_and_not_in_the_message(url: str) -> None:
    await execute(
        server().url(),
        """DO $$ BEGIN CREATE ROLE with_password LOGIN PASSWORD 'right'; EXCEPTION WHEN duplicate_object THEN NULL;
        END $$""",
    )

    with pytest.raises(StoreUnavailableError, match="refused the login") as caught:
        await new_store(url.replace("postgres@", "with_password:wrong-one@")).open()

    assert "wrong-one" not in str(caught.value)
    assert "28P01" in str(caught.value)


async def test_an_exhausted_connection_limit_is_store_unavailable(url: str) -> None:
    await execute(
        server().url(),
        """DO $$ BEGIN CREATE ROLE crowded LOGIN SUPERUSER CONNECTION LIMIT 0; EXCEPTION WHEN duplicate_object
        THEN NULL; END $$; ALTER ROLE crowded NOSUPERUSER""",
    )

    with pytest.raises(StoreUnavailableError, match="no connection left"):
        await new_store(url.replace("postgres@", "crowded@")).open()


async def test_a_read_only_database_can_be_read_and_refuses_writes(url: str, store: PostgresStore) -> None:
    read_only = new_store(f"{url}&default_transaction_read_only=on")
    await read_only.open()

    with pytest.raises(StoreReadOnlyError, match="25006"):
        await read_only.create([NewRun(FLOW, "a")])

    assert await read_only.read(RunByName(FLOW, "a")) == []
    await read_only.close()


@pytest.mark.parametrize(
    ("setting", "setting_name"),
    [("statement_timeout=400ms", "statement_timeout"), ("lock_timeout=50ms", "lock_timeout")],  # a busy server is slow
)
async def test_a_lock_timeout_is_store_busy_and_the_call_works_later(
    url: str, world: World, other: asyncpg.Connection, clock: FakeClock, setting: str, setting_name: str
) -> None:
    await world.start("a")
    await other.execute("BEGIN")
    await other.execute("SELECT FROM holdfast.holdfast_task FOR UPDATE")
    store_with_timeout = new_store(f"{url}&{setting}", clock=clock)
    await store_with_timeout.open()

    with pytest.raises(StoreBusyError, match=setting_name):
        await store_with_timeout.control(TerminateRun(FLOW, "a"))

    await other.execute("ROLLBACK")
    assert (await store_with_timeout.control(TerminateRun(FLOW, "a"))).run is not None
    await store_with_timeout.close()


async def test_a_missing_right_is_store_unavailable(url: str, store: PostgresStore, other: asyncpg.Connection) -> None:
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


async def test_a_schema_dropped_while_in_use_is_a_schema_version_error(
    store: PostgresStore, other: asyncpg.Connection
) -> None:
    await other.execute("DROP SCHEMA holdfast CASCADE")

    with pytest.raises(SchemaVersionError, match="holdfast migrate"):
        await store.create([NewRun(FLOW, "a")])


async def test_a_number_that_is_too_large_is_a_state_error(world: World) -> None:
    with pytest.raises(StateError):
        await world.create("a", priority=2**70)

    assert (await world.create("a")).created


@pytest.mark.promise("isolation-of-runs")
async def test_a_bad_call_among_merged_calls_fails_alone(world: World) -> None:

    results = await asyncio.gather(
        *(world.create(f"r{n}", priority=2**70 if n == 7 else 0) for n in range(20)), return_exceptions=True
    )

    assert [n for n, result in enumerate(results) if isinstance(result, StateError)] == [7]
    assert len(await world.ids(limit=50)) == 19


@pytest.mark.promise("clear-errors", store=None)
@pytest.mark.parametrize(
    ("state", "expected"),
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
def test_each_sqlstate_has_its_error_type(state: str, expected: type[HoldfastError]) -> None:
    error = asyncpg.PostgresError.new({"C": state, "M": "said the server"})

    translated = translate(error, "PostgreSQL at x")

    assert type(translated) is expected
    assert state in str(translated)
    assert "said the server" in str(translated)


@pytest.mark.parametrize(
    "url", ["mysql://x", "postgresql://x/y?pool_size=many", "postgresql://x/y?connect_timeout=-1", "x"]
)
def test_an_invalid_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidUrlError):
        PostgresStore(url, random=SystemRandomness())


@pytest.mark.promise("no-secrets")
async def test_the_password_is_in_no_message_and_no_repr() -> None:
    store = PostgresStore("postgresql://me:hunter2@localhost:1/x?connect_timeout=0.1", random=SystemRandomness())

    with pytest.raises(StoreUnavailableError) as caught:
        await store.open()

    assert "localhost:1/x" in str(caught.value)
    assert "hunter2" not in str(caught.value) + repr(store) + repr(caught.value)
