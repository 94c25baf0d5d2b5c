"""What the engine asks of a database: intents in batches, every write fenced.

A store keeps these kinds of rows. A **run** is one execution of an instance (a restart, a retry, a tick of a schedule
makes a new run with the next number; the one with the highest number is current). A **fact** is one thing that happened
in a run; facts are only ever added, except that the HEARTBEAT of an attempt is overwritten by its next one. A **task**
is the run's place in the queue: when it is due, who holds it, and under which epoch. An **event** is a message to a
run. A **log** line is what the code said. A **watch** says who is to be told when a run ends.

Between runs
------------
All that one run does to another is an ``Act``: applied in the transaction of the commit that carries it, under the
fence of who does it, together with the fact that says what came of it. So it happens exactly once, whoever crashes
when, and needs no key of its own. All that reaches a run from others is mail. The engine's own mail has topics that
begin with ``@`` (``EXIT``, ``REPLY``, ``CANCEL``); users cannot send to those, and they wake a run whatever it waits
for, unless it is paused.

How a run ends
--------------
By ``Finish`` in a commit, by ``terminate`` or ``restart``, by an act, to make room for another, by its parent's end; a
graph also by ``cancel``. In
the same transaction, if no run comes after it: whoever watches it gets an ``EXIT`` event (or watches the one that comes
after). And its living children are treated as their ``parent_close`` says (unless ``NextRun.continues``): those that
are terminated by this in the same way, down to the last.

The fence
---------
Each claim raises the task's ``epoch`` and sets its ``owner``. Every write of a turn names both, and the store
applies it only if they still match, in the same transaction. A turn that lost its lease changes nothing and is told
``LOST``. What the fence does *not* prevent: the loser's step functions may have run, or may still be running, in
the outside world. Steps are therefore at-least-once; only their recorded result is exactly-once.

Time is in integer milliseconds since 1970 by the store's own clock, and never goes through a worker's.
Payloads are bytes of ASCII JSON, encoded and decoded elsewhere.

What the conformance suite (``tests/store``) does not say is not part of this contract.
"""

from holdfast.store.protocol.commits import (
    Act,
    AnswerEvent,
    CancelRun,
    Commit,
    Committed,
    Deed,
    Finish,
    Follows,
    LiveTransaction,
    NextRun,
    Observed,
    Park,
    Release,
    Statement,
    TerminateRun,
    UnwatchRun,
    Verdict,
    WatchRun,
)
from holdfast.store.protocol.facts import (
    ANY_TOPIC,
    CANCEL,
    EXIT,
    REPLY,
    Delivery,
    Fact,
    FactState,
    Log,
    Mail,
    Mailbag,
    StoredLog,
    reason_of,
)
from holdfast.store.protocol.outbox import Delivered, Outbound, OutboxClaim, OutboxRow, Undelivered
from holdfast.store.protocol.reads import Condition, ListQuery, Migrated, PageQuery, Relations, Relative, Steered
from holdfast.store.protocol.runs import (
    ABOUT_NOW_MS,
    FIRST_EPOCH,
    Answer,
    Attributes,
    Claimant,
    Created,
    Expiry,
    Foreseen,
    Letter,
    NewEvent,
    NewRun,
    OnConflict,
    OnReuse,
    ParentClose,
    Reply,
    RunRecord,
    Sent,
    Term,
    Touched,
    Watch,
)
from holdfast.store.protocol.store import Store
from holdfast.store.protocol.tasks import (
    SUSPECT_LOSSES,
    Claim,
    ClaimRequest,
    ClaimResult,
    Freed,
    Heartbeat,
    Held,
    Lease,
    Signal,
    Snapshot,
    WorkerCard,
    WorkerRecord,
)
from holdfast.store.protocol.units import GRAPH, Advance, Advanced, GiveBack, NewUnit, Opening, TaskRef

__all__ = [
    "ABOUT_NOW_MS",
    "ANY_TOPIC",
    "CANCEL",
    "EXIT",
    "FIRST_EPOCH",
    "GRAPH",
    "REPLY",
    "SUSPECT_LOSSES",
    "Act",
    "Advance",
    "Advanced",
    "Answer",
    "AnswerEvent",
    "Attributes",
    "CancelRun",
    "Claim",
    "ClaimRequest",
    "ClaimResult",
    "Claimant",
    "Commit",
    "Committed",
    "Condition",
    "Created",
    "Deed",
    "Delivered",
    "Delivery",
    "Expiry",
    "Fact",
    "FactState",
    "Finish",
    "Follows",
    "Foreseen",
    "Freed",
    "GiveBack",
    "Heartbeat",
    "Held",
    "Lease",
    "Letter",
    "ListQuery",
    "LiveTransaction",
    "Log",
    "Mail",
    "Mailbag",
    "Migrated",
    "NewEvent",
    "NewRun",
    "NewUnit",
    "NextRun",
    "Observed",
    "OnConflict",
    "OnReuse",
    "Opening",
    "Outbound",
    "OutboxClaim",
    "OutboxRow",
    "PageQuery",
    "ParentClose",
    "Park",
    "Relations",
    "Relative",
    "Release",
    "Reply",
    "RunRecord",
    "Sent",
    "Signal",
    "Snapshot",
    "Statement",
    "Steered",
    "Store",
    "StoredLog",
    "TaskRef",
    "Term",
    "TerminateRun",
    "Touched",
    "Undelivered",
    "UnwatchRun",
    "Verdict",
    "Watch",
    "WatchRun",
    "WorkerCard",
    "WorkerRecord",
    "reason_of",
]
