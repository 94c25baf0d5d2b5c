"""The server goes away and comes back: workers wait and go on, callers are told after a bound."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from holdfast import StoreUnavailableError

from .faults import Fault, Kind
from .proxy import Proxy
from .scene import BY_WORKFLOW, Scene
from .server import Server, Stop
from .storm import Size, Storm
from .waiting import insist, until

SEQUENCE, EVENTS, TRANSFER = BY_WORKFLOW["sequence"], BY_WORKFLOW["events"], BY_WORKFLOW["transfer"]


@pytest.mark.parametrize("kind", [Kind.FAST, Kind.IMMEDIATE, Kind.CRASH])
async def test_workers_finish_after_a_restart(server: Server, tmp_path: Path, kind: Kind) -> None:
    faults = [Fault(at, kind, victim=0, seconds=0.3) for at in (0.7, 1.4)]
    storm = Storm(server, tmp_path, Size(copies=6, seconds=2.5, workers=2, calm=30, pause=1.5), faults)
    await storm.run()
    assert storm.injected == {kind.value: 2}


async def test_a_call_waits_for_the_server_and_then_says_that_it_is_away(scene: Scene, server: Server) -> None:
    scene.expect(SEQUENCE, EVENTS)
    patience = 1.0
    async with scene.app(direct=True, patience=patience).connect() as app:
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
            assert patience <= time.monotonic() - began < patience + 2

        await server.start()
        await app.start("sequence", SEQUENCE.n, id=SEQUENCE.id)
        for topic, payload in EVENTS.events:
            await run.send_event(topic, payload)
        async with scene.app(direct=True):
            assert await run.result(timeout=10) == EVENTS.expected
            await scene.complete()

    await scene.finished()


async def test_a_call_that_came_while_the_server_restarted_just_takes_longer(scene: Scene, server: Server) -> None:
    scene.expect(SEQUENCE)
    async with scene.app(direct=True) as app:
        await server.stop(Stop.IMMEDIATE)
        starting = asyncio.ensure_future(app.start("sequence", SEQUENCE.n, id=SEQUENCE.id))
        await server.start()
        run = await starting
        assert await run.result(timeout=10) == SEQUENCE.expected

    await scene.finished()


async def test_a_number_of_a_transaction_that_a_crash_forgot_belongs_to_somebody_else(
    scene: Scene, proxy: Proxy, server: Server
) -> None:
    """What was not yet on disk when the server crashed, its number too, is given to the next one who asks."""
    scene.expect(TRANSFER)
    async with scene.app() as app:
        hold = proxy.hold("^COMMIT")
        run = await app.start("transfer", TRANSFER.n, id=TRANSFER.id)
        await until(hold.reached.is_set, "no commit")
        await server.restart(Stop.IMMEDIATE)
        for _ in range(20):
            await server.execute("CREATE TABLE more (); DROP TABLE more", scene.database)
        hold.let_go.set()
        assert await insist(lambda: run.result(timeout=15)) == TRANSFER.expected

    await scene.finished()
