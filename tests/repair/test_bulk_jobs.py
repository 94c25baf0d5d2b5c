"""Stored bulk actions that are interrupted after a batch, before its position is saved: nothing is done twice."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from apps import MakeApp
from driving import until, until_status
from holdfast import BulkResult, Context, Filter, Holdfast, WorkerConfig
from holdfast.client import bulk_jobs, bulk_work
from holdfast.client.bulk import act_on
from holdfast.client.bulk_work import BulkWork
from holdfast.errors import StoreError
from holdfast.store.protocol import BulkJobById, TakeBulkJobs

IDS = ["a", "b", "c"]


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let the first write after a batch fail, as if the process had died; returns the ids of the jobs."""
    failures: list[str] = []
    save = BulkWork._save

    async def fail_once(work: BulkWork, **options: Any) -> bool:
        if not failures and work._progress.batch is None:
            failures.append(work._row.id)
            raise StoreError("the connection is lost")
        return await save(work, **options)

    monkeypatch.setattr(BulkWork, "_save", fail_once)
    monkeypatch.setattr(bulk_jobs, "_LEASE_MS", 1)
    return failures


def _app(make_app: MakeApp) -> Holdfast:
    app = make_app(worker=WorkerConfig(version="v1"))

    @app.workflow(pinned=True)
    async def flow(ctx: Context) -> int:
        received = 0
        while (await ctx.wait_for_event(f"go {received}", type="go", timeout="1 day")).payload != "end":
            received += 1
        return received

    return app


async def _finish(
    app: Holdfast, action: str, arguments: dict[str, Any], interrupted: list[str], status: str | None = None
) -> Any:
    """Create a job, let it be interrupted, and wait for its end."""
    jobs = app._opened().client.bulk_jobs
    id_ = await jobs.create(action, [Filter(workflow="flow", status=status)], arguments)

    async def is_interrupted() -> bool:
        return bool(interrupted) and not jobs._running

    async def ended() -> Any:
        job = await jobs.get(id_)
        return job if job is not None and job.ended_at is not None else None

    await until(is_interrupted)
    return await until(ended)


async def test_an_interrupted_bulk_restart_restarts_each_instance_once(
    make_app: MakeApp, interrupted: list[str]
) -> None:
    app = _app(make_app)
    async with app.connect():
        runs = [await app.start("flow", id=name) for name in IDS]

        job = await _finish(app, "restart", {"reason": "again"}, interrupted)

        assert (job.result.done, job.result.skipped) == (3, 0)
        assert [(await run.describe()).run_number for run in runs] == [1, 1, 1]
        records = (await app.audit()).items
        assert [(record.action, record.reason) for record in records] == [("restart", "again")] * 3


async def test_an_interrupted_bulk_send_delivers_the_event_once(make_app: MakeApp, interrupted: list[str]) -> None:
    app = _app(make_app)
    async with app:
        runs = [await app.start("flow", id=name) for name in IDS]
        for run in runs:
            await until_status(run, "waiting")

        await _finish(app, "send_event", {"type": "go", "payload": "once"}, interrupted)
        await app.bulk(Filter(workflow="flow")).send_event("go", "end")

        assert [await run.result("20 seconds") for run in runs] == [1, 1, 1]


@pytest.mark.parametrize(("action", "status"), [("terminate", "active"), ("delete", "terminated")])
async def test_an_interrupted_job_counts_the_instances_that_do_not_match_any_more(
    make_app: MakeApp, interrupted: list[str], action: str, status: str
) -> None:
    app = _app(make_app)
    async with app.connect():
        for name in IDS:
            run = await app.start("flow", id=name)
            if status == "terminated":
                await run.terminate()

        job = await _finish(app, action, {"reason": "tidy"}, interrupted, status)

        assert (job.total, job.result) == (3, BulkResult(done=3))
        records = [record for record in (await app.audit()).items if record.reason == "tidy"]
        assert [(record.action, record.outcome) for record in records] == [(action, "done")] * 3


