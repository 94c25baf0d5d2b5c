"""A backend for Django's tasks, which are executed as runs of Holdfast.

``TASKS = {"default": {"BACKEND": "holdfast.ext.django.tasks.HoldfastBackend", "QUEUES": ["default", "mail"]}}``. A task
that is enqueued inside ``transaction.atomic()`` exists when that transaction commits.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.utils import timezone
from django.utils.module_loading import import_string

from holdfast.core.records import InstanceDescription
from holdfast.errors import InstanceNotFoundError
from holdfast.ext.django.project import client, start
from holdfast.ext.django.task_workflow import WORKFLOW, TaskCall
from holdfast.kernel.step_info import StepInfo

try:
    from django.tasks import TaskContext, TaskResult, TaskResultStatus  # Django 6
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import TaskError
    from django.tasks.exceptions import TaskResultDoesNotExist
    from django.tasks.signals import task_enqueued
except ModuleNotFoundError:
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.base import TaskContext, TaskError, TaskResult, TaskResultStatus
    from django_tasks.exceptions import TaskResultDoesNotExist
    from django_tasks.signals import task_enqueued


class HoldfastBackend(BaseTaskBackend):
    """Tasks as runs of the workflow ``django.task``.

    ``OPTIONS`` may have ``retries`` (attempts after the first one; 0 if not given: a task whose worker dies fails) and
    ``timeout`` (a duration, "10 minutes" if not given).
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        self.validate_task(task)
        call = TaskCall(
            path=task.module_path,
            args=list(args),
            kwargs=dict(kwargs),
            backend=self.alias,
            queue=task.queue_name,
            priority=task.priority,
            run_after=None if task.run_after is None else task.run_after.isoformat(),
            retries=self.options.get("retries", 0),
            timeout=self.options.get("timeout", "10 minutes"),
            takes_context=task.takes_context,
        )
        now = timezone.now()
        after = None if task.run_after is None else timezone.localtime(_aware(task.run_after))
        delay: dict[str, Any] = {} if after is None or after <= now else {"start_delay": after - now}
        # Holdfast begins with the lowest number, Django with the highest.
        run = start(WORKFLOW, call, queue=task.queue_name, priority=-task.priority, **delay)
        result = _result(call, task, run.id, TaskResultStatus.READY, enqueued_at=now)
        task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> Any:
        try:
            run = client().get(WORKFLOW, str(result_id))
        except InstanceNotFoundError as error:
            raise TaskResultDoesNotExist(str(result_id)) from error
        found = run.describe()
        call = TaskCall(**found.params)
        begun = found.started_at
        status = _STATUSES.get(found.status, TaskResultStatus.READY if begun is None else TaskResultStatus.RUNNING)
        result = _result(
            call,
            _task_of(call),
            run.id,
            status,
            enqueued_at=found.created_at,
            started_at=begun,
            finished_at=found.completed_at,
            errors=[] if status != TaskResultStatus.FAILED else [_error(found)],
        )
        if status == TaskResultStatus.SUCCESSFUL:
            object.__setattr__(result, "_return_value", found.output)  # as the backends of the framework do
        return result


_STATUSES = {
    "complete": TaskResultStatus.SUCCESSFUL,
    "errored": TaskResultStatus.FAILED,
    "terminated": TaskResultStatus.FAILED,
    "cancelled": TaskResultStatus.FAILED,
}


def context_of(call: TaskCall, info: StepInfo) -> Any:
    """The context of a task with ``takes_context``, inside the step that calls it."""
    result = _result(call, _task_of(call), info.instance_id, TaskResultStatus.RUNNING)
    object.__setattr__(result, "worker_ids", ["holdfast"] * info.attempt)
    return TaskContext(task_result=result)


def _aware(when: datetime) -> datetime:
    return when if timezone.is_aware(when) else timezone.make_aware(when)


def _task_of(call: TaskCall) -> Any:
    after = None if call.run_after is None else datetime.fromisoformat(call.run_after)
    return import_string(call.path).using(
        priority=call.priority, queue_name=call.queue, backend=call.backend, run_after=after
    )


def _error(found: InstanceDescription) -> Any:
    """The error of a failed task; for a run that was ended from outside, a RuntimeError with the reason."""
    details = found.memo.get("error") or {"class": "builtins.RuntimeError", "traceback": str(found.error)}
    return TaskError(exception_class_path=details["class"], traceback=details["traceback"])


def _result(
    call: TaskCall,
    task: Any,
    id: str,
    status: Any,
    *,
    enqueued_at: datetime | None = None,
    started_at: datetime | None = None,
    finished_at: datetime | None = None,
    errors: list[Any] | None = None,
) -> Any:
    return TaskResult(
        task=task, id=id, status=status, enqueued_at=enqueued_at, started_at=started_at, finished_at=finished_at,
        last_attempted_at=started_at, args=call.args, kwargs=call.kwargs, backend=call.backend, errors=errors or [],
        worker_ids=[] if started_at is None else ["holdfast"],
    )  # fmt: skip
