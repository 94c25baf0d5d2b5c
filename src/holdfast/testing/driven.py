"""The client of a harness: waiting for a run that nobody drives is an error, not a test that hangs."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from holdfast.client import Client
from holdfast.core.durations import Duration
from holdfast.kernel.ends import Expected
from holdfast.store.protocol import Finish, RunRecord

T = TypeVar("T")

_LOOK_SECONDS = 0.01
_LOOKS = 100


class HarnessError(RuntimeError):
    """The test waits for something that does not come; the message says what, and what to do."""


class Driving:
    """Counts the calls that make the harness work: ``tick``, ``run_until_idle``, ``advance``."""

    def __init__(self) -> None:
        self.begun = 0
        self._under_way = 0

    @contextmanager
    def call(self) -> Iterator[None]:
        self.begun += 1
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1

    @property
    def now(self) -> bool:
        return self._under_way > 0


class DrivenClient(Client):
    """A client whose waits end with ``HarnessError`` once nothing has driven the harness for a second."""

    driving: Driving

    async def ended(self, workflow: str, id: str, expected: Expected | None) -> RunRecord | Finish:
        row = await self.find(workflow, id)
        if row.status.terminal:
            return row
        return await self._while_driven(super().ended(workflow, id, expected), workflow, id, "result()")

    async def ask(self, workflow: str, id: str, topic: str, payload: Any, timeout: Duration | None) -> Any:
        asking = super().ask(workflow, id, topic, payload, timeout)
        return await self._while_driven(asking, workflow, id, f"ask({topic!r})")

    async def _while_driven(self, waiting: Coroutine[Any, Any, T], workflow: str, id: str, what: str) -> T:
        task, begun, looks = asyncio.ensure_future(waiting), self.driving.begun, 0
        try:
            while not (await asyncio.wait([task], timeout=_LOOK_SECONDS))[0]:
                driven = self.driving.now or self.driving.begun != begun
                begun, looks = self.driving.begun, 0 if driven else looks + 1
                if looks >= _LOOKS:
                    raise HarnessError(await self._advice(workflow, id, what))
            return task.result()
        finally:
            task.cancel()

    async def _advice(self, workflow: str, id: str, what: str) -> str:
        found = await self.describe(workflow, id)
        return (
            f"{what} of {workflow}/{id} waits for ever: nothing drives the harness. The run is {found.status}: "
            f"{found.why}. Let the harness work first (`await h.run_until_idle()`, `await h.advance(...)`), use "
            "`await h.run(workflow, params)`, or drive the harness in another task meanwhile"
        )
