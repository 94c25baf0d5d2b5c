"""Restate: its server (`restate-server` on the PATH, from npm), and its Python SDK on hypercorn in this process.

The server keeps the journal of every run in files of its own, with its default durability. It calls the handler of a
workflow over HTTP/2 and gets the result of each step on the same stream; the next step begins after the server has
acknowledged the result. This process starts runs, resolves promises and awaits results over the server's HTTP ingress.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import timedelta

import httpx
import restate
from hypercorn.asyncio import serve
from hypercorn.config import Config

from bench.contract import Contender, Job, Pending

SERVER = "restate-server"
PROMISE = "go"
START_SECONDS = 30.0

steps = restate.Workflow("steps", inactivity_timeout=timedelta(minutes=1))
waiter = restate.Workflow("waiter", inactivity_timeout=timedelta(minutes=1))


@steps.main("run")
async def run_steps(ctx: restate.WorkflowContext, count: int) -> int:
    total = 0

    async def add_one() -> int:
        return total + 1

    for n in range(count):
        total = await ctx.run_typed(f"add_one {n}", add_one)
    return total


@waiter.main("run")
async def run_waiter(ctx: restate.WorkflowContext) -> str:
    return await ctx.promise(PROMISE, type_hint=str).value()


@waiter.handler("send")
async def send(ctx: restate.WorkflowSharedContext, payload: str) -> None:
    await ctx.promise(PROMISE, type_hint=str).resolve(payload)


@dataclass(frozen=True, slots=True)
class _Run:
    client: httpx.AsyncClient
    workflow: str
    key: str

    async def result(self) -> object:
        response = await self.client.get(f"/restate/workflow/{self.workflow}/{self.key}/attach")
        return response.raise_for_status().json()

    async def send(self) -> None:
        (await self.client.post(f"/{self.workflow}/{self.key}/send", json="payload")).raise_for_status()


class RestateContender:
    """W3c and W6 are left out."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def steps(self, count: int) -> Pending:
        return await self._start("steps", count)

    async def waiter(self) -> Pending:
        return await self._start("waiter", None)

    async def parent(self, children: int) -> Pending:
        raise NotImplementedError

    async def naps(self, index: int) -> Pending:
        raise NotImplementedError

    async def all_naps_done(self, runs: int) -> None:
        raise NotImplementedError

    async def _start(self, workflow: str, count: int | None) -> Pending:
        key = uuid.uuid4().hex
        body = {} if count is None else {"json": count}
        (await self._client.post(f"/{workflow}/{key}/run/send", **body)).raise_for_status()
        return _Run(self._client, workflow, key)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@contextmanager
def _server(directory: str, ingress: int, admin: int, node: int) -> Iterator[None]:
    environment = {
        **os.environ,
        "RESTATE_BASE_DIR": directory,
        "RESTATE_BIND_ADDRESS": f"127.0.0.1:{node}",
        "RESTATE_ADVERTISED_ADDRESS": f"http://127.0.0.1:{node}",
        "RESTATE_INGRESS__BIND_ADDRESS": f"127.0.0.1:{ingress}",
        "RESTATE_ADMIN__BIND_ADDRESS": f"127.0.0.1:{admin}",
        "RESTATE_DISABLE_TELEMETRY": "true",
        "RESTATE_LOG_FILTER": "error",
    }
    process = subprocess.Popen([SERVER], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


async def _register(admin: int, endpoint: int) -> None:
    """Register the workflows as soon as the server is ready."""
    deployment = {"uri": f"http://127.0.0.1:{endpoint}", "force": True}
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{admin}") as client, asyncio.timeout(START_SECONDS):
        while True:
            try:
                response = await client.post("/deployments", json=deployment, timeout=START_SECONDS)
                response.raise_for_status()
            except httpx.HTTPError:
                await asyncio.sleep(0.2)
            else:
                return


@asynccontextmanager
async def opened(job: Job) -> AsyncIterator[Contender]:
    ingress, admin, node, endpoint = _free_ports(4)
    config, stopped = Config(), asyncio.Event()
    config.bind = [f"127.0.0.1:{endpoint}"]
    config.loglevel = "ERROR"
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    with _server(f"{job.db}-restate", ingress, admin, node):
        serving = asyncio.create_task(serve(restate.app([steps, waiter]), config, shutdown_trigger=stopped.wait))
        await _register(admin, endpoint)
        base = f"http://127.0.0.1:{ingress}"
        async with httpx.AsyncClient(base_url=base, limits=limits, timeout=120) as client:
            yield RestateContender(client)
        stopped.set()
        await serving
