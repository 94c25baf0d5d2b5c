"""The operations on runs, for handles, the HTTP API and the command line alike."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, overload

from holdfast.client import graphs
from holdfast.client.handle import Handle, seconds_of
from holdfast.client.records import (
    HistoryPage,
    HistoryQuery,
    Part,
    Positions,
    check_choice,
    current_step,
    error_of,
    event_record,
    event_value,
    log_line,
    open_steps,
    outbox_record,
    page_query,
    part_of,
    position,
    steps_of,
    unhandled_step,
)
from holdfast.client.why import Reasons, waits_for_start, why
from holdfast.core import codec
from holdfast.core.chains import native_status
from holdfast.core.durations import Duration
from holdfast.core.filters import Filter, combined
from holdfast.core.limits import Limits
from holdfast.core.model import (
    ChildRecord,
    EventRecord,
    History,
    InstanceDescription,
    InstanceStatus,
    InstanceSummary,
    Level,
    LogLine,
    Page,
    StepRecord,
    WorkerInfo,
    from_ms,
    optional_from_ms,
    to_ms,
)
from holdfast.core.names import check_instance_id
from holdfast.core.outbound import OutboxRecord
from holdfast.core.show import shown
from holdfast.errors import (
    InstanceExistsError,
    InstanceNotFoundError,
    InstanceTerminalError,
    InvalidOptionError,
    ParamsInvalidError,
    Rejected,
)
from holdfast.kernel.definition import Registry
from holdfast.kernel.ends import Ends, Expected
from holdfast.kernel.notify import Hub
from holdfast.kernel.options import RunOptions
from holdfast.kernel.requests import START_OPTIONS, Requests, check_known
from holdfast.kernel.startable import Given
from holdfast.kernel.units import GRAPH
from holdfast.ports import Clock
from holdfast.store.protocol import (
    FIRST_EPOCH,
    Answer,
    Condition,
    Created,
    Fact,
    Finish,
    ListQuery,
    NewEvent,
    NewRun,
    PageQuery,
    Reply,
    RunRecord,
    Sent,
    Signal,
    Steered,
    Store,
    StoredLog,
    Watch,
)


class LocalWorker(Protocol):
    """What a client wants of a worker in its own process: that a run which begins, or is woken, goes on at once."""

    id: str
    lease_ms: int

    def reserve(self, new: NewRun) -> int: ...

    def begin(self, created: Created, places: int, plan: Sequence[Fact] = ()) -> None: ...

    async def send(self, event: NewEvent) -> Sent: ...

    def cancel_reservation(self, places: int = 1) -> None: ...


@dataclass(frozen=True, slots=True, init=False)
class Start(Generic[Given]):
    """One entry of ``app.start_many``."""

    id: str
    params: Given

    @overload
    def __init__(self: Start[None], id: str, params: None = ...) -> None: ...

    @overload
    def __init__(self, id: str, params: Given) -> None: ...

    def __init__(self, id: str, params: Any = None) -> None:
        object.__setattr__(self, "id", id)
        object.__setattr__(self, "params", params)


class Client:
    """The operations on runs, for handles, the HTTP API and the command line alike."""

    def __init__(
        self, store: Store, registry: Registry, hub: Hub, requests: Requests, limits: Limits, clock: Clock
    ) -> None:
        self._store = store
        self._registry = registry
        self._hub = hub
        self._requests = requests
        self._limits = limits
        self._clock = clock
        self._ends = Ends(store, hub)
        self.worker: LocalWorker | None = None
        self._beginning: set[asyncio.Future[Any]] = set()
        """What may give the worker something to do: it is not stopped before."""

    async def close(self) -> None:
        await asyncio.gather(*self._beginning, return_exceptions=True)
        await self._ends.close()

    # --- starting

    async def start(
        self,
        workflow: Any,
        params: Any = None,
        *,
        eager: bool = True,
        connection: Any = None,
        **options: Any,
    ) -> Handle[Any]:
        if not isinstance(eager, bool):
            raise InvalidOptionError(f"eager must be True or False, not {eager!r}")
        check_known(options, START_OPTIONS)
        new = self._requests.new_run(workflow, params, **options)
        if connection is None:
            created, expected = await self._create(new, eager=eager)
        else:
            # It is there when the caller commits, and who looks for work finds it then.
            [created], expected = await self._store.create([new], connection=connection), None
        _check_created(created)
        return Handle(self, self._registry.get(new.workflow), new.instance_id, expected)

    async def _create(self, new: NewRun, *, eager: bool) -> tuple[Created, Expected | None]:
        """Create a run; with a worker here that has room it is born claimed and begins without a poll."""
        worker = self.worker if eager and not new.delay_ms else None
        places = 0 if worker is None else worker.reserve(new)
        if worker is None or not places:
            [created] = await self._store.create([new])
            self._after_create(created)
            self._hub.work()
            return created, None
        try:
            [created] = await self._store.create([new])
        except asyncio.CancelledError:
            # Born claimed, it must begin here even if the caller stops waiting: nobody else would take it.
            task = asyncio.ensure_future(self._begin_anyway(new, worker, places))
            self._beginning.add(task)
            task.add_done_callback(self._beginning.discard)
            raise
        except BaseException:
            worker.cancel_reservation(places)
            raise
        self._after_create(created)
        if not created.created:
            worker.cancel_reservation(places)
            return created, None
        expected = self._ends.expect(created.run.run)
        worker.begin(created, places, new.plan)
        return created, expected

    def _after_create(self, created: Created) -> None:
        if created.touched is not None:
            self._hub.touched(created.touched)
        if created.run.expires_at is not None:
            self._hub.work(created.run.expires_at)

    async def _begin_anyway(self, new: NewRun, worker: LocalWorker, places: int) -> None:
        """Begin a run whose creation was cut off, made or not."""
        try:
            [created] = await self._store.create([new])
        except BaseException:
            worker.cancel_reservation(places)
            raise
        if created.run.owner == worker.id and created.run.started_at is None:
            worker.begin(replace(created, epoch=FIRST_EPOCH), places)
        else:
            worker.cancel_reservation(places)

    async def start_many(self, workflow: Any, starts: Iterable[Start[Any]]) -> list[Handle[Any]]:
        """Start many at once; ids that exist, and repeats, are left out. One bad entry starts nothing."""
        definition = self._requests.definition(workflow)
        new = [self._requests.new_run(definition.name, start.params, id=start.id) for start in starts]
        created = await self._store.create(new) if new else []
        self._hub.work()
        return [Handle(self, definition, c.run.instance_id) for c in created if c.created]

    async def create(self, workflow: Any, params: Any = None, *, id: str | None = None) -> InstanceSummary:
        """Start a run whose id must be new; the instance as it was made."""
        new = self._requests.new_run(workflow, params, id=id, on_conflict="fail", on_reuse="reject")
        created, expected = await self._create(new, eager=True)
        if expected is not None:
            expected.end.cancel()  # nobody waits for its end here
        _check_created(created)
        return self._summary(created.run)

    async def create_many(self, workflow: Any, starts: Sequence[Start[Any]]) -> list[InstanceSummary]:
        """As ``start_many``, answering the instances that were made. What does not fit is named by its place."""
        new = [self._numbered_run(workflow, place, start) for place, start in enumerate(starts)]
        created = await self._store.create(new) if new else []
        self._hub.work()
        return [self._summary(c.run) for c in created if c.created]

    def _numbered_run(self, workflow: Any, place: int, start: Start[Any]) -> NewRun:
        try:
            return self._requests.new_run(workflow, start.params, id=start.id)
        except ParamsInvalidError as error:
            issues = [issue | {"path": [place, *issue["path"]]} for issue in error.issues]
            raise ParamsInvalidError(f"entry {place}: {error}", issues) from None

    # --- finding

    def address(self, workflow: Any, id: str) -> tuple[str, str]:
        """The names of a workflow that is registered and of an instance that may exist, without looking for it."""
        return self._requests.definition(workflow).name, check_instance_id(id, self._limits)

    async def check(self) -> None:
        """Return if the store answers a read."""
        await self._store.get([0])

    async def get(self, workflow: Any, id: str) -> Handle[Any]:
        definition = self._requests.definition(workflow)
        await self.find(definition.name, check_instance_id(id, self._limits))
        return Handle(self, definition, id)

    async def find(self, workflow: str, id: str, run_number: int | None = None) -> RunRecord:
        return self._found(workflow, id, await self._store.find(workflow, id, run_number))

    def _found(self, workflow: str, id: str, record: RunRecord | None) -> RunRecord:
        if record is None:
            raise _no_instance(workflow, id)
        return record

    async def check_within(self, workflow: str, id: str, filters: Sequence[Filter]) -> None:
        """Raise ``InstanceNotFoundError`` unless an instance exists and fits all of ``filters``.

        Filters by id are decided without the store; an instance that they leave out may exist or not.
        """
        if not all(one.fits_id(id) for one in filters):
            raise _no_instance(workflow, id)
        if all(one.by_id_only for one in filters):
            return
        row = await self.find(workflow, id)
        search = codec.plain(row.search) or {}
        if not all(one.fits(id, row.status, search) for one in filters):
            raise _no_instance(workflow, id)

    def _summary(self, row: RunRecord) -> InstanceSummary:
        return InstanceSummary(row.instance_id, row.workflow, self.status_of(row), from_ms(row.created_at))

    def status_of(self, row: RunRecord) -> InstanceStatus:
        """Its output is plain JSON: reading a status never depends on the types a program has today."""
        native = native_status(row.kind, row.status)
        return InstanceStatus(row.status.value, error_of(row), codec.plain(row.output), row.kind, native)

    # --- one instance

    async def describe(self, workflow: str, id: str) -> InstanceDescription:
        row = await self.find(workflow, id)
        facts = await self._store.facts(row.run)
        relations = await self._store.relations(row.run)
        before = await self._store.find(workflow, id, row.number - 1) if waits_for_start(row) else None
        steps = steps_of(row, facts, {})
        updated = max([row.updated_at, *(f.at for f in facts)])
        options = RunOptions.decode(row.options)
        return InstanceDescription(
            id=id,
            workflow_name=workflow,
            kind=row.kind,
            status=row.status.value,
            error=error_of(row),
            output=codec.plain(row.output),
            run_number=row.number,
            params=codec.plain(row.params),
            created_at=from_ms(row.created_at),
            updated_at=from_ms(updated),
            started_at=optional_from_ms(graphs.started_at(facts) if row.kind == GRAPH else row.started_at),
            completed_at=optional_from_ms(row.completed_at),
            current_step=current_step(row, steps),
            why=why(
                Reasons(row, open_steps(row, steps), relations, before, unhandled_step(row, facts)),
                to_ms(self._clock.now()),
                known=row.workflow in self._registry.runnable(),
            ),
            memo=codec.plain(row.memo) or {},
            search=codec.plain(row.search) or {},
            parent=row.parent,
            children=[ChildRecord(child.pid, child.status.value) for child in relations.children],
            links=[pid for pid, watch in relations.watches if watch & Watch.LINK],
            monitors=[pid for pid, watch in relations.watches if watch & Watch.MONITOR],
            attempt=row.attempt,
            summary=options.summary,
            native_status=native_status(row.kind, row.status),
            workflow_version=options.version,
            killed=row.kind == GRAPH and graphs.killed(facts),
        )

    async def history(self, workflow: str, id: str, run_number: int | None = None) -> History:
        current = await self.find(workflow, id)
        number = current.number if run_number is None else run_number
        row = current if number == current.number else await self._store.find(workflow, id, number)
        if row is None:
            return History(number, [], [])
        facts = await self._store.facts(row.run)
        mail = await self._store.events(PageQuery(row.run))
        payloads = {m.n: event_value(m) for m in mail}
        return History(number, steps_of(row, facts, payloads), [event_record(number, m) for m in mail])

    async def history_page(self, workflow: str, id: str, run_number: int | None, query: HistoryQuery) -> HistoryPage:
        """A page of one run's steps, events and, if asked for, logs. A run that never was has empty ones."""
        positions = Positions.of(query)
        current = await self.find(workflow, id)
        number = current.number if run_number is None else run_number
        row = current if number == current.number else None
        if number < current.number:
            row = await self._store.find(workflow, id, number)
        return HistoryPage(
            number,
            await self._steps_part(row, query, positions.steps),
            await self._events_part(row, number, query, positions.events),
            await self._logs_part(row, number, query, positions.logs) if query.include_logs else None,
        )

    async def _steps_part(self, row: RunRecord | None, query: HistoryQuery, after: int) -> Part[StepRecord]:
        steps: list[StepRecord] = []
        if row is not None:
            snapshot = await self._store.load(row.run)
            payloads = {n: event_value(mail) for n, mail in snapshot.mail.items()}
            steps = steps_of(row, snapshot.facts, payloads)
        numbered = [*enumerate(steps, 1)]  # in the order they began: later ones come after
        if query.descending:
            return part_of([one for one in reversed(numbered) if one[0] < after], "s", query.limit, after)
        return part_of([one for one in numbered if one[0] > after], "s", query.limit, after)

    async def _events_part(
        self, row: RunRecord | None, number: int, query: HistoryQuery, after: int
    ) -> Part[EventRecord]:
        mail = [] if row is None else await self._store.events(page_query(row, query, after))
        return part_of([(m.n, event_record(number, m)) for m in mail], "e", query.limit, after)

    async def _logs_part(self, row: RunRecord | None, number: int, query: HistoryQuery, after: int) -> Part[LogLine]:
        lines: Sequence[StoredLog] = []
        if row is not None:
            filters = replace(page_query(row, query, after), level=query.level, category=query.category)
            lines = await self._store.logs(filters)
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
        lines = await self._store.logs(PageQuery(row.run, after=after, level=level, category=category))
        return [log_line(row.number, line) for line in lines]

    # --- steering

    async def pause(self, workflow: str, id: str) -> None:
        row = self._found(workflow, id, await self._store.pause(workflow, id))
        _refuse_terminal(row, "paused")
        self._hub.signal(row.run, Signal.PAUSE)

    async def resume(self, workflow: str, id: str) -> None:
        self._found(workflow, id, await self._store.resume(workflow, id))
        self._hub.work()

    async def terminate(self, workflow: str, id: str, reason: str | None = None) -> None:
        if reason is not None and not isinstance(reason, str):
            raise InvalidOptionError(f"reason must be text, not {reason!r}")
        await self._end(workflow, id, reason, "terminated")

    async def _end(self, workflow: str, id: str, reason: str | None, what: str) -> None:
        self._steered(workflow, id, await self._store.terminate(workflow, id, reason), what)

    async def cancel(self, workflow: str, id: str, reason: str | None = None, deadline: Duration | None = None) -> None:
        payload, deadline_ms = self._requests.cancellation(reason, deadline)
        self._steered(workflow, id, await self._store.cancel(workflow, id, payload, deadline_ms), "cancelled")

    def _steered(self, workflow: str, id: str, steered: Steered, what: str) -> None:
        _refuse_terminal(self._found(workflow, id, steered.run), what)
        self._hub.touched(steered.touched)

    async def restart(self, workflow: str, id: str) -> None:
        before = await self.find(workflow, id)
        options = RunOptions.decode(before.options)
        if options.execution_ms is not None:
            options = options.ending(to_ms(self._clock.now()) + options.execution_ms)
        expires_ms, expiry = options.expiry(to_ms(self._clock.now()))
        units = (await graphs.shape(self._store, before)).units if before.kind == GRAPH else ()
        steered = await self._store.restart(workflow, id, expires_ms, expiry, options.encode(), units)
        self._found(workflow, id, steered.run)
        self._hub.touched(steered.touched)
        self._hub.signal(before.run, None)
        self._hub.ended(before.run, None)
        self._hub.work()

    async def send_event(
        self,
        workflow: str,
        id: str,
        type: str,
        payload: Any = None,
        *,
        event_id: str | None = None,
        connection: Any = None,
    ) -> InstanceStatus:
        new = self._requests.new_event(workflow, id, type, payload, id=event_id)
        sent = await self._send(new, connection)
        return self.status_of(self._after_send(workflow, id, sent))

    async def _send(self, event: NewEvent, connection: Any = None) -> Sent:
        """Send an event; a run that it wakes goes on at once in the worker here, if that has room."""
        if self.worker is None or connection is not None:
            [sent] = await self._store.send([event], connection=connection)
            return sent
        sent_or_not: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._beginning.add(sent_or_not)
        try:
            return await self.worker.send(event)
        finally:
            self._beginning.discard(sent_or_not)
            sent_or_not.set_result(None)

    def _after_send(self, workflow: str, id: str, sent: Sent) -> RunRecord:
        row = self._found(workflow, id, sent.run)
        if not sent.accepted:
            _refuse_terminal(row, "sent an event")
        if sent.woken and sent.claim is None and sent.committed is None:
            self._hub.work()
            self._hub.signal(row.run, Signal.MAIL)
        return row

    async def ask(self, workflow: str, id: str, topic: str, payload: Any, timeout: Duration | None) -> Any:
        """Send a message and wait until the run's code answers it."""
        seconds = seconds_of(timeout)
        key = self._requests.new_id()
        new = replace(self._requests.new_event(workflow, id, topic, payload, id=key), ask=key)
        row = self._after_send(workflow, id, await self._send(new))
        async with asyncio.timeout(seconds):
            reply = await self._answer(row, key)
        value = codec.plain(reply.value)
        if not reply.ok:
            raise Rejected(f"{workflow}/{id} rejected {topic!r}: {shown(value)}", value)
        return value

    async def _answer(self, row: RunRecord, key: str) -> Reply:
        """Wait for an answer: of the run that was asked, or of one that came after it and got its mail."""
        version: int | None = None
        while True:
            heard = self._hub.wait_for_answer()
            try:
                current = await self.find(row.workflow, row.instance_id)
                reply = await self._store.reply(row.run, key)
                if reply is not None:
                    return reply
                if current.status.terminal:
                    raise InstanceTerminalError(
                        f"run {row.workflow}/{row.instance_id} ended ({current.status.value}) without an answer"
                    )
                version = await self._next_change(version, heard)
            finally:
                heard.cancel()

    async def _next_change(self, version: int | None, heard: asyncio.Future[None]) -> int | None:
        """Wait until something was written, here or elsewhere."""
        changed: asyncio.Future[int] = asyncio.ensure_future(self._store.changed(version))
        either: list[asyncio.Future[Any]] = [changed, heard]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            return changed.result() if changed.done() else version
        finally:
            changed.cancel()

    # --- graphs

    async def graph(self, workflow: str, id: str) -> RunRecord:
        """The current run, which has to be one of a graph."""
        row = await self.find(workflow, id)
        if row.kind != GRAPH:
            raise InvalidOptionError(f"instance {id!r} of {workflow!r} is a {row.kind} and no graph")
        return row

    async def kill(self, workflow: str, id: str, reason: str | None = None) -> None:
        if reason is not None and not isinstance(reason, str):
            raise InvalidOptionError(f"reason must be text, not {reason!r}")
        await self.graph(workflow, id)
        await self._end(workflow, id, reason, "killed")

    async def facts(self, workflow: str, id: str, prefix: str = "") -> dict[str, Any]:
        return await graphs.facts(self._store, await self.graph(workflow, id), prefix)

    async def results(self, workflow: str, id: str) -> dict[str, Any]:
        return await graphs.results(self._store, await self.graph(workflow, id))

    async def to_mermaid(self, workflow: str, id: str) -> str:
        return await graphs.drawn(self._store, await self.graph(workflow, id))

    def drawing(self, workflow: str) -> str:
        """A registered graph as a Mermaid flowchart, without any run of it."""
        definition = self._registry.get(workflow)
        if definition.kind != GRAPH:
            raise InvalidOptionError(f"{workflow!r} is a {definition.kind} and no graph")
        return graphs.drawn_as_defined(definition)

    # --- waiting for the end

    async def ended(self, workflow: str, id: str, expected: Expected | None) -> RunRecord | Finish:
        """Wait until the instance's current run has ended."""
        if expected is not None:
            finish = await self._ends.met(expected)
            if finish is not None:
                return finish
        while True:
            row = await self.find(workflow, id)
            if row.status.terminal:
                return row
            finish = await self._ends.of(row.run)
            if finish is not None:
                return finish

    async def follow(self, workflow: str, id: str) -> AsyncIterator[LogLine]:
        """Log lines as they come, across restarts of the run, until it has ended."""
        row = await self.find(workflow, id)
        after: int | None = None
        while True:
            current = await self.find(workflow, id)
            lines = await self._store.logs(PageQuery(row.run, after=after))
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
                    self._hub.give_back(row.run, waiting)

    # --- what goes out

    async def outbox(self, workflow: str, id: str, run_number: int | None = None) -> Sequence[OutboxRecord]:
        row = await self.find(workflow, id, run_number)
        return [outbox_record(one) for one in await self._store.outbox(row.run)]

    async def redeliver(self, workflow: str, id: str, run_number: int | None = None) -> int:
        row = await self.find(workflow, id, run_number)
        parked = await self._store.outbox_retry(row.run)
        self._hub.posted()
        return parked

    # --- workers

    async def workers(self) -> Sequence[WorkerInfo]:
        return [
            WorkerInfo(
                id=row.card.id,
                host=row.card.host,
                pid=row.card.pid,
                queues=row.card.queues,
                concurrency=row.card.concurrency,
                started_at=from_ms(row.started_at),
                seen_at=from_ms(row.seen_at),
                alive=row.alive,
            )
            for row in await self._store.workers()
        ]

    # --- listing (last, because its name hides the type's)

    async def list(
        self,
        workflow: Any = None,
        *,
        status: str | None = None,
        search: Mapping[str, Any] | None = None,
        id_prefix: str | None = None,
        cursor: str | None = None,
        limit: int = 25,
        within: Sequence[Filter] = (),
    ) -> Page[InstanceSummary]:
        """A page of instances; ``within``: more filters that must be met."""
        if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= self._limits.page_size:
            raise InvalidOptionError(f"limit must be between 1 and {self._limits.page_size}, not {limit!r}")
        name = None if workflow is None else self._requests.definition(workflow).name
        before = position(cursor, "i")
        wanted = combined([Filter(status=status, search=search, id_prefix=id_prefix), *within])
        if wanted is None:
            return Page([], None)
        search_for = [Condition(*one) for one in wanted.conditions]
        rows = await self._store.list(ListQuery(name, wanted.status, before, limit + 1, search_for, wanted.id_prefix))
        more = len(rows) > limit
        items = [self._summary(row) for row in rows[:limit]]
        return Page(items, f"i{rows[limit - 1].instance}" if more else None)


def _refuse_terminal(row: RunRecord, what: str) -> None:
    if row.status.terminal:
        raise InstanceTerminalError(
            f"instance {row.instance_id!r} of {row.workflow!r} is {row.status.value} and cannot be {what}; "
            "restart begins it again"
        )


def _check_created(created: Created) -> None:
    row = created.run
    if created.answer is Answer.EXISTS:
        raise InstanceExistsError(
            f"instance {row.instance_id!r} of {row.workflow!r} exists already ({row.status.value})"
        )
    if created.answer is Answer.ENDED:
        _refuse_terminal(row, "sent messages")


def _no_instance(workflow: str, id: str) -> InstanceNotFoundError:
    return InstanceNotFoundError(f"there is no instance {id!r} of workflow {workflow!r}")
