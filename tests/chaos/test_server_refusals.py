"""The server runs but refuses requests: callers get a specific error, and workers wait and continue afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from crash.program import send_events
from crash.workload import SideFile
from holdfast import Holdfast, StoreBusyError, StoreError, StoreReadOnlyError, StoreUnavailableError

from .environment import BY_WORKFLOW, Environment
from .server import Server
from .waiting import retry_until_available, until
from .workload import plan

SEQUENCE = BY_WORKFLOW["sequence"]
ROLE = "worker"


@pytest.fixture
async def role(env: Environment, server: Server) -> AsyncIterator[str]:
    """A role without superuser rights, so that limits and settings apply to it."""
    grants = f"""
    CREATE ROLE {ROLE} LOGIN;
    GRANT USAGE, CREATE ON SCHEMA holdfast TO {ROLE};
    GRANT ALL ON ALL TABLES IN SCHEMA holdfast TO {ROLE};
    GRANT ALL ON ALL SEQUENCES IN SCHEMA holdfast TO {ROLE};
    GRANT ALL ON ALL TABLES IN SCHEMA public TO {ROLE};
    """
    await server.execute(grants, env.database)
    yield ROLE
    await server.execute(f"DROP OWNED BY {ROLE}; DROP ROLE {ROLE}", env.database)


async def alter_role(server: Server, setting: str) -> None:
    """Alter the role, and end its open connections so that the setting takes effect."""
    await server.execute(f"ALTER ROLE {ROLE} {setting}")
    await server.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{ROLE}'")


async def start_all(env: Environment, app: Holdfast, copies: int) -> None:
    for planned in plan(copies):
        if planned.started_by is None:
            run = await retry_until_available(lambda p=planned: app.start(p.workflow, p.n, id=p.id))
            await retry_until_available(lambda run=run, p=planned: send_events(run, p, SideFile(env.side)))


async def error_of_start(app: Holdfast, seconds: float = 120) -> StoreError:
    """The error that a caller gets once the setting has taken effect."""
    async with asyncio.timeout(seconds):
        while True:
            try:
                await app.start("sequence", SEQUENCE.n, id=SEQUENCE.id)
            except StoreError as error:
                return error


@pytest.mark.promise("liveness")
@pytest.mark.parametrize(
    ("on", "off", "error"),
    [
        ("CONNECTION LIMIT 0", "CONNECTION LIMIT -1", StoreUnavailableError),
        ("SET default_transaction_read_only = on", "RESET default_transaction_read_only", StoreReadOnlyError),
        ("NOLOGIN", "LOGIN", StoreUnavailableError),
    ],
)
async def test_a_refusal_has_its_error_type_and_work_continues_afterwards(
    env: Environment, server: Server, role: str, on: str, off: str, error: type[StoreError]
) -> None:
    env.expect(*plan(2))
    env.checker.losses = 2  # each alter_role ends all connections, and with them the live transaction of a step
    async with env.app(user=role, direct=True, connect_timeout=0.5) as app:
        await start_all(env, app, copies=2)
        await alter_role(server, on)
        assert type(await error_of_start(app)) is error
        await alter_role(server, off)

        await start_all(env, app, copies=2)
        await env.complete(30)
    await env.complete_and_check()


@pytest.mark.parametrize("setting", ["statement_timeout", "lock_timeout"])
async def test_a_timeout_is_store_busy_and_work_continues_afterwards(
    env: Environment, server: Server, role: str, setting: str
) -> None:
    env.expect(*plan(1))
    env.checker.losses = 5  # a step whose live transaction is refused runs again
    await alter_role(server, f"SET {setting} = '150ms'")
    async with env.app(user=role, direct=True, connect_timeout=0.5) as app:
        async with tables_locked(env, server):
            assert type(await error_of_start(app)) is StoreBusyError
        await start_all(env, app, copies=1)
        async with tables_locked(env, server):
            await until(
                lambda: env.server.log_text().count("canceling statement due to") > 3, "no statement was cancelled"
            )
        await env.complete(30)
    await env.complete_and_check()


@asynccontextmanager
async def tables_locked(env: Environment, server: Server) -> AsyncIterator[None]:
    """Lock the tables in another session, as a migration does."""
    connection = await server.connect(env.database)
    try:
        async with connection.transaction():
            await connection.execute("LOCK TABLE holdfast.holdfast_task, holdfast.holdfast_run, account")
            yield
    finally:
        await connection.close()


async def test_fewer_connections_than_the_pool_size_are_enough(env: Environment, server: Server, role: str) -> None:
    env.expect(*plan(2))
    await alter_role(server, "CONNECTION LIMIT 5")
    async with env.app(user=role, direct=True) as app:
        await start_all(env, app, copies=2)
        await env.complete(40)
    await env.complete_and_check()


async def test_a_slow_server_causes_no_failures(env: Environment) -> None:
    env.expect(*plan(1))
    async with env.app() as app:
        with env.proxy.slow(0.1):
            await start_all(env, app, copies=1)
            await env.complete(30)
    await env.complete_and_check()
    assert "died or stalled" not in env.server.log_text()
