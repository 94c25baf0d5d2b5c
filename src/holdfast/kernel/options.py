"""Options of a run besides its input: stored with the run, read by its code, inherited by its successors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.core import codec
from holdfast.core.cron import Cron
from holdfast.core.durations import describe
from holdfast.core.envelope import unreadable
from holdfast.core.failure import Failure
from holdfast.core.model import Status, from_ms, to_ms
from holdfast.core.retry import Retry
from holdfast.core.scheduled_start import LAST_RESULT, MEMO, SCHEDULED_FOR, SEALED
from holdfast.store.protocol import SINGLE, Expiry, Finish, NextRun, RunRecord


@dataclass(slots=True, eq=False)
class RunOptions:
    """The stored options of a run. Most runs have none of them."""

    retry: Retry | None = None
    cron: Cron | None = None
    execution_ms: int | None = None
    """Timeout of the instance: its first run and all successors."""
    execution_end: int | None = None
    """The time at which ``execution_ms`` expires."""
    run_ms: int | None = None
    """Timeout of one run."""
    task_ms: int | None = None
    """Timeout of the code between two waits."""
    context: Mapping[str, Any] = field(default_factory=dict)
    memo: Mapping[str, Any] = field(default_factory=dict)
    search: Mapping[str, Any] = field(default_factory=dict)
    summary: str | None = None
    version: int | None = None
    """Version of the definition that started the run."""
    key: str | None = None
    """The key of the run under limits with keys."""
    single: str | None = None
    """The key of the singleton group of the run; empty: the group of starts without a key."""
    trace: Mapping[str, str] = field(default_factory=dict)
    """The trace context of the start (W3C headers), which the telemetry adds."""
    schedule: str | None = None
    """The schedule that started the run."""
    scheduled_for: int | None = None
    """The tick of that schedule."""
    last_result: Sequence[Any] = ()
    """The output of the schedule's last successful run as plain JSON, if there was one."""
    sealed: str | None = None
    """The envelope of the memo and the last result, if this process cannot decode it."""

    def encode(self) -> bytes | None:
        content = {
            "retry": _retry_content(self.retry),
            "cron": None if self.cron is None else self.cron.text,
            "executionMs": self.execution_ms,
            "executionEnd": self.execution_end,
            "runMs": self.run_ms,
            "taskMs": self.task_ms,
            "context": dict(self.context),
            MEMO: dict(self.memo),
            "search": dict(self.search),
            "summary": self.summary,
            "version": self.version,
            "key": self.key,
            SINGLE: self.single,
            "trace": dict(self.trace),
            "schedule": self.schedule,
            SCHEDULED_FOR: self.scheduled_for,
            LAST_RESULT: list(self.last_result) or None,
            SEALED: self.sealed,
        }
        kept = {key: value for key, value in content.items() if value is not None and value != {}}
        return codec.encode(kept, what="options") if kept else None

    @classmethod
    def decode(cls, data: bytes | None) -> RunOptions:
        if data is None:
            return NO_OPTIONS
        shared = _shared.get(data)
        if shared is not None:
            return shared
        content = codec.plain_object(data, "value of the options")
        options = cls.of_content(content)
        if _SHARED_NAMES.issuperset(content) and len(_shared) < _MAX_SHARED:
            _shared[data] = options
        return options

    @classmethod
    def of_content(cls, content: Mapping[str, Any]) -> RunOptions:
        """The options in their stored form, decoded from JSON."""
        cron = content.get("cron")
        return cls(
            retry=_retry(content.get("retry")),
            cron=None if cron is None else Cron(cron),
            execution_ms=content.get("executionMs"),
            execution_end=content.get("executionEnd"),
            run_ms=content.get("runMs"),
            task_ms=content.get("taskMs"),
            context=content.get("context", {}),
            memo=content.get(MEMO, {}),
            search=content.get("search", {}),
            summary=content.get("summary"),
            version=content.get("version"),
            key=content.get("key"),
            single=content.get(SINGLE),
            trace=content.get("trace", {}),
            schedule=content.get("schedule"),
            scheduled_for=content.get(SCHEDULED_FOR),
            last_result=content.get(LAST_RESULT, ()),
            sealed=content.get(SEALED),
        )

    def check_readable(self) -> None:
        """Raise ``PayloadError`` if this process cannot decode a part of the options."""
        if self.sealed is not None:
            raise unreadable(self.sealed.encode())

    def ending(self, end: int) -> RunOptions:
        return replace(self, execution_end=end)

    def expiry(self, start: int) -> tuple[int | None, Expiry | None]:
        """Time from the start of a run to its expiry, and which timeout that is; (None, None): no timeout."""
        left = None if self.execution_end is None else max(0, self.execution_end - start)
        if left is not None and (self.run_ms is None or left <= self.run_ms):
            return left, Expiry.EXECUTION
        return self.run_ms, None if self.run_ms is None else Expiry.RUN

    def successor(self, run: RunRecord, finish: Finish, *, retryable: bool, now: int, chance: float) -> NextRun | None:
        """The successor of a run whose code ended: the next attempt, the next tick of the schedule, or None."""
        failed = finish.error is not None
        if failed and retryable and self.retry is not None and self.retry.allows(run.attempt):
            return self._next(run, now + self.retry.delay_after(run.attempt, chance), attempt=run.attempt + 1)
        if self.cron is not None:
            return self._next(run, to_ms(self.cron.after(from_ms(now))), attempt=1)
        return None

    def _next(self, run: RunRecord, run_at: int, attempt: int) -> NextRun | None:
        expires_ms, expiry = self.expiry(run_at)
        if expires_ms == 0 and expiry is Expiry.EXECUTION:
            return None  # the instance's timeout has expired by then
        return NextRun(run.params, run_at, attempt, expires_ms, expiry)

    def continuation(self, params: bytes | None, now: int) -> NextRun:
        """The successor of a run that called ``continue_as_new``."""
        expires_ms, expiry = self.expiry(now)
        return NextRun(params, None, 1, expires_ms, expiry, continues=True)


