"""The harness in tests of an application: fakes for steps, the application's routes, and ``h.run``."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import AsyncMock, Mock

import httpx
import pytest
from fastapi import FastAPI

from holdfast import (
    AppClosedError,
    ChainTask,
    Context,
    Holdfast,
    InvalidOptionError,
    Retry,
    RunCancelledError,
    RunFailedError,
    StepTx,
    Transaction,
    WaitForEventTimeoutError,
    WorkerConfig,
)
from holdfast.testing import CrashMismatch, Harness, HarnessError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # newer versions of Starlette prefer another HTTP client
    from fastapi.testclient import TestClient

pytestmark = pytest.mark.above_the_store


@dataclass
class Receipt:
    id: str
    total: int


# --- fakes


@dataclass
class Shop:
    app: Holdfast
    order: Any
    charge: Any
    count: Any


@pytest.fixture
def shop(app: Holdfast) -> Shop:
    @app.step(retry=Retry(limit=1, delay="1 minute"))
    async def charge(total: int) -> Receipt:
        raise AssertionError("the real bank was called")

    @app.step
    def count(words: str) -> int:
        raise AssertionError("the real counter was called")

    @app.workflow
    async def order(ctx: Context, total: int) -> list[Any]:
        receipt = await charge(total)
        assert isinstance(receipt, Receipt)
        return [receipt.id, await count("two words"), (await ctx.do("again", charge, total)).total]

    return Shop(app, order, charge, count)


def _plain_charge(total: int) -> dict[str, Any]:
    return {"id": "fake", "total": total}


async def _async_charge(total: int) -> Receipt:
    return Receipt("fake", total)


async def _async_count(words: str) -> int:
    await asyncio.sleep(0)
    return len(words.split())


@pytest.mark.parametrize("charge", [_plain_charge, _async_charge, AsyncMock(side_effect=_async_charge)])
@pytest.mark.parametrize("count", [lambda words: 2, _async_count, Mock(return_value=2)])
async def test_a_fake_is_called_in_place_of_a_step(
    shop: Shop, charge: Callable[..., Any], count: Callable[..., Any]
) -> None:
    async with Harness(shop.app, steps={shop.charge: charge, shop.count: count}) as h:
        assert await h.run(shop.order, 5) == ["fake", 2, 5]
        assert await h.crash_everywhere(shop.order, 5) == ["fake", 2, 5]


async def test_a_fake_result_that_does_not_fit_the_step_fails_the_run(shop: Shop) -> None:
    async with Harness(shop.app, steps={shop.charge: lambda total: {"id": 5}, shop.count: len}) as h:
        with pytest.raises(RunFailedError, match="result of step 'charge' does not fit the return annotation"):
            await h.run(shop.order, 5)


async def test_a_fake_that_raises_is_retried_like_the_step(shop: Shop) -> None:
    charge = Mock(side_effect=[ConnectionError("no answer"), Receipt("second", 1), Receipt("third", 3)])

    async with Harness(shop.app, steps={shop.charge: charge, shop.count: len}) as h:
        began = h.now()
        assert await h.run(shop.order, 5) == ["second", 9, 3]
        assert (h.now() - began).total_seconds() == 60


async def test_fakes_end_with_the_harness(shop: Shop) -> None:
    async with Harness(shop.app, steps={shop.charge: _plain_charge, shop.count: len}) as h:
        await h.run(shop.order, 5)
    async with Harness(shop.app) as h:
        with pytest.raises(RunFailedError, match="the real bank was called"):
            await h.run(shop.order, 5)


async def test_fakes_replace_functions_passed_to_do_chain_steps_and_nodes(app: Holdfast) -> None:
    async def fetch(url: str) -> str:
        raise AssertionError("the real network was used")

    @app.workflow
    async def flow(ctx: Context) -> str:
        return await ctx.do("fetch", fetch, "http://example.com")

    chain, graph = app.chain("chain"), app.graph("graph")

    @chain.step("ASK")
    async def ask(task: ChainTask) -> str:
        raise AssertionError("the real service was asked")

    @graph.node
    def load(params: int) -> list[int]:
        raise AssertionError("the real table was read")

    @graph.node(after=[load])
    async def add(load: list[int]) -> int:
        return sum(load)

    fakes = {fetch: lambda url: f"page of {url}", ask: lambda task: "answer", load: lambda params: [params, 2]}
    async with Harness(app, steps=fakes) as h:
        assert await h.run(flow) == "page of http://example.com"
        assert await h.run(chain) == "answer"
        run = await h.start(graph, 40)
        await h.run_until_idle()
        assert await run.results() == {"load": [40, 2], "add": 42}


async def test_a_fake_gets_the_transaction_only_if_it_has_a_parameter_for_it(app: Holdfast) -> None:
    @app.step
    async def reserve(tx: StepTx, item: str) -> str:
        raise AssertionError

    @app.step
    async def book(tx: Transaction, item: str) -> str:
        raise AssertionError

    @app.workflow
    async def flow(ctx: Context) -> list[str]:
        return [await reserve("a"), await book("b")]

    def fake_reserve(item: str) -> str:
        return f"reserved {item}"

    async def fake_book(item: str, tx: Transaction) -> str:
        [row] = await tx.fetch("SELECT 7 AS n")
        return f"{item} {row['n']}"

    async with Harness(app, steps={reserve: fake_reserve, book: fake_book}) as h:
        assert await h.run(flow) == ["reserved a", "b 7"]


def test_fakes_that_are_not_functions_are_refused(app: Holdfast) -> None:
    graph = app.graph("graph")
    child = graph.node(run="graph", name="child")

    for steps in ({"charge": len}, {len: "charge"}, {child: len}):
        with pytest.raises(InvalidOptionError, match="steps= of the harness"):
            Harness(app, steps=steps)  # type: ignore[arg-type]


# --- the app on the harness's store


def _routes(app: Holdfast, order: Any, **options: Any) -> FastAPI:
    api = FastAPI(**options)

    @api.post("/orders/{id}")
    async def create(id: str) -> dict[str, str]:
        run = await app.start(order, id=id)
        return {"pid": run.pid}

    @api.post("/orders/{id}/approval")
    async def approve(id: str) -> None:
        run = await app.get(order, id)
        await run.send_event("approval", {"by": "ann"})

    @api.get("/orders/{id}")
    async def read(id: str) -> dict[str, Any]:
        status = await (await app.get(order, id)).status()
        return {"status": status.status, "output": status.output}

    @api.get("/orders/{id}/result")
    async def result(id: str) -> str:
        return str(await (await app.get(order, id)).result())

    api.mount("/workflows", app.asgi(api=""))
    return api


@pytest.fixture
def order(app: Holdfast) -> Any:
    @app.workflow
    async def order(ctx: Context) -> str:
        await ctx.sleep("cool off", "1 hour")
        approval = await ctx.wait_for_event("approval", type="approval")
        return str(approval.payload["by"])

    return order


@asynccontextmanager
async def _asgi(api: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://shop") as client:
        yield client


async def test_routes_of_the_application_use_the_store_of_the_harness(app: Holdfast, order: Any) -> None:
    async with Harness(app) as h, _asgi(_routes(app, order)) as client:
        assert (await client.post("/orders/o-1")).json() == {"pid": "order/o-1"}
        await h.advance("1 hour")
        assert (await client.post("/orders/o-1/approval")).status_code == 200
        await h.run_until_idle()
        assert (await client.get("/orders/o-1")).json() == {"status": "complete", "output": "ann"}
        listed = (await client.get("/workflows/order/instances", headers={"host": "localhost"})).json()
        assert [instance["id"] for instance in listed["instances"]] == ["o-1"]
        assert (await h.app.list()).items == (await app.list()).items


async def test_a_route_may_wait_for_a_result_while_the_test_drives_the_harness(app: Holdfast, order: Any) -> None:
    async with Harness(app) as h, _asgi(_routes(app, order)) as client:
        await client.post("/orders/o-1")
        response = asyncio.create_task(client.get("/orders/o-1/result"))
        await h.advance("1 hour")
        await client.post("/orders/o-1/approval")
        await h.run_until_idle()
        assert (await response).json() == "ann"


@pytest.mark.parametrize("kind", ["lifespan of the app", "own lifespan", "none"])
async def test_routes_work_in_a_blocking_test_client(app: Holdfast, order: Any, kind: str) -> None:
    """The test client runs the application in a thread, on another event loop."""

    @asynccontextmanager
    async def own(_: FastAPI) -> AsyncIterator[None]:
        async with app:
            yield

    lifespan = {"lifespan of the app": app.lifespan, "own lifespan": own, "none": None}[kind]
    async with Harness(app) as h:
        with TestClient(_routes(app, order, lifespan=lifespan)) as client:
            client.post("/orders/o-1")
            await h.advance("1 hour")
            client.post("/orders/o-1/approval")
            await h.run_until_idle()
            assert client.get("/orders/o-1").json() == {"status": "complete", "output": "ann"}
            assert client.get("/orders/o-1/result").json() == "ann"
        assert await (await app.get(order, "o-1")).result() == "ann"  # closing the client did not close the app


async def test_an_open_app_uses_its_own_store_again_after_a_harness(app: Holdfast) -> None:
    @app.workflow
    async def flow(ctx: Context) -> str:
        return "done"

    async with app:
        await (await app.start(flow, id="real")).result(timeout=60)
        async with Harness(app) as h:
            await h.run(flow, id="test")
            async with app.connect():
                assert [one.id for one in (await app.list()).items] == ["test"]
            assert [one.id for one in (await app.list()).items] == ["test"]
        assert [one.id for one in (await app.list()).items] == ["real"]


async def test_harnesses_may_be_closed_in_any_order(app: Holdfast) -> None:
    first, second = Harness(app), Harness(app)
    await first.__aenter__()
    await second.__aenter__()
    await first.__aexit__()
    assert (await app.list()).items == []
    await second.__aexit__()

    with pytest.raises(AppClosedError):
        await app.list()


# --- results


async def test_run_advances_the_time_until_the_run_ends(app: Holdfast) -> None:
    @app.step(retry=Retry(limit=2, delay="10 minutes", backoff="constant"))
    async def flaky() -> str:
        calls.append(1)
        if len(calls) < 3:
            raise ConnectionError
        return "third"

    @app.workflow
    async def child(ctx: Context, n: int) -> int:
        await asyncio.sleep(3600)
        return n + 1

    @app.workflow
    async def flow(ctx: Context, n: int) -> list[Any]:
        return [await flaky(), await ctx.run(child, n)]

    calls: list[int] = []
    async with Harness(app) as h:
        began = h.now()
        assert await h.run(flow, 4, id="f-1", memo={"a": 1}) == ["third", 5]
        assert (h.now() - began).total_seconds() == 20 * 60 + 3600
        assert (await (await h.app.get(flow, "f-1")).describe()).memo == {"a": 1}


async def test_run_raises_the_error_with_which_the_run_ended(app: Holdfast) -> None:
    @app.workflow
    async def fails(ctx: Context) -> None:
        raise ValueError("no such order")

    @app.workflow
    async def cancels(ctx: Context) -> None:
        await ctx.cancel(ctx.info.pid, "not needed")
        await asyncio.sleep(60)

    async with Harness(app) as h:
        with pytest.raises(RunFailedError, match="no such order"):
            await h.run(fails)
        with pytest.raises(RunCancelledError, match="not needed"):
            await h.run(cancels)


async def test_run_raises_with_the_reason_if_the_run_waits_for_an_event(app: Holdfast) -> None:
    @app.workflow
    async def flow(ctx: Context) -> Any:
        return await ctx.listen("approval").receive()

    async with Harness(app) as h:
        with pytest.raises(
            HarnessError,
            match=r"flow/f-1 does not end without an event or a request: .*'approval'.* run\.send_event\(\)",
        ):
            await h.run(flow, id="f-1")


async def test_run_advances_to_the_timeout_of_an_event_and_notes_that_it_sends_none(app: Holdfast) -> None:
    @app.workflow
    async def flow(ctx: Context) -> None:
        await ctx.wait_for_event("approval", type="approval", timeout="2 days")

    @app.workflow
    async def patient(ctx: Context) -> str:
        try:
            await ctx.wait_for_event("approval", type="approval", timeout="2 days")
        except WaitForEventTimeoutError:
            return "expired"
        return "approved"

    async with Harness(app) as h:
        assert await h.run(patient) == "expired"
        with pytest.raises(RunFailedError) as failed:
            await h.run(flow)
        assert "h.run() sends no events" in failed.value.__notes__[0]


async def test_run_raises_for_a_run_that_does_not_end(app: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.testing.harness._MAX_ADVANCES", 5)

    @app.workflow
    async def flow(ctx: Context) -> None:
        async for _ in ctx.every("1 minute"):
            pass

    async with Harness(app) as h:
        with pytest.raises(HarnessError, match="flow/f-1 has not ended after 5 advances"):
            await h.run(flow, id="f-1")


async def test_result_raises_with_advice_if_nothing_drives_the_harness(
    app: Holdfast, order: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.testing.driven_client._MAX_IDLE_POLLS", 5)

    async with Harness(app) as h:
        run = await h.start(order, id="o-1")
        with pytest.raises(HarnessError, match=r"result\(\) of order/o-1 waits forever.*h\.run_until_idle\(\)"):
            await run.result()
        await h.advance("1 hour")
        with pytest.raises(HarnessError, match="waiting for an event of type 'approval'"):
            await run.result()
        with pytest.raises(HarnessError, match=r"ask\('progress'\) of order/o-1"):
            await run.ask("progress")
        with pytest.raises(TimeoutError):
            await run.result(timeout="10 ms")
        await run.send_event("approval", {"by": "ann"})
        await h.run_until_idle()
        assert await run.result() == "ann"


# --- crashes


async def test_a_crash_mismatch_names_the_virtual_time_of_the_takeover() -> None:
    app = Holdfast("sqlite://", worker=WorkerConfig(lease="45 seconds"))

    @app.workflow
    async def impatient(ctx: Context) -> bool:
        began = ctx.now()
        await ctx.do("step", lambda: None)
        await ctx.do("other", lambda: None)
        return (ctx.now() - began).total_seconds() < 10

    async with Harness(app) as h:
        with pytest.raises(CrashMismatch, match="The takeover took 45 s of virtual time"):
            await h.crash_everywhere(impatient)
