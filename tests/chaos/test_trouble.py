"""A server that is there and refuses: callers get an error with a name, workers wait and go on when it is over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from crash.program import send_events
from crash.workload import Side
from holdfast import Holdfast, StoreBusyError, StoreError, StoreReadOnlyError, StoreUnavailableError

from .scene import BY_WORKFLOW, Scene
from .server import Server
from .waiting import insist, until
from .workload import plan

SEQUENCE = BY_WORKFLOW["sequence"]
ROLE = "worker"


@pytest.fixture
async def role(scene: Scene, server: Server) -> AsyncIterator[str]:
    """A user with limits, which the one who made the database has not."""
    grants = f"""
    CREATE ROLE {ROLE} LOGIN;
    GRANT USAGE, CREATE ON SCHEMA holdfast TO {ROLE};
    GRANT ALL ON ALL TABLES IN SCHEMA holdfast TO {ROLE};
    GRANT ALL ON ALL SEQUENCES IN SCHEMA holdfast TO {ROLE};
    GRANT ALL ON ALL TABLES IN SCHEMA public TO {ROLE};
    """
    await server.execute(grants, scene.database)
    yield ROLE
    await server.execute(f"DROP OWNED BY {ROLE}; DROP ROLE {ROLE}", scene.database)


async def change(server: Server, setting: str) -> None:
    """Alter the role, and let everyone feel it: connections that are open are ended."""
    await server.execute(f"ALTER ROLE {ROLE} {setting}")
    await server.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{ROLE}'")


async def start_all(scene: Scene, app: Holdfast, copies: int) -> None:
    for planned in plan(copies):
        if planned.started_by is None:
            run = await insist(lambda p=planned: app.start(p.workflow, p.n, id=p.id))
            await insist(lambda run=run, p=planned: send_events(run, p, Side(scene.side)))


async def refusal(app: Holdfast, seconds: float = 10) -> StoreError:
    """What a caller gets once the trouble has reached it."""
    async with asyncio.timeout(seconds):
        while True:
            try:
                await app.start("sequence", SEQUENCE.n, id=SEQUENCE.id)
            except StoreError as error:
                return error


@pytest.mark.parametrize(
    ("on", "off", "error"),
    [
        ("CONNECTION LIMIT 0", "CONNECTION LIMIT -1", StoreUnavailableError),
        ("SET default_transaction_read_only = on", "RESET default_transaction_read_only", StoreReadOnlyError),
        ("NOLOGIN", "LOGIN", StoreUnavailableError),
    ],
)
async def test_it_is_told_by_name_and_work_goes_on_afterwards(
    scene: Scene, server: Server, role: str, on: str, off: str, error: type[StoreError]
) -> None:
    scene.expect(*plan(2))
    scene.checker.losses = 2  # each change ends all connections, and with them the open transaction of a step
    async with scene.app(user=role, direct=True, patience=0.5) as app:
        await start_all(scene, app, copies=2)
        await change(server, on)
        assert type(await refusal(app)) is error
        await change(server, off)

        await start_all(scene, app, copies=2)
        await scene.complete(30)
    await scene.finished()


@pytest.mark.parametrize("setting", ["statement_timeout", "lock_timeout"])
async def test_what_takes_too_long_is_told_by_name(scene: Scene, server: Server, role: str, setting: str) -> None:
    scene.expect(*plan(1))
    scene.checker.losses = 5  # a step whose open transaction is refused is done again
    await change(server, f"SET {setting} = '150ms'")
    async with scene.app(user=role, direct=True, patience=0.5) as app:
        async with locked(scene, server):
            assert type(await refusal(app)) is StoreBusyError
        await start_all(scene, app, copies=1)
        async with locked(scene, server):
            await until(lambda: scene.server.said().count("canceling statement due to") > 3, "nobody had to wait")
        await scene.complete(30)
    await scene.finished()


@asynccontextmanager
async def locked(scene: Scene, server: Server) -> AsyncIterator[None]:
    """Somebody else, such as a migration, has the tables for himself."""
    connection = await server.connect(scene.database)
    try:
        async with connection.transaction():
            await connection.execute("LOCK TABLE holdfast.holdfast_task, holdfast.holdfast_run, account")
            yield
    finally:
        await connection.close()


async def test_fewer_connections_than_the_pool_may_have_are_enough(scene: Scene, server: Server, role: str) -> None:
    scene.expect(*plan(2))
    await change(server, "CONNECTION LIMIT 5")
    async with scene.app(user=role, direct=True) as app:
        await start_all(scene, app, copies=2)
        await scene.complete(40)
    await scene.finished()


async def test_a_slow_server_only_slows_down(scene: Scene) -> None:
    scene.expect(*plan(1))
    async with scene.app() as app:
        with scene.proxy.slow(0.1):
            await start_all(scene, app, copies=1)
            await scene.complete(30)
    await scene.finished()
    assert "died or stalled" not in scene.server.said()
