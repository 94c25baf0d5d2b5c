"""Details of one run for people: its timeline, its stored facts, its mailbox, its relatives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from holdfast.client.instances import Instances
from holdfast.client.records import event_value, position, reading
from holdfast.core import codec, timeline
from holdfast.core.facts import Fact, StoredEvent
from holdfast.core.filters import Filter
from holdfast.core.model import to_ms
from holdfast.core.records import Page, PlannedStep, StepRecord
from holdfast.core.timeline import Hold, Item
from holdfast.errors import InstanceNotFoundError
from holdfast.kernel.definition import Registry
from holdfast.kernel.model import RecordedRun
from holdfast.ports import Clock
from holdfast.store.protocol import (
    EventsQuery,
    FactsQuery,
    LogsQuery,
    OutboxQuery,
    RelationsQuery,
    RepliesQuery,
    RunRecord,
    SnapshotQuery,
    Store,
    StoredLog,
    StreamHeadsQuery,
    Watch,
    WorkersQuery,
)

_MAX_MARKS = 1000
"""Maximum number of messages and of log lines on a timeline."""
_MAX_ANCESTORS = 20
_OVERLAP_MS = 10_000
"""Facts become visible up to this time after the time that they record."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """The timeline of a run at the time ``now``."""

    row: RunRecord
    now: int
    version: int
    """Changes of the timeline after this read have a higher version, or the same."""
    total: int
    items: Sequence[Item]
    holds: Sequence[Hold]
    working_ms: int
    events: Sequence[StoredEvent]
    logs: Sequence[StoredLog]


class Mark(NamedTuple):
    """Numbers that change whenever a run changes."""

    row: RunRecord
    version: int
    events: int
    """The number of the last event."""
    logs: int
    """The number of the last log line."""
    streams: int
    """The number of streams."""
    outbox: int
    """The time of the last change of an outbound event: its delivery, or when its next attempt is due. 0: none."""


class Family(NamedTuple):
    """The relatives of a run. Runs that were deleted, or that the caller may not see, are left out."""

    itself: RunRecord
    ancestors: Sequence[RunRecord]
    """The root first."""
    children: Sequence[RunRecord]
    links: Sequence[RunRecord]
    monitors: Sequence[RunRecord]
    watched_by: Sequence[RunRecord]
    forks: Sequence[RunRecord]


class MailboxReply(NamedTuple):
    """The reply to an ask."""

    ok: bool
    """False if the ask was rejected."""
    value: Any


class RunDetails:
    """Reads the details of runs."""

    def __init__(self, store: Store, registry: Registry, clock: Clock, instances: Instances) -> None:
        self._store = store
        self._registry = registry
        self._clock = clock
        self._instances = instances

    async def timeline(self, workflow: str, id: str, run_number: int | None, since: int | None) -> Timeline:
        """The timeline of a run; with ``since``, only the items that changed after that version."""
        row = await self._instances.find(workflow, id, run_number)
        facts = await self._store.read(FactsQuery(row.run))
        seen = {worker.profile.id: worker.seen_at for worker in await self._store.read(WorkersQuery())}
        received = await self._store.read(EventsQuery(row.run, limit=_MAX_MARKS))
        events = [event for event in received if not event.type.startswith("@")]
        logs = await self._store.read(LogsQuery(row.run, limit=_MAX_MARKS, descending=True))
        with reading(row):
            items = timeline.items_of(self._steps(RecordedRun(row, facts, results=False)), facts)
            holds = _with_owner(timeline.holds_of(items, seen), row)
        now, recent = to_ms(self._clock.now()), 0 if since is None else since - _OVERLAP_MS
        changed = [item for item in items if item.end is None or item.updated >= recent]
        version = max([row.updated_at, *(item.updated for item in items)])
        working = timeline.working_ms(items, now)
        return Timeline(row, now, version, len(items), changed, holds, working, events, [*reversed(logs)])

    async def shape(
        self, workflow: str, id: str, run_number: int | None
    ) -> tuple[Sequence[PlannedStep], Sequence[Item]]:
        """The planned steps of a run, and the items of its timeline."""
        row = await self._instances.find(workflow, id, run_number)
        facts = await self._store.read(FactsQuery(row.run))
        with reading(row):
            model = self._registry.model(row.kind)
            steps = model.steps(RecordedRun(row, facts))
            return model.planned(facts), timeline.items_of(steps, facts, planned=True)

    async def mark(self, workflow: str, id: str) -> Mark:
        """The state of the current run, for the comparison with an earlier state."""
        row = await self._instances.find(workflow, id)
        facts = await self._store.read(FactsQuery(row.run))
        events = await self._store.read(EventsQuery(row.run, limit=1, descending=True))
        logs = await self._store.read(LogsQuery(row.run, limit=1, descending=True))
        streams = await self._store.read(StreamHeadsQuery(row.run))
        outbox = await self._store.read(OutboxQuery(row.run))
        version = max([row.updated_at, *(fact.at for fact in facts)])
        changed = max((one.delivered_at or one.parked_at or one.run_at for one in outbox), default=0)
        return Mark(row, version, events[0].n if events else 0, logs[0].n if logs else 0, len(streams), changed)

    def _steps(self, run: RecordedRun) -> list[StepRecord]:
        return self._registry.model(run.row.kind).steps(run)

    async def step(self, workflow: str, id: str, run_number: int | None, key: str) -> StepRecord | None:
        """One step with its result and its error; None if the run has no such step."""
        row = await self._instances.find(workflow, id, run_number)
        snapshot = await self._store.read(SnapshotQuery(row.run))
        with reading(row):
            payloads = {n: event_value(event) for n, event in snapshot.events.items()}
            steps = self._steps(RecordedRun(row, snapshot.facts, payloads))
        return next((step for step in steps if step.step_key == key), None)

    async def facts(
        self, workflow: str, id: str, run_number: int | None, *, cursor: str | None, limit: int
    ) -> tuple[Page[Fact], int]:
        """A page of a run's facts in the order of their times, and the number of all facts."""
        start = position(cursor, "f") or 0
        row = await self._instances.find(workflow, id, run_number)
        facts = sorted(await self._store.read(FactsQuery(row.run)), key=_in_time)
        page, end = facts[start : start + limit], start + limit
        return Page(page, f"f{end}" if end < len(facts) else None), len(facts)

    async def mailbox(
        self, workflow: str, id: str, run_number: int | None, *, cursor: str | None, limit: int, descending: bool
    ) -> tuple[RunRecord, Page[StoredEvent], Mapping[int, MailboxReply]]:
        """A page of the events that a run received, delivered or not, and the replies to the asks among them."""
        after = position(cursor, "e")
        row = await self._instances.find(workflow, id, run_number)
        events = await self._store.read(EventsQuery(row.run, after=after, limit=limit + 1, descending=descending))
        page = Page([*events[:limit]], f"e{events[limit - 1].n}" if len(events) > limit else None)
        asks = tuple(event.n for event in page.items if event.ask is not None)
        replies = await self._store.read(RepliesQuery(row.run, asks)) if asks else {}
        return row, page, {n: MailboxReply(reply.ok, codec.displayed(reply.value)) for n, reply in replies.items()}

    async def family(self, workflow: str, id: str, within: Sequence[Filter]) -> Family:
        """The relatives of the current run that match all of ``within``."""
        row = await self._instances.find(workflow, id)
        relations = await self._store.read(RelationsQuery(row.run))
        watches = relations.watches
        return Family(
            row,
            await self._ancestors(row, within),
            await self._found((child.pid for child in relations.children), within),
            await self._found((pid for pid, watch in watches if watch & Watch.LINK), within),
            await self._found((pid for pid, watch in watches if watch & Watch.MONITOR), within),
            await self._found((pid for pid, _ in relations.watched_by), within),
            await self._found(relations.forks, within),
        )

    async def _ancestors(self, row: RunRecord, within: Sequence[Filter]) -> list[RunRecord]:
        ancestors: list[RunRecord] = []
        while row.parent is not None and len(ancestors) < _MAX_ANCESTORS:
            parents = await self._found([row.parent], within)
            if not parents:
                break
            [row] = parents
            ancestors.insert(0, row)
        return ancestors

    async def _found(self, pids: Iterable[str], within: Sequence[Filter]) -> list[RunRecord]:
        rows = []
        for pid in pids:
            workflow, _, instance_id = pid.rpartition("/")
            row = await self._visible(workflow, instance_id, within)
            if row is not None:
                rows.append(row)
        return rows

    async def _visible(self, workflow: str, id: str, within: Sequence[Filter]) -> RunRecord | None:
        try:
            await self._instances.check_within(workflow, id, within)
        except InstanceNotFoundError:
            return None
        return await self._instances.find_or_none(workflow, id)


def _in_time(fact: Fact) -> tuple[int, int, int, str, int]:
    return fact.at, fact.seq or 0, fact.state, fact.key, fact.n


def _with_owner(holds: list[Hold], row: RunRecord) -> list[Hold]:
    """Add the present owner, unless the last hold is the owner's and has not ended."""
    if row.owner is None or (holds and holds[-1].worker == row.owner and holds[-1].end is None):
        return holds
    return [*holds, Hold(row.owner, max(row.updated_at, holds[-1].end or 0 if holds else 0), None)]
