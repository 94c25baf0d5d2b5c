"""Sagas: when the block fails or is cancelled, its undo steps run durably in reverse order."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from driving import finish, step_keys
from holdfast import Context, Holdfast, NonRetryableError
from holdfast.testing import Harness


class Shop:
    """Steps and their undo steps, with a list of the calls."""

    def __init__(self, app: Holdfast) -> None:
        self.called: list[str] = []
        self.broken: set[str] = set()
        self.refund = app.step(self._step("refund"))
        self.release = app.step(self._step("release"))
        self.pay = app.step(self._step("pay"))
        self.reserve = app.step(self._step("reserve"))
        self.ship = app.step(self._step("ship"))

    def _step(self, name: str) -> Any:
        async def step(order: str) -> str:
            self.called.append(name)
            if name in self.broken:
                raise NonRetryableError(f"{name} is broken")
            return f"{name} {order}"

        step.__name__ = name
        return step


@pytest.fixture
def shop(app: Holdfast) -> Shop:
    return Shop(app)


@pytest.fixture
def order(app: Holdfast, shop: Shop) -> Any:
    @app.workflow
    async def order(ctx: Context, id: str) -> Any:
        try:
            async with ctx.saga() as saga:
                await shop.reserve(id)
                saga.add(shop.release, id)
                await shop.pay(id)
                saga.add(shop.refund, id)
                return await shop.ship(id)
        except NonRetryableError as error:
            return [str(error), *getattr(error, "__notes__", [])]

    return order


@pytest.mark.above_the_store
async def test_a_successful_saga_runs_no_undo_steps(h: Harness, shop: Shop, order: Any) -> None:
    assert await finish(h, order, "o-1") == "ship o-1"
    assert shop.called == ["reserve", "pay", "ship"]


@pytest.mark.above_the_store
async def test_undo_steps_run_in_reverse_order(h: Harness, shop: Shop, order: Any) -> None:
    shop.broken = {"ship"}
    assert await finish(h, order, "o-1") == ["ship is broken"]
    assert shop.called == ["reserve", "pay", "ship", "refund", "release"]


@pytest.mark.above_the_store
async def test_only_added_undo_steps_run(h: Harness, shop: Shop, order: Any) -> None:
    shop.broken = {"pay"}
    assert await finish(h, order, "o-1") == ["pay is broken"]
    assert shop.called == ["reserve", "pay", "release"]


async def test_a_failed_undo_step_does_not_stop_the_others(h: Harness, shop: Shop, order: Any) -> None:
    shop.broken = {"ship", "refund"}
    run = await h.start(order, "o-1")
    await h.run_until_idle()
    assert await run.result(timeout=60) == [
        "ship is broken",
        "undo step 'refund' failed: NonRetryableError: refund is broken",
    ]
    assert shop.called[-2:] == ["refund", "release"]
    assert {(s.step_key, s.status) for s in (await run.history()).steps} >= {
        ("refund", "errored"),
        ("release", "completed"),
    }


@pytest.mark.promise("exact-replay")
@pytest.mark.parametrize("broken", [set(), {"ship"}, {"pay"}, {"ship", "refund"}])
async def test_a_crash_at_any_commit_does_not_change_the_result_of_a_saga(
    h: Harness, shop: Shop, order: Any, broken: set[str]
) -> None:
    shop.broken = broken
    await h.crash_everywhere(order, "o-1")


@pytest.mark.above_the_store
async def test_a_cancelled_saga_runs_its_undo_steps(app: Holdfast, h: Harness, shop: Shop) -> None:
    @app.workflow
    async def impatient(ctx: Context) -> str:
        async def work() -> None:
            async with ctx.saga() as saga:
                await shop.reserve("o-1")
                saga.add(shop.release, "o-1")
                await asyncio.sleep(3600)

        try:
            await asyncio.wait_for(work(), 60)
        except TimeoutError:
            return "gave up"
        return "done"

    run = await h.start(impatient)
    await h.run_until_idle()
    await h.advance("2 minutes")
    assert await run.result(timeout=60) == "gave up"
    assert shop.called == ["reserve", "release"]


@pytest.mark.above_the_store
async def test_dropping_a_run_from_memory_runs_no_undo_steps(app: Holdfast, h: Harness, shop: Shop) -> None:
    @app.workflow
    async def waits(ctx: Context) -> str:
        async with ctx.saga() as saga:
            await shop.reserve("o-1")
            saga.add(shop.release, "o-1")
            await ctx.sleep("a while", "1 hour")
        return "done"

    run = await h.start(waits)
    await h.run_until_idle()
    await h.restart()
    await h.advance("1 hour")
    assert await run.result(timeout=60) == "done"
    assert shop.called == ["reserve"]


@pytest.mark.above_the_store
async def test_a_plain_function_can_be_an_undo_step(app: Holdfast, h: Harness) -> None:
    undone: list[int] = []

    @app.workflow
    async def plain(ctx: Context) -> None:
        async with ctx.saga() as saga:
            saga.add(undone.append, 1)
            saga.add(undone.append, 2)
            raise ValueError("no")

    run = await h.start(plain)
    await h.run_until_idle()
    assert (await run.status()).status == "errored"
    assert undone == [2, 1]
    assert sorted(await step_keys(run)) == ["append", "append#2"]


@pytest.mark.above_the_store
async def test_an_undo_step_that_is_not_callable_is_refused(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def wrong(ctx: Context) -> str:
        try:
            async with ctx.saga() as saga:
                saga.add("refund")  # type: ignore[arg-type]
        except Exception as error:
            return type(error).__name__
        return "taken"

    assert await finish(h, wrong) == "InvalidOptionError"


@pytest.mark.parametrize("first", ["failed", "cancelled"])
async def test_a_cancellation_does_not_stop_undo_steps_in_progress(
    app: Holdfast, h: Harness, shop: Shop, first: str
) -> None:
    @app.workflow
    async def order(ctx: Context) -> Any:
        async def sell() -> None:
            async with ctx.saga() as saga:
                saga.add(shop.release, "o")
                saga.add(shop.refund, "o")
                if first == "failed":
                    raise ValueError("no")
                await ctx.sleep("wait", "1 hour")

        selling = asyncio.ensure_future(sell())
        await asyncio.sleep(0)
        selling.cancel()
        await asyncio.sleep(0)
        selling.cancel()
        [ended] = await asyncio.gather(selling, return_exceptions=True)
        return type(ended).__name__

    run = await h.start(order)
    await h.run_until_idle()

    assert (await run.status()).output == "CancelledError"
    assert shop.called == ["refund", "release"]
