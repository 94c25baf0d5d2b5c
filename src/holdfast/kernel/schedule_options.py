"""Checks of the options of a schedule, as ``app.schedule`` and ``app.schedules.create`` take them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime
from typing import Any, TypedDict

from holdfast.core import attributes, codec
from holdfast.core.checks import check_flag
from holdfast.core.durations import Duration, describe, timeout_ms
from holdfast.core.limits import Limits
from holdfast.core.model import DEFAULT_QUEUE
from holdfast.core.names import check_schedule_name
from holdfast.core.retry import Retry, check_retry
from holdfast.kernel.flow import check_queue
from holdfast.kernel.options import RunOptions
from holdfast.kernel.requests import check_context, check_priority, check_summary
from holdfast.kernel.schedule_content import POLICY_OPTIONS, SPEC_OPTIONS, Declaration, read_content


class ScheduleOptions(TypedDict, total=False):
    """Options of a schedule besides the usual ones; docs/schedules.md describes them."""

    offset: Duration | None
    calendar: str | Sequence[str] | None
    exclude: str | date | Sequence[str | date] | None
    start: datetime | None
    end: datetime | None
    queue: str
    priority: int
    execution_timeout: Duration | None
    run_timeout: Duration | None
    task_timeout: Duration | None
    retry: Retry | None
    memo: Mapping[str, Any] | None
    search: Mapping[str, Any] | None
    context: Mapping[str, Any] | None
    summary: str | None


START_OPTIONS = frozenset(ScheduleOptions.__annotations__) - frozenset(SPEC_OPTIONS)
"""Options of a schedule that are start options of its runs."""
ALL_OPTIONS = frozenset((*SPEC_OPTIONS, *POLICY_OPTIONS, *START_OPTIONS))


def declare(
    name: str, workflow: str, params: bytes | None, paused: bool, options: Mapping[str, Any], limits: Limits
) -> Declaration:
    """Check the options of a schedule; ``params`` are checked already."""
    check_schedule_name(name)
    check_flag("paused", paused)
    check_known(options, ALL_OPTIONS)
    own = {key: value for key, value in options.items() if key not in START_OPTIONS}
    started = {key: value for key, value in options.items() if key in START_OPTIONS}
    queue, priority, stored = start_options(started, limits)
    content = replace(read_content(**own), queue=queue, priority=priority, options=stored)
    return Declaration(name, workflow, content, params, paused)


def start_options(options: Mapping[str, Any], limits: Limits) -> tuple[str, int, dict[str, Any]]:
    """The queue, the priority and the other start options of the runs of a schedule, in the form of ``RunOptions``."""
    given = {name: value for name, value in options.items() if value is not None}
    stored = RunOptions(
        retry=check_retry(given["retry"]) if "retry" in given else None,
        execution_ms=_timeout(given, "execution_timeout"),
        run_ms=_timeout(given, "run_timeout"),
        task_ms=_timeout(given, "task_timeout"),
        context=check_context(given.get("context", {}), limits),
        memo=attributes.check_memo(given.get("memo", {}), limits.params),
        search=attributes.check_search(given.get("search", {})),
        summary=check_summary(given.get("summary")),
    )
    encoded = stored.encode()
    queue, priority = check_queue(given.get("queue", DEFAULT_QUEUE)), check_priority(given.get("priority", 0))
    return queue, priority, {} if encoded is None else codec.plain_object(encoded, "options")


_STORED = {
    "retry": "retry", "execution_timeout": "executionMs", "run_timeout": "runMs", "task_timeout": "taskMs",
    "context": "context", "memo": "memo", "search": "search", "summary": "summary",
}  # fmt: skip
"""The fields of ``RunOptions`` in stored form by the options that set them."""


def kept_options(stored: Mapping[str, Any], changed: Collection[str]) -> dict[str, Any]:
    """The stored start options without those that a change sets or removes."""
    replaced = {_STORED[name] for name in changed if name in _STORED}
    return {field: value for field, value in stored.items() if field not in replaced}


def shown_options(stored: Mapping[str, Any]) -> dict[str, Any]:
    """The stored start options as users write them."""
    options = RunOptions.of_content(stored)
    timeouts = {
        "execution_timeout": options.execution_ms, "run_timeout": options.run_ms, "task_timeout": options.task_ms,
    }  # fmt: skip
    shown: dict[str, Any] = {name: describe(ms) for name, ms in timeouts.items() if ms is not None}
    others = {name: getattr(options, name) for name in ("retry", "memo", "search", "context", "summary")}
    return shown | {name: value for name, value in others.items() if value}


def check_known(options: Collection[str], known: Collection[str]) -> None:
    for name in options:
        if name not in known:
            raise TypeError(f"unknown option {name!r} of a schedule; the options are {', '.join(sorted(known))}")


def _timeout(options: Mapping[str, Any], name: str) -> int | None:
    return None if name not in options else timeout_ms(name, options[name])
