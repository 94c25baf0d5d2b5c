"""``SyncClient``: an app for programs without an event loop, such as scripts, Flask or Django views.

The client opens the app on an event loop in a thread of its own. Each call of a method submits the coroutine of the
method of the same name to that loop and waits for its result, so any number of threads may use one client. The methods
are made from the async ones and keep their signatures; nothing is implemented twice.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from contextvars import Context, copy_context
from functools import update_wrapper
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, ParamSpec, Protocol, TypeVar, Unpack, overload

from holdfast.app_views import AppViews
from holdfast.client import Handle, Start
from holdfast.client.schedules import Schedules
from holdfast.core.durations import Duration
from holdfast.core.records import LogLine
from holdfast.core.stream_records import StreamItem
from holdfast.core.workflow_code import refuse_in_workflow_code
from holdfast.errors import AppClosedError, IOInWorkflowError
from holdfast.kernel.requests import StartOptions
from holdfast.kernel.startable import Startable
from holdfast.ports import start_thread
from holdfast.store.callers import Lent

if TYPE_CHECKING:
    from types import TracebackType

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

    @property
    def schedules(self) -> Schedules: ...


class _LoopThread:
    """An event loop in a daemon thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._pid = os.getpid()
        self._thread = start_thread(self._serve, "holdfast-sync")

    def _serve(self) -> None:
        self._loop.run_forever()
        self._loop.close()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop, and wait for its result."""
        future = self._submit(coroutine)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # no effect if the coroutine raised the error; otherwise the caller was interrupted
            raise

    def call_lending(self, connection: Any, call: Callable[[Any], Coroutine[Any, Any, T]]) -> T:
        """As ``call``, with a connection of the calling thread, which is used in that thread; None is passed on."""
        if connection is None:
            return self.call(call(None))
        functions: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

        async def run(function: Callable[[], R], /) -> R:
            done: Future[R] = Future()
            functions.put(lambda: _settle(done, function))
            return await asyncio.wrap_future(done)

        future = self._submit(call(Lent(connection, run)))
        future.add_done_callback(lambda _: functions.put(None))
        try:
            while (function := functions.get()) is not None:
                function()
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        try:
            refuse_in_workflow_code("SyncClient", depth=0)
        except IOInWorkflowError:
            coroutine.close()
            raise
        if self._pid != os.getpid() or threading.current_thread() is self._thread or not self._thread.is_alive():
            coroutine.close()
            raise AppClosedError(self._reason())
        return asyncio.run_coroutine_threadsafe(_in_context(coroutine, copy_context()), self._loop)

    def _reason(self) -> str:
        if self._pid != os.getpid():
            return "this client was opened before a fork; open a client in each process, after the fork"
        if threading.current_thread() is self._thread:
            return "a blocking client cannot be used on its own event loop; use the app itself in async code"
        return "this client is closed; use it inside `with app.sync() as client:`"

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


def _settle(done: Future[T], function: Callable[[], T]) -> None:
    try:
        done.set_result(function())
    except Exception as error:  # raised on the loop, and from there in the calling thread
        done.set_exception(error)
    except BaseException:  # an interrupt is the calling thread's own
        done.cancel()
        raise


async def _in_context(coroutine: Coroutine[Any, Any, T], context: Context) -> T:
    """Run a coroutine in the context of the calling thread, which has the actor of audit records and the open span."""
    return await asyncio.create_task(coroutine, context=context)


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


class SyncSchedules:
    """``app.schedules`` with its methods as plain calls."""

    def __init__(self, thread: _LoopThread, schedules: Schedules) -> None:
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

    def __init__(self, thread: _LoopThread, handle: Handle[R]) -> None:
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
        self._thread: _LoopThread | None = None
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
        thread = _LoopThread()
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

    def _running(self) -> _LoopThread:
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

    @property
    def schedules(self) -> SyncSchedules:
        """The stored schedules, with the methods of ``app.schedules`` as plain calls."""
        return SyncSchedules(self._running(), self._app.schedules)

    list = _of_app(AppViews.list)
    audit = _of_app(AppViews.audit)
    workers = _of_app(AppViews.workers)
    versions = _of_app(AppViews.versions)
    stats = _of_app(AppViews.stats)
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
