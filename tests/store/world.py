"""What the suite's tests speak in: a clock to move, and short words for what a client and a worker ask of a store."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

from holdfast.core.model import Status, TaskKind
from holdfast.store.protocol import (
    EXIT,
    FIRST_EPOCH,
    Act,
    Advance,
    Advanced,
    Attributes,
    Claim,
    Claimant,
    ClaimRequest,
    ClaimResult,
    Commit,
    Committed,
    Created,
    Deed,
    Fact,
    FactState,
    Finish,
    Follows,
    ListQuery,
    Log,
    Mail,
    NewEvent,
    NewRun,
    NewUnit,
    NextRun,
    Observed,
    Opening,
    Park,
    Release,
    RunRecord,
    Sent,
    Steered,
    Store,
    TaskRef,
    Touched,
)

FLOW = "flow"
LEASE = 1_000


class FakeClock:
    """Time that stands still until it is moved."""

    def __init__(self) -> None:
        self._now = datetime(2030, 1, 1, tzinfo=UTC)

    def now(self) -> datetime:
        return self._now

    def monotonic(self) -> float:
        return self._now.timestamp()

    def advance(self, ms: int) -> None:
        self._now += timedelta(milliseconds=ms)


Database = Callable[[], Store]
"""Makes a store on one and the same database; each has a connection of its own."""


class World:
    """One open store and its clock.

    ``numbered``: its placeholders are $1, $2; else they are question marks.
    """

    def __init__(self, store: Store, clock: FakeClock, *, numbered: bool = False) -> None:
        self.store = store
        self.clock = clock
        self._numbered = numbered

    def sql(self, text: str) -> str:
        """A statement that was written with question marks, in the store's own style."""
        n = count(1)
        return re.sub(r"\?", lambda _: f"${next(n)}", text) if self._numbered else text

    async def now(self) -> int:
        return await self.store.now()

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
    ) -> ClaimResult:
        request = ClaimRequest(owner, lease_ms, limit, list(queues), frozenset(workflows), suspects, run)
        return await self.store.claim(request)

    async def claimed_ids(self, **options: Any) -> list[str]:
        return [claim.run.instance_id for claim in (await self.claim(**options)).claims]

    async def take(self, owner: str = "w1", **options: Any) -> Claim:
        [claim] = (await self.claim(owner, **options)).claims
        return claim

    async def begin(self, id: str = "a", owner: str = "w1", **options: Any) -> TaskRef:
        """A run that ``owner`` holds."""
        created = await self.create(id, owner=owner, lease_ms=LEASE, **options)
        return TaskRef(created.run.run, 0, owner, created.epoch)

    async def graph(self, id: str = "a", *units: NewUnit, **options: Any) -> list[TaskRef]:
        """A run with units; those that w1 holds, as many as are due at once (or ``room``)."""
        options = {"kind": "graph", "owner": "w1", "lease_ms": LEASE, "room": len(units)} | options
        created = await self.create(id, units=units, **options)
        return [TaskRef(created.run.run, unit, "w1", FIRST_EPOCH) for unit in created.units]

    async def advance(self, *advances: Advance, owner: str = "w1", room: int = 0) -> Advanced:
        return await self.store.advance(advances, Claimant(owner, LEASE, ["default"]), room)

    async def claimed_units(self, owner: str = "w1", **options: Any) -> list[int]:
        return sorted(claim.task.unit for claim in (await self.claim(owner, **options)).claims)

    async def wait(self, id: str = "a", *topics: str, run_at: int | None = None) -> RunRecord:
        """A run that waits for events of these types, or for a time."""
        task = await self.begin(id)
        await self.commit(task, then=waiting(*topics, run_at=run_at))
        return await self.find(id)

    async def commit(self, task: TaskRef, **options: Any) -> Committed:
        [answer] = await self.store.commit([turn(task, **options)])
        return answer

    async def end(self, id: str = "a", status: Any = None) -> RunRecord:
        """A run that has ended by itself."""
        task = await self.begin(id)
        await self.commit(task, then=Finish(status or Status.COMPLETE, output=b"7"))
        return await self.find(id)

    async def act(self, task: TaskRef, *deeds: Deed, at: int = 0, **options: Any) -> Committed:
        """A commit that does these, with the facts act0, act1, ... (or from ``at`` on)."""
        return await self.commit(task, acts=[act(f"act{n}", deed) for n, deed in enumerate(deeds, at)], **options)

    async def finish(self, task: TaskRef, status: Status = Status.COMPLETE, **fields: Any) -> Committed:
        return await self.commit(task, then=Finish(status, **fields))

    async def go_on(self, task: TaskRef, params: bytes | None = None, **fields: Any) -> RunRecord:
        """The run ends, and another takes its place, which is answered."""
        ended = (await self.store.get([task.run]))[0]
        await self.finish(task, next=NextRun(params, **fields))
        return await self.find(ended.instance_id, ended.number + 1, workflow=ended.workflow)

    async def gone_on(self, task: TaskRef, times: int = 1) -> TaskRef:
        """The run that w1 holds after so many continuations. Nothing else may be due."""
        for _ in range(times):
            await self.go_on(task, continues=True)
            task = (await self.take("w1")).task
        return task

    async def terminate(self, id: str = "a", reason: str | None = None) -> Steered:
        return await self.store.terminate(FLOW, id, reason)

    async def cancel(self, id: str = "a", *, payload: bytes = b"{}", deadline_ms: int | None = None) -> Steered:
        return await self.store.cancel(FLOW, id, payload, deadline_ms)

    async def exit(self, id: str = "a") -> None:
        """Mail of the engine, which wakes a run whatever it waits for: a run that it watches has ended."""
        await self.send(EXIT, id)

    async def restart(self, id: str = "a", **options: Any) -> RunRecord:
        run = (await self.store.restart(FLOW, id, **options)).run
        assert run is not None
        return run

    async def unread(self, run: int, *topics: str) -> list[Mail]:
        """All that is undelivered, or only what is of these types or the engine's."""
        return list((await self.store.undelivered(run, frozenset(topics) if topics else None)).mail)

    async def find(self, id: str = "a", number: int | None = None, *, workflow: str = FLOW) -> RunRecord:
        found = await self.store.find(workflow, id, number)
        assert found is not None
        return found

    async def send(self, type: str = "go", id: str = "a", **options: Any) -> Sent:
        [sent] = await self.store.send([NewEvent(options.pop("workflow", FLOW), id, type, **options)])
        return sent

    async def ids(self, **query: Any) -> list[str]:
        return [run.instance_id for run in await self.store.list(ListQuery(**query))]

    async def look(self, view: str, run: int, order: str) -> list[dict[str, Any]]:
        """What people see of a run."""
        live = await self.store.begin()
        rows = await live.fetch(self.sql(f"SELECT * FROM {view} WHERE run = ? ORDER BY {order}"), (run,))
        await live.rollback()
        return [dict(row) for row in rows]

    async def keys(self, run: int) -> list[str]:
        return [fact.key for fact in await self.store.facts(run)]

    async def results(self, run: int) -> list[str]:
        return [fact.key for fact in await self.store.facts(run, FactState.RESULT)]

    async def starts(self, run: int) -> list[tuple[str, int]]:
        """Which units were claimed, and under which epochs."""
        return [(fact.key, fact.n) for fact in await self.store.facts(run, FactState.START)]


