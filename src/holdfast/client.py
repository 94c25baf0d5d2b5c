"""Runs from outside: start them, look at them, steer them. Reaches them only through the store.

``Handle`` is what users hold; ``Client`` makes handles. Neither knows how a run is executed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

from holdfast.core import codec, durations, history
from holdfast.core.attributes import condition
from holdfast.core.durations import Duration
from holdfast.core.failure import Failure
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
    Status,
    StepRecord,
    WorkerInfo,
    from_ms,
    optional_from_ms,
    to_ms,
)
from holdfast.core.names import check_instance_id
from holdfast.core.show import shown
from holdfast.errors import (
    ErrorInfo,
    InstanceExistsError,
    InstanceNotFoundError,
    InstanceTerminalError,
    InvalidCursorError,
    InvalidOptionError,
    ParamsInvalidError,
    Rejected,
    RunCancelledError,
    RunFailedError,
    RunTerminatedError,
)
from holdfast.kernel.definition import Definition, Registry
from holdfast.kernel.ends import Ends, Expected
from holdfast.kernel.notify import Hub
from holdfast.kernel.options import RunOptions
from holdfast.kernel.requests import START_OPTIONS, Requests, check_known
from holdfast.ports import Clock
from holdfast.store.protocol import (
    ANY_TOPIC,
    FIRST_EPOCH,
    Answer,
    Claim,
    Claimant,
    Condition,
    Created,
    Finish,
    ListQuery,
    Mail,
    NewEvent,
    NewRun,
    PageQuery,
    Relations,
    Reply,
    RunRecord,
    Sent,
    Signal,
    Steered,
    Store,
    StoredLog,
    Watch,
)

R = TypeVar("R", covariant=True)
T = TypeVar("T")

_CURSOR_DIGITS = 18
_SHOWN = 5
"""How many runs a sentence names."""
_LAST_POSITION = 10**_CURSOR_DIGITS - 1


class LocalWorker(Protocol):
    """What a client wants of a worker in its own process: to begin a new run at once."""

    id: str
    lease_ms: int

    def reserve(self, workflow: str, queue: str) -> bool: ...

    def begin(self, created: Created) -> None: ...

    def claimant(self, workflow: str) -> Claimant | None: ...

    def take(self, claim: Claim) -> None: ...

    def cancel_reservation(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Start:
    """One entry of ``app.start_many``."""

    id: str
    params: Any = None


@dataclass(frozen=True, slots=True)
class HistoryQuery:
    """Which page of a run's history: each list has a cursor of its own."""

    limit: int = 25
    descending: bool = False
    steps_cursor: str | None = None
    events_cursor: str | None = None
    include_logs: bool = False
    logs_cursor: str | None = None
    level: str | None = None
    category: str | None = None


@dataclass(frozen=True, slots=True)
class Part(Generic[T]):
    """A page of one list of a run. ``cursor`` points behind its last entry, also when no more are there yet."""

    items: list[T]
    cursor: str
    more: bool


