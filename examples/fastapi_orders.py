"""A web application with FastAPI that starts runs: a route returns 202 with links, and the client polls the result.

The program calls its own application without a network.
Run it: python examples/fastapi_orders.py
"""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import httpx
from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse

from holdfast import Context, Holdfast, step_info
from holdfast.ext.fastapi import accepted

app = Holdfast("sqlite://")


@dataclass
class Order:
    id: str
    total: int


@app.step
async def charge(order: Order) -> str:
    await step_info().stream("progress").write(f"charging {order.total}")
    return f"payment of {order.total}"


@app.workflow
async def fulfil(ctx: Context, order: Order) -> str:
    payment = await charge(order)
    await ctx.wait_for_event("parcel", type="shipped")
    return payment


@asynccontextmanager
async def lifespan(web: FastAPI) -> Any:
    async with app.lifespan(web):
        yield


web = FastAPI(lifespan=lifespan)
Runs = Annotated[Holdfast, Depends(app.client)]


@web.post("/orders", status_code=202)
async def place(request: Request, order: Order, runs: Runs) -> JSONResponse:
    return accepted(request, await runs.start(fulfil, order, id=order.id), wait="5s")


@web.post("/orders/{id}/shipped")
async def ship(id: str, runs: Runs) -> dict[str, str]:
    await (await runs.get(fulfil, id)).send_event("shipped")
    return {"id": id}


web.mount("/api", app.asgi(api="/workflows"))


async def main() -> None:
    transport = httpx.ASGITransport(web)
    async with app.lifespan(web), httpx.AsyncClient(transport=transport, base_url="http://localhost") as browser:
        placed = await browser.post("/orders", json={"id": "o-7", "total": 125})
        print(placed.status_code, placed.json()["links"]["self"])
        await browser.post("/orders/o-7/shipped")
        result = await browser.get(placed.json()["links"]["result"])
        print(result.status_code, result.json()["output"])
        events = await browser.get(f"{placed.json()['links']['self']}/streams/progress")
        print([line for line in events.text.splitlines() if line.startswith(("id:", "event:"))])


if __name__ == "__main__":
    asyncio.run(main())
