"""``SyncClient``: an app for programs without an event loop, such as scripts, Flask or Django views.

The client opens the app on an event loop in a thread of its own. Each call of a method submits the coroutine of the
method of the same name to that loop and waits for its result, so any number of threads may use one client. The methods
are made from the async ones and keep their signatures; nothing is implemented twice.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, ParamSpec, Protocol, TypeVar, Unpack, overload

from holdfast.app_views import AppViews
from holdfast.client import Handle, Start
from holdfast.client.bulk import Bulk
from holdfast.client.loop_thread import LoopThread
from holdfast.client.schedules import Schedules
from holdfast.core.actor import acting_as
from holdfast.core.durations import Duration
from holdfast.core.filters import Filter
from holdfast.core.records import LogLine
from holdfast.core.stream_records import StreamItem
from holdfast.errors import AppClosedError
from holdfast.kernel.requests import StartOptions
from holdfast.kernel.startable import Startable

if TYPE_CHECKING:
    from types import TracebackType

    from holdfast.client.bulk import BulkResult
    from holdfast.graph.progress import Advancement

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class AsyncApp(Protocol):
    """The parts of ``Holdfast`` that a blocking client uses."""

    def connect(self) -> AbstractAsyncContextManager[Any]: ...

    async def __aenter__(self) -> Any: ...

    async def __aexit__(self, *error: object) -> None: ...

    @property
    def start(self) -> Callable[..., Coroutine[Any, Any, Handle[Any]]]: ...

    @property
    def start_many(self) -> Callable[..., Coroutine[Any, Any, list[Handle[Any]]]]: ...

    @property
    def get(self) -> Callable[..., Coroutine[Any, Any, Handle[Any]]]: ...

    async def tick(self, *, max_instances: int | None = None, max_steps: int | None = None) -> int: ...

    async def advance(self, run: Handle[Any]) -> Advancement: ...

    def bulk(
        self, filter: Filter, *, rate: float | None = None, progress: Callable[[BulkResult], None] | None = None
    ) -> Bulk: ...

    @property
    def schedules(self) -> Schedules: ...


def _of_handle(
    method: Callable[Concatenate[Handle[Any], P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[SyncHandle[Any], P], T]:
    """The blocking form of a method of ``Handle``."""

    def blocking(handle: SyncHandle[Any], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return handle._thread.call(method(handle._handle, *args, **kwargs))

    update_wrapper(blocking, method)
    return blocking


def _of_app(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[SyncClient, P], T]:
    """The blocking form of a method of the app."""

    def blocking(client: SyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return client._call(lambda: method(client._app, *args, **kwargs))

    update_wrapper(blocking, method)
    return blocking


def _of_schedules(
    method: Callable[Concatenate[Schedules, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[SyncSchedules, P], T]:
    """The blocking form of a method of ``app.schedules``."""

    def blocking(schedules: SyncSchedules, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return schedules._thread.call(method(schedules._schedules, *args, **kwargs))

    update_wrapper(blocking, method)
    return blocking


def _of_bulk(
    method: Callable[Concatenate[Bulk, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[SyncBulk, P], T]:
    """The blocking form of a method of ``Bulk``."""

    def blocking(bulk: SyncBulk, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return bulk._thread.call(method(bulk._bulk, *args, **kwargs))

    update_wrapper(blocking, method)
    return blocking


class SyncBulk:
    """Actions on all instances that match a filter, with the methods of ``Bulk`` as plain calls."""

    def __init__(self, thread: LoopThread, bulk: Bulk) -> None:
        self._thread = thread
        self._bulk = bulk

    count = _of_bulk(Bulk.count)
    sample = _of_bulk(Bulk.sample)
    pause = _of_bulk(Bulk.pause)
    resume = _of_bulk(Bulk.resume)
    cancel = _of_bulk(Bulk.cancel)
    terminate = _of_bulk(Bulk.terminate)
    restart = _of_bulk(Bulk.restart)
    retry = _of_bulk(Bulk.retry)
    fork = _of_bulk(Bulk.fork)
    move = _of_bulk(Bulk.move)
    send_event = _of_bulk(Bulk.send_event)
    delete = _of_bulk(Bulk.delete)


class SyncSchedules:
    """``app.schedules`` with its methods as plain calls."""

    def __init__(self, thread: LoopThread, schedules: Schedules) -> None:
        self._thread = thread
        self._schedules = schedules

    def trigger(self, name: str, *, reason: str | None = None) -> SyncHandle[Any]:
        """Start a run now, whether or not the schedule is paused or another run of it is open."""
        return SyncHandle(self._thread, self._thread.call(self._schedules.trigger(name, reason=reason)))

    list = _of_schedules(Schedules.list)
    page = _of_schedules(Schedules.page)
    get = _of_schedules(Schedules.get)
    preview = _of_schedules(Schedules.preview)
    create = _of_schedules(Schedules.create)
    update = _of_schedules(Schedules.update)
    pause = _of_schedules(Schedules.pause)
    resume = _of_schedules(Schedules.resume)
    delete = _of_schedules(Schedules.delete)
    backfill = _of_schedules(Schedules.backfill)


class SyncHandle(Generic[R]):
    """A reference to one instance, with the methods of ``Handle`` as plain calls."""

    def __init__(self, thread: LoopThread, handle: Handle[R]) -> None:
        self._thread = thread
        self._handle = handle

    def __repr__(self) -> str:
        return f"<SyncHandle {self.pid}>"

    @property
    def id(self) -> str:
        return self._handle.id

    @property
    def workflow(self) -> str:
        return self._handle.workflow

    @property
    def pid(self) -> str:
        return self._handle.pid

    def result(self, timeout: Duration | None = None) -> R:
        """Wait for the end of the run and return the decoded output; raises the errors of ``Handle.result``."""
        return self._thread.call(self._handle.result(timeout))

    def send_event(self, type: str, payload: Any = None, *, id: str | None = None, connection: Any = None) -> None:
        """Send an event; options as in ``Handle.send_event``."""
        self._thread.call_lending(
            connection, lambda lent: self._handle.send_event(type, payload, id=id, connection=lent)
        )

    def fork(self, *, before: str, **options: Any) -> SyncHandle[R]:
        """Start a new instance with the recorded history before step ``before``; options as in ``Handle.fork``."""
        return SyncHandle(self._thread, self._thread.call(self._handle.fork(before=before, **options)))

    def follow_logs(self) -> Iterator[LogLine]:
        """Iterate over log lines as they are written, until the run has ended."""
        lines = self._handle.follow_logs()
        while (line := self._thread.call(_next(lines))) is not None:
            yield line

    def stream(
        self, name: str, after: int = 0, attempts: Literal["successful", "all"] = "successful", *,
        run_number: int | None = None,
    ) -> Iterator[StreamItem]:  # fmt: skip
        """Iterate over the items of a stream as ``Handle.stream`` does, until it is closed or the run has ended."""
        items = self._handle.stream(name, after, attempts, run_number=run_number)
        while (item := self._thread.call(_next(items))) is not None:
            yield item

    streams = _of_handle(Handle.streams)
    status = _of_handle(Handle.status)
    describe = _of_handle(Handle.describe)
    pause = _of_handle(Handle.pause)
    resume = _of_handle(Handle.resume)
    terminate = _of_handle(Handle.terminate)
    cancel = _of_handle(Handle.cancel)
    restart = _of_handle(Handle.restart)
    move = _of_handle(Handle.move)
    retry = _of_handle(Handle.retry)
    resolve = _of_handle(Handle.resolve)
    reply = _of_handle(Handle.reply)
    delete = _of_handle(Handle.delete)
    ask = _of_handle(Handle.ask)
    history = _of_handle(Handle.history)
    logs = _of_handle(Handle.logs)
    results = _of_handle(Handle.results)
    facts = _of_handle(Handle.facts)
    kill = _of_handle(Handle.kill)
    to_mermaid = _of_handle(Handle.to_mermaid)
    outbox = _of_handle(Handle.outbox)
    redeliver = _of_handle(Handle.redeliver)
    stack = _of_handle(Handle.stack)
    replay = _of_handle(Handle.replay)
    export = _of_handle(Handle.export)


async def _next(lines: AsyncIterator[T]) -> T | None:
    return await anext(lines, None)


class SyncClient:
    """An app as a blocking client: a context manager, or ``open`` and ``close``.

    Example::

        with app.sync() as client:
            run = client.start(fulfil, Order("o-1", 125))
            print(run.result(timeout="1 minute"))
    """

    def __init__(self, app: AsyncApp, *, worker: bool = False) -> None:
        self._app = app
        self._worker = worker
        self._thread: LoopThread | None = None
        self._opened: AbstractAsyncContextManager[Any] | None = None

    def __enter__(self) -> SyncClient:
        self.open()
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self.close()

    def open(self) -> None:
        """Open the app on an event loop in a thread of its own."""
        if self._thread is not None:
            raise AppClosedError("this client is open already")
        thread = LoopThread()
        opened: AbstractAsyncContextManager[Any] = self._app if self._worker else self._app.connect()
        try:
            thread.call(_enter(opened))
        except BaseException:
            thread.stop()
            raise
        self._thread, self._opened = thread, opened

    def close(self) -> None:
        """Close the app and end the thread. No effect on a closed client."""
        thread, opened = self._thread, self._opened
        self._thread = self._opened = None
        if thread is not None and opened is not None:
            try:
                thread.call(_leave(opened))
            finally:
                thread.stop()

    def _running(self) -> LoopThread:
        if self._thread is None:
            raise AppClosedError("this client is closed; use it inside `with app.sync() as client:`")
        return self._thread

    def _call(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        thread = self._running()
        return thread.call(make())

    @overload
    def start(
        self,
        workflow: Startable[None, R],
        params: None = ...,
        *,
        connection: Any = ...,
        **options: Unpack[StartOptions],
    ) -> SyncHandle[R]: ...

    @overload
    def start(
        self, workflow: Startable[T, R], params: T, *, connection: Any = ..., **options: Unpack[StartOptions]
    ) -> SyncHandle[R]: ...

    @overload
    def start(
        self, workflow: str, params: Any = ..., *, connection: Any = ..., **options: Unpack[StartOptions]
    ) -> SyncHandle[Any]: ...

    def start(self, workflow: Any, params: Any = None, **options: Any) -> SyncHandle[Any]:
        """Start a run; returns once it is durable. Options as in ``app.start``."""
        thread, connection = self._running(), options.pop("connection", None)
        started = thread.call_lending(
            connection, lambda lent: self._app.start(workflow, params, connection=lent, **options)
        )
        return SyncHandle(thread, started)

    @overload
    def start_many(self, workflow: Startable[T, R], starts: Iterable[Start[T]]) -> list[SyncHandle[R]]: ...

    @overload
    def start_many(self, workflow: str, starts: Iterable[Start[Any]]) -> list[SyncHandle[Any]]: ...

    def start_many(self, workflow: Any, starts: Iterable[Start[Any]]) -> list[SyncHandle[Any]]:
        """Start a batch in one transaction; the result omits ids that exist and repeated ids."""
        thread = self._running()
        return [SyncHandle(thread, run) for run in thread.call(self._app.start_many(workflow, starts))]

    @overload
    def get(self, workflow: Startable[Any, R], id: str) -> SyncHandle[R]: ...

    @overload
    def get(self, workflow: str, id: str) -> SyncHandle[Any]: ...

    def get(self, workflow: Any, id: str) -> SyncHandle[Any]:
        thread = self._running()
        return SyncHandle(thread, thread.call(self._app.get(workflow, id)))

    def tick(self, *, max_instances: int | None = None, max_steps: int | None = None) -> int:
        """Claim the due tasks once, and run each until it suspends or ends; returns the number of claimed tasks."""
        return self._call(lambda: self._app.tick(max_instances=max_instances, max_steps=max_steps))

    def advance(self, run: SyncHandle[Any]) -> Advancement:
        """Claim the ready nodes of a graph's run, and start them in this process."""
        return self._call(lambda: self._app.advance(run._handle))

    def bulk(
        self, filter: Filter, *, rate: float | None = None, progress: Callable[[BulkResult], None] | None = None
    ) -> SyncBulk:
        """Actions on all instances that match a filter; ``progress`` is called in the thread of the event loop."""
        return SyncBulk(self._running(), self._app.bulk(filter, rate=rate, progress=progress))

    def acting_as(self, actor: str) -> AbstractContextManager[None]:
        """Name the actor of the control requests in a ``with`` block, for their audit records."""
        return acting_as(actor)

    @property
    def schedules(self) -> SyncSchedules:
        """The stored schedules, with the methods of ``app.schedules`` as plain calls."""
        return SyncSchedules(self._running(), self._app.schedules)

    list = _of_app(AppViews.list)
    audit = _of_app(AppViews.audit)
    workers = _of_app(AppViews.workers)
    versions = _of_app(AppViews.versions)
    stats = _of_app(AppViews.stats)
    metrics_text = _of_app(AppViews.metrics_text)
    list_limits = _of_app(AppViews.list_limits)
    set_limit = _of_app(AppViews.set_limit)
    queues = _of_app(AppViews.queues)
    pause_queue = _of_app(AppViews.pause_queue)
    resume_queue = _of_app(AppViews.resume_queue)
    drain_queue = _of_app(AppViews.drain_queue)
    move_queue = _of_app(AppViews.move_queue)
    drain_worker = _of_app(AppViews.drain_worker)
    resume_worker = _of_app(AppViews.resume_worker)


async def _enter(opened: AbstractAsyncContextManager[Any]) -> None:
    await opened.__aenter__()


async def _leave(opened: AbstractAsyncContextManager[Any]) -> None:
    await opened.__aexit__(None, None, None)