@dataclass(frozen=True, slots=True)
class HistoryPage:
    run_number: int
    steps: Part[StepRecord]
    events: Part[EventRecord]
    logs: Part[LogLine] | None


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
        self._beginning: set[asyncio.Task[Any]] = set()

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
        if worker is None or not worker.reserve(new.workflow, new.queue):
            [created] = await self._store.create([new])
            self._after_create(created)
            self._hub.work()
            return created, None
        new.owner, new.lease_ms = worker.id, worker.lease_ms
        try:
            [created] = await self._store.create([new])
        except asyncio.CancelledError:
            # Born claimed, it must begin here even if the caller stops waiting: nobody else would take it.
            task = asyncio.ensure_future(self._begin_anyway(new, worker))
            self._beginning.add(task)
            task.add_done_callback(self._beginning.discard)
            raise
        except BaseException:
            worker.cancel_reservation()
            raise
        self._after_create(created)
        if not created.created:
            worker.cancel_reservation()
            return created, None
        expected = self._ends.expect(created.run.run)
        worker.begin(created)
        return created, expected

    def _after_create(self, created: Created) -> None:
        if created.touched is not None:
            self._hub.touched(created.touched)
        if created.run.expires_at is not None:
            self._hub.work(created.run.expires_at)

    async def _begin_anyway(self, new: NewRun, worker: LocalWorker) -> None:
        """Begin a run whose creation was cut off, made or not."""
        try:
            [created] = await self._store.create([new])
        except BaseException:
            worker.cancel_reservation()
            raise
        if created.run.owner == worker.id and created.run.started_at is None:
            worker.begin(replace(created, epoch=FIRST_EPOCH))
        else:
            worker.cancel_reservation()

    async def start_many(self, workflow: Any, starts: Iterable[Start]) -> list[Handle[Any]]:
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

    async def create_many(self, workflow: Any, starts: Sequence[Start]) -> list[InstanceSummary]:
        """As ``start_many``, answering the instances that were made. What does not fit is named by its place."""
        new = [self._numbered_run(workflow, place, start) for place, start in enumerate(starts)]
        created = await self._store.create(new) if new else []
        self._hub.work()
        return [self._summary(c.run) for c in created if c.created]

    def _numbered_run(self, workflow: Any, place: int, start: Start) -> NewRun:
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
            raise InstanceNotFoundError(f"there is no instance {id!r} of workflow {workflow!r}")
        return record

    def _summary(self, row: RunRecord) -> InstanceSummary:
        return InstanceSummary(row.instance_id, row.workflow, self.status_of(row), from_ms(row.created_at))

    def status_of(self, row: RunRecord) -> InstanceStatus:
        """Its output is plain JSON: reading a status never depends on the types a program has today."""
        return InstanceStatus(row.status.value, _error(row), codec.plain(row.output))

    # --- one instance

    async def describe(self, workflow: str, id: str) -> InstanceDescription:
        row = await self.find(workflow, id)
        facts = await self._store.facts(row.run)
        relations = await self._store.relations(row.run)
        before = await self._store.find(workflow, id, row.number - 1) if _waits_for_start(row) else None
        steps = history.steps_of(row.number, facts, {})
        updated = max([row.updated_at, *(f.at for f in facts)])
        return InstanceDescription(
            id=id,
            workflow_name=workflow,
            kind=row.kind,
            status=row.status.value,
            error=_error(row),
            output=codec.plain(row.output),
            run_number=row.number,
            params=codec.plain(row.params),
            created_at=from_ms(row.created_at),
            updated_at=from_ms(updated),
            started_at=optional_from_ms(row.started_at),
            completed_at=optional_from_ms(row.completed_at),
            current_step=history.current_step(steps),
            why=self._why(row, steps, relations) + _after(before) + _linked(row, relations),
            memo=codec.plain(row.memo) or {},
            search=codec.plain(row.search) or {},
            parent=row.parent,
            children=[ChildRecord(child.pid, child.status.value) for child in relations.children],
            links=[pid for pid, watch in relations.watches if watch & Watch.LINK],
            monitors=[pid for pid, watch in relations.watches if watch & Watch.MONITOR],
            attempt=row.attempt,
            summary=RunOptions.decode(row.options).summary,
        )

    def _why(self, row: RunRecord, steps: Sequence[StepRecord], relations: Relations) -> str:
        now = to_ms(self._clock.now())
        if row.status.terminal:
            return _why_ended(row)
        if row.pausing:
            return "a pause was asked for; it takes effect when the step in flight has ended"
        if row.status is Status.PAUSED:
            return f"paused: {row.note}" if row.note else "paused by a person; resume it to go on"
        waiting = "; ".join(filter(None, (history.why_waiting(list(steps), now), _awaited(row, steps, now))))
        if row.owner is not None:
            return waiting or "running workflow code or its first step"
        if waiting and (row.run_at is None or row.run_at > now):
            return waiting
        if row.run_at is None and relations.watches:
            return f"waiting for {_watched(relations)} to end, or for a cancellation"
        if row.run_at is None:
            return "waiting for something inside the workflow that nothing outside will bring about"
        if row.run_at > now:
            return _why_later(row)
        if row.workflow not in self._registry.runnable():
            return f"due, but this process has no workflow {row.workflow!r} registered; a worker that has must take it"
        return f"due, and waiting for a worker of queue {row.queue!r}"

    async def history(self, workflow: str, id: str, run_number: int | None = None) -> History:
        current = await self.find(workflow, id)
        number = current.number if run_number is None else run_number
        row = current if number == current.number else await self._store.find(workflow, id, number)
        if row is None:
            return History(number, [], [])
        facts = await self._store.facts(row.run)
        mail = await self._store.events(PageQuery(row.run))
        payloads = {m.n: _event_value(m) for m in mail}
        return History(number, history.steps_of(number, facts, payloads), [_event(number, m) for m in mail])

    async def history_page(self, workflow: str, id: str, run_number: int | None, query: HistoryQuery) -> HistoryPage:
        """A page of one run's steps, events and, if asked for, logs. A run that never was has empty ones."""
        positions = _Positions.of(query)
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
            payloads = {n: _event_value(mail) for n, mail in snapshot.mail.items()}
            steps = history.steps_of(row.number, snapshot.facts, payloads)
        numbered = [*enumerate(steps, 1)]  # in the order they began: later ones come after
        if query.descending:
            return _part([one for one in reversed(numbered) if one[0] < after], "s", query.limit, after)
        return _part([one for one in numbered if one[0] > after], "s", query.limit, after)

    async def _events_part(
        self, row: RunRecord | None, number: int, query: HistoryQuery, after: int
    ) -> Part[EventRecord]:
        mail = [] if row is None else await self._store.events(_page_query(row, query, after))
        return _part([(m.n, _event(number, m)) for m in mail], "e", query.limit, after)

    async def _logs_part(self, row: RunRecord | None, number: int, query: HistoryQuery, after: int) -> Part[LogLine]:
        lines: Sequence[StoredLog] = []
        if row is not None:
            filters = replace(_page_query(row, query, after), level=query.level, category=query.category)
            lines = await self._store.logs(filters)
        return _part([(line.n, _log_line(number, line)) for line in lines], "l", query.limit, after)

    async def logs(
        self,
        row: RunRecord,
        *,
        level: str | None = None,
        category: str | None = None,
        after: int | None = None,
    ) -> list[LogLine]:
        if level is not None:
            level = _check_choice("level", "warn" if level == "warning" else level, [v.value for v in Level])
        lines = await self._store.logs(PageQuery(row.run, after=after, level=level, category=category))
        return [_log_line(row.number, line) for line in lines]

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
        self._steered(workflow, id, await self._store.terminate(workflow, id, reason), "terminated")

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
        steered = await self._store.restart(workflow, id, expires_ms, expiry, options.encode())
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
        worker = self.worker if connection is None else None
        claimant = worker.claimant(event.workflow) if worker is not None else None
        if worker is None or claimant is None:
            [sent] = await self._store.send([event], connection=connection)
            return sent
        # Once it is claimed it has to go on, also when the caller stops waiting.
        sending = asyncio.ensure_future(self._send_and_take(replace(event, claimant=claimant), worker))
        self._beginning.add(sending)
        sending.add_done_callback(self._beginning.discard)
        return await asyncio.shield(sending)

    async def _send_and_take(self, event: NewEvent, worker: LocalWorker) -> Sent:
        claim = None
        try:
            [sent] = await self._store.send([event])
            claim = sent.claim
        finally:
            if claim is None:
                worker.cancel_reservation()
        if claim is not None:
            worker.take(claim)
        return sent

    def _after_send(self, workflow: str, id: str, sent: Sent) -> RunRecord:
        row = self._found(workflow, id, sent.run)
        if not sent.accepted:
            _refuse_terminal(row, "sent an event")
        if sent.woken and sent.claim is None:
            self._hub.work()
            self._hub.signal(row.run, Signal.MAIL)
        return row

    async def ask(self, workflow: str, id: str, topic: str, payload: Any, timeout: Duration | None) -> Any:
        """Send a message and wait until the run's code answers it."""
        seconds = _seconds(timeout)
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
                if reply is None and current.run != row.run:
                    reply = await self._store.reply(current.run, key)
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
                yield _log_line(row.number, line)
            if current.run != row.run:
                row, after = current, None
            elif current.status.terminal:
                return
            else:
                waiting = self._hub.wait(row.run)
                await asyncio.wait([waiting], timeout=0.1)
                waiting.cancel()

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
        cursor: str | None = None,
        limit: int = 25,
    ) -> Page[InstanceSummary]:
        if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= self._limits.page_size:
            raise InvalidOptionError(f"limit must be between 1 and {self._limits.page_size}, not {limit!r}")
        name = None if workflow is None else self._requests.definition(workflow).name
        query = ListQuery(name, _status(status), _position(cursor, "i"), limit + 1, _conditions(search))
        rows = await self._store.list(query)
        more = len(rows) > limit
        items = [self._summary(row) for row in rows[:limit]]
        return Page(items, f"i{rows[limit - 1].instance}" if more else None)


