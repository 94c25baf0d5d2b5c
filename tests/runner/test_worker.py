"""The worker of an open app: immediate starts, limits, orderly stops, and isolation of bad runs."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import apsw
import pytest

from apps import MakeApp
from driving import finish, lose_worker, until, until_status
from holdfast import Context, Holdfast, Retry, StoreUnavailableError, WorkerConfig
from holdfast.core.model import to_ms
from holdfast.runner import small_loops
from holdfast.store.protocol import Commit, Committed, HeldTask, RunsById, Signal, SnapshotQuery, Verdict
from holdfast.store.sqlite import SqliteStore
from holdfast.testing import Harness
from scenarios.test_pause import Gate

HOSTILE_SETTINGS = [
    WorkerConfig(concurrency=1, cache=0),
    WorkerConfig(concurrency=1, cache=1),
    WorkerConfig(concurrency=3, cache=1),
    WorkerConfig(cache=0, poll="5 ms"),
]


def _define_everything(app: Holdfast) -> Any:
    """Define a workflow that uses steps, retries, sleeps and events."""

    @app.step(retry=Retry(3, "5 ms", "constant"))
    async def flaky(key: str) -> str:
        failed.setdefault(key, []).append(1)
        if len(failed[key]) < 3:
            raise OSError("again")
        return key

    failed: dict[str, list[int]] = {}

    @app.workflow
    async def everything(ctx: Context, n: int) -> list[Any]:
        found: list[Any] = [await ctx.do("sync", lambda: n)]
        found += await asyncio.gather(flaky(f"{n}a"), flaky(f"{n}b"), ctx.do("nap", asyncio.sleep, 0))
        await ctx.sleep("short", "3 ms")
        await asyncio.sleep(0.003)
        found.append((await ctx.wait_for_event("go", type="go")).payload)
        return found

    return everything


@pytest.mark.parametrize("config", HOSTILE_SETTINGS, ids=lambda c: f"concurrency={c.concurrency},cache={c.cache}")
async def test_hostile_settings_give_the_same_results(make_app: MakeApp, config: WorkerConfig) -> None:
    app = make_app(worker=config)
    everything = _define_everything(app)
    async with app:
        runs = [await app.start(everything, n) for n in range(5)]
        for n, run in enumerate(runs):
            await run.send_event("go", f"event {n}")
        found = [await run.result(timeout=60) for run in runs]
    assert found == [[n, f"{n}a", f"{n}b", None, f"event {n}"] for n in range(5)]


async def test_a_run_starts_at_once_without_a_poll(make_app: MakeApp) -> None:
    app = make_app(worker=WorkerConfig(poll="1 hour"))

    @app.workflow
    async def flow(ctx: Context) -> str:
        return str(await ctx.do("a", lambda: "done"))

    async with app:
        for eager in (True, False):
            run = await app.start(flow, eager=eager)
            assert await run.result(timeout=60) == "done"
        [run] = await app.start_many(flow, [_start("many")])
        assert await run.result(timeout=60) == "done"


def _start(id: str) -> Any:
    from holdfast import Start

    return Start(id)


@pytest.mark.promise("bounded-resources")
async def test_a_worker_owns_at_most_concurrency_runs(make_app: MakeApp) -> None:
    app, gates = make_app(worker=WorkerConfig(concurrency=3)), [Gate() for _ in range(10)]
    active, maximum, full = [0], [0], asyncio.Event()

    @app.workflow
    async def flow(ctx: Context, n: int) -> None:
        async def hold() -> None:
            active[0] += 1
            maximum[0] = max(maximum[0], active[0])
            if active[0] == 3:
                full.set()
            await gates[n]()
            active[0] -= 1

        await ctx.do("hold", hold)

    async with app:
        runs = [await app.start(flow, n) for n in range(10)]
        await full.wait()
        for gate in gates:
            gate.open.set()
        for run in runs:
            await run.result(timeout=60)
        assert maximum[0] == 3


async def test_a_stopping_worker_waits_for_steps_and_releases_its_tasks(make_app: MakeApp) -> None:
    app, gate, calls = make_app(), Gate(), list[str]()

    @app.workflow
    async def flow(ctx: Context) -> str:
        await ctx.do("gate", gate)
        await ctx.do("next", calls.append, "next")
        return "done"

    async def start_and_stop() -> None:
        async with app:
            await app.start(flow, id="one")
            await gate.began.wait()
            asyncio.get_running_loop().call_soon(gate.open.set)

    await start_and_stop()
    assert calls == [], "a stopping worker starts no more steps"
    async with app:
        run = await app.get(flow, "one")
        assert await run.result(timeout=60) == "done"
        gate_step = (await run.history()).steps[0]
        assert (gate_step.step_key, gate_step.attempts) == ("gate", 1)


async def test_a_stop_takes_at_most_drain_and_interrupted_steps_run_again(make_app: MakeApp) -> None:
    app = make_app(worker=WorkerConfig(drain="20 ms"))
    calls: list[int] = []
    began = asyncio.Event()

    async def hangs_once() -> str:
        calls.append(1)
        began.set()
        if len(calls) == 1:
            await asyncio.get_running_loop().create_future()
        return "second"

    @app.workflow
    async def flow(ctx: Context) -> Any:
        return await ctx.do("hangs", hangs_once, retry=Retry(limit=0))

    async with app:
        await app.start(flow, id="one")
        await began.wait()
    async with app:
        run = await app.get(flow, "one")
        assert await run.result(timeout=60) == "second", "a released task costs no attempt and no wait"


async def test_a_claim_whose_reply_arrives_after_its_release_begins_nothing(make_app: MakeApp) -> None:
    app = make_app()
    calls: list[int] = []

    @app.workflow
    async def flow(ctx: Context) -> Any:
        return await ctx.do("once", lambda: calls.append(1), retry=Retry(limit=0))

    async with Harness(app) as h:
        late, claim, replied = h._the_worker(), h._store.claim, asyncio.Event()

        async def reply_late(request: Any) -> Any:
            claimed = await claim(request)
            await replied.wait()
            return claimed

        run = await h.start(flow, eager=False)
        h._store.claim = reply_late
        claiming = asyncio.ensure_future(late.claim_due(1))
        await until(lambda: _owned_by(h, late.id))
        h._store.claim = claim
        await late.keep_leases()
        await late.keep_leases()  # unknown twice: the claim counts as lost and is released
        other = h._worker = h._new_worker()
        await h.run_until_idle()
        replied.set()
        await claiming

        assert (await run.status()).status == "complete"
        assert (late.busy, other.busy) == (0, 0)
        assert calls == [1]


async def _owned_by(h: Harness, worker: str) -> bool:
    return any(row.owner == worker for row in await h._store.read(RunsById([1])))


@pytest.mark.promise("isolation-of-runs")
async def test_a_run_that_kills_its_workers_is_parked_and_blocks_no_other_run(make_app: MakeApp) -> None:
    app = make_app(worker=WorkerConfig(max_losses=3))

    @app.workflow
    async def poison(ctx: Context) -> None: ...

    @app.workflow
    async def healthy(ctx: Context) -> str:
        return "fine"

    async with Harness(app) as h:
        bad = await h.start(poison)
        for _ in range(3):
            await h._the_worker().reap()
            await h._the_worker().claim_due(1)
            await lose_worker(h)
        assert await finish(h, healthy) == "fine"
        assert (await bad.status()).status == "paused"
        await bad.resume()
        await h.run_until_idle()
        assert await bad.result(timeout=60) is None


@pytest.mark.promise("isolation-of-runs")
async def test_a_run_on_which_the_engine_itself_fails_is_parked(
    app: Holdfast, h: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.workflow.machine import Machine

    @app.workflow
    async def flow(ctx: Context, n: int) -> int:
        return n

    advance = Machine.advance

    def broken(machine: Machine, *args: Any, **kwargs: Any) -> Any:
        if machine.run.instance_id == "bad":
            raise RuntimeError("a bug in the engine")
        return advance(machine, *args, **kwargs)

    monkeypatch.setattr(Machine, "advance", broken)
    bad = await h.start(flow, 1, id="bad")
    assert await finish(h, flow, 2, id="good") == 2
    described = await bad.describe()
    assert described.status == "paused"
    assert "a bug in the engine" in described.why
    [line] = await bad.logs(category="system")
    assert line.level == "error"

    monkeypatch.setattr(Machine, "advance", advance)
    await bad.resume()
    await h.run_until_idle()
    assert await bad.result(timeout=60) == 1


@pytest.mark.promise("exact-replay")
@pytest.mark.parametrize("cache", [0, 1])
async def test_runs_evicted_from_the_cache_are_replayed(make_app: MakeApp, cache: int) -> None:
    app = make_app(worker=WorkerConfig(cache=cache))
    starts: list[int] = []

    @app.workflow
    async def flow(ctx: Context, n: int) -> list[Any]:
        starts.append(n)
        found: list[Any] = [await ctx.do("a", lambda: n), str(ctx.uuid4())]
        await ctx.sleep("nap", 60)
        return [*found, await ctx.do("b", lambda: -n)]

    async with Harness(app, seed=1) as h:
        runs = [await h.start(flow, n, id=f"r{n}") for n in range(3)]
        await h.advance(60)
        results = [await run.result(timeout=60) for run in runs]
    assert [[result[0], result[2]] for result in results] == [[n, -n] for n in range(3)]
    assert len(starts) == 6 - cache


@pytest.mark.promise("exact-replay")
async def test_a_cached_machine_is_not_used_after_another_worker_advanced_the_run(app: Holdfast, h: Harness) -> None:
    @app.workflow
    async def flow(ctx: Context) -> list[Any]:
        return [(await ctx.wait_for_event(f"w{n}", type=f"e{n}")).payload for n in range(3)]

    run = await h.start(flow)
    await run.send_event("e0", "here")
    await h.run_until_idle()
    await run.send_event("e1", "elsewhere")
    await h.app.tick()  # uses another worker
    await run.send_event("e2", "here again")
    await h.run_until_idle()
    assert await run.result(timeout=60) == ["here", "elsewhere", "here again"]


async def test_cleanup_code_of_a_run_that_is_dropped_from_memory_cannot_run_steps(make_app: MakeApp) -> None:
    app = make_app(worker=WorkerConfig(cache=0))
    effects: list[str] = []

    @app.step
    async def effect(text: str) -> None:
        effects.append(text)

    @app.workflow
    async def flow(ctx: Context) -> str:
        try:
            await ctx.sleep("nap", 60)
        finally:
            ctx.log.info("cleaning up")
            await effect("cleanup")
        return "done"

    async with Harness(app) as h:
        run = await h.start(flow)
        await h.run_until_idle()
        assert effects == []
        assert (await run.status()).status == "waiting"
        assert await run.logs() == []
        await h.advance(60)
        assert await run.result(timeout=60) == "done"
        assert effects == ["cleanup"]


async def test_a_worker_claims_no_runs_of_other_queues(make_app: MakeApp) -> None:
    app = make_app(worker=WorkerConfig(queues=("slow",)))

    @app.workflow
    async def flow(ctx: Context) -> str:
        return ctx.info.queue

    async with Harness(app) as h:
        mine, other = await h.start(flow, queue="slow"), await h.start(flow)
        await h.run_until_idle()
        assert await mine.result(timeout=60) == "slow"
        assert (await other.status()).status == "active"
        assert "queue 'default'" in (await other.describe()).why


async def test_leases_are_renewed_during_long_steps(make_app: MakeApp) -> None:
    app, release = make_app(worker=WorkerConfig(lease="2 seconds", poll="5 ms")), threading.Event()
    calls: list[int] = []

    @app.workflow
    async def flow(ctx: Context) -> str:
        def slow() -> str:
            calls.append(1)
            release.wait(60)
            return "slow"

        return str(await ctx.do("slow", slow))

    async with app:
        run = await app.start(flow)
        store = app._opened().store
        began = to_ms(store.clock.now())

        async def two_leases_later() -> bool:
            return to_ms(store.clock.now()) > began + 5000

        await until(two_leases_later)
        release.set()
        assert await run.result(timeout=60) == "slow"
        [step] = (await run.history()).steps
        assert step.attempts == 1
    assert calls == [1]


@pytest.mark.above_the_store
@pytest.mark.kind_settings("heartbeats of a short lease would renew it, too")
async def test_a_worker_that_was_suspended_keeps_the_runs_that_no_other_worker_has_taken_over(
    make_app: MakeApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A laptop was closed for two hours, and the check for expired leases is the first thing that the worker does."""
    app, began, go_on = make_app(worker=WorkerConfig(lease="1 hour")), asyncio.Event(), asyncio.Event()
    calls: list[int] = []

    @app.workflow
    async def flow(ctx: Context) -> str:
        async def slow() -> str:
            calls.append(1)
            began.set()
            await go_on.wait()
            return "slow"

        return await ctx.do("slow", slow)

    async with app:
        run = await app.start(flow)
        await began.wait()
        worker = app._opened().worker
        assert worker is not None
        leases = worker._leases
        await worker.keep_leases()
        two_hours_later = leases._now_ms() + 7_200_000
        monkeypatch.setattr(leases, "_now_ms", lambda: two_hours_later)
        with contextlib.closing(apsw.Connection(str(tmp_path / "app.db"))) as connection:
            connection.set_busy_timeout(30_000)
            connection.execute("UPDATE holdfast_task SET lease_until = lease_until - 7200000")

        assert await worker.reap() == 0
        go_on.set()
        assert await run.result(timeout=60) == "slow"
    assert calls == [1]