async def test_an_instance_that_another_caller_restarted_is_skipped_by_a_job_that_was_interrupted_before_it(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_jobs, "_LEASE_MS", 1)
    app = _app(make_app)
    async with app.connect():
        runs = [await app.start("flow", id=name) for name in IDS]
        act_on, interruptions = bulk_work.act_on, [StoreError("the connection is lost")]

        async def act_later(*args: Any) -> BulkResult:
            if interruptions:
                await runs[0].restart(reason="by hand")
                raise interruptions.pop()
            return await act_on(*args)

        monkeypatch.setattr(bulk_work, "act_on", act_later)
        jobs = app._opened().client.bulk_jobs
        id_ = await jobs.create("restart", [Filter(workflow="flow")], {"reason": "job"})

        async def ended() -> Any:
            job = await jobs.get(id_)
            return job if job is not None and job.ended_at is not None else None

        assert (await until(ended)).result == BulkResult(done=2, skipped=1)
        assert [(await run.describe()).run_number for run in runs] == [1, 1, 1]


async def test_a_process_that_lost_its_job_neither_acts_again_nor_saves_its_progress(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_jobs, "_LEASE_MS", 1)
    stalled, other = _app(make_app), _app(make_app)
    async with stalled.connect(), other.connect():
        for name in IDS:
            await stalled.start("flow", id=name)
        client = stalled._opened().client
        go_on, waiting = asyncio.Event(), asyncio.Event()
        control = client._store.control

        async def control_later(request: Any, *args: Any) -> Any:
            waiting.set()
            await go_on.wait()
            return await control(request, *args)

        monkeypatch.setattr(client._store, "control", control_later)
        id_ = await client.bulk_jobs.create("restart", [Filter(workflow="flow")], {"reason": "again"})
        await waiting.wait()
        jobs = other._opened().client.bulk_jobs

        async def ended() -> Any:
            job = await jobs.get(id_)
            return job if job is not None and job.ended_at is not None else None

        job = await until(ended)
        go_on.set()
        await client.local.wait()

        assert job.result == (await jobs.get(id_)).result == BulkResult(done=3)  # type: ignore[union-attr]
        assert [(await (await other.get("flow", name)).describe()).run_number for name in IDS] == [1, 1, 1]


async def test_a_process_does_not_take_a_job_again_on_which_it_still_works(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_jobs, "_LEASE_MS", 0)
    stalled, other = _app(make_app), _app(make_app)
    async with stalled.connect(), other.connect():
        for name in IDS:
            await stalled.start("flow", id=name)
        client = stalled._opened().client
        go_on, waiting, restart_run = asyncio.Event(), asyncio.Event(), client.repair.restart_run

        async def restart_later(row: Any, reason: str | None) -> None:
            waiting.set()
            await go_on.wait()
            await restart_run(row, reason)

        monkeypatch.setattr(client.repair, "restart_run", restart_later)
        id_ = await client.bulk_jobs.create("restart", [Filter(workflow="flow")], {})
        await waiting.wait()
        jobs = other._opened().client.bulk_jobs
        jobs.lease_ms = 60_000
        await jobs.get(id_)
        jobs.stop()  # the other process has taken the job, and gives it back
        await other._opened().client.local.wait()
        before = await client._store.bulk(BulkJobById(id_))

        await client.bulk_jobs.resume()
        go_on.set()
        await client.local.wait()

        assert await client._store.bulk(BulkJobById(id_)) == before