class Handle(Generic[R]):
    """One instance, from outside. Holding one costs nothing; two handles of the same id are the same instance."""

    def __init__(
        self,
        client: Client,
        definition: Definition,
        id: str,
        expected: Expected | None = None,
    ) -> None:
        self._client = client
        self._definition = definition
        self._expected = expected
        self.id = id
        self.workflow = definition.name

    def __repr__(self) -> str:
        return f"<Handle {self.pid}>"

    @property
    def pid(self) -> str:
        return f"{self.workflow}/{self.id}"

    async def result(self, timeout: Duration | None = None) -> R:
        """Wait for the end and return the decoded output.

        Raises ``RunFailedError``, ``RunTerminatedError`` or ``RunCancelledError`` when it ended otherwise, and
        ``TimeoutError`` when the wait, not the run, took too long.
        """
        async with asyncio.timeout(_seconds(timeout)):
            end = await self._client.ended(self.workflow, self.id, self._expected)
        if end.status is Status.COMPLETE:
            return self._definition.decode_output(codec.plain(end.output))  # type: ignore[no-any-return]
        raise _run_error(self.pid, end)

    async def status(self) -> InstanceStatus:
        return self._client.status_of(await self._client.find(self.workflow, self.id))

    async def describe(self) -> InstanceDescription:
        return await self._client.describe(self.workflow, self.id)

    async def pause(self) -> None:
        """Stop before more workflow code runs; a step in flight is kept. Timers go on counting."""
        await self._client.pause(self.workflow, self.id)

    async def resume(self) -> None:
        """Go on; of a run that is not paused: nothing."""
        await self._client.resume(self.workflow, self.id)

    async def terminate(self, reason: str | None = None) -> None:
        """End it now, for good; nothing in flight can overwrite that."""
        await self._client.terminate(self.workflow, self.id, reason)

    async def cancel(self, reason: str | None = None, deadline: Duration | None = None) -> None:
        """Ask it to cancel: its code gets ``CancelledError`` and may clean up. At the deadline it is terminated."""
        await self._client.cancel(self.workflow, self.id, reason, deadline)

    async def ask(self, topic: str, payload: Any = None, timeout: Duration | None = None) -> Any:
        """Send a message and wait for the answer that the run's code gives by ``msg.reply``.

        Raises ``Rejected`` on ``msg.reject``, ``TimeoutError`` when none came in time, ``InstanceTerminalError`` when
        the run ended without one.
        """
        return await self._client.ask(self.workflow, self.id, topic, payload, timeout)

    async def restart(self) -> None:
        """Begin again from the start under the next run number; the old run stays readable."""
        await self._client.restart(self.workflow, self.id)
        self._expected = None

    async def send_event(
        self, type: str, payload: Any = None, *, id: str | None = None, connection: Any = None
    ) -> None:
        """Send an event; it waits for a ``wait_for_event`` of its type. The same ``id`` twice is delivered once.

        ``connection``: your own to the same database; the event is sent when its transaction commits.
        """
        await self._client.send_event(self.workflow, self.id, type, payload, event_id=id, connection=connection)

    async def history(self, run_number: int | None = None) -> History:
        return await self._client.history(self.workflow, self.id, run_number)

    async def logs(self, level: str | None = None, category: str | None = None) -> list[LogLine]:
        row = await self._client.find(self.workflow, self.id)
        return await self._client.logs(row, level=level, category=category)

    def follow_logs(self) -> AsyncIterator[LogLine]:
        """Log lines as they come; ends with the run."""
        return self._client.follow(self.workflow, self.id)


