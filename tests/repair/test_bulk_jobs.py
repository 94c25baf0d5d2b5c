"""Stored bulk actions that are interrupted after a batch, before its position is saved: nothing is done twice."""

from __future__ import annotations

from typing import Any

import pytest

from apps import MakeApp
from driving import until, until_status
from holdfast import Context, Filter, Holdfast, WorkerConfig
from holdfast.client import bulk_jobs
from holdfast.client.bulk_jobs import BulkJobs
from holdfast.errors import StoreError

IDS = ["a", "b", "c"]


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let the first write of a position fail, as if the process had died; returns the ids of the jobs."""
    failures: list[str] = []
    save = BulkJobs._save

    async def fail_once(jobs: BulkJobs, id: str, *args: Any, **options: Any) -> bool:
        if not failures:
            failures.append(id)
            raise StoreError("the connection is lost")
        return await save(jobs, id, *args, **options)

    monkeypatch.setattr(BulkJobs, "_save", fail_once)
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


async def _finish(app: Holdfast, action: str, arguments: dict[str, Any], interrupted: list[str]) -> Any:
    """Create a job, let it be interrupted, and wait for its end."""
    jobs = app._opened().client.bulk_jobs
    id_ = await jobs.create(action, [Filter(workflow="flow")], arguments)

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


async def test_a_slow_bulk_action_keeps_its_lease_and_does_not_delay_the_end_of_its_app(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_jobs, "_LEASE_MS", 60)
    saved: list[int] = []
    save = BulkJobs._save

    async def recorded(jobs: BulkJobs, id: str, position: int, *args: Any, **options: Any) -> bool:
        saved.append(position)
        return await save(jobs, id, position, *args, **options)

    async def was_renewed() -> bool:
        return len(saved) > 3

    monkeypatch.setattr(BulkJobs, "_save", recorded)
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


async def test_a_server_takes_up_the_action_of_a_process_that_died_without_being_asked(
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
