"""The adapter to FastAPI: the app as a dependency, and the response that a run was accepted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import httpx
import pytest
from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse

from holdfast import AppClosedError, Context, Holdfast
from holdfast.ext.fastapi import Accepted, accepted, result_or_accepted
from holdfast.testing import Harness

app = Holdfast("sqlite://")


@app.workflow
async def double(ctx: Context, n: int) -> int:
    return await ctx.do("multiply", lambda: 2 * n)


web = FastAPI()
Runs = Annotated[Holdfast, Depends(app.client)]


@web.post("/double/{n}")
async def start(request: Request, n: int, runs: Runs) -> JSONResponse:
    return accepted(request, await runs.start(double, n, id=f"n-{n}"), api="/api/runs", wait="5s")


@dataclass
class Doubled:
    n: int


@app.workflow
async def slowly(ctx: Context, n: int) -> Doubled:
    await ctx.wait_for_event("go", type="go")
    return Doubled(2 * n)


@web.post("/slowly/{n}", status_code=202, response_model=Accepted)
async def start_slowly(request: Request, n: int, runs: Runs) -> Any:
    run = await runs.start(slowly, n, id=f"s-{n}")
    return accepted(request, run, api="/api/runs", result=f"/slowly/{n}")


@web.get("/slowly/{n}", response_model=Doubled, responses={202: {"model": Accepted}})
async def result_of_slowly(request: Request, n: int, runs: Runs) -> Any:
    return await result_or_accepted(request, await runs.get(slowly, f"s-{n}"), wait="50 ms", api="/api/runs")


web.mount("/api", app.asgi(api="/runs"))


def _client(root_path: str = "") -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(web, root_path=root_path), base_url="http://localhost")


async def test_the_links_of_an_accepted_run_lead_to_its_state_and_its_result() -> None:
    async with app, _client() as browser:
        answer = await browser.post("/double/21")
        instance = await browser.get(answer.headers["location"])
        result = await browser.get(answer.json()["links"]["result"])

    assert answer.status_code == 202
    assert instance.json()["id"] == "n-21"
    assert (result.status_code, result.json()["output"]) == (200, 42)


async def test_links_contain_the_prefix_of_a_proxy() -> None:
    async with app, _client("/shop") as browser:
        answer = await browser.post("/shop/double/1")
    assert answer.json()["links"]["self"] == "/shop/api/runs/double/instances/n-1"


async def test_a_route_with_the_app_as_a_dependency_works_under_the_harness() -> None:
    async with Harness(app) as h, _client() as browser:
        assert (await browser.post("/double/3")).status_code == 202
        await h.run_until_idle()
        assert await (await h.app.get(double, "n-3")).result() == 6


def test_the_dependency_of_a_closed_app_raises_app_closed_error() -> None:
    with pytest.raises(AppClosedError, match="not open"):
        app.client()


@pytest.mark.parametrize("root", ["", "/shop"])
async def test_a_route_polls_for_a_typed_result(root: str) -> None:
    async with app, _client(root) as browser:
        placed = await browser.post(f"{root}/slowly/4")
        poll = placed.json()["links"]["result"]
        pending = await browser.get(poll)
        await (await app.get(slowly, "s-4")).send_event("go")
        await (await app.get(slowly, "s-4")).result()
        done = await browser.get(poll)

    assert poll == f"{root}/slowly/4"
    assert (placed.status_code, pending.status_code) == (202, 202)
    assert pending.json() == placed.json()
    assert (done.status_code, done.json()) == (200, {"n": 8})


def test_the_document_has_the_types_of_the_response_and_the_result() -> None:
    responses = web.openapi()["paths"]["/slowly/{n}"]["get"]["responses"]
    assert {status: body["content"]["application/json"]["schema"] for status, body in responses.items()} == {
        "200": {"$ref": "#/components/schemas/Doubled"},
        "202": {"$ref": "#/components/schemas/Accepted"},
        "422": {"$ref": "#/components/schemas/HTTPValidationError"},
    }
