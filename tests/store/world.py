"""Helpers of the conformance suite: a fake clock, and short forms of the calls that clients and workers make."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

from holdfast.core.model import Status, TaskKind, to_ms
from holdfast.store.protocol import (
    EXIT,
    FIRST_EPOCH,
    Advance,
    Advanced,
    AffectedRuns,
    Attributes,
    CancelRun,
    Claim,
    Claimant,
    ClaimRequest,
    ClaimResult,
    Commit,
    Committed,
    ControlResult,
    Created,
    CurrentRuns,
    Fact,
    FactsQuery,
    FactState,
    Finish,
    Following,
    Log,
    MailboxQuery,
    MissingDecrement,
    NewEvent,
    NewRun,
    NewUnit,
    NextRun,
    Observed,
    Operation,
    Park,
    PauseRun,
    RecordedOperation,
    Release,
    RestartRun,
    ResumeRun,
    RunByName,
    RunRecord,
    RunsById,
    Sent,
    Store,
    StoredEvent,
    TaskRef,
    TerminateRun,
)

FLOW = "flow"
LEASE = 1_000


class FakeClock:
    """A clock that stands still until ``advance``."""

    def __init__(self) -> None:
        self._now = datetime(2030, 1, 1, tzinfo=UTC)

    def now(self) -> datetime:
        return self._now

    def monotonic(self) -> float:
        return self._now.timestamp()

    def advance(self, ms: int) -> None:
        self._now += timedelta(milliseconds=ms)


Database = Callable[[], Store]
"""Creates a store on one shared database; each store has its own connections."""


class World:
    """One open store and its clock.

    ``numbered``: the store's placeholders are $1, $2; else they are question marks.
    """

    def __init__(self, store: Store, clock: FakeClock, *, numbered: bool = False) -> None:
        self.store = store
        self.clock = clock
        self._numbered = numbered

    def sql(self, text: str) -> str:
        """Convert the question marks of a statement to the store's placeholders."""
        n = count(1)
        return re.sub(r"\?", lambda _: f"${next(n)}", text) if self._numbered else text

    def now(self) -> int:
        return to_ms(self.store.clock.now())

    async def create(self, id: str = "a", **options: Any) -> Created:
        [created] = await self.store.create([NewRun(options.pop("workflow", FLOW), id, **options)])
        return created

    async def start(self, id: str = "a", **options: Any) -> RunRecord:
        created = await self.create(id, **options)
        assert created.created
        return created.run

    async def claim(
        self,
        owner: str = "w1",
        *,
        limit: int = 100,
        lease_ms: int = LEASE,
        queues: Iterable[str] = ("default",),
        workflows: Iterable[str] = (FLOW,),
        suspects: bool = True,
        run: int | None = None,
        version: str | None = None,
        pinned: Iterable[str] = (),
    ) -> ClaimResult:
        request = ClaimRequest(
            owner, lease_ms, limit, list(queues), frozenset(workflows), suspects, run, version, frozenset(pinned)
        )
        return await self.store.claim(request)

    async def claimed_ids(self, **options: Any) -> list[str]:
        return [claim.run.instance_id for claim in (await self.claim(**options)).claims]

    async def claim_one(self, owner: str = "w1", **options: Any) -> Claim:
        [claim] = (await self.claim(owner, **options)).claims
        return claim

    async def start_claimed(self, id: str = "a", owner: str = "w1", **options: Any) -> TaskRef:
        """Create a run that ``owner`` owns."""
        created = await self.create(id, owner=owner, lease_ms=LEASE, **options)
        return TaskRef(created.run.run, 0, owner, created.epoch)

    async def graph(self, id: str = "a", *units: NewUnit, **options: Any) -> list[TaskRef]:
        """Create a run with units. Returns the units that w1 owns: all that are due, or ``claim_limit`` of them."""
        options = {"kind": "graph", "owner": "w1", "lease_ms": LEASE, "claim_limit": len(units)} | options
        created = await self.create(id, units=units, **options)
        return [TaskRef(created.run.run, unit, "w1", FIRST_EPOCH) for unit in created.units]

    async def advance(
        self, *advances: Advance, owner: str = "w1", claim_limit: int = 0, version: str | None = None
    ) -> Advanced:
        return await self.store.advance(advances, Claimant(owner, LEASE, ["default"], version), claim_limit)

    async def claimed_units(self, owner: str = "w1", **options: Any) -> list[int]:
        return sorted(claim.task.unit for claim in (await self.claim(owner, **options)).claims)

    async def start_waiting(self, id: str = "a", *topics: str, run_at: int | None = None) -> RunRecord:
        """Create a run that waits for events of these types, or for a time."""
        task = await self.start_claimed(id)
        await self.commit(task, started_at=self.now(), then=waiting(*topics, run_at=run_at))
        return await self.find(id)

    async def commit(self, task: TaskRef, **options: Any) -> Committed:
        [answer] = await self.store.commit([turn(task, **options)])
        return answer

    async def start_ended(self, id: str = "a", status: Any = None) -> RunRecord:
        """Create a run that has finished."""
        task = await self.start_claimed(id)
        await self.commit(task, then=Finish(status or Status.COMPLETE, output=b"7"))
        return await self.find(id)

    async def operate(self, task: TaskRef, *operations: Operation, at: int = 0, **options: Any) -> Committed:
        """Commit operations, with the facts op0, op1, ... (numbered from ``at``)."""
        return await self.commit(
            task, operations=[recorded(f"op{n}", one) for n, one in enumerate(operations, at)], **options
        )

    async def finish(self, task: TaskRef, status: Status = Status.COMPLETE, **fields: Any) -> Committed:
        return await self.commit(task, then=Finish(status, **fields))

    async def continue_run(self, task: TaskRef, params: bytes | None = None, **fields: Any) -> RunRecord:
        """End the run with a successor, which is returned."""
        ended = (await self.store.read(RunsById([task.run])))[0]
        await self.finish(task, next=NextRun(params, **fields))
        return await self.find(ended.instance_id, ended.number + 1, workflow=ended.workflow)

    async def continue_claimed(self, task: TaskRef, times: int = 1) -> TaskRef:
        """Continue the run ``times`` times, and claim each successor as w1. No other run may be due."""
        for _ in range(times):
            await self.continue_run(task, continues=True)
            task = (await self.claim_one("w1")).task
        return task

    async def pause(self, id: str = "a") -> RunRecord | None:
        """Pause a run; returns the run as it was before."""
        return (await self.store.control(PauseRun(FLOW, id))).run

    async def resume(self, id: str = "a") -> RunRecord | None:
        """Resume a run; returns the run as it was before."""
        return (await self.store.control(ResumeRun(FLOW, id))).run

    async def terminate(self, id: str = "a", reason: str | None = None) -> ControlResult:
        return await self.store.control(TerminateRun(FLOW, id, reason))

    async def cancel(self, id: str = "a", *, payload: bytes = b"{}", deadline_ms: int | None = None) -> ControlResult:
        return await self.store.control(CancelRun(FLOW, id, payload, deadline_ms))

    async def send_exit(self, id: str = "a") -> None:
        """Send an EXIT event: an event of the engine, which wakes a run whatever it waits for."""
        await self.send(EXIT, id)

    async def restart(self, id: str = "a", **options: Any) -> RunRecord:
        run = (await self.store.control(RestartRun(FLOW, id, **options))).run
        assert run is not None
        return run

    async def undelivered(self, run: int, *topics: str) -> list[StoredEvent]:
        """All undelivered events, or only those of these types and the engine's own."""
        return list((await self.store.read(MailboxQuery(run, frozenset(topics) if topics else None))).events)

    async def find(self, id: str = "a", number: int | None = None, *, workflow: str = FLOW) -> RunRecord:
        [found] = await self.store.read(RunByName(workflow, id, number))
        return found

    async def send(self, type: str = "go", id: str = "a", **options: Any) -> Sent:
        [sent] = await self.store.send([NewEvent(options.pop("workflow", FLOW), id, type, **options)])
        return sent

    async def ids(self, **query: Any) -> list[str]:
        return [run.instance_id for run in await self.store.read(CurrentRuns(**query))]

    async def read_view(self, view: str, run: int, order: str) -> list[dict[str, Any]]:
        """The rows of a view for one run."""
        live = await self.store.begin()
        rows = await live.fetch(self.sql(f"SELECT * FROM {view} WHERE run = ? ORDER BY {order}"), (run,))
        await live.rollback()
        return [dict(row) for row in rows]

    async def count(self, table: str) -> int:
        """The number of rows of a table of the store."""
        live = await self.store.begin()
        [row] = await live.fetch(f"SELECT count(*) AS n FROM {table}", ())
        await live.rollback()
        return int(dict(row)["n"])

    async def facts(self, run: int, state: FactState | None = None, keys: Sequence[str] | None = None) -> list[Fact]:
        return await self.store.read(FactsQuery(run, state, keys))

    async def keys(self, run: int) -> list[str]:
        return [fact.key for fact in await self.facts(run)]

    async def results(self, run: int) -> list[str]:
        return [fact.key for fact in await self.facts(run, FactState.RESULT)]

    async def starts(self, run: int) -> list[tuple[str, int]]:
        """The keys of the units that were claimed, and the epochs of the claims."""
        return [(fact.key, fact.n) for fact in await self.facts(run, FactState.START)]


