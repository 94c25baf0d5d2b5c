"""An event that is sent again with the same id is received once, also by the successors of a run."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import Context, Handle, Holdfast, Retry, WorkflowError
from holdfast.testing import Harness

pytestmark = pytest.mark.promise("messages-once-in-order")


async def _send(h: Harness, run: Handle[Any], *texts: str) -> None:
    """Send each text under an id made from the text, and let the run continue after each."""
    for text in texts:
        await run.send_event("go", text, id=f"id of {text}")
        await h.run_until_idle()


async def _got(run: Handle[Any]) -> list[list[Any]]:
    """Payloads in the mailbox of each run of the instance."""
    last = (await run.describe()).run_number
    return [[event.payload for event in (await run.history(number)).events] for number in range(last + 1)]


async def test_a_resent_event_is_received_once_after_continue_as_new(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def collects(ctx: Context, seen: list[str]) -> list[str]:
        if len(seen) == 3:
            return seen
        message = await ctx.wait_for_event("next", type="go", payload=str)
        raise ctx.continue_as_new([*seen, message.payload])

    run = await h.start(collects, [])
    await _send(h, run, "a", "a", "b", "b", "a", "c")

    assert (await run.status()).output == ["a", "b", "c"]
    assert await _got(run) == [["a"], ["b"], ["c"], []]


async def test_a_resent_event_is_received_once_while_it_is_carried_over_unread(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def dawdles(ctx: Context, n: int = 0) -> list[str]:
        await ctx.wait_for_event("turn", type="turn")
        if n < 3:
            raise ctx.continue_as_new(n + 1)
        go = ctx.listen("go")
        return [await go.receive(), await go.receive()]

    run = await h.start(dawdles)
    for _ in range(4):
        await _send(h, run, "a", "a")
        await run.send_event("turn")
        await h.run_until_idle()
    await _send(h, run, "a", "b")

    assert (await run.status()).output == ["a", "b"]


async def test_a_resent_event_is_received_once_across_attempts(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def stumbles(ctx: Context) -> str:
        message = await ctx.wait_for_event("next", type="go", payload=str)
        if message.payload != "c":
            raise WorkflowError(message.payload)
        return f"{message.payload} by attempt {ctx.info.attempt}"

    run = await h.start(stumbles, retry=Retry(5, "1 second", "constant"))
    for text in ("a", "b"):
        await _send(h, run, text, text)
        await h.advance("1 second")
        await _send(h, run, text)
    await _send(h, run, "c")

    assert (await run.status()).output == "c by attempt 3"
    assert await _got(run) == [["a"], ["b"], ["c"]]


async def test_a_resent_event_is_received_once_across_ticks(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def hourly(ctx: Context) -> str:
        return (await ctx.wait_for_event("next", type="go", payload=str)).payload

    run = await h.start(hourly, cron="0 * * * *")
    await h.advance("1 hour")
    for text in ("a", "b"):
        await _send(h, run, text, text)
        await h.advance("1 hour")
    await _send(h, run, "a", "b")

    assert (await _got(run))[-3:] == [["a"], ["b"], []]


async def test_a_resent_event_is_received_again_after_a_restart(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def twice(ctx: Context, n: int = 0) -> str:
        message = await ctx.wait_for_event("next", type="go", payload=str)
        if n == 0:
            raise ctx.continue_as_new(1)
        return message.payload

    run = await h.start(twice)
    await _send(h, run, "a", "a")
    await run.restart()
    await h.run_until_idle()
    await _send(h, run, "a")

    assert await _got(run) == [["a"], [], ["a"]]


async def test_the_reply_of_a_later_run_reaches_the_asking_client(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def answers(ctx: Context, n: int = 0) -> None:
        await ctx.wait_for_event("turn", type="turn")
        if n == 2:
            message = await ctx.inbox.receive()
            await message.reply(message.payload + 1)
        raise ctx.continue_as_new(n + 1)

    run = await h.start(answers)
    asking = asyncio.ensure_future(run.ask("question", 6))
    while not (await run.history()).events:
        await asyncio.sleep(0.001)
    for _ in range(5):
        await run.send_event("turn")
    await h.run_until_idle()

    assert await asyncio.wait_for(asking, 60) == 7
    assert (await run.describe()).run_number == 5
