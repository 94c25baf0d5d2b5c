"""Runs that continue from the history of another run, deletion of instances, audit records, stored bulk jobs."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from holdfast.core.model import Status
from holdfast.core.origin import Origin
from holdfast.store.protocol import (
    Audit,
    AuditQuery,
    BulkJobById,
    ContinueRun,
    DeleteInstance,
    Delivery,
    EventsQuery,
    NewBulkJob,
    PauseRun,
    RelationsQuery,
    RunByName,
    RunsById,
    SaveBulkJob,
    TakeBulkJobs,
    TaskRef,
)
from store.world import FLOW, World, result

ORIGIN = Origin("retry", "flow/a", 0, 1, "ann", None, 0, 0).encode()


async def _errored(world: World, id: str = "a") -> TaskRef:
    """A run that consumed one event, has another one in its mailbox, and ended with an error."""
    task = await world.start_claimed(id)
    await world.send("go", id, payload=b"1", dedup="one")
    await world.send("stay", id, payload=b"2", dedup="two")
    fact = result("wait", event=1)
    await world.commit(task, facts=[result("s"), fact], deliveries=[Delivery(1, "wait", 1)], started_at=111)
    await world.finish(task, Status.ERRORED, error=b'{"name":"KeyError"}')
    return task


def _request(task: TaskRef, **fields: Any) -> ContinueRun:
    facts = [result("s"), result("wait", event=1)]
    request = ContinueRun(FLOW, "a", task.run, facts, [1], ORIGIN, b"9")
    return replace(request, **fields)


async def test_a_successor_has_the_facts_and_events_that_it_needs(world: World) -> None:
    task = await _errored(world)

    continued = await world.store.control(_request(task), Audit("retry", "ann", "why"))

    run = continued.run
    assert run is not None
    assert (run.number, run.status, run.params, run.origin) == (1, Status.ACTIVE, b"9", ORIGIN)
    [source] = await world.store.read(RunsById([task.run]))
    assert run.started_at == source.started_at == 111
    assert await world.keys(run.run) == ["s", "wait"]
    events = await world.store.read(EventsQuery(run.run))
    assert [(event.n, event.type, event.consumed_by) for event in events] == [(1, "go", "wait"), (2, "stay", None)]
    assert [event.n for event in await world.store.read(EventsQuery(task.run))] == [1]
    assert (await world.send("go", "a", dedup="one")).duplicate
    assert (await world.send("go", "a", dedup="two")).duplicate
    assert [claim.run.run for claim in (await world.claim("w2")).claims] == [run.run]
    [old] = await world.store.read(RunByName(FLOW, "a", 0))
    assert (old.status, old.current) == (Status.ERRORED, False)
    [record] = await world.store.read(AuditQuery("flow/a"))
    assert (record.actor, record.action, record.reason, record.outcome) == ("ann", "retry", "why", "flow/a run 1")


async def test_one_of_two_concurrent_retries_is_refused(world: World) -> None:
    task = await _errored(world)

    both = await asyncio.gather(*(world.store.control(_request(task), Audit("retry")) for _ in range(2)))

    assert sorted(one.refused for one in both) == [False, True]
    assert (await world.find("a")).number == 1
    assert sorted(row.outcome for row in await world.store.read(AuditQuery())) == ["flow/a run 1", "refused"]


async def test_a_run_that_is_not_errored_gets_no_such_successor(world: World) -> None:
    task = await world.start_claimed("a")

    refused = await world.store.control(_request(task))

    assert refused.refused
    assert (await world.find("a")).number == 0
    assert (await world.store.control(replace(_request(task), run=10**9))).run is None


async def test_a_fork_is_another_instance_and_leaves_its_origin_as_it_is(world: World) -> None:
    task = await _errored(world)

    forked = (await world.store.control(_request(task, fork_id="b"))).run
    again = await world.store.control(_request(task, fork_id="b"))

    assert forked is not None
    assert (forked.instance_id, forked.number, forked.instance) == ("b", 0, forked.run)
    assert again.refused
    assert [event.n for event in await world.store.read(EventsQuery(forked.run))] == [1]
    assert [event.n for event in await world.store.read(EventsQuery(task.run))] == [1, 2]
    assert (await world.store.read(RelationsQuery(task.run))).forks == ["flow/b"]
    assert (await world.find("a")).status is Status.ERRORED


async def test_an_ended_instance_is_deleted_with_all_its_runs(world: World) -> None:
    task = await _errored(world)
    continued = (await world.store.control(_request(task))).run
    assert continued is not None
    assert (await world.store.control(DeleteInstance(FLOW, "a"), Audit("delete"))).refused
    await world.terminate("a")

    deleted = await world.store.control(DeleteInstance(FLOW, "a"), Audit("delete"))

    assert deleted.run is not None
    assert not await world.store.read(RunByName(FLOW, "a"))
    for run in (task.run, continued.run):
        assert await world.facts(run) == []
        assert await world.store.read(EventsQuery(run)) == []
    assert [row.outcome for row in await world.store.read(AuditQuery("flow/a"))] == ["done", "refused"]
    assert (await world.start("a")).number == 0


async def test_a_deletion_that_names_another_run_than_the_current_one_is_refused(world: World) -> None:
    first = await world.start("a")
    await world.terminate("a")
    second = await world.restart("a")
    await world.terminate("a")

    assert (await world.store.control(DeleteInstance(FLOW, "a", first.run))).refused
    assert not (await world.store.control(DeleteInstance(FLOW, "a", second.run))).refused
    assert not await world.store.read(RunByName(FLOW, "a"))


async def test_audit_records_are_read_page_by_page_and_only_of_runs_that_exist(world: World) -> None:
    await world.start("a")
    for n in range(3):
        await world.store.control(PauseRun(FLOW, "a"), Audit("pause", f"actor {n}"))
    await world.store.control(PauseRun(FLOW, "none"), Audit("pause"))

    first = await world.store.read(AuditQuery(limit=2))
    rest = await world.store.read(AuditQuery("flow/a", before=first[-1].n))

    assert [row.actor for row in (*first, *rest)] == ["actor 2", "actor 1", "actor 0"]


async def test_one_process_works_on_a_stored_bulk_job_at_a_time(world: World) -> None:
    await world.store.bulk(NewBulkJob("j", b"{}", 9, b"{}"))
    [taken] = await world.store.bulk(TakeBulkJobs("p1", 1000))
    assert (taken.id, taken.position, taken.upto) == ("j", 0, 9)
    assert await world.store.bulk(TakeBulkJobs("p2", 1000)) == []
    world.clock.advance(1001)
    assert [job.id for job in await world.store.bulk(TakeBulkJobs("p2", 1000, "j"))] == ["j"]

    assert await world.store.bulk(SaveBulkJob("j", "p1", 1000, 5, b"1")) == []
    assert [job.position for job in await world.store.bulk(SaveBulkJob("j", "p2", 1000, 5, b"1", ended=True))] == [5]
    [ended] = await world.store.bulk(BulkJobById("j"))
    assert ended.ended_at is not None
    world.clock.advance(10**6)
    assert await world.store.bulk(TakeBulkJobs("p3", 1000)) == []


async def test_one_of_several_concurrent_requests_takes_a_stored_bulk_job(world: World) -> None:
    for name in ("j", "k"):
        await world.store.bulk(NewBulkJob(name, b"{}", 9, b"{}"))

    taken = await asyncio.gather(*(world.store.bulk(TakeBulkJobs(f"p{n}", 1000)) for n in range(5)))

    assert sorted(job.id for jobs in taken for job in jobs) == ["j", "k"]


async def test_a_save_renews_the_lease_of_a_stored_bulk_job_or_gives_it_back(world: World) -> None:
    await world.store.bulk(NewBulkJob("j", b"{}", 9, b"{}"))
    await world.store.bulk(TakeBulkJobs("p1", 1000))
    world.clock.advance(900)
    await world.store.bulk(SaveBulkJob("j", "p1", 1000, 5, b"1"))
    world.clock.advance(900)
    assert await world.store.bulk(TakeBulkJobs("p2", 1000)) == []

    await world.store.bulk(SaveBulkJob("j", "p1", 0, 6, b"2"))
    [taken] = await world.store.bulk(TakeBulkJobs("p2", 1000))

    assert (taken.position, taken.progress) == (6, b"2")


async def test_a_process_does_not_take_the_stored_bulk_jobs_on_which_it_works(world: World) -> None:
    for name in ("j", "k"):
        await world.store.bulk(NewBulkJob(name, b"{}", 9, b"{}"))

    taken = await world.store.bulk(TakeBulkJobs("p1", 1000, working=["j", "other"]))

    assert [job.id for job in taken] == ["k"]
