"""Schemathesis against a real server: all its checks, over the OpenAPI document that the server serves.

python tests/http/http_fuzz.py 20000     at least 20000 requests
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import UUID

import uvicorn
from pydantic import BaseModel, Field

from holdfast import (
    ChainTask,
    Completed,
    Context,
    Holdfast,
    Outbound,
    OutboundEvent,
    Outcome,
    Retry,
    Waiting,
)
from holdfast.cli.protocol import BoundedProtocol


class Kind(Enum):
    LETTER = "letter"
    BOX = "box"


class Parcel(BaseModel):
    to: str
    grams: int
    kind: Kind = Kind.BOX
    price: Decimal | None = None
    volume: Annotated[float, Field(ge=0)] = 0.0
    fragile: bool = False
    label: bytes = b""
    tags: list[str] = []
    rooms: dict[str, int] = {}
    inside: list[Parcel] = []


@dataclass
class Trip:
    day: date
    leaves: datetime
    takes: timedelta
    size: tuple[int, int] | None = None
    seats: set[int] = field(default_factory=set)
    driver: UUID | Literal["none"] = "none"


def make_target(url: str) -> Holdfast:
    app = Holdfast(url)

    @app.workflow(events={"arrived": Parcel, "hint": str | None})
    async def receive(ctx: Context) -> Any:
        return (await ctx.wait_for_event("arrived", type="arrived", timeout="1 hour")).payload

    @app.workflow
    async def deliver(ctx: Context) -> Any:
        return [await ctx.listen("parcel").receive(), await ctx.listen("door").receive()]

    @app.workflow
    async def ship(ctx: Context, parcel: Parcel) -> Any:
        ctx.log.info("shipping", {"to": parcel.to})
        ctx.set_search(fragile=parcel.fragile, kind=parcel.kind.value, placed=ctx.now())
        ctx.set_memo(to=parcel.to)
        await ctx.do("weigh", str, parcel.grams)
        courier = await ctx.spawn(deliver, link=True)
        await ctx.send(courier.pid, "parcel", parcel.grams)
        return (await ctx.wait_for_event("arrived", type="arrived", timeout="1 hour")).payload

    @app.workflow
    async def echo(_ctx: Context, value: Any) -> Any:
        return value

    @app.workflow(name="no.input")
    async def no_input(_ctx: Context) -> None:
        return None

    @app.workflow
    async def drive(_ctx: Context, trip: Trip) -> timedelta:
        return trip.takes

    @app.workflow
    async def label(_ctx: Context, text: str | None) -> str:
        return text or ""

    add_chain_and_graph(app)
    return app


def add_chain_and_graph(app: Holdfast) -> None:
    sorting = app.chain("sorting.office", version=2, params=Trip)

    @sorting.step("READ")
    async def read(task: ChainTask) -> Outcome:
        return Completed(task.params.day, outbound=[Outbound("read", task.params.takes)])

    @sorting.step("STAMP")
    async def stamp(_task: ChainTask) -> Outcome:
        return Waiting("stamped", timeout="1 hour")

    @app.outbox(max_attempts=1)
    async def refuses(_event: OutboundEvent) -> None:
        raise ConnectionError("no route to host")

    route = app.graph("route")

    @route.node
    async def plan(params: Parcel) -> list[int]:
        return [len(params.to), len(params.tags)]

    @route.node(map=plan, retry=Retry(limit=1, delay="1 hour"))
    async def leg(plan: int) -> int:
        return 10 // plan


class CountingApp:
    """An ASGI application that counts its HTTP requests."""

    def __init__(self, api: Any) -> None:
        self._api = api
        self.requests = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.requests += scope["type"] == "http"
        await self._api(scope, receive, send)


@contextmanager
def served(api: Any) -> Iterator[str]:
    """Run a real server in a thread, on a free loopback port, with the protocol of ``holdfast serve``; its address."""
    # Without loop="asyncio", older versions of uvicorn set the event loop policy of the whole process.
    config = uvicorn.Config(api, host="127.0.0.1", port=0, log_level="critical", http=BoundedProtocol, loop="asyncio")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            if not thread.is_alive():
                raise RuntimeError("the server did not start")
            thread.join(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


def fuzz(*options: str) -> tuple[int, str, int]:
    """Run schemathesis; return its exit code, its report and the number of requests."""
    with tempfile.TemporaryDirectory() as directory:
        counting = CountingApp(make_target(f"sqlite:///{Path(directory) / 'fuzz.db'}").asgi(tick=True))
        with served(counting) as address:
            done = subprocess.run(
                [
                    Path(sys.executable).with_name("schemathesis"),
                    "run",
                    f"{address}/api/workflows/openapi.json",
                    "--checks=all",
                    "--no-color",
                    "--exclude-operation-id=getLive",  # a stream, which does not end
                    *options,
                ],
                cwd=directory,
                capture_output=True,
                text=True,
                check=False,
            )
        return done.returncode, done.stdout + done.stderr, counting.requests


def main(min_requests: int) -> int:
    total, seed = 0, 1
    while total < min_requests:
        code, report, requests = fuzz("--max-examples=100", f"--seed={seed}")
        total, seed = total + requests, seed + 1
        print(f"seed {seed - 1}: {requests} requests, {total} in all", flush=True)
        if code:
            print(report)
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 20_000))
