"""Starts of runs. A run begins at once if the worker of this process has a free slot."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar, Unpack, overload

from holdfast.client.instances import Instances, refuse_terminal
from holdfast.client.local_worker import LocalWork, LocalWorker
from holdfast.core.checks import check_flag
from holdfast.core.model import Status
from holdfast.core.records import InstanceSummary
from holdfast.core.show import shown
from holdfast.errors import (
    InstanceExistsError,
    InvalidOptionError,
    LimitReachedError,
    ParamsInvalidError,
    StateError,
)
from holdfast.kernel.end_waiter import EndWaiter, ExpectedEnd
from holdfast.kernel.notify import Hub
from holdfast.kernel.requests import BATCH_OPTIONS, START_OPTIONS, BatchOptions, Requests, check_known
from holdfast.kernel.startable import StartParams
from holdfast.kernel.telemetry import Telemetry, observe
from holdfast.store.protocol import (
    FIRST_EPOCH,
    Created,
    LimitedStart,
    NewRun,
    OnConflict,
    OnReuse,
    RequestResult,
    RunRecord,
    Store,
)

R = TypeVar("R")


@dataclass(frozen=True, slots=True, init=False)
class Start(Generic[StartParams]):
    """One entry of ``app.start_many``: an id, the input, and start options as those of ``app.start``."""

    id: str
    params: StartParams
    options: Mapping[str, Any]

    @overload
    def __init__(self: Start[None], id: str, params: None = ..., **options: Unpack[BatchOptions]) -> None: ...

    @overload
    def __init__(self, id: str, params: StartParams, **options: Unpack[BatchOptions]) -> None: ...

    def __init__(self, id: str, params: Any = None, **options: Unpack[BatchOptions]) -> None:
        check_known(options, BATCH_OPTIONS)
        object.__setattr__(self, "id", id)
        object.__setattr__(self, "params", params)
        object.__setattr__(self, "options", options)


class Starts:
    """Creates runs, one at a time or in a batch."""

    def __init__(
        self,
        store: Store,
        hub: Hub,
        requests: Requests,
        instances: Instances,
        ends: EndWaiter,
        local: LocalWork,
        telemetry: Telemetry | None,
        retry_or_restart: Callable[[RunRecord], Awaitable[object]],
        declare_limits: Callable[[], Awaitable[None]],
    ) -> None:
        """``retry_or_restart``: repairs a run that has failed, for ``on_reuse="retry_if_failed"``.

        ``declare_limits``: stores the limits of the code before a start that they decide.
        """
        self._retry_or_restart = retry_or_restart
        self._declare_limits = declare_limits
        self._store = store
        self._hub = hub
        self._requests = requests
        self._instances = instances
        self._ends = ends
        self._local = local
        self._telemetry = telemetry

    async def start(
        self,
        workflow: Any,
        params: Any = None,
        *,
        eager: bool = True,
        connection: Any = None,
        **options: Any,
    ) -> tuple[RunRecord, ExpectedEnd | None]:
        check_flag("eager", eager)
        check_known(options, START_OPTIONS)
        new = self._requests.new_run(workflow, params, batch=True, **options)
        if isinstance(new.policy, LimitedStart) and connection is None:  # a caller may hold the write lock
            await self._declare_limits()
        creation = self._create(new, eager=eager) if connection is None else self._create_with(connection, new)
        created, expected = await self._observe([new], creation)
        _check_created(created)
        return created.run, expected

    def _observe(self, new: Sequence[NewRun], creation: Awaitable[R]) -> Awaitable[R]:
        return creation if self._telemetry is None else observe(self._telemetry.start_began(new), creation)

    async def _create_with(self, connection: Any, new: NewRun) -> tuple[Created, None]:
        """Create a run on the caller's connection. The run exists when the caller commits; a poll finds it then."""
        if new.on_reuse is OnReuse.RETRY_IF_FAILED:
            raise InvalidOptionError(
                "on_reuse='retry_if_failed' excludes connection: a retry is a transaction of its own"
            )
        [created] = await self._store.create([new], connection=connection)
        return created, None

    async def _create(self, new: NewRun, *, eager: bool) -> tuple[Created, ExpectedEnd | None]:
        """Create a run. With RETRY_IF_FAILED, a failed run that has its id is repaired, once."""
        created, expected = await self._create_once(new, eager=eager)
        if new.on_reuse is OnReuse.RETRY_IF_FAILED and not created.created and _has_failed(created.run):
            with suppress(StateError):  # another call has repaired the run meanwhile
                await self._retry_or_restart(created.run)
            again = replace(new, on_conflict=OnConflict.USE_EXISTING)  # the repaired run is no conflict
            created, expected = await self._create_once(again, eager=eager)  # delivers the start events
        return created, expected

    async def _create_once(self, new: NewRun, *, eager: bool) -> tuple[Created, ExpectedEnd | None]:
        """Create a run. If a worker of this process has a free slot, the run is created claimed and begins at once."""
        worker = self._local.worker if eager and not new.delay_ms and new.policy is None else None
        slots = 0 if worker is None else worker.reserve(new)
        if worker is None or not slots:
            [created] = await self._store.create([new])
            self._after_create(created)
            self._hub.work()
            return created, None
        version = self._hub.store_version
        try:
            [created] = await self._store.create([new])
        except asyncio.CancelledError:
            # The run may have been created claimed. It must begin here, because no other worker claims it.
            self._local.run_in_background(self._begin_after_cancellation(new, worker, slots))
            raise
        except BaseException:
            worker.cancel_reservation(slots)
            raise
        self._after_create(created)
        if not created.created:
            worker.cancel_reservation(slots)
            return created, None
        expected = self._ends.expect(created.run.run, version)
        worker.begin(created, slots, new.plan)
        return created, expected

    def _after_create(self, created: Created) -> None:
        if created.affected is not None:
            self._hub.affected(created.affected)
        if created.run.expires_at is not None:
            self._hub.work(created.run.expires_at)

    async def _begin_after_cancellation(self, new: NewRun, worker: LocalWorker, slots: int) -> None:
        """Create a run again after its creation was cancelled, and begin it if this worker owns it."""
        with worker.noting_ends() as ended:
            try:
                [created] = await self._store.create([new])
            except BaseException:
                worker.cancel_reservation(slots)
                raise
            run = created.run
            # A turn that another caller began may have ended after the run was read, and must not be repeated.
            if run.owner == worker.id and run.started_at is None and run.run not in ended:
                worker.begin(replace(created, epoch=FIRST_EPOCH), slots)
            else:
                worker.cancel_reservation(slots)

    async def start_many(self, workflow: str, starts: Iterable[Start[Any]]) -> Sequence[RunRecord]:
        """Start many runs in one transaction, without ids that exist or repeat; an invalid entry prevents all.

        Failed runs that an entry retries are repaired after that transaction, one at a time.
        """
        return await self._create_many([self._entry(workflow, start) for start in starts])

    def _entry(self, workflow: str, start: Start[Any]) -> NewRun:
        if not isinstance(start, Start):
            raise InvalidOptionError(f"start_many takes a list of Start(id, params), not {shown(start)}")
        return self._requests.new_run(workflow, start.params, id=start.id, **start.options)

    async def create(
        self, workflow: Any, params: Any = None, *, id: str | None = None, **options: Any
    ) -> InstanceSummary:
        """Start a run whose id must be new, unless the options say otherwise; returns the instance."""
        batched = self._requests.definition(workflow).batch is not None
        chosen = batched or options.get("dedupe") is not None or options.get("debounce") is not None
        refusing = {} if chosen else {"on_conflict": "fail", "on_reuse": "reject"}
        new = self._requests.new_run(workflow, params, id=id, batch=True, **{**refusing, **options})
        if isinstance(new.policy, LimitedStart):
            await self._declare_limits()
        created, expected = await self._observe([new], self._create(new, eager=True))
        if expected is not None:
            expected.end.cancel()  # this caller does not wait for the end
        _check_created(created)
        return self._instances.summary(created.run)

    async def create_many(self, workflow: Any, starts: Sequence[Start[Any]]) -> list[InstanceSummary]:
        """As ``start_many``, but returns the created instances. Errors name the index of the invalid entry."""
        rows = await self._create_many(
            [self._indexed_run(workflow, index, start) for index, start in enumerate(starts)]
        )
        return [self._instances.summary(row) for row in rows]

    async def _create_many(self, new: Sequence[NewRun]) -> Sequence[RunRecord]:
        created = await self._observe(new, self._store.create(new)) if new else []
        self._hub.work()
        rows = [one.run for one in created if one.created]
        for request, one in zip(new, created, strict=True):
            repairs = request.on_reuse is OnReuse.RETRY_IF_FAILED and not one.created and _has_failed(one.run)
            if repairs and all(row.instance != one.run.instance for row in rows):  # not a repeated id
                repaired, _ = await self._create(request, eager=False)
                rows.append(repaired.run)
        return rows

    def _indexed_run(self, workflow: Any, index: int, start: Start[Any]) -> NewRun:
        try:
            return self._requests.new_run(workflow, start.params, id=start.id, **start.options)
        except ParamsInvalidError as error:
            issues = [issue | {"path": [index, *issue["path"]]} for issue in error.issues]
            raise ParamsInvalidError(f"entry {index}: {error}", issues) from None


def _has_failed(run: RunRecord) -> bool:
    return run.status.terminal and run.status is not Status.COMPLETE


def _check_created(created: Created) -> None:
    row = created.run
    if created.result is RequestResult.EXISTS:
        raise InstanceExistsError(
            f"instance {row.instance_id!r} of {row.workflow!r} exists already ({row.status.value})"
        )
    if created.result is RequestResult.ENDED:
        refuse_terminal(row, "sent messages")
    if created.result is RequestResult.LIMITED:
        raise LimitReachedError(f"a run of {row.workflow!r} was not started: {row.note}")
