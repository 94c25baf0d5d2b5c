"""Starting runs from your own web application: a request with an id that is taken gets status 409.

Run it: python examples/processes/http_start.py
"""

import asyncio
from typing import Annotated, Any

import httpx
from fastapi import FastAPI, Header, HTTPException

from holdfast import Context, Holdfast, InstanceExistsError

app = Holdfast("sqlite://")


@app.workflow
async def order(ctx: Context, order: dict[str, Any]) -> str:
    return f"order {order['id']} of request {ctx.values['request_id']}"


web = FastAPI(lifespan=app.lifespan)  # opens the app, with its worker, while the server runs


@web.post("/orders", status_code=202)
async def create(body: dict[str, Any], x_request_id: Annotated[str, Header()]) -> dict[str, str]:
    try:
        run = await app.start(
            order,
            body,
            id=f"order-{body['id']}",
            on_conflict="fail",
            on_reuse="reject",
            context={"request_id": x_request_id},
        )
    except InstanceExistsError as error:
        raise HTTPException(409, str(error)) from error
    return {"workflow_id": run.pid, "status": "started"}


async def main() -> None:
    """Server and client in one process; `uvicorn http_start:web` serves the same application."""
    transport = httpx.ASGITransport(app=web)
    async with app.lifespan(), httpx.AsyncClient(transport=transport, base_url="http://shop") as http:
        for request in ("req-1", "req-2"):
            answer = await http.post("/orders", json={"id": 7}, headers={"X-Request-ID": request})
            print(answer.status_code, answer.json().get("workflow_id"))
        print(await (await app.get(order, "order-7")).result())


if __name__ == "__main__":
    asyncio.run(main())
