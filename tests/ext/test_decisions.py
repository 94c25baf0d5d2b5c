"""Decisions about the calls of agents that work in parallel in one run."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from holdfast import Context, Holdfast, WaitForEventTimeoutError
from holdfast.ext.decisions import decisions
from holdfast.testing import Harness

TYPE = "approval"


@dataclass
class Decision:
    call: str
    approved: bool


def _calls_of(decision: Decision) -> str:
    return decision.call


def _app() -> Holdfast:
    app = Holdfast("sqlite://")

    async def agent(ctx: Context, name: str, calls: int, pause: str) -> list[str]:
        """An agent that asks for its calls one after the other."""
        found = []
        for n in range(calls):
            await ctx.sleep(f"{name} {n}", pause)
            wanted = [f"{name}-{n}"]
            decided = decisions(ctx, wanted, Decision, _calls_of, event=TYPE, timeout="1 hour")
            found += [f"{one.call} {one.approved}" async for one in decided]
        return found

    @app.workflow
    async def parallel(ctx: Context) -> list[Any]:
        return await asyncio.gather(agent(ctx, "a", 2, "1 minute"), agent(ctx, "b", 1, "1 minute"))

    @app.workflow
    async def impatient(ctx: Context) -> list[Any]:
        found = await asyncio.gather(
            agent(ctx, "a", 1, "1 minute"), agent(ctx, "b", 1, "1 minute"), return_exceptions=True
        )
        return [type(one).__name__ if isinstance(one, BaseException) else one for one in found]

    return app


async def _decide(run: Any, *calls: str) -> None:
    for call in calls:
        await run.send_event(TYPE, {"call": call, "approved": True}, id=call)


@pytest.mark.parametrize("order", [("b-0", "a-0", "a-1"), ("a-0", "b-0", "a-1"), ("a-1", "b-0", "a-0")])
async def test_each_agent_gets_the_decisions_about_its_own_calls(order: tuple[str, ...]) -> None:
    async with Harness(_app()) as h:
        run = await h.start("parallel")
        await h.advance("1 minute")
        await run.send_event(TYPE, "not a decision")
        for call in order:
            await _decide(run, call)
            await h.restart()
            await h.run_until_idle()
        await h.advance("1 minute")

        assert await run.result(timeout=60) == [["a-0 True", "a-1 True"], ["b-0 True"]]
        warnings = {line.message.partition(":")[0] for line in await run.logs()}
    assert warnings == {"an event of the type 'approval' is ignored"} | (
        {"a decision names the call 'a-1', which is not open"} if order[0] == "a-1" else set()
    )


async def test_another_agent_continues_to_wait_when_the_reading_agent_times_out() -> None:
    async with Harness(_app()) as h:
        run = await h.start("impatient")
        await h.advance("61 minutes")
        await _decide(run, "b-0")
        await h.run_until_idle()

        assert await run.result(timeout=60) == [WaitForEventTimeoutError.__name__, ["b-0 True"]]
