"""A small app with a dashboard, and a client in the same process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from holdfast import BearerTokens, Context, Holdfast

VIEWER, OPERATOR, ADMIN = "v" * 20, "o" * 20, "a" * 20


def make_app(*, guarded: bool = True, **options: Any) -> Holdfast:
    tokens = BearerTokens({VIEWER: "viewer", OPERATOR: "operator", ADMIN: "admin"})
    app = Holdfast(**({"url": "sqlite://", "authorize": tokens if guarded else None} | options))

    @app.workflow
    async def waiter(ctx: Context, params: Any = None) -> Any:
        return (await ctx.wait_for_event("go", type="go", timeout="1 day")).payload

    return app


@asynccontextmanager
async def browser(asgi: Any, base: str = "http://127.0.0.1:8787/", **headers: str) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=asgi, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url=base, headers=headers) as http:
        yield http


async def signed_in(http: httpx.AsyncClient, token: str) -> dict[str, str]:
    """Sign in; returns the headers of requests that write."""
    response = await http.post("_api/_session", json={"token": token})
    assert response.status_code == 200, response.text
    return {"x-csrf-token": response.json()["csrfToken"]}
