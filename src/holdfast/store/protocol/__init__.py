"""The store protocol: what the engine requires of a database.

A method of ``Store`` is an intent: one transaction, usually for a batch. Every write of a turn is fenced.

A store keeps these kinds of rows. A **run** is one execution of an instance. A restart, a retry of the workflow and a
tick of a schedule each create a new run with the next number; the run with the highest number is current. A **fact** is
one row of a run's history. Facts are added and never changed, except that the HEARTBEAT of an attempt is overwritten by
the next one. A **task** is the queue row of a run: when it is due, which worker owns it, and under which epoch. An
**event** is a typed payload addressed to a run. A **log** is a line that the run's code logged. A **watch** names a run
that receives an event when another run ends.

Between runs
------------
Every effect of a run on another run is an ``Operation``. The store applies it in the transaction of the commit that
carries it, under the fence of the run that commits, and writes the fact with its result in the same transaction.
An operation therefore happens exactly once, whichever process crashes, and needs no idempotency key. Everything that a
run receives from other runs is an event. The engine's own events have topics that begin with ``@`` (``EXIT``,
``REPLY``, ``CANCEL``, ``RESOLVE``). Users cannot send to these topics. Engine events wake a run whatever it waits for,
unless it is paused.

How a run ends
--------------
A run ends by ``Finish`` in a commit, by ``TerminateRun`` or ``RestartRun``, by a start that terminates the existing
run, or by the end of its parent. A graph also ends by ``CancelRun``. The same transaction notifies the watchers: each
receives an ``EXIT`` event, or watches the successor if there is one. The same transaction also applies
``parent_close`` to the children that have not ended (unless ``NextRun.continues``). A child that is terminated by this
rule is treated in the same way, with all its descendants.

The fence
---------
Each claim increments the task's ``epoch`` and sets its ``owner``. Every write of a turn names both, and the store
applies the write only if they still match, in the same transaction. A turn that lost its lease writes nothing and
receives ``LOST``. The fence does *not* prevent the step functions of such a turn from having run, or from still
running. Steps are therefore executed at least once; only their recorded result is exactly-once.

Times are integer milliseconds since 1970 by the store's clock, never by a worker's clock.
Payloads are bytes of JSON in UTF-8. The store neither encodes nor decodes them.

The conformance suite (``tests/store``) defines this contract: what the suite does not test is not part of it.
"""

