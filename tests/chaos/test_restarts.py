"""The server restarts: workers wait and continue, and callers get an error after the timeout."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from holdfast import StoreUnavailableError

from .environment import BY_WORKFLOW, Environment
from .faults import Fault, Kind
from .proxy import Proxy
from .server import Server, Stop
from .storm import Size, Storm
from .waiting import retry_until_available, until

SEQUENCE, EVENTS, TRANSFER = BY_WORKFLOW["sequence"], BY_WORKFLOW["events"], BY_WORKFLOW["transfer"]


@pytest.mark.promise("durability", "liveness")
@pytest.mark.parametrize("kind", [Kind.FAST, Kind.IMMEDIATE, Kind.CRASH])
async def test_workers_finish_after_a_restart(server: Server, tmp_path: Path, kind: Kind) -> None:
    faults = [Fault(at, kind, victim=0, seconds=0.3) for at in (0.7, 1.4)]
    storm = Storm(server, tmp_path, Size(copies=6, seconds=2.5, workers=2, completion_timeout=300, pause=1.5), faults)
    await storm.run()
    assert storm.injected == {kind.value: 2}


async def test_a_call_waits_for_the_server_and_then_raises_store_unavailable(env: Environment, server: Server) -> None:
    env.expect(SEQUENCE, EVENTS)
    connect_timeout = 1.0
    async with env.app(direct=True, connect_timeout=connect_timeout).connect() as app:
        run = await app.start("events", EVENTS.n, id=EVENTS.id)
        await server.stop(Stop.FAST)
        for call in (
            lambda: app.start("sequence", SEQUENCE.n, id=SEQUENCE.id),
            lambda: run.send_event("go", EVENTS.n),
            lambda: run.status(),
            lambda: run.pause(),
        ):
            began = time.monotonic()
            with pytest.raises(StoreUnavailableError):
                await call()
            assert connect_timeout <= time.monotonic() - began < 10  # less than by default

        await server.start()
        await app.start("sequence", SEQUENCE.n, id=SEQUENCE.id)
        for topic, payload in EVENTS.events:
            await run.send_event(topic, payload)
        async with env.app(direct=True):
            assert await run.result(timeout=60) == EVENTS.expected
            await env.complete()

    await env.complete_and_check()


async def test_a_call_during_a_restart_succeeds_once_the_server_is_back(env: Environment, server: Server) -> None:
    env.expect(SEQUENCE)
    async with env.app(direct=True) as app:
        await server.stop(Stop.IMMEDIATE)
        starting = asyncio.ensure_future(app.start("sequence", SEQUENCE.n, id=SEQUENCE.id))
        await server.start()
        run = await starting
        assert await run.result(timeout=60) == SEQUENCE.expected

    await env.complete_and_check()


@pytest.mark.promise("durability")
async def test_a_transaction_id_reused_after_a_crash_is_not_taken_for_a_commit(
    env: Environment, proxy: Proxy, server: Server
) -> None:
    """A transaction that was not on disk when the server crashed loses its id, which the server uses again."""
    env.expect(TRANSFER)
    async with env.app() as app:
        hold = proxy.hold("^COMMIT")
        run = await app.start("transfer", TRANSFER.n, id=TRANSFER.id)
        await until(hold.reached.is_set, "no commit")
        await server.restart(Stop.IMMEDIATE)
        for _ in range(20):
            await server.execute("CREATE TABLE more (); DROP TABLE more", env.database)
        hold.release.set()
        assert await retry_until_available(lambda: run.result(timeout=60)) == TRANSFER.expected

    await env.complete_and_check()
