"""The most common calls use the shortest statement."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from holdfast import Context, Holdfast
from holdfast.store.postgres.sql import statements

CREATE = statements("create", "holdfast")["create_one"]
COMMIT = statements("commit", "holdfast")["commit_one"]
SEND = statements("send", "holdfast")["send_predicted"]


@pytest.fixture
async def app(url: str) -> AsyncIterator[Holdfast]:
    app = Holdfast(url)

    @app.step
    async def add(a: int, b: int) -> int:
        return a + b

    @app.workflow
    async def sums(_ctx: Context, numbers: list[int]) -> int:
        total = 0
        for number in numbers:
            total = await add(total, number)
        return total

    @app.workflow
    async def waiter(ctx: Context) -> object:
        return (await ctx.wait_for_event("go", type="go", timeout="1 hour")).payload

    async with app:
        assert await (await app.start("sums", [1])).result() == 1  # opens the connections
        yield app


@pytest.fixture
def statements_sent(app: Holdfast, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The statements with which the app creates, commits and sends from now on."""
    statements_sent: list[str] = []
    fetchval = asyncpg.Connection.fetchval

    async def recording(self: asyncpg.Connection, query: str, *args: Any, **options: Any) -> Any:
        if any(f".holdfast_{name}" in query for name in ("create", "commit", "send")):
            statements_sent.append(query)
        return await fetchval(self, query, *args, **options)

    monkeypatch.setattr(asyncpg.Connection, "fetchval", recording)
    return statements_sent


async def test_a_run_of_two_steps_takes_three_short_statements(app: Holdfast, statements_sent: list[str]) -> None:
    assert await (await app.start("sums", [1, 2])).result() == 3

    assert statements_sent == [CREATE, COMMIT, COMMIT]


async def test_an_event_that_a_run_waits_for_takes_one_short_statement(
    app: Holdfast, statements_sent: list[str]
) -> None:
    run = await app.start("waiter")
    worker = app._opened().worker
    assert worker is not None
    while worker._cache.find("waiter", run.id) is None:  # until it is suspended
        await asyncio.sleep(0.01)
    statements_sent.clear()

    await run.send_event("go", "now")
    assert await run.result() == "now"

    assert statements_sent == [SEND]
