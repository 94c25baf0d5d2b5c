"""Numbers in calls of a handle: other than whole numbers from 0 are refused, and too large ones are not found."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from holdfast import Context, Handle, Holdfast, InstanceNotFoundError, InvalidOptionError
from holdfast.testing import Harness

HUGE = 10**30


async def _all(items: AsyncIterator[Any]) -> list[Any]:
    return [item async for item in items]


OF_RUNS: dict[str, Callable[[Handle[Any], Any], Awaitable[Any]]] = {
    "history": lambda run, number: run.history(number),
    "outbox": lambda run, number: run.outbox(number),
    "redeliver": lambda run, number: run.redeliver(number),
    "replay": lambda run, number: run.replay(run_number=number),
    "stream": lambda run, number: _all(run.stream("s", run_number=number)),
    "streams": lambda run, number: run.streams(number),
}


@pytest.fixture
async def run(app: Holdfast, h: Harness) -> Handle[None]:
    @app.workflow
    async def short(ctx: Context) -> None: ...

    started = await h.start(short)
    await h.run_until_idle()
    return started


@pytest.mark.parametrize("name", OF_RUNS)
@pytest.mark.parametrize("number", [-1, 1.5, "0", True])
async def test_a_run_number_that_is_no_whole_number_is_refused(run: Handle[None], name: str, number: Any) -> None:
    with pytest.raises(InvalidOptionError, match="run_number must be a whole number"):
        await OF_RUNS[name](run, number)


@pytest.mark.parametrize("name", [name for name in OF_RUNS if name != "history"])
async def test_a_run_number_that_is_too_large_is_not_found(run: Handle[None], name: str) -> None:
    with pytest.raises(InstanceNotFoundError, match=f"no run {HUGE}"):
        await OF_RUNS[name](run, HUGE)


async def test_the_history_of_a_run_number_that_is_too_large_is_empty(run: Handle[None]) -> None:
    assert (await run.history(HUGE)).steps == []


@pytest.mark.parametrize("offset", [-1, 1.5, "0", True, HUGE])
async def test_an_offset_of_a_stream_that_cannot_be_one_is_refused(run: Handle[None], offset: Any) -> None:
    with pytest.raises(InvalidOptionError, match="after must be an offset"):
        await _all(run.stream("s", after=offset))


async def test_a_tick_may_have_any_maximum_of_instances(app: Holdfast, h: Harness, run: Handle[None]) -> None:
    await h.start("short")
    assert await app.tick(max_instances=HUGE) == 1
