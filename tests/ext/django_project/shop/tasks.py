"""Tasks of Django."""

from typing import Any

try:
    from django.tasks import task
except ModuleNotFoundError:
    from django_tasks import task


@task()
def add(a: int, b: int) -> int:
    return a + b


@task(queue_name="mail", priority=7)
async def mail(address: str) -> str:
    return f"sent to {address}"


@task()
def broken() -> None:
    raise LookupError("nobody")


@task(takes_context=True)
def attempt(context: Any, name: str) -> str:
    return f"{name} {context.attempt} {context.task_result.id}"
