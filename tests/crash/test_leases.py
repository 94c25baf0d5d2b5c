"""The lease of a chain's step in real processes: it decides when a killed worker's step is taken over."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from postgres_harness import CleanSchemas

from .herd import Child, Herd
from .lease_program import LEASE_SECONDS, LONGER_SECONDS, make_app
from .scene import until

_WORKERS_LEASE_SECONDS = 30.0


class Place:
    """A database, the file beside it, and the workers on it."""

    def __init__(self, url: str, schema: str | None, folder: Path, herd: Herd) -> None:
        self.where: dict[str, Any] = {"url": url, "schema": schema, "side": str(folder / "side.jsonl")}
        self._herd = herd
        self._workers: list[Child] = []

    async def work(self) -> Child:
        """A worker that is open."""
        worker = self._herd.fork("lease_program:work", **self.where)
        self._workers.append(worker)
        await until(lambda: self.lines(open=True, pid=worker.pid), worker.said)
        return worker

    def lines(self, **wanted: Any) -> list[dict[str, Any]]:
        path = Path(self.where["side"])
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [line for line in lines if wanted.items() <= line.items()]

    def close(self) -> None:
        for worker in self._workers:
            worker.signal(signal.SIGKILL)


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path, herd: Herd) -> Iterator[Place]:
    if request.param == "sqlite":
        made = Place(f"sqlite:///{tmp_path}/work.db", None, tmp_path, herd)
        yield made
        made.close()
        return
    with CleanSchemas.one() as (url, schema):
        made = Place(url, schema, tmp_path, herd)
        yield made
        made.close()


async def test_the_step_of_a_killed_worker_is_taken_over_after_the_steps_lease(place: Place) -> None:
    app = make_app(**place.where)
    async with app.connect():
        run = await app.start("leased", 3600, id="it")
        first = await place.work()
        await until(lambda: place.lines(attempt=1, pid=first.pid), first.said)
        second = await place.work()

        first.signal(signal.SIGKILL)
        killed = time.monotonic()
        result = await run.result(timeout=_WORKERS_LEASE_SECONDS)

    took = time.monotonic() - killed
    assert (result, len(place.lines(attempt=2, pid=second.pid))) == (2, 1)
    assert LEASE_SECONDS / 2 < took < _WORKERS_LEASE_SECONDS / 2


async def test_a_handler_on_a_living_worker_may_run_longer_than_its_lease(place: Place) -> None:
    app = make_app(**place.where)
    async with app.connect():
        run = await app.start("leased", LONGER_SECONDS, id="it")
        await place.work()
        await place.work()

        result = await run.result(timeout=_WORKERS_LEASE_SECONDS)
        [step] = (await run.history()).steps

    assert (result, step.state, step.attempts) == (1, "DONE", 0)
    assert not place.lines(attempt=2)
