"""A worker is stopped past its lease and continues later: another worker has its runs, and it can change nothing."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from .environment import BY_WORKFLOW, Environment
from .proxy import Proxy
from .waiting import until

pytestmark = pytest.mark.promise("fencing")

EVENTS, TRANSFER = BY_WORKFLOW["events"], BY_WORKFLOW["transfer"]
TABLES = ("run", "fact", "event", "log")
NO_LIVE_WORKER = """
SELECT count(*) = 0 FROM holdfast.holdfast_worker WHERE lease_until > extract(epoch FROM clock_timestamp()) * 1000
"""


async def all_rows(env: Environment) -> dict[str, list[Any]]:
    return {table: await env.checker.rows(f"SELECT * FROM holdfast.holdfast_{table} ORDER BY 1, 2") for table in TABLES}


async def waits_without_owner(env: Environment, run: str) -> bool:
    """True if the run waits and no task has an owner."""
    owned = "SELECT count(*) FROM holdfast.holdfast_task WHERE owner IS NOT NULL"
    return await env.status(run) == "waiting" and await env.checker.one(owned) == 0


async def test_a_commit_that_arrives_after_the_lease_expired_changes_nothing(env: Environment, proxy: Proxy) -> None:
    """The process is stopped with its commit on the wire; both continue once another worker has done the work."""
    env.expect(EVENTS)
    env.checker.losses = 1
    async with env.app(direct=True).connect() as app:
        stalled = env.work()
        run = await app.start("events", EVENTS.n, id=EVENTS.id)
        await until(lambda: waits_without_owner(env, EVENTS.id), stalled.log_text)
        hold = proxy.hold("holdfast_commit")
        await run.send_event("go", EVENTS.n)
        await until(hold.reached.is_set, stalled.log_text)
        stalled.send(signal.SIGSTOP)
        await until(lambda: stalled.stopped, "the worker does not stop")

        successor = env.work(direct=True)
        await until(lambda: (EVENTS.id, "between") in env.executions(), successor.log_text)
        await until(lambda: waits_without_owner(env, EVENTS.id), successor.log_text)
        assert await successor.end() == 0
        before = await all_rows(env)
        hold.release.set()
        await until(hold.replied.is_set, "the server does not reply")
        assert await all_rows(env) == before

        stalled.send(signal.SIGCONT)
        await run.send_event("go", EVENTS.n + 1)
        assert await run.result(timeout=60) == EVENTS.expected
    assert await stalled.end() == 0
    await env.complete_and_check()


@pytest.mark.parametrize("point", ["holdfast_commit", "^COMMIT"])
async def test_a_live_transaction_open_past_the_lease_is_committed_once(
    env: Environment, proxy: Proxy, point: str
) -> None:
    """Held before the fence it must not be committed; held after the fence, its lock prevents a takeover."""
    env.expect(TRANSFER)
    env.checker.losses = 1
    async with env.app(direct=True).connect() as app:
        stalled = env.work()
        hold = proxy.hold(point)
        run = await app.start("transfer", TRANSFER.n, id=TRANSFER.id)
        await until(hold.reached.is_set, stalled.log_text)
        stalled.send(signal.SIGSTOP)
        alive = "SELECT count(*) FROM holdfast.holdfast_worker WHERE lease_until > extract(epoch FROM now()) * 1000"
        await until(lambda: env.checker.one(f"SELECT ({alive}) = 0"), "its lease does not end")
        successor = env.work(direct=True)
        await until(lambda: env.checker.one(f"SELECT ({alive}) = 1"), successor.log_text)
        if not point.startswith("^"):
            await until(lambda: env.executions()[TRANSFER.id, "move"] >= 2, successor.log_text)

        hold.release.set()
        stalled.send(signal.SIGCONT)
        assert await run.result(timeout=60) == TRANSFER.expected
    assert [await child.end() for child in (stalled, successor)] == [0, 0]
    await env.complete_and_check()


async def test_a_commit_delayed_by_a_black_hole_is_refused(env: Environment, proxy: Proxy) -> None:
    """The worker runs, but its messages do not arrive: its runs are taken over, and its late commit is refused."""
    env.expect(EVENTS)
    env.checker.losses = 1
    async with env.app(direct=True).connect() as app:
        stalled = env.work()
        run = await app.start("events", EVENTS.n, id=EVENTS.id)
        await until(lambda: waits_without_owner(env, EVENTS.id), stalled.log_text)
        hold = proxy.hold("holdfast_commit")
        await run.send_event("go", EVENTS.n)
        await until(hold.reached.is_set, stalled.log_text)
        async with proxy.black_hole():
            successor = env.work(direct=True)
            await until(lambda: (EVENTS.id, "between") in env.executions(), successor.log_text)
            await until(lambda: waits_without_owner(env, EVENTS.id), successor.log_text)
            assert await successor.end() == 0
            before = await all_rows(env)
        hold.release.set()
        await until(hold.replied.is_set, "the server does not reply")
        assert await all_rows(env) == before

        await run.send_event("go", EVENTS.n + 1)
        assert await run.result(timeout=60) == EVENTS.expected
    assert await stalled.end() == 0
    await env.complete_and_check()
