"""The client: starts runs at a fixed rate, sends events, asks, lists runs and makes control requests.

The client keeps only open runs in memory. Two files have a line for each acknowledged start, and for each run of which
the client has read the end: only those are deleted, however long the client's connection was interrupted.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

from chaos.waiting import connected, retry_until_available, until
from holdfast import Handle, Holdfast, InstanceTerminalError

from .workload import COUNTER, STARTED, expected_of, graph_results, id_of, steering_of

_MAX_OPEN = 300
"""The maximum number of open runs; the next start waits until one of them has ended."""
_SURE = 120.0
"""Seconds within which every run must end, whatever faults happen."""


class Load:
    def __init__(self, app: Holdfast, acknowledged: Path, finished: Path, *, rate: float, seed: int) -> None:
        """``rate``: runs that are started per second."""
        self._app = app
        self._acknowledged = acknowledged
        self._finished = finished
        self._pause = 1 / rate
        self._rng = random.Random(seed)
        self._open_runs = asyncio.Semaphore(_MAX_OPEN)

    async def run(self, stop: asyncio.Event) -> None:
        """Start runs until ``stop`` is set; then wait until all of them have ended."""
        async with connected(self._app), asyncio.TaskGroup() as group:
            group.create_task(self._count(stop))
            group.create_task(self._query(stop))
            n = 0
            while not stop.is_set():
                await self._open_runs.acquire()
                group.create_task(self._one(STARTED[n % len(STARTED)], n))
                n += 1
                await asyncio.sleep(self._pause)

    async def _one(self, workflow: str, n: int) -> None:
        try:
            run = await retry_until_available(lambda: self._app.start(workflow, n, id=id_of(workflow, n)))
            _note(self._acknowledged, workflow, run.id)
            if workflow == "steered":
                await self._steer(run, steering_of(n), n)
            else:
                await self._send_all(run, workflow, n)
                await self._read(run, workflow, n)
            _note(self._finished, workflow, run.id)
        finally:
            self._open_runs.release()

    async def _send_all(self, run: Handle[Any], workflow: str, n: int) -> None:
        """Send each event of a run twice with the same id: it must be delivered once."""
        for number, (topic, payload) in enumerate(expected_of(workflow, n).events):
            await asyncio.sleep(self._rng.uniform(0, 2))
            for _ in range(2):
                with suppress(InstanceTerminalError):  # the run has received all its events and ended
                    await retry_until_available(lambda: run.send_event(topic, payload, id=f"event-{number}"))  # noqa: B023

    async def _read(self, run: Handle[Any], workflow: str, n: int) -> None:
        """Check the result of a run. For one run in five, read its description, history and logs before."""
        if self._rng.random() < 0.2:
            await retry_until_available(run.describe)
            await retry_until_available(run.history)
            await retry_until_available(run.logs)
        result = await retry_until_available(lambda: run.result(timeout=_SURE))
        expected = graph_results(n) if workflow == "layered" else expected_of(workflow, n).output
        assert result == expected, f"the result of {run.pid} is {result}"

    async def _steer(self, run: Handle[Any], how: str, n: int) -> None:
        await retry_until_available(run.pause)
        await until(lambda: self._is_paused(run), f"{run.pid} is not paused", _SURE)  # when its worker releases it
        await retry_until_available(run.resume)
        if how == "restart":
            await retry_until_available(run.restart)
        with suppress(InstanceTerminalError):  # the first call was executed, and its reply was lost
            if how == "cancel":
                await retry_until_available(lambda: run.cancel("enough"))
            elif how == "terminate":
                await retry_until_available(lambda: run.terminate("enough"))
            else:
                await retry_until_available(lambda: run.send_event("go", n, id="go"))

    async def _is_paused(self, run: Handle[Any]) -> bool:
        return (await retry_until_available(run.status)).status == "paused"

    async def _count(self, stop: asyncio.Event) -> None:
        """Send numbers to a run that repeatedly continues as new, until ``stop`` is set; check their sum."""
        run = await retry_until_available(lambda: self._app.start(COUNTER, [0, 0], id=id_of(COUNTER, 0)))
        _note(self._acknowledged, COUNTER, run.id)
        last = 0
        while not stop.is_set():
            last += 1
            await retry_until_available(lambda: run.send_event("add", last, id=f"add-{last}"))  # noqa: B023
            await asyncio.sleep(2 * self._pause)
        await retry_until_available(lambda: run.send_event("stop", id="stop"))
        result = await retry_until_available(lambda: run.result(timeout=_SURE))
        assert result == [last, last * (last + 1) // 2], f"the sum of {last} numbers is {result}"
        _note(self._finished, COUNTER, run.id)

    async def _query(self, stop: asyncio.Event) -> None:
        """Repeat the queries of a dashboard."""
        while not stop.is_set():
            await retry_until_available(lambda: self._app.list("sequence", status="complete"))
            await retry_until_available(lambda: self._app.list("versioned", search={"lot": "lot 3"}))
            await retry_until_available(self._app.workers)
            await asyncio.sleep(1)


def _note(file: Path, workflow: str, instance_id: str) -> None:
    with file.open("a") as lines:
        lines.write(f"{workflow} {instance_id}\n")
