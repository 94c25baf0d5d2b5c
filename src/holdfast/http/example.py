"""The route of the example app: kill the worker process that holds a run. It exists in no other app."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence

from pydantic import TypeAdapter
from starlette.requests import Request
from starlette.responses import Response
from typing_extensions import TypedDict

from holdfast.errors import StateError
from holdfast.http.admission import admitted
from holdfast.http.auth import Scope
from holdfast.http.backend import Backend
from holdfast.http.handlers import Handlers
from holdfast.http.responses import reply
from holdfast.http.spec import Spec
from holdfast.http.strict import strict


@strict
class KillWorker(TypedDict):
    workflow: str
    id: str


class KilledWorker(TypedDict):
    ok: bool
    worker: str


class Example(Handlers):
    async def kill(self, request: Request) -> Response:
        """Kill the process of the worker that holds a run. Another worker continues when the lease has expired."""
        client = self._client()
        body: KillWorker = admitted(request).body
        owner = (await client.instances.find(*client.instances.address(body["workflow"], body["id"]))).owner
        pids = {worker.id: worker.pid for worker in await client.workers() if worker.alive}
        if owner is None or owner not in pids or pids[owner] == os.getpid():
            raise StateError("no worker process holds this run now; try again while a step of it runs")
        os.kill(pids[owner], signal.SIGKILL)
        killed: KilledWorker = {"ok": True, "worker": owner}
        return reply(killed)


_KILL_WORKER = TypeAdapter(KillWorker)


def example_routes(backend: Backend) -> Sequence[Spec]:
    if not backend.example:
        return []
    return [
        Spec(
            "POST", "/_example/kill", "killWorker", Scope.OPERATE, Example(backend).kill, KilledWorker,
            (400, 404, 408, 409, 413, 415), _KILL_WORKER,
        )
    ]  # fmt: skip