@pytest.mark.promise("isolation-of-runs")
async def test_a_busy_run_does_not_starve_another(make_app: MakeApp) -> None:
    app = make_app()

    @app.workflow
    async def busy(ctx: Context) -> int:
        total = 0
        for n in range(200):
            total += int(await ctx.do(f"s{n}", lambda: 1))
        return total

    @app.workflow
    async def quick(ctx: Context) -> str:
        return "quick"

    async with app:
        slow = await app.start(busy)
        assert await (await app.start(quick)).result(timeout=60) == "quick"
        assert await slow.result(timeout=60) == 200
        await until_status(slow, "complete")


@pytest.mark.promise("no-lost-wakeup")
@pytest.mark.parametrize("intent", ["heartbeat", "fetch_signals"])
async def test_an_event_signal_is_not_lost_with_a_lost_reply(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, intent: str
) -> None:
    """The reply that signals events to a run with a step in flight also clears the signal in the store."""
    url, lost = f"sqlite:///{tmp_path}/app.db", list[bool]()
    real = getattr(SqliteStore, intent)

    async def lose_reply(store: SqliteStore, *args: Any) -> list[HeldTask]:
        held: list[HeldTask] = await real(store, *args)
        if not lost and any(task.signal & Signal.EVENTS for task in held):
            lost.append(True)
            raise StoreUnavailableError("connection lost")
        return held

    monkeypatch.setattr(SqliteStore, intent, lose_reply)
    other = "fetch_signals" if intent == "heartbeat" else "heartbeat"
    # After half a second a step is recorded as running, and that commit would report the signal.
    monkeypatch.setattr(small_loops, "_RECORD_SECONDS", 3600.0)
    lease = "900 ms" if intent == "heartbeat" else "30 seconds"
    app, client = Holdfast(url, worker=WorkerConfig(lease=lease)), Holdfast(url)
    began = asyncio.Event()

    async def wait_forever() -> None:
        began.set()
        await asyncio.Event().wait()

    @app.workflow
    async def flow(ctx: Context) -> None:
        await ctx.do("wait", wait_forever)

    async with app, client.connect():
        await app.start(flow, id="one")
        await began.wait()
        _disable_signals_of(monkeypatch, app, other)
        client.remote("flow")
        run = await client.get("flow", "one")
        await run.cancel("enough")
        assert await until_status(run, "cancelled") == "cancelled"
    assert lost == [True]


