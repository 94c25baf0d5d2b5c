"""The client of a harness. Waiting for a run while nothing drives the harness raises an error instead of hanging."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from holdfast.client import Client
from holdfast.core.durations import Duration
from holdfast.kernel.end_waiter import ExpectedEnd
from holdfast.store.protocol import Finish, RunRecord

T = TypeVar("T")

_POLL_SECONDS = 0.01
_MAX_IDLE_POLLS = 100


class HarnessError(RuntimeError):
    """Raised if a test waits for something that cannot happen. The message names the wait and the remedy."""


class DriveCounter:
    """Counts the calls that drive the harness: ``tick``, ``run_until_idle``, ``advance``."""

    def __init__(self) -> None:
        self.started = 0
        self._active = 0

    @contextmanager
    def call(self) -> Iterator[None]:
        self.started += 1
        self._active += 1
        try:
            yield
        finally:
            self._active -= 1

    @property
    def active(self) -> bool:
        return self._active > 0


class DrivenClient(Client):
    """A client whose waits raise ``HarnessError`` after a second in which nothing drove the harness."""

    drives: DriveCounter

    async def wait_for_end(
        self, workflow: str, id: str, expected: ExpectedEnd | None, run: int | None = None
    ) -> RunRecord | Finish:
        row = await self.instances.find(workflow, id)
        if row.status.terminal:
            return row
        return await self._while_driven(super().wait_for_end(workflow, id, expected, run), workflow, id, "result()")

    async def ask(self, workflow: str, id: str, topic: str, payload: Any, timeout: Duration | None) -> Any:
        reply = super().ask(workflow, id, topic, payload, timeout)
        return await self._while_driven(reply, workflow, id, f"ask({topic!r})")

    async def _while_driven(self, wait: Coroutine[Any, Any, T], workflow: str, id: str, call: str) -> T:
        task, started, idle_polls = asyncio.ensure_future(wait), self.drives.started, 0
        try:
            while not (await asyncio.wait([task], timeout=_POLL_SECONDS))[0]:
                driven = self.drives.active or self.drives.started != started
                started, idle_polls = self.drives.started, 0 if driven else idle_polls + 1
                if idle_polls >= _MAX_IDLE_POLLS:
                    raise HarnessError(await self._advice(workflow, id, call))
            return task.result()
        finally:
            task.cancel()

    async def _advice(self, workflow: str, id: str, call: str) -> str:
        description = await self.reads.describe(workflow, id)
        return (
            f"{call} of {workflow}/{id} waits forever: nothing drives the harness. The run is {description.status}: "
            f"{description.why}. Let the harness work first (`await h.run_until_idle()`, `await h.advance(...)`), use "
            "`await h.run(workflow, params)`, or drive the harness in another task meanwhile"
        )
