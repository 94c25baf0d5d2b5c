"""The lease of a chain's step in real processes: it determines when the step of a killed worker is taken over."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .fork_server import ForkedProcess, ForkServer
from .lease_program import LEASE_SECONDS, LONG_LEASE_SECONDS, make_app
from .workspace import until

_WORKERS_LEASE_SECONDS = 30.0


class SharedDatabase:
    """A database, its side file, and its workers."""

    def __init__(self, url: str, schema: str | None, folder: Path, fork_server: ForkServer) -> None:
        self.location: dict[str, Any] = {"url": url, "schema": schema, "side": str(folder / "side.jsonl")}
        self._fork_server = fork_server
        self._workers: list[ForkedProcess] = []

    async def start_worker(self) -> ForkedProcess:
        """Start a worker, and wait until it has opened its app."""
        worker = self._fork_server.fork("lease_program:work", **self.location)
        self._workers.append(worker)
        await until(lambda: self.lines(open=True, pid=worker.pid), worker.output)
        return worker

    def lines(self, **wanted: Any) -> list[dict[str, Any]]:
        path = Path(self.location["side"])
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [line for line in lines if wanted.items() <= line.items()]

    def close(self) -> None:
        for worker in self._workers:
            worker.signal(signal.SIGKILL)


@pytest.fixture
def shared(address: tuple[str, str | None], tmp_path: Path, fork_server: ForkServer) -> Iterator[SharedDatabase]:
    made = SharedDatabase(*address, tmp_path, fork_server)
    yield made
    made.close()


async def test_the_step_of_a_killed_worker_is_taken_over_after_the_steps_lease(shared: SharedDatabase) -> None:
    app = make_app(**shared.location)
    async with app.connect():
        run = await app.start("leased", 3600, id="it")
        first = await shared.start_worker()
        await until(lambda: shared.lines(attempt=1, pid=first.pid), first.output)
        second = await shared.start_worker()

        first.signal(signal.SIGKILL)
        killed = time.monotonic()
        result = await run.result(timeout=_WORKERS_LEASE_SECONDS)

    took = time.monotonic() - killed
    assert (result, len(shared.lines(attempt=2, pid=second.pid))) == (2, 1)
    assert LEASE_SECONDS / 2 < took < _WORKERS_LEASE_SECONDS / 2


async def test_a_handler_on_a_living_worker_may_run_longer_than_its_lease(shared: SharedDatabase) -> None:
    app = make_app(**shared.location)
    async with app.connect():
        run = await app.start("long_leased", LONG_LEASE_SECONDS + 0.5, id="it")
        await shared.start_worker()
        await shared.start_worker()

        result = await run.result(timeout=_WORKERS_LEASE_SECONDS)
        [step] = (await run.history()).steps

    assert (result, step.state, step.attempts) == (1, "DONE", 0)
    assert not shared.lines(attempt=2)