# --- shapes


def _seconds(timeout: Duration | None) -> float | None:
    return None if timeout is None else durations.to_ms(timeout, "timeout") / 1000


def _run_error(pid: str, end: RunRecord | Finish) -> Exception:
    if end.status is Status.TERMINATED:
        reason = end.note or "no reason given"
        return RunTerminatedError(f"run {pid} was terminated ({reason})", ErrorInfo("Terminated", reason))
    info = Failure.decode(end.error).info if end.error else ErrorInfo("Unknown", "no error was recorded")
    if end.status is Status.CANCELLED:
        return RunCancelledError(f"run {pid} was cancelled: {info.message}", info)
    return RunFailedError(f"run {pid} failed with {info.name}: {info.message}", info)


def _error(row: RunRecord) -> ErrorInfo | None:
    return None if row.error is None else Failure.decode(row.error).info


def _why_ended(row: RunRecord) -> str:
    error = _error(row)
    if error is not None:
        return f"{row.status.value}: {error.name}: {error.message}"
    return f"{row.status.value}: {row.note}" if row.note else row.status.value


def _why_later(row: RunRecord) -> str:
    """It is due in a while, and has no step that says why."""
    when = f"{from_ms(row.run_at or 0):%Y-%m-%d %H:%M:%S} UTC"
    if row.started_at is not None:
        return f"due at {when}"
    if row.attempt > 1:
        return f"waiting for attempt {row.attempt} of the workflow at {when}"
    return f"waiting for its start at {when}"


