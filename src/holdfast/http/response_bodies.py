"""Response bodies of the wire format (``wire.py``), made from the records that the client returns."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import cast

from holdfast.client import HistoryPage
from holdfast.core.model import DEFAULT_KIND, DEFAULT_QUEUE, Level, Status, StepStatus, StepType
from holdfast.core.outbound import OutboxRecord, OutboxState
from holdfast.core.records import (
    CodePosition,
    EventRecord,
    InstanceDescription,
    InstanceStatus,
    InstanceSummary,
    LogLine,
    OriginRecord,
    Page,
    StepRecord,
    WhyParts,
)
from holdfast.errors import ErrorInfo
from holdfast.http import wire


def workflows(names: list[str]) -> wire.Workflows:
    return {"workflows": [{"name": name} for name in names]}


def details(status: InstanceStatus) -> wire.Details:
    body: wire.Details = {"status": Status(status.status)}
    if status.error is not None:
        body["error"] = failure(status.error)
    if status.output is not None:
        body["output"] = status.output
    return body


def failure(error: ErrorInfo) -> wire.Failure:
    body: wire.Failure = {"name": error.name, "message": error.message}
    if error.traceback is not None:
        body["traceback"] = error.traceback
    if error.causes:
        body["causes"] = [failure(cause) for cause in error.causes]
    return body


def instance(summary: InstanceSummary) -> wire.Instance:
    return {"id": summary.id, "details": details(summary.details)}


def batch(summaries: list[InstanceSummary]) -> wire.Batch:
    return {"instances": [instance(summary) for summary in summaries]}


def listed_instance(summary: InstanceSummary) -> wire.ListedInstance:
    body: wire.ListedInstance = {
        "id": summary.id,
        "details": details(summary.details),
        "createdAt": date(summary.created_at),
    }
    if summary.details.kind != DEFAULT_KIND:
        body["kind"] = summary.details.kind
    if summary.details.native_status is not None:
        body["nativeStatus"] = summary.details.native_status
    return body


def instance_list(page: Page[InstanceSummary]) -> wire.InstanceList:
    body: wire.InstanceList = {
        "instances": [listed_instance(summary) for summary in page.items],
        "hasNextPage": page.cursor is not None,
    }
    if page.cursor is not None:
        body["cursor"] = body["nextCursor"] = page.cursor
    return body


def found_instances(page: Page[tuple[InstanceSummary, InstanceDescription]]) -> wire.FoundInstances:
    body: wire.FoundInstances = {
        "instances": [found_instance(*item) for item in page.items],
        "hasNextPage": page.cursor is not None,
    }
    if page.cursor is not None:
        body["cursor"] = body["nextCursor"] = page.cursor
    if page.previous is not None:
        body["previousCursor"] = page.previous
    return body


def sampled_instance(summary: InstanceSummary) -> wire.SampledInstance:
    return {**listed_instance(summary), "workflowName": summary.workflow_name}


def found_instance(summary: InstanceSummary, description: InstanceDescription) -> wire.FoundInstance:
    return {
        **listed_instance(summary),
        "workflowName": summary.workflow_name,
        "why": description.why,
        "meta": described_instance(description)["meta"],
    }


def described_instance(description: InstanceDescription) -> wire.DescribedInstance:
    meta: wire.Meta = {
        "workflowName": description.workflow_name,
        "kind": description.kind,
        "runNumber": description.run_number,
        "params": description.params,
        "createdAt": date(description.created_at),
        "updatedAt": date(description.updated_at),
        "startedAt": optional_date(description.started_at),
        "completedAt": optional_date(description.completed_at),
        "why": description.why,
        "whyParts": why_parts(description.why_parts),
    }
    if description.current_step is not None:
        meta["currentStep"] = current_step(description.current_step)
    _add_model_fields(meta, description)
    _add_optional_fields(meta, description)
    _add_worker_fields(meta, description)
    status = InstanceStatus(description.status, description.error, description.output)
    return {"id": description.id, "details": details(status), "meta": meta}


def why_parts(parts: WhyParts) -> wire.WhyParts:
    others = [_why_part(other) for other in parts.others]
    return cast("wire.WhyParts", {**_why_part(parts), **({"others": others} if others else {})})


def _why_part(parts: WhyParts) -> wire.WhyPart:
    body: wire.WhyPart = {"kind": parts.kind}
    if parts.step_key is not None:
        body["stepKey"] = parts.step_key
    if parts.name is not None:
        body["name"] = parts.name
    if parts.event_type is not None:
        body["eventType"] = parts.event_type
    if parts.until is not None:
        body["until"] = date(parts.until)
    if parts.position is not None:
        body["position"] = code_position(parts.position)
    if parts.attempt is not None:
        body["attempt"] = parts.attempt
    if parts.max_attempts is not None:
        body["maxAttempts"] = parts.max_attempts
    if parts.error is not None:
        body["error"] = {"name": parts.error.name, "message": parts.error.message}
    if parts.code is not None:
        body["code"] = parts.code
    return body


def code_position(position: CodePosition) -> wire.CodePosition:
    return {"file": position.file, "line": position.line}


def _add_model_fields(meta: wire.Meta, description: InstanceDescription) -> None:
    """Add the fields of chains and graphs."""
    if description.workflow_version is not None:
        meta["workflowVersion"] = description.workflow_version
    if description.native_status is not None:
        meta["nativeStatus"] = description.native_status
    if description.killed:
        meta["killed"] = True


def _add_worker_fields(meta: wire.Meta, description: InstanceDescription) -> None:
    """Add the fields about workers that are absent when empty."""
    if description.queue != DEFAULT_QUEUE:
        meta["queue"] = description.queue
    if description.version is not None:
        meta["version"] = description.version
    if description.owner is not None:
        meta["owner"] = description.owner


def _add_optional_fields(meta: wire.Meta, description: InstanceDescription) -> None:
    """Add the fields that are absent when empty."""
    if description.attempt > 1:
        meta["attempt"] = description.attempt
    if description.summary is not None:
        meta["summary"] = description.summary
    if description.memo:
        meta["memo"] = description.memo
    if description.search:
        meta["search"] = description.search
    if description.parent is not None:
        meta["parent"] = description.parent
    if description.children:
        meta["children"] = [{"pid": child.pid, "status": Status(child.status)} for child in description.children]
    if description.origin is not None:
        meta["origin"] = _origin(description.origin)
    if description.forks:
        meta["forks"] = description.forks
    if description.links:
        meta["links"] = description.links
    if description.monitors:
        meta["monitors"] = description.monitors


def _origin(origin: OriginRecord) -> wire.Origin:
    return {
        "action": origin.action,  # type: ignore[typeddict-item]  # one of three
        "pid": origin.pid,
        "runNumber": origin.run_number,
        "at": date(origin.at),
        "actor": origin.actor,
        "reason": origin.reason,
    }


def current_step(record: StepRecord) -> wire.CurrentStep:
    body: wire.CurrentStep = {
        "stepKey": record.step_key,
        "name": record.name,
        "type": record.type,
        "status": StepStatus(record.status),
        "attempts": record.attempts,
        "maxAttempts": _max_attempts(record),
        "timeoutMs": record.timeout_ms,
        "nextRetryAt": optional_date(record.next_retry_at),
        "wakeAt": optional_date(record.wake_at),
        "waitEventType": record.wait_event_type,
    }
    if record.error is not None:
        body["error"] = failure(record.error)
    if record.state is not None:
        body["state"] = record.state
    if record.step_seq is not None:
        body["stepSeq"] = record.step_seq
    if record.heartbeat_at is not None:
        body["progress"] = record.progress
        body["heartbeatAt"] = date(record.heartbeat_at)
    if record.resolved:
        body["resolved"] = True
    return body


def _max_attempts(record: StepRecord) -> int | None:
    """Maximum number of attempts: 1 for a sleep or a wait.

    It is None for a step that is retried without limit, and for a node that has not failed yet.
    """
    retryable = record.type in (StepType.DO, StepType.NODE)
    return 1 if record.max_attempts is None and not retryable else record.max_attempts


def step(record: StepRecord) -> wire.Step:
    return {
        "id": record.id,
        "runNumber": record.run_number,
        **current_step(record),
        "result": record.result,
        "createdAt": date(record.created_at),
        "updatedAt": date(record.updated_at),
    }


def event(record: EventRecord) -> wire.Event:
    body: wire.Event = {
        "id": record.id,
        "runNumber": record.run_number,
        "type": record.type,
        "payload": record.payload,
        "createdAt": date(record.created_at),
        "deliveredAt": optional_date(record.delivered_at),
        "consumedByStepKey": record.consumed_by_step_key,
    }
    if record.sender is not None:
        body["sender"] = record.sender
    return body


def log(line: LogLine) -> wire.Log:
    return {
        "id": line.id,
        "runNumber": line.run_number,
        "stepKey": line.step_key,
        "attempt": line.attempt,
        "level": Level(line.level),
        "category": line.category,
        "message": line.message,
        "data": line.data,
        "isReplay": line.is_replay,
        "createdAt": date(line.created_at),
    }


def history(page: HistoryPage) -> wire.History:
    body: wire.History = {
        "runNumber": page.run_number,
        "steps": [step(record) for record in page.steps.items],
        "stepsHasNextPage": page.steps.more,
        "events": [event(record) for record in page.events.items],
        "eventsHasNextPage": page.events.more,
    }
    if page.origin is not None:
        body["origin"] = _origin(page.origin)
    if page.steps.more:
        body["stepsCursor"] = page.steps.cursor
    if page.events.more:
        body["eventsCursor"] = page.events.cursor
    if page.logs is not None:
        body["logs"] = [log(line) for line in page.logs.items]
        body["logsCursor"] = page.logs.cursor  # also on the last page: a caller that follows the log continues from it
        body["logsHasNextPage"] = page.logs.more
    return body


def outbox(records: Iterable[OutboxRecord]) -> wire.Outbox:
    return {"events": [_outbox_event(record) for record in records]}


def _outbox_event(record: OutboxRecord) -> wire.OutboxEvent:
    return {
        "id": record.id,
        "type": record.type,
        "payload": record.payload,
        "step": record.step,
        "state": OutboxState(record.state),
        "attempts": record.attempts,
        "error": record.error,
        "createdAt": date(record.created_at),
        "nextAttemptAt": optional_date(record.next_attempt_at),
        "deliveredAt": optional_date(record.delivered_at),
        "parkedAt": optional_date(record.parked_at),
    }


def date(when: datetime) -> str:
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def optional_date(when: datetime | None) -> str | None:
    return None if when is None else date(when)