async def test_a_late_reply_does_not_begin_a_job_again_that_this_process_has_ended(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with _app(make_app) as app:
        await app.start("flow", id="a")
        client = app._opened().client
        jobs, bulk = client.bulk_jobs, client._store.bulk
        replies, begun = asyncio.Event(), list[str]()

        async def late(request: Any) -> Any:
            reply = await bulk(request)
            if isinstance(request, TakeBulkJobs) and not begun:
                begun.append("taken")
                await replies.wait()
            return reply

        async def counted(work: BulkWork) -> None:
            begun.append("run")
            await run(work)

        run = BulkWork.run
        monkeypatch.setattr(BulkWork, "run", counted)
        monkeypatch.setattr(client._store, "bulk", late)
        monkeypatch.setattr(jobs, "lease_ms", 1)
        creation = asyncio.create_task(jobs.create("pause", [Filter(workflow="flow")], {}))
        while not begun:
            await asyncio.sleep(0.01)
        monkeypatch.setattr(jobs, "lease_ms", 30_000)
        again = asyncio.create_task(jobs.resume())
        await asyncio.sleep(0.2)
        replies.set()
        id_ = await creation
        await again
        while (job := await jobs.get(id_)) is None or job.ended_at is None:
            await asyncio.sleep(0.01)

    assert begun == ["taken", "run"]


async def test_a_job_that_cannot_be_taken_up_is_stored_nevertheless(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_jobs, "_LEASE_MS", 20)
    app = _app(make_app)
    async with app.connect():
        run = await app.start("flow", id="a")
        store = app._opened().client._store
        bulk, failures = store.bulk, [StoreError("the connection is lost")]

        async def fail_once(request: Any) -> Any:
            if isinstance(request, TakeBulkJobs) and failures:
                raise failures.pop()
            return await bulk(request)

        monkeypatch.setattr(store, "bulk", fail_once)
        await app._opened().client.bulk_jobs.create("pause", [Filter(workflow="flow")], {})

        await until_status(run, "paused")


async def test_an_action_on_a_run_that_was_replaced_meanwhile_is_skipped(make_app: MakeApp) -> None:
    app = _app(make_app)
    async with app.connect():
        client = app._opened().client
        run = await app.start("flow", id="a")
        await run.terminate()
        found = await client.instances.find("flow", "a")
        await run.restart()
        await run.terminate()

        for action in ("restart", "delete"):
            assert await act_on([found], client.bulk_actions.act(action, {})) == BulkResult(skipped=1)
        assert (await run.describe()).run_number == 1


async def test_a_slow_bulk_action_keeps_its_lease_and_does_not_delay_the_end_of_its_app(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_jobs, "_LEASE_MS", 60)
    saved: list[int] = []
    save = BulkWork._save

    async def recorded(work: BulkWork, **options: Any) -> bool:
        if work._progress.batch is None:
            saved.append(work._position)
        return await save(work, **options)

    async def was_renewed() -> bool:
        return len(saved) > 3

    monkeypatch.setattr(BulkWork, "_save", recorded)
    app = _app(make_app)
    async with app.connect():
        for name in IDS:
            await app.start("flow", id=name)
        await app._opened().client.bulk_jobs.create("restart", [Filter(workflow="flow")], {}, rate=0.01)
        await until(was_renewed)
        assert len(set(saved)) == 1
        assert await _numbers(app) == [1, 0, 0]

    other = _app(make_app)
    async with other.lifespan():

        async def was_continued() -> bool:
            return await _numbers(other) == [1, 1, 0]

        await until(was_continued)


async def _numbers(app: Holdfast) -> list[int]:
    return [(await (await app.get("flow", name)).describe()).run_number for name in IDS]


async def test_a_server_takes_up_the_action_of_a_dead_process_without_a_request(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_jobs, "_LEASE_MS", 50)
    app, server = _app(make_app), _app(make_app)
    async with app.connect():
        for name in IDS:
            await app.start("flow", id=name)
        client = app._opened().client
        monkeypatch.setattr(client.local, "run_in_background", lambda work: work.close())  # the process dies
        await client.bulk_jobs.create("pause", [Filter(workflow="flow")], {})

        async with server.lifespan():

            async def is_paused() -> bool:
                return [one.details.status for one in (await app.list("flow")).items] == ["paused"] * 3

            await until(is_paused)


async def test_a_bulk_move_pins_the_matching_instances_to_another_version(make_app: MakeApp) -> None:
    app = _app(make_app)
    async with app.connect():
        for name in IDS:
            await app.start("flow", id=name)

        moved = await app.bulk(Filter(workflow="flow", version="v1")).move("v2", "v1 is retired")

        assert moved.done == 3
        assert {(record.action, record.reason) for record in (await app.audit()).items} == {("move", "v1 is retired")}
        assert [(one.version, one.open_runs) for one in await app.versions()] == [("v2", 3)]