def turn(
    task: TaskRef,
    *,
    then: Finish | Park | Release | None = None,
    then_facts: Iterable[Fact] = (),
    then_logs: Iterable[Log] = (),
    operations: Iterable[RecordedOperation] = (),
    attributes: Attributes | None = None,
    in_flight: int = 0,
    started_at: int | None = None,
    seen: int = 0,
    **observed: Any,
) -> Commit:
    following = Following(list(then_facts), list(then_logs), attributes, list(operations), then)
    return Commit(task, Observed(**observed), following, in_flight, started_at, seen)


def waiting(*topics: str, run_at: int | None = None) -> Release:
    return Release(run_at, TaskKind.WAKE, frozenset(topics))


def result(key: str, **fields: Any) -> Fact:
    row: dict[str, Any] = {"kind": "do", "at": 1, "started_at": 1, "seq": 0, "value": b"1"} | fields
    return Fact(FactState.RESULT, key, 0, **row)


def plan(key: str, n: int = 0, **fields: Any) -> Fact:
    return Fact(FactState.PLAN, key, n, "plan", 1, 1, **fields)


def done(task: TaskRef, *decremented: int, key: str | None = None, **fields: Any) -> Advance:
    """An advance with the unit's result, which decrements ``missing`` of the other units given."""
    results = [result(key or unit_key(task.unit), kind="node", seq=None)]
    return Advance(task, results=results, decrements=[MissingDecrement(unit) for unit in decremented], **fields)


def unit_key(unit: int) -> str:
    """The n-th letter of the alphabet."""
    return chr(ord("a") + unit - 1)


def unit(number: int, missing: int = 0) -> NewUnit:
    """A unit with the key ``unit_key``."""
    return NewUnit(number, unit_key(number), missing)


def recorded(key: str, operation: Operation) -> RecordedOperation:
    return RecordedOperation(operation, result(key, kind="operation", value=None))


def affected(answer: Committed | Created) -> AffectedRuns:
    """The other runs that a commit or a start affected."""
    return answer.affected or AffectedRuns()


def pid(id: str, workflow: str = FLOW) -> str:
    return f"{workflow}/{id}"


def failure(key: str, n: int, **fields: Any) -> Fact:
    return Fact(FactState.FAILURE, key, n, "do", 1, 1, ok=False, **fields)


def log_line(message: str, **fields: Any) -> Log:
    row: dict[str, Any] = {"level": "info", "category": "code", "data": None, "at": 1} | fields
    return Log(message=message, **row)
