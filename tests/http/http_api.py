"""A client for tests of the HTTP API."""

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
    """Short methods for requests. Each response is checked for the properties of all responses."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http

    async def send(self, method: str, path: str, **options: Any) -> httpx.Response:
        response = await self.http.request(method, path, **options)
        is_drawing = response.status_code == 200 and response.request.url.path.endswith("/mermaid")
        assert response.headers["content-type"] == ("text/plain; charset=utf-8" if is_drawing else "application/json")
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["cache-control"] == "no-store"
        if not response.is_success:
            assert {"message", "code"} <= set(response.json()) <= {"message", "code", "issues"}
            assert response.json()["message"]
        return response

    async def get(self, path: str, **params: Any) -> Any:
        response = await self.send("GET", path, params=params or None)
        assert response.status_code == 200, response.text
        return response.json()

    async def post(self, path: str, body: Any = None) -> Any:
        response = await self.send("POST", path, json=body)
        assert response.status_code == 200, response.text
        return response.json()

    async def refused(self, method: str, path: str, **options: Any) -> tuple[int, str]:
        """Status and code of a request that fails."""
        response = await self.send(method, path, **options)
        assert response.status_code != 200, response.text
        return response.status_code, response.json()["code"]

    async def create(self, workflow: str, params: Any = None, id: str | None = None) -> str:
        body = {"params": params} | ({} if id is None else {"id": id})
        return str((await self.post(f"/{workflow}/instances", body))["id"])

    async def status(self, workflow: str, id: str) -> str:
        return str((await self.get(f"/{workflow}/instances/{id}"))["details"]["status"])

    async def workers(self) -> Any:
        """The registered workers, of which there is at least one: a worker registers after the app has opened."""

        async def registered() -> Any:
            return (await self.get("/_workers"))["workers"]

        return await until(registered)

    async def until(self, workflow: str, id: str, *statuses: str) -> Any:
        """Wait until an instance has one of these statuses; return the instance."""

        async def reached() -> Any:
            instance = await self.get(f"/{workflow}/instances/{id}")
            return instance if instance["details"]["status"] in statuses else None

        return await until(reached)

    async def count(self, workflow: str) -> int:
        return len((await self.get(f"/{workflow}/instances", pageSize=100))["instances"])


async def until(condition: Callable[[], Awaitable[Any]], seconds: float = 60) -> Any:
    async with asyncio.timeout(seconds):
        while not (value := await condition()):
            await asyncio.sleep(0.005)
        return value


@asynccontextmanager
async def opened(app: Holdfast, **options: Any) -> AsyncIterator[Api]:
    async with app, client_of(app.asgi(**options)) as http:
        yield Api(http)
