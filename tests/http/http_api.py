"""Short words for what most tests of the HTTP API do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx

from holdfast import Holdfast

BASE = "http://test/api/workflows"


def client_of(api: Any, base: str = BASE, **options: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(api, **options), base_url=base)


class Api:
    """Short words for requests. Every answer is checked for what all answers have in common."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http

    async def send(self, method: str, path: str, **options: Any) -> httpx.Response:
        answer = await self.http.request(method, path, **options)
        drawn = answer.status_code == 200 and answer.request.url.path.endswith("/mermaid")
        assert answer.headers["content-type"] == ("text/plain; charset=utf-8" if drawn else "application/json")
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        if answer.status_code != 200:
            assert {"message", "code"} <= set(answer.json()) <= {"message", "code", "issues"}
            assert answer.json()["message"]
        return answer

    async def get(self, path: str, **params: Any) -> Any:
        answer = await self.send("GET", path, params=params or None)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def post(self, path: str, body: Any = None) -> Any:
        answer = await self.send("POST", path, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def refused(self, method: str, path: str, **options: Any) -> tuple[int, str]:
        """Status and code of a request that fails."""
        answer = await self.send(method, path, **options)
        assert answer.status_code != 200, answer.text
        return answer.status_code, answer.json()["code"]

    async def create(self, workflow: str, params: Any = None, id: str | None = None) -> str:
        body = {"params": params} | ({} if id is None else {"id": id})
        return str((await self.post(f"/{workflow}/instances", body))["id"])

    async def status(self, workflow: str, id: str) -> str:
        return str((await self.get(f"/{workflow}/instances/{id}"))["details"]["status"])

    async def until(self, workflow: str, id: str, *wanted: str) -> Any:
        """Wait until an instance has one of these statuses; the instance."""

        async def reached() -> Any:
            found = await self.get(f"/{workflow}/instances/{id}")
            return found if found["details"]["status"] in wanted else None

        return await until(reached)

    async def count(self, workflow: str) -> int:
        return len((await self.get(f"/{workflow}/instances", pageSize=100))["instances"])


async def until(fact: Callable[[], Awaitable[Any]], seconds: float = 20) -> Any:
    async with asyncio.timeout(seconds):
        while not (found := await fact()):
            await asyncio.sleep(0.005)
        return found


@asynccontextmanager
async def opened(app: Holdfast, **options: Any) -> AsyncIterator[Api]:
    async with app, client_of(app.asgi(**options)) as http:
        yield Api(http)
