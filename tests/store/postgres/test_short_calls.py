"""What is done again and again takes the shortest statement that there is for it."""

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
SEND = statements("send", "holdfast")["send_foreseen"]


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
        assert await (await app.start("sums", [1])).result() == 1  # the connections are there
        yield app


@pytest.fixture
def written(app: Holdfast, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The statements by which the app starts, commits and sends from now on."""
    written: list[str] = []
    fetchval = asyncpg.Connection.fetchval

    async def noted(self: asyncpg.Connection, query: str, *args: Any, **options: Any) -> Any:
        if any(f".holdfast_{what}" in query for what in ("create", "commit", "send")):
            written.append(query)
        return await fetchval(self, query, *args, **options)

    monkeypatch.setattr(asyncpg.Connection, "fetchval", noted)
    return written


async def test_a_run_of_two_steps(app: Holdfast, written: list[str]) -> None:
    assert await (await app.start("sums", [1, 2])).result() == 3

    assert written == [CREATE, COMMIT, COMMIT]


async def test_an_event_for_which_a_run_waits(app: Holdfast, written: list[str]) -> None:
    run = await app.start("waiter")
    worker = app._opened().worker
    assert worker is not None
    while worker._cache.find("waiter", run.id) is None:  # it rests
        await asyncio.sleep(0.01)
    written.clear()

    await run.send_event("go", "now")
    assert await run.result() == "now"

    assert written == [SEND]
