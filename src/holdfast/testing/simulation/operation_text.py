"""The text of an operation of the store in a trace."""

from __future__ import annotations

from typing import Any

from holdfast.store.protocol import (
    AuditQuery,
    BulkJobById,
    CancelRun,
    ClaimOutbox,
    Commit,
    Committed,
    ContinueRun,
    CurrentRuns,
    DeleteInstance,
    DueQuery,
    EventsQuery,
    FactsQuery,
    LogsQuery,
    MailboxQuery,
    MoveRun,
    NewBulkJob,
    OutboxQuery,
    PauseRun,
    PermitPositionsQuery,
    PruneRuns,
    RecordAction,
    RelationsQuery,
    RepliesQuery,
    ReplyByHand,
    ReplyQuery,
    ResolveStep,
    ResolveUnit,
    RestartRun,
    ResumeRun,
    RunByName,
    RunsById,
    SaveBulkJob,
    ScheduleByName,
    ScheduleChange,
    ScheduleChanged,
    SchedulePage,
    SendEvent,
    SettleOutbox,
    SnapshotQuery,
    StatsQuery,
    StreamHeadsQuery,
    StreamQuery,
    TakeBulkJobs,
    Tally,
    TerminateRun,
    VersionsQuery,
    WorkersQuery,
)
from holdfast.store.protocol.streams import PruneStreams

_REQUESTS: dict[type, str] = {
    PauseRun: "pause",
    ResumeRun: "resume",
    TerminateRun: "terminate",
    CancelRun: "cancel",
    RestartRun: "restart",
    ContinueRun: "continue",
    ReplyByHand: "reply",
    ResolveStep: "resolve",
    ResolveUnit: "resolve unit of",
    DeleteInstance: "delete",
    MoveRun: "move",
    SendEvent: "send an event to",
    RecordAction: "note",
    NewBulkJob: "new_bulk_job",
    TakeBulkJobs: "take_bulk_jobs",
    SaveBulkJob: "save_bulk_job",
    BulkJobById: "bulk_job",
    RunByName: "find",
    RunsById: "get",
    CurrentRuns: "list",
    FactsQuery: "facts",
    EventsQuery: "events",
    LogsQuery: "logs",
    SnapshotQuery: "load",
    MailboxQuery: "undelivered",
    ReplyQuery: "reply",
    RepliesQuery: "replies",
    AuditQuery: "audit",
    RelationsQuery: "relations",
    WorkersQuery: "workers",
    VersionsQuery: "versions",
    StatsQuery: "stats",
    PermitPositionsQuery: "permit_positions",
    OutboxQuery: "outbox",
    ScheduleByName: "schedules",
    SchedulePage: "schedules",
    DueQuery: "due_schedules",
    StreamQuery: "read_stream",
    StreamHeadsQuery: "streams",
    ClaimOutbox: "claim_outbox",
    SettleOutbox: "settle_outbox",
    PruneRuns: "prune",
    PruneStreams: "prune_streams",
    Tally: "tally",
}


def operation_name(operation: str, args: tuple[Any, ...]) -> str:
    """The name of a call in traces and in the places of faults. An intent with several requests has a name for each."""
    return _REQUESTS.get(type(args[0]), operation) if args else operation


def operation_text(operation: str, args: tuple[Any, ...], answer: Any) -> str:
    return f"{operation_name(operation, args)} {_details(operation, args, answer)}".rstrip()


def _details(operation: str, args: tuple[Any, ...], answer: Any) -> str:
    match operation:
        case "commit":
            return "; ".join(_commit_text(commit, done) for commit, done in zip(args[0], answer, strict=True))
        case "claim":
            return ", ".join(f"run {c.task.run} epoch {c.task.epoch}" for c in [*answer.claims, *answer.overdue])
        case "create":
            return ", ".join(f"{c.run.pid} (run {c.run.run}, {c.result})" for c in answer)
        case "send":
            return ", ".join(f"{e.type} to {e.instance_id}" for e in args[0])
        case "control":
            return str(args[0].instance_id)
        case "reap":
            return ", ".join(f"run {f.run} ({f.losses} losses)" for f in answer)
        case "bulk":
            return ", ".join(row.id for row in answer)
        case "change_schedules":
            return "; ".join(_change_text(change, done) for change, done in zip(args[0], answer, strict=True))
        case "heartbeat" | "fetch_signals":
            return ", ".join(f"run {h.run} epoch {h.epoch} signal {int(h.signal)}" for h in answer)
        case _:
            return ""


def _change_text(change: ScheduleChange, done: ScheduleChanged) -> str:
    ticks = ", ".join(f"{tick.instance_id} {tick.state}" for tick in change.ticks)
    return f"{change.name} revision {change.revision} [{ticks}]{'' if done.applied else ' refused'}"


def _commit_text(commit: Commit, done: Committed) -> str:
    facts = ", ".join(f"{'+' if f.ok else '-'}{f.key}" for f in [*commit.observed.facts, *commit.following.facts])
    operations = ", ".join(type(recorded.operation).__name__ for recorded in commit.following.operations)
    after = commit.following.next
    parts = [facts, operations, "" if after is None else type(after).__name__.lower()]
    return f"run {commit.task.run} epoch {commit.task.epoch} [{'; '.join(p for p in parts if p)}] {done.verdict}"
