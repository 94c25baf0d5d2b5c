"""Response bodies of a run's details, made from the records that the client returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from holdfast.client.records import event_record
from holdfast.client.run_details import Family, MailboxReply, Timeline
from holdfast.core import codec
from holdfast.core.facts import Fact, FactState, StoredEvent
from holdfast.core.model import Level, Status, StepStatus, StepType, from_ms, optional_from_ms, optional_to_ms
from holdfast.core.records import Page
from holdfast.core.timeline import OK, Attempt, Hold, Item
from holdfast.http import response_bodies, wire_run
from holdfast.http.response_bodies import date, optional_date


def timeline(record: Timeline) -> wire_run.Timeline:
    return {
        "runNumber": record.row.number,
        "now": record.now,
        "start": record.row.created_at,
        "end": record.row.completed_at,
        "workingMs": record.working_ms,
        "version": record.version,
        "total": record.total,
        "items": [_item(item) for item in record.items],
        "holders": [_holder(hold) for hold in record.holds],
        "messages": [_message(event) for event in record.events],
        "logs": [_log(line.log.at, line.log.level, is_replay=line.log.is_replay) for line in record.logs],
    }


def _item(item: Item) -> wire_run.TimelineItem:
    step = item.step
    body: dict[str, Any] = {
        "key": step.step_key,
        "name": step.name,
        "type": step.type,
        "status": StepStatus(step.status),
        "start": item.start,
        "end": item.end,
    }
    if item.parallel is not None:
        body["parallel"] = item.parallel
    if step.type not in _CALLS:
        _add_wait(body, item)
    if not item.attempts or not _is_plain(item):
        _add_attempts(body, item)
    if step.state is not None:
        body["state"] = step.state
    if step.resolved:
        body["resolved"] = True
    return cast("wire_run.TimelineItem", body)


def _add_attempts(body: dict[str, Any], item: Item) -> None:
    if item.attempts:
        body["attempts"] = [attempt_body(attempt) for attempt in item.attempts]
    if item.step.max_attempts is not None:
        body["maxAttempts"] = item.step.max_attempts
    if item.step.timeout_ms is not None:
        body["timeoutMs"] = item.step.timeout_ms


def _is_plain(item: Item) -> bool:
    """True if the only attempt was successful and has no data besides those of the item, as most attempts have."""
    first = item.attempts[0]
    if len(item.attempts) > 1 or first.n != 1 or first.outcome != OK or first.worker is not None:
        return False
    return first.start == item.start and first.end == item.end and first.heartbeat_at is None


_CALLS = (StepType.DO,)
"""Steps of these types wait for nothing; most items of a long timeline are such steps."""


def _add_wait(body: dict[str, Any], item: Item) -> None:
    """Add what a step waits for, and what it received."""
    step = item.step
    waits = {
        "wakeAt": optional_to_ms(step.wake_at),
        "eventType": step.wait_event_type,
        "event": item.event,
        "child": item.child,
    }
    body.update({name: value for name, value in waits.items() if value is not None})


def attempt_body(attempt: Attempt) -> wire_run.TimelineAttempt:
    body: dict[str, Any] = {
        "n": attempt.n,
        "start": attempt.start,
        "end": attempt.end,
        "outcome": attempt.outcome,
    }
    if attempt.error is not None:
        body["error"] = response_bodies.failure(attempt.error)
    if attempt.worker is not None:
        body["worker"] = attempt.worker
    if attempt.retry_at is not None:
        body["retryAt"] = attempt.retry_at
    if attempt.heartbeat_at is not None:
        body["heartbeat"] = {"at": attempt.heartbeat_at, "progress": attempt.progress}
    return cast("wire_run.TimelineAttempt", body)


def _holder(hold: Hold) -> wire_run.TimelineHolder:
    return {"worker": hold.worker, "start": hold.start, "end": hold.end, "lost": hold.lost}


def _message(event: StoredEvent) -> wire_run.TimelineMessage:
    body: wire_run.TimelineMessage = {
        "n": event.n,
        "type": event.type,
        "at": event.created_at,
        "takenAt": event.delivered_at,
    }
    if event.consumed_by is not None:
        body["by"] = event.consumed_by
    if event.sender is not None:
        body["sender"] = event.sender
    return body


def _log(at: int, level: str, *, is_replay: bool) -> wire_run.TimelineLog:
    body: wire_run.TimelineLog = {"at": at, "level": Level(level)}
    if is_replay:
        body["isReplay"] = True
    return body


def facts(page: Page[Fact], total: int) -> wire_run.FactPage:
    body: wire_run.FactPage = {
        "facts": [_fact(fact) for fact in page.items],
        "total": total,
        "hasNextPage": page.cursor is not None,
    }
    if page.cursor is not None:
        body["cursor"] = body["nextCursor"] = page.cursor
    return body


def _fact(fact: Fact) -> wire_run.StoredFact:
    return {
        "state": FactState(fact.state).name.lower(),
        "key": fact.key,
        "n": fact.n,
        "kind": fact.kind,
        "at": date(from_ms(fact.at)),
        "startedAt": date(from_ms(fact.started_at)),
        "seq": fact.seq,
        "ok": bool(fact.ok),
        "value": codec.displayed(fact.value),
        "name": fact.name,
        "attempts": fact.attempts,
        "maxAttempts": fact.max_attempts,
        "timeoutMs": fact.timeout_ms,
        "wakeAt": optional_date(optional_from_ms(fact.wake_at)),
        "eventType": fact.event_type,
        "event": fact.event,
    }


def mailbox(
    number: int, awaited: Sequence[str], page: Page[StoredEvent], replies: Mapping[int, MailboxReply]
) -> wire_run.Mailbox:
    body: wire_run.Mailbox = {
        "events": [_mailbox_event(number, event, replies.get(event.n)) for event in page.items],
        "awaited": [*awaited],
        "hasNextPage": page.cursor is not None,
    }
    if page.cursor is not None:
        body["cursor"] = body["nextCursor"] = page.cursor
    return body


def _mailbox_event(number: int, event: StoredEvent, reply: MailboxReply | None) -> wire_run.MailboxEvent:
    record = response_bodies.event(event_record(number, event))
    body = cast("wire_run.MailboxEvent", {**record, "n": event.n})
    if event.ask is not None:
        body["ask"] = True
    if reply is not None:
        body["reply"] = {"ok": reply.ok, "payload": reply.value}
    if event.type.startswith("@"):
        body["engine"] = True
    return body


def family(record: Family) -> wire_run.Family:
    groups = record.ancestors, record.children, record.links, record.monitors, record.watched_by, record.forks
    ancestors, children, links, monitors, watched_by, forks = ([_relative(row) for row in rows] for rows in groups)
    return {
        "itself": _relative(record.itself),
        "ancestors": ancestors,
        "children": children,
        "links": links,
        "monitors": monitors,
        "watchedBy": watched_by,
        "forks": forks,
    }


def _relative(row: Any) -> wire_run.Relative:
    return {
        "pid": row.pid,
        "workflowName": row.workflow,
        "id": row.instance_id,
        "runNumber": row.number,
        "status": Status(row.status),
        "createdAt": date(from_ms(row.created_at)),
        "completedAt": optional_date(optional_from_ms(row.completed_at)),
    }
