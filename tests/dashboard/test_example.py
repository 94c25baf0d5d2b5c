"""The example app: its runs in all states, and the route that kills a worker process."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
from dashboard_app import browser

from holdfast.cli.example_app import make_app, seed
from holdfast.cli.example_shop import Order
from holdfast.http import example


async def test_the_seed_has_runs_in_all_states(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'example.db'}"

    count = await seed(url, runs=20)

    app = make_app(url)
    async with app.connect(), browser(app.dashboard(example=True)) as http:
        stats = (await http.get("_api/_stats")).json()
        attention = (await http.get("_api/_attention")).json()["groups"]
        series = (await http.get("_api/_series?window=6h")).json()
    assert count > 1000
    assert len(stats["runs"]) == 56
    found = {status for counts in stats["runs"].values() for status in counts}
    assert {"complete", "errored", "waiting", "paused", "terminated"} <= found
    assert {"errored", "diverged", "failing", "outbox"} <= {group["kind"] for group in attention}
    assert sum(n > 0 for n in series["complete"]) > 10  # over two hours


async def test_the_worker_process_that_holds_a_run_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[tuple[int, int]] = []
    app = make_app(f"sqlite:///{tmp_path / 'example.db'}")
    body = {"workflow": "order", "id": "o"}
    async with app, browser(app.dashboard(example=True)) as http:
        await app.start("order", Order("o"), id="o")
        async with asyncio.timeout(20):
            while not (workers := await app.workers()):  # it registers with its first heartbeat
                await asyncio.sleep(0.01)
            while not (await http.get("_api/order/instances/o")).json()["meta"].get("owner"):
                await asyncio.sleep(0.01)
        own = await http.post("_api/_example/kill", json=body)
        elsewhere = SimpleNamespace(getpid=lambda: 0, kill=lambda *call: killed.append(call))
        monkeypatch.setattr(example, "os", elsewhere)
        response = await http.post("_api/_example/kill", json=body)
        await (await app.get("order", "o")).terminate()

        assert (own.status_code, own.json()["code"]) == (409, "INVALID_STATE")  # the server's own process
        [worker] = workers
        assert response.json() == {"ok": True, "worker": worker.id}
        assert killed == [(worker.pid, signal.SIGKILL)]
        async with browser(app.dashboard()) as other:
            assert (await other.post("_api/_example/kill", json=body)).status_code == 404