NO_OPTIONS = RunOptions()
_SHARED_NAMES = frozenset({"retry", "cron", "executionMs", "runMs", "taskMs", "version"})
"""Options that definitions give to all their runs, and whose values cannot be changed."""
_MAX_SHARED = 256
_shared: dict[bytes, RunOptions] = {}
"""Decoded options by their stored form: every turn of a chain reads the same ones."""


def overdue(run: RunRecord, now: int) -> Finish:
    """The end of a run whose timeout, or deadline of a cancellation, has expired."""
    if run.expiry == Expiry.CANCEL:
        return Finish(Status.TERMINATED, note="cancellation was requested, and the run had not ended at the deadline")
    options = RunOptions.decode(run.options)
    whole = run.expiry == Expiry.EXECUTION
    limit, name = (options.execution_ms, "execution_timeout") if whole else (options.run_ms, "run_timeout")
    text = f"the run took longer than its {name}" + ("" if limit is None else f" of {describe(limit)}")
    finish = Finish(Status.ERRORED, error=Failure("RunTimeoutError", text, kind="Timeout").encode())
    if whole:
        return finish
    return replace(finish, next=options.successor(run, finish, retryable=True, now=now, chance=0.0))


def _retry_content(retry: Retry | None) -> dict[str, Any] | None:
    if retry is None:
        return None
    return {
        "limit": None if math.isinf(retry.limit) else int(retry.limit),
        "delayMs": retry.delay_ms,
        "backoff": retry.backoff,
        "maxDelayMs": retry.max_delay_ms,
        "jitter": retry.jitter,
        "nonRetryable": sorted(retry.non_retryable_names),
    }


def _retry(content: dict[str, Any] | None) -> Retry | None:
    if content is None:
        return None
    return Retry(
        math.inf if content["limit"] is None else content["limit"],
        content["delayMs"] / 1000,
        content["backoff"],
        max_delay=content["maxDelayMs"] / 1000,
        jitter=content["jitter"],
        non_retryable=content["nonRetryable"],
    )