def _disable_signals_of(monkeypatch: pytest.MonkeyPatch, app: Holdfast, other: str) -> None:
    """Let the other intent that reports signals report none."""
    worker = app._opened().worker
    assert worker is not None

    async def no_signals(*_: Any) -> list[HeldTask]:
        return [HeldTask(*key, turn.task.epoch, Signal.NONE) for key, turn in worker._table.snapshot().items()]

    monkeypatch.setattr(SqliteStore, other, no_signals)


@pytest.mark.above_the_store
@pytest.mark.kind_settings("another worker owns the run for the time of a lease")
async def test_a_worker_checks_its_ownership_after_a_slow_load_before_it_calls_a_step(
    make_app: MakeApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_app(worker=WorkerConfig(cache=0, lease="1 second"))
    calls, lost, reading, committing = list[str](), asyncio.Event(), SqliteStore.read, SqliteStore.commit

    @app.step(retry=Retry(3, "100 ms"))
    async def step() -> None:
        calls.append("step")
        raise OSError("again")

    @app.workflow
    async def order(_ctx: Context) -> None:
        await step()

    async def load_slowly(store: SqliteStore, query: Any) -> Any:
        if not isinstance(query, SnapshotQuery):
            return await reading(store, query)
        connection = apsw.Connection(str(tmp_path / "app.db"))
        connection.execute(
            "UPDATE holdfast_task SET owner = 'another', epoch = epoch + 1, lease_until = lease_until * 2"
        )
        connection.close()
        await asyncio.sleep(0.6)
        return await reading(store, query)

    async def commit(store: SqliteStore, commits: Sequence[Commit]) -> list[Committed]:
        done = await committing(store, commits)
        if done[0].verdict is Verdict.LOST:
            lost.set()
        return done

    monkeypatch.setattr(SqliteStore, "read", load_slowly)
    monkeypatch.setattr(SqliteStore, "commit", commit)
    async with app:
        await app.start(order)
        await asyncio.wait_for(lost.wait(), 60)
    assert calls == ["step"]