def turn(
    task: TaskRef,
    *,
    then: Finish | Park | Release | None = None,
    then_facts: Iterable[Fact] = (),
    then_logs: Iterable[Log] = (),
    acts: Iterable[Act] = (),
    attributes: Attributes | None = None,
    in_flight: int = 0,
    started_at: int | None = None,
    seen: int = 0,
    **observed: Any,
) -> Commit:
    follows = Follows(list(then_facts), list(then_logs), attributes, list(acts), then)
    return Commit(task, Observed(**observed), follows, in_flight, started_at, seen)


def waiting(*topics: str, run_at: int | None = None) -> Release:
    return Release(run_at, TaskKind.WAKE, frozenset(topics))


def result(key: str, **fields: Any) -> Fact:
    row: dict[str, Any] = {"kind": "do", "at": 1, "started_at": 1, "seq": 0, "value": b"1"} | fields
    return Fact(FactState.RESULT, key, 0, **row)


def plan(key: str, n: int = 0, **fields: Any) -> Fact:
    return Fact(FactState.PLAN, key, n, "plan", 1, 1, **fields)


def done(task: TaskRef, *opens: int, key: str | None = None, **fields: Any) -> Advance:
    """A unit (whose key is its letter) has its result, and these miss one less."""
    results = [result(key or letter(task.unit), kind="node", seq=None)]
    return Advance(task, results=results, opens=[Opening(unit) for unit in opens], **fields)


def letter(unit: int) -> str:
    return chr(ord("a") + unit - 1)


def unit(number: int, missing: int = 0) -> NewUnit:
    """One whose key is its letter."""
    return NewUnit(number, letter(number), missing)


def act(key: str, deed: Deed) -> Act:
    return Act(deed, result(key, kind="act", value=None))


def touched(answer: Committed | Created) -> Touched:
    """What else that changed."""
    return answer.touched or Touched()


def pid(id: str, workflow: str = FLOW) -> str:
    return f"{workflow}/{id}"


def failure(key: str, n: int, **fields: Any) -> Fact:
    return Fact(FactState.FAILURE, key, n, "do", 1, 1, ok=False, **fields)


def line(message: str, **fields: Any) -> Log:
    row: dict[str, Any] = {"level": "info", "category": "code", "data": None, "at": 1} | fields
    return Log(message=message, **row)
