"""Reads of one run: its description, its history, its log lines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from holdfast.client.instances import Instances, check_run_number
from holdfast.client.locator import Locator
from holdfast.client.records import (
    HistoryPage,
    HistoryQuery,
    Part,
    Positions,
    check_choice,
    error_of,
    event_record,
    event_value,
    log_line,
    part_of,
    reading,
)
from holdfast.client.why import Reasons, waits_for_start, why
from holdfast.client.why_parts import why_parts
from holdfast.core import codec
from holdfast.core.checks import check_text
from holdfast.core.model import Level, from_ms, optional_from_ms, to_ms
from holdfast.core.origin import Origin
from holdfast.core.records import (
    ChildRecord,
    EventRecord,
    History,
    InstanceDescription,
    LogLine,
    OriginRecord,
    StepRecord,
    WhyParts,
)
from holdfast.errors import DamagedRunError, ErrorInfo
from holdfast.kernel.definition import Registry
from holdfast.kernel.model import RecordedRun
from holdfast.kernel.notify import Hub
from holdfast.kernel.options import RunOptions
from holdfast.ports import Clock
from holdfast.store.protocol import (
    EventsQuery,
    FactsQuery,
    LogsQuery,
    PermitPosition,
    PermitPositionsQuery,
    ReadQueues,
    Relations,
    RelationsQuery,
    RunRecord,
    Snapshot,
    SnapshotQuery,
    Store,
    StoredEvent,
    StoredLog,
    Watch,
    WorkersQuery,
)


class RunReader:
    """Reads runs. The model of a run decides which steps its history has."""

    def __init__(
        self, store: Store, registry: Registry, hub: Hub, clock: Clock, instances: Instances, locator: Locator
    ) -> None:
        self._store = store
        self._registry = registry
        self._hub = hub
        self._clock = clock
        self._instances = instances
        self._locator = locator

    async def describe(self, workflow: str, id: str) -> InstanceDescription:
        return await self.describe_run(await self._instances.find(workflow, id))

    async def describe_run(self, row: RunRecord, *, located: bool = True) -> InstanceDescription:
        """The description of a current run. ``located``: with the position in the code, which needs a replay."""
        snapshot = await self._snapshot(row, located=located)
        relations = await self._store.read(RelationsQuery(row.run))
        before = (
            await self._instances.find_or_none(row.workflow, row.instance_id, row.number - 1)
            if waits_for_start(row)
            else None
        )
        abandoned, queue_paused = await self._abandoned(row), await self._in_paused_queue(row)
        permits = () if row.status.terminal else await self._store.read(PermitPositionsQuery(row.run))
        with reading(row):
            positions = self._locator.positions(row, snapshot) if located else {}
            run = RecordedRun(row, snapshot.facts, {}, positions, results=located)
            return self._description(run, relations, before, permits, abandoned=abandoned, queue_paused=queue_paused)

    async def describe_listed(self, row: RunRecord) -> InstanceDescription:
        """The description of a current run in a list, which one damaged run must not make unreadable."""
        try:
            return await self.describe_run(row, located=False)
        except DamagedRunError as error:
            return InstanceDescription(
                id=row.instance_id,
                workflow_name=row.workflow,
                kind=row.kind,
                status=row.status.value,
                error=ErrorInfo(type(error).__name__, str(error)),
                output=None,
                run_number=row.number,
                params=None,
                created_at=from_ms(row.created_at),
                updated_at=from_ms(row.updated_at),
                started_at=optional_from_ms(row.started_at),
                completed_at=optional_from_ms(row.completed_at),
                current_step=None,
                why=str(error),
                why_parts=WhyParts("damaged"),
            )

    def _description(
        self,
        run: RecordedRun,
        relations: Relations,
        before: RunRecord | None,
        permits: Sequence[PermitPosition],
        *,
        abandoned: bool,
        queue_paused: bool,
    ) -> InstanceDescription:
        row, facts, model = run.row, run.facts, self._registry.model(run.row.kind)
        steps = model.steps(run)
        updated = max([row.updated_at, *(f.at for f in facts)])
        options = RunOptions.decode(row.options)
        reasons = Reasons(run, model, steps, relations, before, permits, abandoned, queue_paused)
        now, known = to_ms(self._clock.now()), row.workflow in self._registry.runnable()
        return InstanceDescription(
            id=row.instance_id,
            workflow_name=row.workflow,
            kind=row.kind,
            status=row.status.value,
            error=error_of(row),
            output=codec.displayed(row.output),
            run_number=row.number,
            params=codec.displayed(row.params),
            created_at=from_ms(row.created_at),
            updated_at=from_ms(updated),
            started_at=optional_from_ms(model.started_at(run)),
            completed_at=optional_from_ms(row.completed_at),
            current_step=model.current_step(steps),
            why=why(reasons, now, known=known),
            why_parts=why_parts(reasons, now, known=known),
            memo=codec.displayed(row.memo) or {},
            search=codec.displayed(row.search) or {},
            parent=row.parent,
            children=[ChildRecord(child.pid, child.status.value) for child in relations.children],
            links=[pid for pid, watch in relations.watches if watch & Watch.LINK],
            monitors=[pid for pid, watch in relations.watches if watch & Watch.MONITOR],
            attempt=row.attempt,
            summary=options.summary,
            cron=None if options.cron is None else options.cron.text,
            schedule=options.schedule,
            scheduled_for=optional_from_ms(options.scheduled_for),
            native_status=model.native_status(row.status),
            workflow_version=options.version,
            origin=_origin(row),
            forks=list(relations.forks),
            killed=model.killed(run),
            queue=row.queue,
            version=row.version,
            owner=row.owner,
        )

    async def _in_paused_queue(self, row: RunRecord) -> bool:
        """True if a claim of the run waits for its queue to be resumed."""
        if row.owner is not None or row.status.terminal:
            return False
        return row.queue in (await self._store.queues(ReadQueues())).paused

    async def _abandoned(self, row: RunRecord) -> bool:
        """True if the run is pinned, waits for a worker, and no worker of its version is alive."""
        if not row.pinned or row.owner is not None or row.status.terminal:
            return False
        workers = await self._store.read(WorkersQuery())
        return not any(worker.alive and worker.profile.version == row.version for worker in workers)

    async def _snapshot(self, row: RunRecord, *, located: bool) -> Snapshot:
        """The facts of a run, with the events if the run can be located in the code."""
        if located and self._locator.locates(row):
            return await self._store.read(SnapshotQuery(row.run))
        return Snapshot(await self._store.read(FactsQuery(row.run)), {}, 0)

    async def history(self, workflow: str, id: str, run_number: int | None = None) -> History:
        current = await self._instances.find(workflow, id)
        number = current.number if run_number is None else check_run_number(run_number)
        row = current if number == current.number else await self._instances.find_or_none(workflow, id, number)
        if row is None:
            return History(number, [], [])
        facts = await self._store.read(FactsQuery(row.run))
        events = await self._store.read(EventsQuery(row.run))
        with reading(row):
            run = RecordedRun(row, facts, {event.n: event_value(event) for event in events})
            records = [event_record(number, event) for event in events]
            return History(number, self._steps(run), records, _origin(row))

    def _steps(self, run: RecordedRun) -> list[StepRecord]:
        return self._registry.model(run.row.kind).steps(run)

    async def history_page(self, workflow: str, id: str, run_number: int | None, query: HistoryQuery) -> HistoryPage:
        """A page of a run's steps, events and, if requested, logs. The lists are empty if there is no such run."""
        positions = Positions.of(query)
        current = await self._instances.find(workflow, id)
        number = current.number if run_number is None else check_run_number(run_number)
        row = current if number == current.number else None
        if number < current.number:
            row = await self._instances.find_or_none(workflow, id, number)
        return HistoryPage(
            number,
            await self._steps_part(row, query, positions.steps),
            await self._events_part(row, number, query, positions.events),
            await self._logs_part(row, number, query, positions.logs) if query.include_logs else None,
            None if row is None else _origin(row),
        )

    async def _steps_part(self, row: RunRecord | None, query: HistoryQuery, after: int) -> Part[StepRecord]:
        steps: list[StepRecord] = []
        if row is not None:
            snapshot = await self._store.read(SnapshotQuery(row.run))
            with reading(row):
                payloads = {n: event_value(event) for n, event in snapshot.events.items()}
                steps = self._steps(RecordedRun(row, snapshot.facts, payloads))
        numbered = [*enumerate(steps, 1)]  # in the order of their starts, so new steps are at the end
        if query.descending:
            return part_of([one for one in reversed(numbered) if one[0] < after], "s", query.limit, after)
        return part_of([one for one in numbered if one[0] > after], "s", query.limit, after)

    async def _events_part(
        self, row: RunRecord | None, number: int, query: HistoryQuery, after: int
    ) -> Part[EventRecord]:
        events: Sequence[StoredEvent] = []
        if row is not None:
            more = query.limit + 1  # one more than the page shows tells whether there are more
            events = await self._store.read(EventsQuery(row.run, after, more, query.descending))
        return part_of([(event.n, event_record(number, event)) for event in events], "e", query.limit, after)

    async def _logs_part(self, row: RunRecord | None, number: int, query: HistoryQuery, after: int) -> Part[LogLine]:
        lines: Sequence[StoredLog] = []
        if row is not None:
            page = (after, query.limit + 1, query.descending)
            lines = await self._store.read(LogsQuery(row.run, *page, query.level, query.category))
        return part_of([(line.n, log_line(number, line)) for line in lines], "l", query.limit, after)

    async def logs(
        self,
        row: RunRecord,
        *,
        level: str | None = None,
        category: str | None = None,
        after: int | None = None,
    ) -> list[LogLine]:
        if level is not None:
            level = check_choice("level", "warn" if level == "warning" else level, [v.value for v in Level])
        if category is not None and not check_text("category", category).isprintable():
            return []
        lines = await self._store.read(LogsQuery(row.run, after=after, level=level, category=category))
        return [log_line(row.number, line) for line in lines]

    async def follow_logs(self, workflow: str, id: str) -> AsyncIterator[LogLine]:
        """Yield log lines as they are written, across restarts, until the run has ended."""
        row = await self._instances.find(workflow, id)
        after: int | None = None
        while True:
            current = await self._instances.find(workflow, id)
            lines = await self._store.read(LogsQuery(row.run, after=after))
            for line in lines:
                after = line.n
                yield log_line(row.number, line)
            if current.run != row.run:
                row, after = current, None
            elif current.status.terminal:
                return
            else:
                waiting = self._hub.wait(row.run)
                try:
                    await asyncio.wait([waiting], timeout=0.1)
                finally:
                    self._hub.stop_waiting(row.run, waiting)


def _origin(row: RunRecord) -> OriginRecord | None:
    if row.origin is None:
        return None
    origin = Origin.decode(row.origin)
    return OriginRecord(origin.action, origin.pid, origin.number, from_ms(origin.at), origin.actor, origin.reason)
