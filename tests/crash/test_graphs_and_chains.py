"""Processes that run one graph, or many chains, are killed at random: each result and each event is recorded once."""

from __future__ import annotations

import asyncio
import json
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from holdfast import Holdfast, Start

from .fork_server import ForkedProcess, ForkServer
from .graph_program import killed_marker, make_app, pay, values
from .workspace import until

SECONDS = 300
LINES_BEFORE_KILL = 10

pytestmark = pytest.mark.timeout(600)


class SharedDatabase:
    """A database, its side file, and the processes that use them."""

    def __init__(
        self, url: str, schema: str | None, folder: Path, fork_server: ForkServer, *, nodes: int, chains: int
    ) -> None:
        self.nodes = nodes
        self.chains = chains
        self.location = {"url": url, "schema": schema, "side": str(folder / "side.jsonl"), "nodes": nodes}
        self.random = Random(7)
        self.killed = 0
        self._fork_server = fork_server
        self._living: list[ForkedProcess] = []

    def app(self) -> Holdfast:
        return make_app(**self.location)  # type: ignore[arg-type]

    def fork(self, target: str, **spec: Any) -> ForkedProcess:
        child = self._fork_server.fork(f"graph_program:{target}", **self.location, **spec)
        self._living.append(child)
        return child

    def side(self) -> list[dict[str, Any]]:
        path = Path(str(self.location["side"]))
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    async def keep_killing(self, target: str, processes: int) -> None:
        """Run this number of processes; kill and replace one of them every 0.05 to 0.2 seconds.

        A process is killed only after it has written some lines to the side file, so that the work makes progress.
        """
        running = [self.fork(target) for _ in range(processes)]
        while True:
            await asyncio.sleep(self.random.uniform(0.05, 0.2))
            done = Counter(line["pid"] for line in self.side())
            at_work = [n for n, child in enumerate(running) if child.alive and done[child.pid] >= LINES_BEFORE_KILL]
            if at_work:
                n = self.random.choice(at_work)
                running[n].signal(signal.SIGKILL)
                self.killed += 1
                killed_marker(str(self.location["side"])).touch()
                running[n] = self.fork(target)

    def close(self) -> None:
        for child in self._living:
            child.signal(signal.SIGKILL)


@pytest.fixture
def shared(
    address: tuple[str, str | None], tmp_path: Path, fork_server: ForkServer, long: bool
) -> Iterator[SharedDatabase]:
    nodes, chains = (1_000, 500) if long else (250, 75)
    made = SharedDatabase(*address, tmp_path, fork_server, nodes=nodes, chains=chains)
    yield made
    made.close()


async def test_a_graph_has_each_result_once_while_its_processes_are_killed(shared: SharedDatabase) -> None:
    app = shared.app()
    async with app.connect():
        run = await app.start("wide", id="it")
        killing = asyncio.ensure_future(shared.keep_killing("process", 4))
        try:
            results = await run.result(timeout=SECONDS)
        finally:
            killing.cancel()
        assert results == values(shared.nodes)
        starts = Counter(key.split("/")[1] for key in await run.facts("start/"))
        steps = {step.step_key: step for step in (await run.history()).steps}
        ran = Counter(line["node"] for line in shared.side())
        facts = await run.facts("result/")
    assert shared.killed > 0
    assert len(facts) == shared.nodes
    assert all(found["status"] == "ok" for found in facts.values())
    assert {key: step.attempts for key, step in steps.items()} == dict(starts)
    assert all(1 <= ran[name] <= starts[name] for name in steps), "a node was called without a START fact"


async def test_chains_consume_repeated_events_once_while_workers_are_killed(shared: SharedDatabase) -> None:
    app = shared.app()
    async with app.connect():
        runs = await app.start_many("order", [Start(f"c{n}", n) for n in range(shared.chains)])
        killing = asyncio.ensure_future(shared.keep_killing("work", 4))
        # Not more than one kill: the first process may have done all the work that is possible before the events.
        await until(lambda: shared.killed > 0, "no process was killed", SECONDS)
        senders = [shared.fork("pay_all", chains=shared.chains, seed=n) for n in range(2)]
        try:
            await until(lambda: not any(sender.alive for sender in senders), lambda: senders[0].output(), SECONDS)
            for n, run in enumerate(runs):
                await pay(app, n)
                assert await run.result(timeout=SECONDS) == [n, n]
        finally:
            killing.cancel()
        for run in runs[::25]:
            [event] = (await run.history()).events
            assert event.consumed_by_step_key == "PAY"
    woken = Counter(line["chain"] for line in shared.side() if line["kind"] == "EVENT" and line["step"] == "PAY")
    assert len(woken) == shared.chains