def _awaited(row: RunRecord, steps: Sequence[StepRecord], now: int) -> str:
    """The messages that the code waits for, as far as it does not by steps."""
    topics = sorted(row.topics - {step.wait_event_type for step in steps})
    if not topics or row.owner is not None:
        return ""
    since = durations.describe(max(0, now - row.updated_at))
    if ANY_TOPIC in topics:
        return f"waiting for a message since {since}"
    return f"waiting for message {' or '.join(map(repr, topics))} since {since}"


def _waits_for_start(row: RunRecord) -> bool:
    return row.number > 0 and row.started_at is None and not row.status.terminal


def _after(before: RunRecord | None) -> str:
    """How the last attempt, or the last tick of a schedule, came out."""
    return "" if before is None else f"; run {before.number} was {_why_ended(before)}"


def _watched(relations: Relations) -> str:
    pids = [pid for pid, _ in relations.watches]
    return ", ".join(pids[:_SHOWN]) + (" …" if len(pids) > _SHOWN else "")


def _linked(row: RunRecord, relations: Relations) -> str:
    links = [pid for pid, watch in relations.watches if watch & Watch.LINK][:_SHOWN]
    return f"; linked to {', '.join(links)}" if links and not row.status.terminal else ""


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


def _check_choice(name: str, value: Any, choices: Sequence[str]) -> str:
    if value not in choices:
        raise InvalidOptionError(f"{name} must be one of {', '.join(choices)}, not {value!r}")
    return str(value)


def _conditions(search: Mapping[str, Any] | None) -> Sequence[Condition]:
    if search is None:
        return ()
    if not isinstance(search, Mapping):
        raise InvalidOptionError(f"search must be a mapping of names to values, not {shown(search)}")
    return [Condition(*condition(key, asked)) for key, asked in search.items()]


def _status(value: str | None) -> Status | None:
    if value is None:
        return None
    return Status(_check_choice("status", value, [s.value for s in Status]))


def _position(cursor: str | None, letter: str) -> int | None:
    """What a cursor points at; ``letter`` says of which list it is."""
    if cursor is None:
        return None
    number = cursor[1:] if isinstance(cursor, str) and cursor.startswith(letter) else ""
    if not (number.isascii() and number.isdigit() and len(number) <= _CURSOR_DIGITS):
        raise InvalidCursorError(f"{shown(cursor)} is not a cursor that this list returned")
    return int(number)


@dataclass(frozen=True, slots=True)
class _Positions:
    """Behind which entry each list of a history goes on."""

    steps: int
    events: int
    logs: int

    @classmethod
    def of(cls, query: HistoryQuery) -> _Positions:
        first = _LAST_POSITION if query.descending else 0
        given = (query.steps_cursor, "s"), (query.events_cursor, "e"), (query.logs_cursor, "l")
        found = [_position(*one) for one in given]
        return cls(*(first if one is None else one for one in found))


def _page_query(row: RunRecord, query: HistoryQuery, after: int) -> PageQuery:
    """One more than the page shows, to know whether there is one."""
    return PageQuery(row.run, after=after, limit=query.limit + 1, descending=query.descending)


def _part(entries: Sequence[tuple[int, T]], letter: str, limit: int, after: int) -> Part[T]:
    page = entries[:limit]
    last = page[-1][0] if page else after
    return Part([item for _, item in page], f"{letter}{last}", len(entries) > limit)


def _event_value(mail: Mail) -> dict[str, Any]:
    return {"type": mail.type, "payload": codec.plain(mail.payload), "timestamp": _iso(mail.created_at)}


def _iso(ms: int) -> str:
    return from_ms(ms).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _event(number: int, mail: Mail) -> EventRecord:
    return EventRecord(
        id=f"{number}:{mail.n}",
        run_number=number,
        type=mail.type,
        payload=codec.plain(mail.payload),
        created_at=from_ms(mail.created_at),
        delivered_at=optional_from_ms(mail.delivered_at),
        consumed_by_step_key=mail.consumed_by,
        sender=mail.sender,
    )


def _log_line(number: int, stored: StoredLog) -> LogLine:
    line = stored.line
    return LogLine(
        id=f"{number}:{stored.n}",
        run_number=number,
        step_key=line.step_key,
        attempt=line.attempt,
        level=line.level,
        category=line.category,
        message=line.message,
        data=codec.plain(line.data),
        is_replay=line.is_replay,
        created_at=from_ms(line.at),
    )
