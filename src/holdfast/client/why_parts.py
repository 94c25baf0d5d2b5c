"""The parts of ``why`` as fields: what kind of thing a run waits for, its names, until when, and where in the code."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from functools import lru_cache

from holdfast.client.records import error_of
from holdfast.client.why import Reasons, awaited_topics
from holdfast.core import history
from holdfast.core.frames import short_path
from holdfast.core.model import Status, StepStatus, StepType, optional_from_ms
from holdfast.core.records import CodePosition, StepRecord, WhyParts
from holdfast.errors import ErrorInfo
from holdfast.store.protocol import RunRecord

_CODE = re.compile(r"(?:parked: )?([A-Z][A-Z_]{3,}):")
"""The code of an error at the beginning of a note."""
_FRAME = re.compile(r'^ *File "([^"]+)", line (\d+)', re.MULTILINE)
_short_path = lru_cache(maxsize=1024)(short_path)
_KINDS = {StepType.SLEEP: "sleep", StepType.CHILD: "child", StepType.ASK: "reply", StepType.NODE: "node"}


def why_parts(reasons: Reasons, now: int, *, known: bool) -> WhyParts:
    """``known``: this process implements the run's workflow."""
    row = reasons.run.row
    if row.status.terminal:
        return _ended(error_of(row), reasons.steps)
    here = reasons.run.positions.get(None)
    if row.pausing or row.status is Status.PAUSED:
        return _paused(row, here)
    parts = [*_of_permits(reasons), *_of_steps(reasons), *_of_messages(reasons)]
    if parts:
        return replace(parts[0], others=tuple(parts[1:]))
    if row.owner is not None:
        return WhyParts("running", position=here)
    if row.run_at is None:
        watched = ", ".join(pid for pid, _ in reasons.relations.watches) or None
        return WhyParts("child" if watched else "nothing", name=watched, position=here)
    if row.run_at > now:
        return WhyParts("timer" if row.started_at else "start", until=optional_from_ms(row.run_at), position=here)
    if reasons.queue_paused:
        return WhyParts("queue_paused", name=row.queue)
    return WhyParts("due" if known else "no_code", name=row.queue if known else row.workflow)


def _ended(error: ErrorInfo | None, steps: Sequence[StepRecord]) -> WhyParts:
    """For a run that ended with an error: the line that raised it, and the step, unless the code raised another one."""
    if error is None:
        return WhyParts("ended")
    failed = [step for step in steps if step.status == StepStatus.ERRORED and step.error is not None]
    same = failed and failed[-1].error is not None and failed[-1].error.name == error.name
    key, name = (failed[-1].step_key, failed[-1].name) if same else (None, None)
    return WhyParts("ended", key, name, position=raised_at(error))


def raised_at(error: ErrorInfo) -> CodePosition | None:
    """The innermost line of user code in the traceback of an error."""
    frames = _FRAME.findall(error.traceback or "")
    return CodePosition(_short_path(frames[-1][0]), int(frames[-1][1])) if frames else None


def _paused(row: RunRecord, position: CodePosition | None) -> WhyParts:
    if row.pausing or not row.note:
        return WhyParts("pausing" if row.pausing else "paused", position=position)
    return WhyParts("parked", position=position, code=park_code(row.note))


def park_code(note: str) -> str | None:
    """The reason why the engine paused a run, from the note of the run."""
    code = _CODE.match(note)
    return code[1] if code else "WORKER_LOST" if note.startswith("parked: the lease") else None


def _of_permits(reasons: Reasons) -> Iterator[WhyParts]:
    for permit in reasons.permits:
        yield WhyParts(
            "limit", step_key=permit.step or None, name=permit.limit.name, until=optional_from_ms(permit.ready_at)
        )


def _of_steps(reasons: Reasons) -> Iterator[WhyParts]:
    for step in history.open_steps(reasons.model.open_steps(reasons.steps)):
        if step.type == StepType.NODE and step.state == "pending":
            continue  # a node that has not started explains nothing
        kind, until = _kind(step)
        part = WhyParts(
            kind, step.step_key, step.name, step.wait_event_type, until, reasons.run.positions.get(step.step_key)
        )
        failed = kind == "retry"
        yield replace(part, attempt=step.attempts, max_attempts=step.max_attempts, error=step.error) if failed else part


def _kind(step: StepRecord) -> tuple[str, datetime | None]:
    if history.waits_for_event(step):
        return "event", step.wake_at
    if step.status == StepStatus.WAITING and step.next_retry_at is not None:
        return "retry", step.next_retry_at
    return _KINDS.get(StepType(step.type), "step"), step.wake_at


def _of_messages(reasons: Reasons) -> Iterator[WhyParts]:
    for topic in awaited_topics(reasons.run.row, reasons.model.open_steps(reasons.steps)):
        key = "listen any" if topic == "*" else f"listen {topic}"
        yield WhyParts("message", name=topic, position=reasons.run.positions.get(key))
