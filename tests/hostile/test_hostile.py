"""Tests of the hostile settings, and a short part of ``make hostile``."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from holdfast import ChainTask, Context, Holdfast, WorkerConfig
from holdfast.kernel.notify import Hub
from holdfast.runner import committer
from holdfast.runner.small_loops import ChangeWatcher

from .faults import Faults, Kind
from .settings import hostile
from .store import OF_LOOPS, OF_TURNS

TESTS = Path(__file__).parents[1]
SHORT = ["scenarios/test_terminate_and_restart.py", "chain/test_waits.py", "runner/test_live_transactions.py"]
RUNS = 12


async def work(folder: Path, **options: Any) -> list[Any]:
    """Run a few runs of each model; returns their results."""
    app = Holdfast(f"sqlite:///{folder}/app.db", **options)
    chain, graph = app.chain("chain"), app.graph("graph")

    @app.workflow
    async def flow(ctx: Context, n: int) -> int:
        n = await ctx.do("one", lambda: n + 1)
        event = await ctx.wait_for_event("go", type="go", payload=int)
        await ctx.sleep("nap", "10 ms")
        return await ctx.do("two", lambda: n + event.payload)

    @chain.step("ONE", lease="10 seconds")
    async def one(task: ChainTask) -> Any:
        return task.params + 1

    @graph.node
    async def first(params: int) -> int:
        return params + 1

    @graph.node(after=[first])
    async def second(first: int) -> int:
        return first + 1

    async with app, asyncio.timeout(60):
        flows = [await app.start(flow, n) for n in range(RUNS)]
        for run in flows:
            await run.send_event("go", 1)
        others = [await app.start(model, 1) for model in (chain, graph) for _ in range(3)]
        await app.schedules.create("scheduled", chain, params=1, cron="0 0 1 1 *", paused=True)
        first = datetime(2025, 1, 1, tzinfo=UTC)
        await app.schedules.backfill("scheduled", first, first)
        while [run.outcome for run in (await app.schedules.get("scheduled")).last_runs] != ["complete"]:
            await asyncio.sleep(0.01)
        return [await run.result() for run in (*flows, *others)]


EXPECTED = [*(n + 2 for n in range(RUNS)), *[2] * 3, *[{"first": 2, "second": 3}] * 3]


@pytest.mark.promise("no-lost-wakeup", "liveness")
async def test_all_runs_complete_under_every_kind_of_fault(tmp_path: Path) -> None:
    faults = Faults(1)
    with hostile(faults):
        assert await work(tmp_path) == EXPECTED

    assert {kind for kind, _ in faults.counts} == {kind.value for kind in Kind}
    assert {operation for _, operation in faults.counts} >= {"commit", "claim", "load", "advance", "reap"}
    assert set(faults.calls) > {*OF_TURNS, *OF_LOOPS} - {"claim_outbox", "settle_outbox", "undelivered"}


@pytest.mark.parametrize("kind", [Kind.REFUSED, Kind.AMBIGUOUS])
async def test_a_committer_that_does_not_retry_fails_under_hostile_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Kind
) -> None:
    async def impatiently(call: Any, *_: Any) -> Any:
        return await call()

    monkeypatch.setattr(committer, "call_with_retry", impatiently)
    monkeypatch.setattr(Faults, "at", lambda self, operation, kinds: (kind if operation == "commit" else None, 0.0))
    with hostile(Faults(1)), pytest.raises(TimeoutError):
        async with asyncio.timeout(1.5):
            await work(tmp_path)


async def test_a_worker_that_does_not_poll_finds_no_work_under_hostile_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: Any) -> float:
        return 3600

    monkeypatch.setattr(ChangeWatcher, "step", never)
    monkeypatch.setattr(Faults, "half", lambda *_: False)
    with hostile(Faults(1)):
        app = Holdfast(f"sqlite:///{tmp_path}/app.db", worker=WorkerConfig(poll="1 hour"))

        @app.workflow
        async def flow(_ctx: Context) -> None: ...

        async def run_some() -> None:
            for _ in range(20):  # the worker may still find the first runs while it starts
                await (await app.start(flow)).result()

        async with app:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(run_some(), 1)


async def test_hostile_settings_apply_only_during_their_context() -> None:
    before, subscribe = WorkerConfig(), Hub.subscribe
    with hostile(Faults(1)):
        assert (WorkerConfig().cache, WorkerConfig().lease, WorkerConfig(lease="1 hour").lease) == (
            0,
            "50 ms",
            "1 hour",
        )
    assert WorkerConfig() == before
    assert Hub.subscribe is subscribe


@pytest.mark.timeout(1200)
def test_a_part_of_the_suite_passes_under_hostile_settings() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--hostile", "-p", "no:cacheprovider", *(str(TESTS / test) for test in SHORT)],
        capture_output=True,
        text=True,
        check=False,
        cwd=TESTS.parent,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
    )

    assert done.returncode == 0, done.stdout[-5000:] + done.stderr
    found = re.search(r"(\d+) faults in (\d+) tests", done.stdout)
    assert found is not None, done.stdout[-2000:]
    assert int(found[1]) > 50