from holdfast.core.facts import (
    ANY_TOPIC,
    CANCEL,
    EXIT,
    REPLY,
    RESOLVE,
    Delivery,
    Fact,
    FactState,
    Log,
    MailboxPage,
    StoredEvent,
    StoredLog,
    Watch,
    cancel_reason,
)
from holdfast.core.statement import Statement
from holdfast.store.protocol.bulk import (
    BulkJobById,
    BulkJobRow,
    BulkRequest,
    NewBulkJob,
    SaveBulkJob,
    TakeBulkJobs,
)
from holdfast.store.protocol.commits import (
    NOTHING_FOLLOWS,
    PLAINLY_APPLIED,
    Commit,
    Committed,
    Finish,
    Following,
    LateResults,
    LiveTransaction,
    NextRun,
    Observed,
    Operation,
    Park,
    RecordedOperation,
    Release,
    ReplyToEvent,
    UnwatchRun,
    Verdict,
    WatchRun,
)
from holdfast.store.protocol.control import (
    DONE,
    DUPLICATE,
    REFUSED,
    Audit,
    AuditQuery,
    AuditRow,
    CancelRun,
    ContinueRun,
    ControlRequest,
    ControlResult,
    DeleteInstance,
    MoveRun,
    PauseRun,
    RecordAction,
    RedeliverOutbox,
    ReplyByHand,
    ResolveStep,
    ResolveUnit,
    RestartRun,
    ResumeRun,
    SendEvent,
    TerminateRun,
    audited_outcome,
)
from holdfast.store.protocol.failovers import Failovers
from holdfast.store.protocol.outbox import (
    ClaimOutbox,
    Delivered,
    DeliveryFailure,
    Outbound,
    OutboxClaim,
    OutboxQuery,
    OutboxRow,
    SettleOutbox,
)
from holdfast.store.protocol.permits import (
    ChangeLimit,
    DeclareLimits,
    GrantedPermit,
    LimitKey,
    LimitKeysQuery,
    LimitKeyUse,
    LimitKeyUses,
    LimitRecord,
    LimitRequest,
    LimitValues,
    Pace,
    PermitExchange,
    PermitPosition,
    PermitPositionsQuery,
    PermitReply,
    PermitRequest,
    PermitResult,
    PermitReturn,
    ReadLimits,
    StoredLimit,
    declared_text,
    ordered_limits,
)
from holdfast.store.protocol.prune import LARGE_RUN, LEFTOVER_ROWS, Pruned, PrunePosition, PruneRuns
from holdfast.store.protocol.queues import (
    DeclareQueues,
    DrainWorker,
    MoveQueue,
    PauseQueue,
    QueueRecord,
    QueueReply,
    QueueRequest,
    ReadQueues,
)
from holdfast.store.protocol.reads import (
    Condition,
    CurrentRuns,
    EventsQuery,
    FactsQuery,
    LogsQuery,
    MailboxQuery,
    Migrated,
    RelatedRun,
    Relations,
    RelationsQuery,
    RepliesQuery,
    ReplyQuery,
    RunByName,
    RunQuery,
    RunsById,
    SnapshotQuery,
    VersionsQuery,
    WorkersQuery,
)
from holdfast.store.protocol.requests import MaintenanceRequest, OutboxRequest, Query
from holdfast.store.protocol.runs import (
    FIRST_EPOCH,
    MAX_CLOCK_SKEW_MS,
    AffectedRuns,
    Attributes,
    Claimant,
    Created,
    Expiry,
    NewEvent,
    NewRun,
    OnConflict,
    OnReuse,
    ParentClose,
    Prediction,
    Reply,
    RequestResult,
    RunRecord,
    Sent,
    StartEvent,
    Term,
    damaged_record,
)
from holdfast.store.protocol.schedules import (
    KEPT_TICKS,
    MAX_QUEUED,
    OPEN_TICKS,
    REMOVED,
    DueQuery,
    DueSchedules,
    ScheduleByName,
    ScheduleChange,
    ScheduleChanged,
    SchedulePage,
    ScheduleQuery,
    ScheduleRow,
    TickRow,
    TickState,
)
from holdfast.store.protocol.start_policies import (
    REPLACED,
    SINGLE,
    SUPERSEDED,
    BatchedStart,
    DebouncedStart,
    LimitedStart,
    OnSingleton,
    SingletonStart,
    StartPolicy,
    dropped_reason,
    gather_key,
    single_of,
)
from holdfast.store.protocol.stats import (
    AttentionCount,
    ErrorCount,
    MinuteCount,
    QueueCount,
    RunCount,
    StatsQuery,
    StepTimes,
    StoreStats,
    Tally,
)
from holdfast.store.protocol.store import Store
from holdfast.store.protocol.streams import StreamHeadsQuery, StreamQuery
from holdfast.store.protocol.tasks import (
    SUSPECT_LOSSES,
    Claim,
    ClaimRequest,
    ClaimResult,
    ExpiredTask,
    Heartbeat,
    HeldTask,
    Lease,
    Signal,
    Snapshot,
    VersionCount,
    WorkerProfile,
    WorkerRecord,
)
from holdfast.store.protocol.units import GRAPH, Advance, Advanced, MissingDecrement, NewUnit, TaskRef, UnitRelease

