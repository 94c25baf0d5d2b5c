"""A worker that stands still past its lease and goes on later: another one has its runs, and it can change nothing."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from .proxy import Proxy
from .scene import BY_WORKFLOW, Scene
from .waiting import until

EVENTS, TRANSFER = BY_WORKFLOW["events"], BY_WORKFLOW["transfer"]
TABLES = ("run", "fact", "event", "log")
NOBODY_LIVES = """
SELECT count(*) = 0 FROM holdfast.holdfast_worker WHERE lease_until > extract(epoch FROM clock_timestamp()) * 1000
"""


async def everything(scene: Scene) -> dict[str, list[Any]]:
    return {
        table: await scene.checker.rows(f"SELECT * FROM holdfast.holdfast_{table} ORDER BY 1, 2") for table in TABLES
    }


async def waits_for_nobody(scene: Scene, run: str) -> bool:
    """It rests, and nobody holds it."""
    held = "SELECT count(*) FROM holdfast.holdfast_task WHERE owner IS NOT NULL"
    return await scene.status(run) == "waiting" and await scene.checker.one(held) == 0


async def test_a_commit_that_comes_after_the_lease_changes_nothing(scene: Scene, proxy: Proxy) -> None:
    """The process is stopped with its commit on the wire; both go on once another worker has done the work."""
    scene.expect(EVENTS)
    scene.checker.losses = 1
    async with scene.app(direct=True).connect() as app:
        slow = scene.work()
        run = await app.start("events", EVENTS.n, id=EVENTS.id)
        await until(lambda: waits_for_nobody(scene, EVENTS.id), slow.said)
        hold = proxy.hold("holdfast_commit")
        await run.send_event("go", EVENTS.n)
        await until(hold.reached.is_set, slow.said)
        slow.send(signal.SIGSTOP)
        await until(lambda: slow.stopped, "it does not stop")

        quick = scene.work(direct=True)
        await until(lambda: (EVENTS.id, "between") in scene.executions(), quick.said)
        await until(lambda: waits_for_nobody(scene, EVENTS.id), quick.said)
        assert await quick.end() == 0
        before = await everything(scene)
        hold.let_go.set()
        await until(hold.answered.is_set, "the server is silent")
        assert await everything(scene) == before

        slow.send(signal.SIGCONT)
        await run.send_event("go", EVENTS.n + 1)
        assert await run.result(timeout=10) == EVENTS.expected
    assert await slow.end() == 0
    await scene.finished()


@pytest.mark.parametrize("point", ["holdfast_commit", "^COMMIT"])
async def test_a_transaction_left_open_past_the_lease_counts_once(scene: Scene, proxy: Proxy, point: str) -> None:
    """Before the fence is asked, it must not be committed; with the fence's lock taken, nobody takes the run away."""
    scene.expect(TRANSFER)
    scene.checker.losses = 1
    async with scene.app(direct=True).connect() as app:
        slow = scene.work()
        hold = proxy.hold(point)
        run = await app.start("transfer", TRANSFER.n, id=TRANSFER.id)
        await until(hold.reached.is_set, slow.said)
        slow.send(signal.SIGSTOP)
        alive = "SELECT count(*) FROM holdfast.holdfast_worker WHERE lease_until > extract(epoch FROM now()) * 1000"
        await until(lambda: scene.checker.one(f"SELECT ({alive}) = 0"), "its lease does not end")
        quick = scene.work(direct=True)
        await until(lambda: scene.checker.one(f"SELECT ({alive}) = 1"), quick.said)
        if not point.startswith("^"):
            await until(lambda: scene.executions()[TRANSFER.id, "move"] >= 2, quick.said)

        hold.let_go.set()
        slow.send(signal.SIGCONT)
        assert await run.result(timeout=15) == TRANSFER.expected
    assert [await child.end() for child in (slow, quick)] == [0, 0]
    await scene.finished()


async def test_what_a_black_hole_gives_back_late_is_refused(scene: Scene, proxy: Proxy) -> None:
    """The worker lives, and nothing it says arrives: its runs are taken over, which it learns when it is heard."""
    scene.expect(EVENTS)
    scene.checker.losses = 1
    async with scene.app(direct=True).connect() as app:
        slow = scene.work()
        run = await app.start("events", EVENTS.n, id=EVENTS.id)
        await until(lambda: waits_for_nobody(scene, EVENTS.id), slow.said)
        hold = proxy.hold("holdfast_commit")
        await run.send_event("go", EVENTS.n)
        await until(hold.reached.is_set, slow.said)
        async with proxy.black_hole():
            quick = scene.work(direct=True)
            await until(lambda: (EVENTS.id, "between") in scene.executions(), quick.said)
            await until(lambda: waits_for_nobody(scene, EVENTS.id), quick.said)
            assert await quick.end() == 0
            before = await everything(scene)
        hold.let_go.set()
        await until(hold.answered.is_set, "the server is silent")
        assert await everything(scene) == before

        await run.send_event("go", EVENTS.n + 1)
        assert await run.result(timeout=15) == EVENTS.expected
    assert await slow.end() == 0
    await scene.finished()
