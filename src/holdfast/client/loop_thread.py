"""The event loop of a blocking client: calls of any thread run on it, in a thread of its own."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextvars import Context, copy_context
from queue import SimpleQueue
from typing import Any, TypeVar

from holdfast.core.workflow_code import refuse_in_workflow_code
from holdfast.errors import AppClosedError, IOInWorkflowError
from holdfast.ports import start_thread
from holdfast.store.callers import Lent

R = TypeVar("R")
T = TypeVar("T")


class LoopThread:
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