__all__ = [
    "ANY_TOPIC", "CANCEL", "DONE", "DUPLICATE", "EXIT", "FIRST_EPOCH", "GRAPH", "KEPT_TICKS", "LARGE_RUN",
    "LEFTOVER_ROWS", "MAX_CLOCK_SKEW_MS", "MAX_QUEUED", "NOTHING_FOLLOWS", "OPEN_TICKS", "PLAINLY_APPLIED",
    "REFUSED", "REMOVED", "REPLACED", "REPLY", "RESOLVE", "SINGLE", "SUPERSEDED", "SUSPECT_LOSSES", "Advance",
    "Advanced", "AffectedRuns", "AttentionCount", "Attributes", "Audit", "AuditQuery", "AuditRow", "BatchedStart",
    "BulkJobById", "BulkJobRow", "BulkRequest", "CancelRun", "ChangeLimit", "Claim", "ClaimOutbox", "ClaimRequest",
    "ClaimResult", "Claimant", "Commit", "Committed", "Condition", "ContinueRun", "ControlRequest", "ControlResult",
    "Created", "CurrentRuns", "DebouncedStart", "DeclareLimits", "DeclareQueues", "DeleteInstance", "Delivered",
    "Delivery", "DeliveryFailure", "DrainWorker", "DueQuery", "DueSchedules", "ErrorCount", "EventsQuery",
    "ExpiredTask", "Expiry", "Fact", "FactState", "FactsQuery", "Failovers", "Finish", "Following", "GrantedPermit",
    "Heartbeat", "HeldTask", "LateResults", "Lease", "LimitKey", "LimitKeyUse", "LimitKeyUses",
    "LimitKeysQuery", "LimitRecord", "LimitRequest", "LimitValues",
    "LimitedStart", "LiveTransaction", "Log", "LogsQuery", "MailboxPage", "MailboxQuery", "MaintenanceRequest",
    "Migrated", "MinuteCount", "MissingDecrement", "MoveQueue", "MoveRun", "NewBulkJob", "NewEvent", "NewRun",
    "NewUnit", "NextRun", "Observed", "OnConflict", "OnReuse", "OnSingleton", "Operation", "Outbound",
    "OutboxClaim", "OutboxQuery", "OutboxRequest", "OutboxRow", "Pace", "ParentClose", "Park", "PauseQueue",
    "PauseRun", "PermitExchange", "PermitPosition", "PermitPositionsQuery", "PermitReply",
    "PermitRequest", "PermitResult", "PermitReturn", "Prediction", "PrunePosition", "PruneRuns", "Pruned", "Query",
    "QueueCount", "QueueRecord", "QueueReply", "QueueRequest", "ReadLimits", "ReadQueues", "RecordAction",
    "RecordedOperation", "RedeliverOutbox", "RelatedRun", "Relations", "RelationsQuery", "Release", "RepliesQuery",
    "Reply", "ReplyByHand", "ReplyQuery", "ReplyToEvent", "RequestResult", "ResolveStep", "ResolveUnit",
    "RestartRun", "ResumeRun", "RunByName", "RunCount", "RunQuery", "RunRecord", "RunsById", "SaveBulkJob",
    "ScheduleByName", "ScheduleChange", "ScheduleChanged", "SchedulePage", "ScheduleQuery", "ScheduleRow",
    "SendEvent", "Sent", "SettleOutbox", "Signal", "SingletonStart", "Snapshot", "SnapshotQuery", "StartEvent",
    "StartPolicy", "Statement", "StatsQuery", "StepTimes", "Store", "StoreStats", "StoredEvent", "StoredLimit",
    "StoredLog", "StreamHeadsQuery", "StreamQuery", "TakeBulkJobs", "Tally", "TaskRef", "Term", "TerminateRun",
    "TickRow", "TickState", "UnitRelease", "UnwatchRun", "Verdict", "VersionCount", "VersionsQuery", "Watch",
    "WatchRun", "WorkerProfile", "WorkerRecord", "WorkersQuery", "audited_outcome", "cancel_reason",
    "damaged_record", "declared_text", "dropped_reason", "gather_key", "ordered_limits", "single_of",
]  # fmt: skip
