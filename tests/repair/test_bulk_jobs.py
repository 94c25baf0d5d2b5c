"""Stored bulk actions that are interrupted after a batch, before its position is saved: nothing is done twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from apps import MakeApp
from driving import until, until_status
from holdfast import AuditRecord, BulkResult, Context, Filter, Handle, Holdfast, WorkerConfig
from holdfast.client import bulk_jobs, bulk_work
from holdfast.client.bulk import BulkError, Visits, act_on
from holdfast.client.bulk_work import BulkWork
from holdfast.errors import AppClosedError, StoreError
from holdfast.store.protocol import BulkJobById, RunRecord, SaveBulkJob, TakeBulkJobs

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


def _crash_after_batch(app: Holdfast, monkeypatch: pytest.MonkeyPatch, work: Callable[[], Awaitable[None]]) -> None:
    """Let the first process of a job die after its first batch; ``work`` is done before another one takes it up."""
    app._opened().client.bulk_jobs.lease_ms = 1
    save, crashes = BulkWork._save, [StoreError("the connection is lost")]

    async def crash_once(bulk_work: BulkWork, **options: Any) -> bool:
        if crashes and bulk_work._progress.batch is None:
            error = crashes.pop()
            await work()
            raise error
        return await save(bulk_work, **options)

    monkeypatch.setattr(BulkWork, "_save", crash_once)


def _crash_before_batch(app: Holdfast, monkeypatch: pytest.MonkeyPatch, work: Callable[[], Awaitable[None]]) -> None:
    """Let the first process of a job die before it acts; ``work`` is done before another one takes it up."""
    app._opened().client.bulk_jobs.lease_ms = 1
    act_on, crashes = bulk_work.act_on, [StoreError("the connection is lost")]

    async def crash_once(*args: Any) -> BulkResult:
        if crashes:
            error = crashes.pop()
            await work()
            raise error
        return await act_on(*args)

    monkeypatch.setattr(bulk_work, "act_on", crash_once)


async def _ended(app: Holdfast, id: str) -> Any:
    """Wait for the end of a job, and return it."""

    async def job() -> Any:
        job = await app._opened().client.bulk_jobs.get(id)
        return job if job is not None and job.ended_at is not None else None

    return await until(job, seconds=20)


async def test_an_interrupted_bulk_event_without_reason_counts_the_runs_that_it_ended(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = _app(make_app)
    async with app:
        runs = [await app.start("flow", id=name) for name in IDS]
        for run in runs:
            await until_status(run, "waiting")

        async def all_have_ended() -> None:
            assert [await run.result("20 seconds") for run in runs] == [0, 0, 0]

        _crash_after_batch(app, monkeypatch, all_have_ended)
        jobs = app._opened().client.bulk_jobs
        id_ = await jobs.create("send_event", [Filter(workflow="flow")], {"type": "go", "payload": "end"})

        assert (await _ended(app, id_)).result == BulkResult(done=3)


async def test_an_interrupted_job_finds_its_record_among_many_later_ones(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = _app(make_app)
    async with app.connect():
        runs = [await app.start("flow", id=name) for name in IDS]

        async def record_more() -> None:
            with app.acting_as("ann"):
                for _ in range(45):
                    await runs[0].send_event("note")

        _crash_after_batch(app, monkeypatch, record_more)
        id_ = await app._opened().client.bulk_jobs.create("pause", [Filter(workflow="flow")], {"reason": "job"})

        assert (await _ended(app, id_)).result == BulkResult(done=3)
        records = [record.action async for record in _records(app)]
        assert (records.count("pause"), records.count("send_event")) == (3, 45)


async def _records(app: Holdfast) -> AsyncIterator[AuditRecord]:
    cursor, first = None, True
    while first or cursor is not None:
        page = await app.audit(cursor=cursor)
        cursor, first = page.cursor, False
        for record in page.items:
            yield record


@pytest.mark.parametrize("action", ["terminate", "pause", "restart", "send_event"])
@pytest.mark.parametrize("tenant", ["globex", "acme"])
async def test_an_interrupted_job_skips_an_instance_that_was_created_again(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, tenant: str, action: str
) -> None:
    app = _app(make_app)
    async with app.connect():
        runs = [await app.start("flow", id=name, search={"tenant": "acme"}) for name in IDS]

        async def create_again() -> None:
            await runs[0].terminate()
            await runs[0].delete()
            await app.start("flow", id=IDS[0], search={"tenant": tenant})

        _crash_before_batch(app, monkeypatch, create_again)
        jobs, arguments = app._opened().client.bulk_jobs, {"reason": "job", "type": "note"}
        id_ = await jobs.create(action, [Filter(search={"tenant": "acme"})], arguments)

        assert (await _ended(app, id_)).result == BulkResult(done=2, skipped=1)
        records = [record async for record in _records(app) if record.reason == "job"]
        assert sorted(record.target for record in records) == ["flow/b", "flow/c"]


async def test_an_interrupted_job_skips_an_instance_that_no_longer_matches(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = _app(make_app)
    async with app.connect():
        runs = [await app.start("flow", id=name) for name in IDS]
        for run in runs:
            await run.pause()

        async def resume_one() -> None:
            await runs[1].resume()

        _crash_before_batch(app, monkeypatch, resume_one)
        id_ = await app._opened().client.bulk_jobs.create("terminate", [Filter(status="paused")], {"reason": "job"})

        assert (await _ended(app, id_)).result == BulkResult(done=2, skipped=1)
        assert [(await run.status()).status for run in runs] == ["terminated", "active", "terminated"]


async def test_the_total_of_a_job_does_not_exceed_the_instances_that_it_visits(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = _app(make_app)
    async with app.connect():
        for name in IDS:
            await app.start("flow", id=name)
        count = Visits.count

        async def start_another(visits: Visits, *args: Any) -> int:
            counted = await count(visits, *args)
            await app.start("flow", id="d")
            return counted

        monkeypatch.setattr(Visits, "count", start_another)
        id_ = await app._opened().client.bulk_jobs.create("pause", [Filter(workflow="flow")], {})

        job = await _ended(app, id_)
        assert (job.total, job.result) == (3, BulkResult(done=3))


async def test_a_limited_action_does_not_wait_after_its_last_batch(make_app: MakeApp) -> None:
    app = _app(make_app)
    async with app.connect():
        run = await app.start("flow", id="a")

        result = await app.bulk(Filter(workflow="flow"), rate=0.001).pause()
        id_ = await app._opened().client.bulk_jobs.create("resume", [Filter(workflow="flow")], {}, rate=0.001)

        assert result == (await _ended(app, id_)).result == BulkResult(done=1)
        assert (await run.status()).status == "active"


async def test_an_unexpected_error_of_one_instance_does_not_stop_a_job(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = _app(make_app)
    async with app.connect():
        for name in IDS:
            await app.start("flow", id=name)
        client = app._opened().client
        pause = client.control.pause

        async def fail_on_b(workflow: str, id: str, reason: str | None) -> None:
            if id == "b":
                raise KeyError("a bug")
            await pause(workflow, id, reason)

        monkeypatch.setattr(client.control, "pause", fail_on_b)
        id_ = await client.bulk_jobs.create("pause", [Filter(workflow="flow")], {})

        assert (await _ended(app, id_)).result == BulkResult(2, 1, 0, (BulkError("flow/b", "KeyError: 'a bug'"),))


async def test_an_action_whose_database_fails_waits_for_its_other_requests(make_app: MakeApp) -> None:
    app = _app(make_app)
    async with app.connect():
        rows = [(await app._opened().client.instances.find("flow", (await app.start("flow", id=n)).id)) for n in IDS]
        begun, go_on, done = asyncio.Event(), asyncio.Event(), list[str]()

        async def act(row: RunRecord) -> None:
            if row.instance_id == "a":
                raise StoreError("the connection is lost")
            begun.set()
            await go_on.wait()
            done.append(row.instance_id)

        acting = asyncio.create_task(act_on(rows, act))
        await begun.wait()
        for _ in range(10):
            await asyncio.sleep(0)
        assert not acting.done()
        go_on.set()

        with pytest.raises(StoreError):
            await acting
        assert done == ["b", "c"]


async def test_an_action_on_an_app_that_was_closed_is_not_counted(make_app: MakeApp) -> None:
    app = _app(make_app)
    async with app.connect():
        await app.start("flow", id="a")
        client = app._opened().client
        row = await client.instances.find("flow", "a")

    with pytest.raises(AppClosedError):
        await act_on([row], client.bulk_actions.act("terminate", {}))


async def test_a_bulk_cancellation_with_an_empty_deadline_ends_the_runs(make_app: MakeApp) -> None:
    app = make_app()

    @app.workflow(name="stubborn")
    async def stubborn(ctx: Context) -> None:
        while True:
            with suppress(asyncio.CancelledError):
                await ctx.wait_for_event("go", type="go", timeout="1 day")

    async with app:
        run = await app.start(stubborn, id="a")
        await until_status(run, "waiting")

        await app._opened().client.bulk_jobs.create("cancel", [Filter(workflow="stubborn")], {"deadline_ms": 0})

        await until(lambda: _has_ended(run), seconds=20)


async def _has_ended(run: Handle[Any]) -> bool:
    return (await run.status()).status in ("cancelled", "errored", "terminated")


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


async def test_a_save_that_arrives_after_the_job_was_taken_again_changes_nothing(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_jobs, "_LEASE_MS", 1)
    app = _app(make_app)
    async with app.connect():
        for name in IDS:
            await app.start("flow", id=name)
        client = app._opened().client
        bulk, late = client._store.bulk, list[SaveBulkJob]()

        async def first_save_is_late(request: Any) -> Any:
            if isinstance(request, SaveBulkJob) and not late:
                late.append(request)
                raise StoreError("the connection is lost")
            return await bulk(request)

        monkeypatch.setattr(client._store, "bulk", first_save_is_late)
        id_ = await client.bulk_jobs.create("restart", [Filter(workflow="flow")], {})
        job = await _ended(app, id_)

        assert await bulk(late[0]) == []
        assert await client.bulk_jobs.get(id_) == job


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
