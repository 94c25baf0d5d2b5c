"""The workflow that executes tasks of Django: one step, which calls the task's function.

This module does not import the tasks framework, so that a project without tasks needs none.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from inspect import iscoroutinefunction
from typing import Any

from asgiref.sync import sync_to_async
from django.db import close_old_connections
from django.utils.module_loading import import_string

from holdfast import Context, Retry, WorkflowError, step_info
from holdfast.app import Holdfast

WORKFLOW = "django.task"


@dataclass
class TaskCall:
    """A call of a task, as the backend stored it."""

    path: str
    args: list[Any]
    kwargs: dict[str, Any]
    backend: str
    queue: str
    priority: int
    run_after: str | None = None
    retries: int = 0
    timeout: str | float = "10 minutes"
    takes_context: bool = False
    more: dict[str, Any] = field(default_factory=dict)


class TaskFailedError(WorkflowError):
    """A task raised an exception. ``details`` has its class and its traceback."""


def register(app: Holdfast) -> None:
    """Register the workflow; no effect if the app has it."""
    if any(definition.name == WORKFLOW for definition in app.registry):
        return

    @app.workflow(name=WORKFLOW)
    async def execute(ctx: Context, call: TaskCall) -> Any:
        retry = Retry(limit=call.retries)
        try:
            return await ctx.do("call", _call, call, retry=retry, timeout=call.timeout, raises=(TaskFailedError,))
        except TaskFailedError as error:
            ctx.set_memo(error=error.details)  # the class with its module, which the record of an error lacks
            raise


async def _call(call: TaskCall) -> Any:
    task = import_string(call.path)
    arguments = [_context(call), *call.args] if call.takes_context else call.args
    try:
        if iscoroutinefunction(task.func):
            return await task.func(*arguments, **call.kwargs)
        return await _in_thread(lambda: task.func(*arguments, **call.kwargs))
    except Exception as error:
        name = f"{type(error).__module__}.{type(error).__qualname__}"
        details = {"class": name, "traceback": "".join(traceback.format_exception(error))}
        raise TaskFailedError(str(error), details=details) from error


def _in_thread(function: Callable[[], Any]) -> Coroutine[Any, Any, Any]:
    def call() -> Any:
        close_old_connections()  # as before and after a request
        try:
            return function()
        finally:
            close_old_connections()

    awaitable: Coroutine[Any, Any, Any] = sync_to_async(call, thread_sensitive=False)()
    return awaitable


def _context(call: TaskCall) -> Any:
    from holdfast.ext.django.tasks import context_of

    return context_of(call, step_info())
